"""How many supervisors the launcher keeps for the next attempts."""

import os
import socket
import time

import pytest

from gnode.supervisor.child import Surroundings
from gnode.supervisor.pool import PooledSupervisor, SupervisorPool


class ForklessPool(SupervisorPool):
    """A pool whose supervisors are only the far ends of their channels."""

    def __init__(self) -> None:
        super().__init__(Surroundings())
        self.far_ends: dict[PooledSupervisor, socket.socket] = {}

    def _fork(self) -> PooledSupervisor:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)  # noqa: FBT003 - the socket's own signature
        worker = PooledSupervisor(os.getpid(), ours)
        self.far_ends[worker] = theirs
        return worker

    def run(self, count: int) -> None:
        """Run so many attempts at the same time."""
        workers = [self.start(f"{number}.1", "/nowhere", fresh=False)[0] for number in range(count)]
        for worker in workers:
            self.far_ends[worker].recv(4096)
            self.far_ends[worker].send(b"D")
            assert self.finished(worker) is not None

    def kept(self) -> int:
        """Return how many supervisors were not let go."""
        return sum(not _is_closed(end) for end in self.far_ends.values())

    def close(self) -> None:
        for worker, end in self.far_ends.items():
            worker.channel.close()
            end.close()


def _is_closed(end: socket.socket) -> bool:
    try:
        return not end.recv(4096)
    except BlockingIOError:
        return False


def test_as_many_are_kept_as_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    pool = ForklessPool()
    try:
        pool.run(40)
        pool.run(40)
        assert len(pool.far_ends) == pool.kept() == 40

        for kept in (40, 40, 16, 16):  # the last two periods count
            pool.trim()
            assert pool.kept() == kept
            now_s[0] += 11.0
        pool.run(20)
        assert (len(pool.far_ends), pool.kept()) == (44, 20)
    finally:
        pool.close()
