"""Users who submit, hold, release, delete and look, and note when and what they were answered."""

import itertools
import math
import random
import threading
import time
from collections import deque
from functools import partial
from typing import Final, Self

from gsched.cli.common import READ_PATIENCE_S
from gsched.client import HeadClient, new_job
from gsched.errors import GschedError, StandsByError
from gsched.model.states import JobState
from gsched.protocol.actions import AnyJobAction, DeleteJob, HoldJob, ReleaseJob
from scripts.reproduce import failover_history as h
from scripts.reproduce.failover_history import Operation

PATIENCE_S: Final = 0.2
RETRY_S: Final = 0.02
STUCK_S: Final = 10.0
READ_EVERY_S: Final = 0.1
READERS: Final = 4
RECENT: Final = 100
CHANGES: Final[dict[str, type[HoldJob] | type[ReleaseJob] | type[DeleteJob]]] = {
    "hold": HoldJob,
    "release": ReleaseJob,
    "delete": DeleteJob,
}
_STATES: Final[dict[str, str]] = {
    JobState.QUEUED: h.QUEUED,
    JobState.HELD: h.HELD,
    JobState.RUNNING: h.RUNNING,
    JobState.EXITING: h.RUNNING,
    JobState.DONE: h.DONE,
}


class Users:
    """All of them, each in a thread.

    Submissions and changes go to the head that rules, as those of commands with both addresses.
    Reads go to one head, whichever it is.

    Args:
        sockets: of the heads.
        rate: submissions a second of all users together.
        count: of users.
        seed: of what they do.

    Attributes:
        operations: the history, in the order of answers.
        acknowledged: jobs by key.
        times_s: when submissions were acknowledged.
        reads: when somebody who knows both heads was answered, and whether with a warning.
    """

    def __init__(self, sockets: tuple[str, ...], *, rate: float, count: int, seed: int) -> None:
        self._sockets = sockets
        self._over = threading.Event()
        self._slots = itertools.count()
        self._rate = rate
        self._begun_s = time.monotonic()
        self.operations: list[Operation] = []
        self.acknowledged: dict[str, int] = {}
        self.times_s: list[float] = []
        self.reads: list[tuple[float, bool]] = []
        self.unread: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + at),), daemon=True)
            for at in range(count)
        ]
        self._recent: deque[str] = deque(maxlen=RECENT)
        readers = [partial(self._peek, random.Random(seed - at)) for at in range(READERS)]
        for work in (self._look, *readers):
            self._threads.append(threading.Thread(target=work, daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(STUCK_S)

    def _run(self, chance: random.Random) -> None:
        client = HeadClient(",".join(self._sockets), patience_s=PATIENCE_S)
        while not self._over.is_set():
            slot_s = self._begun_s + next(self._slots) / self._rate
            if self._over.wait(max(0.0, slot_s - time.monotonic())):
                return
            job = self._submit(client, is_held=chance.random() < 0.5)
            if job is None:
                return
            self._recent.append(job)
            for verb in chance.choices(list(CHANGES), k=chance.randrange(3)):
                self._change(client, job, verb)

    def _peek(self, chance: random.Random) -> None:
        """Read what is known of a job at one head."""
        warned: list[str] = []
        clients = [HeadClient(each, patience_s=PATIENCE_S) for each in self._sockets]
        for client in clients:
            client.transport.on_warning = warned.append
        while not self._over.wait(READ_EVERY_S / READERS):
            if self._recent:
                self._read(
                    chance.choice(clients),
                    self._recent[-1 - chance.randrange(8) % len(self._recent)],
                    warned,
                )

    def _submit(self, client: HeadClient, *, is_held: bool) -> str | None:
        holds = ("user",) if is_held else ()
        job = new_job(name="failover", workdir="/", script="true", holds=holds)
        begun_s = time.monotonic()
        while not self._over.wait(RETRY_S):
            try:
                reply = client.submit([job])
            except GschedError:
                continue  # the key is known if it was done
            if reply.results[0].error is not None:
                continue
            ended_s, number = time.monotonic(), reply.results[0].id
            self.acknowledged[job.key] = number
            self.times_s.append(ended_s)
            self._note(str(number), "submit", h.HELD if is_held else h.QUEUED, begun_s, ended_s)
            return str(number)
        return None

    def _change(self, client: HeadClient, job: str, verb: str) -> None:
        begun_s = time.monotonic()
        action: AnyJobAction = CHANGES[verb](ids=(job,))
        try:
            reply = client.act(action)
        except StandsByError:
            return  # nobody has taken it
        except GschedError:
            self._note(job, verb, h.UNKNOWN, begun_s, math.inf)
            return
        error = reply.results[0].error
        if error is not None and error.code == "try_again":
            self._note(job, verb, h.UNKNOWN, begun_s, math.inf)
            return
        result = "ok" if error is None else h.REFUSED
        self._note(job, verb, result, begun_s, time.monotonic())

    def _read(self, client: HeadClient, job: str, warned: list[str]) -> None:
        begun_s = time.monotonic()
        warned.clear()
        try:
            reply = client.jobs([job])
        except GschedError:
            return
        if warned:
            return  # what a head that stands by shows is old, and it says so
        state = _STATES[reply.jobs[0].state] if reply.jobs else h.ABSENT
        self._note(job, "read", state, begun_s, time.monotonic())

    def _note(self, job: str, verb: str, result: str, begun_s: float, ended_s: float) -> None:
        self.operations.append(
            Operation(job=job, verb=verb, result=result, begun_s=begun_s, ended_s=ended_s)
        )

    def _look(self) -> None:
        """Read again and again, as a command with the addresses of both heads."""
        warned: list[str] = []
        while not self._over.wait(READ_EVERY_S):
            client = HeadClient(",".join(self._sockets), patience_s=READ_PATIENCE_S)
            client.transport.on_warning = warned.append
            try:
                client.nodes()
            except GschedError as error:
                self.unread.append(str(error))
                continue
            self.reads.append((time.monotonic(), bool(warned)))
            warned.clear()
