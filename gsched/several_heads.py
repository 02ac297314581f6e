"""Which of several heads rules: the next one is asked as soon as one is slow.

A head that is stopped, or whose host is dead, is silent for as long as one waits for it. So it is
not waited for before the others are asked.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from gsched.errors import HeadUnreachableError, NotPermittedError

#: Silence of a head after which the next one is asked, too. A head answers within 30 ms.
SLOW_S: Final = 0.25
#: How long what only reads waits for others when a head that stands by has answered.
READ_S: Final = 1.0

Head = TypeVar("Head")
Failure = HeadUnreachableError | NotPermittedError


def find(
    heads: Sequence[Head],
    health: Callable[[Head], str],
    *,
    reads: bool,
    may_prompt: Callable[[Head], object],
) -> tuple[Head | None, Head | None, list[Failure]]:
    """Ask heads until one rules or each has answered.

    Args:
        heads: in the order in which they are asked, at least one.
        health: returns the head that rules as a head knows it, empty if that is itself; ends by
            itself if a head is silent.
        reads: a head that stands by will do.
        may_prompt: whether the connection may ask the user for a password: no other head is asked
            meanwhile.

    Returns:
        The head that rules, the first one that stands by, and the errors of those that do not
        answer.

    Raises:
        GschedError: an answer that no head gives.
    """
    answers: queue.SimpleQueue[tuple[Head, str | Exception]] = queue.SimpleQueue()
    to_ask, open_questions = list(heads), 0
    standby: Head | None = None
    failures: list[Failure] = []
    while to_ask or open_questions:
        wait_s = READ_S if standby is not None and reads else None
        if to_ask:
            head = to_ask.pop(0)
            threading.Thread(target=_ask, args=(head, health, answers), daemon=True).start()
            open_questions += 1
            if to_ask and not may_prompt(head):
                wait_s = SLOW_S
        try:
            head, answer = answers.get(timeout=wait_s)
        except queue.Empty:
            if to_ask:
                continue
            break
        open_questions -= 1
        if isinstance(answer, Failure):
            failures.append(answer)
        elif isinstance(answer, Exception):
            raise answer
        elif not answer:
            return head, standby, failures
        else:
            standby = standby or head
    return None, standby, failures


def _ask(
    head: Head,
    health: Callable[[Head], str],
    answers: "queue.SimpleQueue[tuple[Head, str | Exception]]",
) -> None:
    try:
        answers.put((head, health(head)))
    except Exception as error:  # noqa: BLE001 - it is raised or returned by `find`
        answers.put((head, error))
