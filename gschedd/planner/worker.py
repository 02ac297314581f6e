"""The process in which policies run: it answers one question after the other until its head ends.

It is started by `gschedd.planner.process` as ``python -m gschedd.planner.worker FD NAME``, where FD
is its end of a socket pair. Whatever comes there was pickled by the head that has started it.
"""

import gsched.start  # isort: skip - before all that it speeds up

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import Final

from gsched.clock import SystemClock
from gschedd.core.cycle.rounds import Answer, Answerer, Failed, Question
from gschedd.core.forecast.start import (
    AskAll,
    AskStart,
    ForecastAnswer,
    ForecastQuestion,
    answer_to,
)
from gschedd.planner.messages import HEADER, READY, Begin

#: Starts of other jobs are checked for so long in one round, seconds; at least one is.
CHECKS_S: Final = 5.0
#: How long the policy may take for the start of one job, seconds; then it is unknown.
START_S: Final = 10.0
#: The head answers people; what runs beside it gives way to it.
NICENESS: Final = 5
#: Where memory runs out, the planner is killed rather than the head: it is started again.
OOM_SCORE: Final = 500
_PR_SET_PDEATHSIG: Final = 1
_LAST_LINES: Final = 12  # of a traceback


def main(descriptor: int) -> None:
    """Answer until the other end is closed."""
    gsched.start.imported()
    channel = socket.socket(fileno=descriptor)
    begin = _receive(channel)
    if not isinstance(begin, Begin):
        return
    _settle_in(begin.head)
    answerer = Answerer(begin.policy)
    _send(channel, READY)
    while True:
        question = _receive(channel)
        if question is None or isinstance(question, Begin):
            return
        _send(channel, _answer(begin, answerer, question))


def _settle_in(head: int) -> None:
    """Give way to the head, die with it, and leave the terminal's signals to it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != head:
        sys.exit()  # it has died before that
    os.nice(NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))


def _answer(
    begin: Begin, answerer: Answerer, question: Question | ForecastQuestion
) -> Answer | ForecastAnswer:
    clock = SystemClock()
    longest_s = START_S if isinstance(question, AskStart) else CHECKS_S
    until_s = clock.monotonic_s() + min(longest_s, begin.time_limit_s / 2)

    def may_go_on() -> bool:
        return clock.monotonic_s() < until_s

    try:
        if isinstance(question, AskStart | AskAll):
            return answer_to(question, begin.policy, may_go_on)
        return answerer.answer(question, may_go_on)
    except Exception:  # noqa: BLE001 # whatever a policy raises: the head logs it
        lines = traceback.format_exc().strip().splitlines()
        return Failed(number=question.number, why="\n".join(lines[-_LAST_LINES:]), raised=True)


def _receive(channel: socket.socket) -> Question | ForecastQuestion | Begin | None:
    header = _exactly(channel, HEADER.size)
    if header is None:
        return None
    body = _exactly(channel, HEADER.unpack(header)[0])
    if body is None:
        return None
    message: Question | ForecastQuestion | Begin = pickle.loads(body)  # noqa: S301 - by the head, on a socket pair made before this process
    return message


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _send(channel: socket.socket, message: object) -> None:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    channel.sendall(HEADER.pack(len(body)) + body)


if __name__ == "__main__":
    main(int(sys.argv[1]))
