"""The launcher's supervisors: forked once, used for one attempt after the other.

A fresh fork copies hundreds of pages before it has done anything; a supervisor that has just
ended an attempt has all of them. So it requests another one instead of exiting, and only its
death is an event. While it has an attempt, it depends on nobody: if the launcher is gone, it
finishes and exits.

It does not flush the exit record itself: the launcher and gnode do, for many attempts at once. Only
if the launcher is gone, or goes before it has told of the next attempt, nobody else may.
"""

import array
import os
import signal
import socket
import struct
import sys
import time
from typing import NoReturn

from gnode.supervisor import kernel, native, proc, spool, supervise
from gnode.supervisor.child import Surroundings
from gnode.supervisor.privilege import PrivilegeRules
from gsched import failpoint

_IDLE_LEAST = 16  # each holds some 3 MB; more are kept while as many attempts run at a time
_PERIOD_S = 10.0  # for which the most attempts at a time are kept in mind
_ATTEMPTS_MAX = 500  # then a fresh one: whatever leaks stays small
_NAME_BYTES_MAX = 64
_DONE, _FOREIGN = b"D", b"F"
_ANSWER_BYTES_MAX = 1 << 15  # longer records are read from the journal
_CHANNEL_FD = 3
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_FDS = struct.Struct("ii")
_FDS_SPACE = socket.CMSG_SPACE(_FDS.size)


class PooledSupervisor:
    """One supervisor process, seen from the launcher.

    Attributes:
        confined: ``no_new_privs`` is set; its children inherit it, and it cannot be cleared.
        name: of its attempt, the empty string while it is idle.
        left: how many attempts it may still have.
    """

    __slots__ = ("channel", "confined", "left", "name", "pid", "start_ticks")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.start_ticks = proc.start_ticks(pid)
        self.confined = False
        self.name = ""
        self.left = _ATTEMPTS_MAX

    def is_new(self) -> bool:
        """Return whether its present attempt is its first."""
        return self.left >= _ATTEMPTS_MAX - 1


class SupervisorPool:
    """All supervisors that this launcher has forked and that live."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.by_pid: dict[int, PooledSupervisor] = {}
        self.by_fd: dict[int, PooledSupervisor] = {}
        self.by_name: dict[str, PooledSupervisor] = {}
        self._idle: list[PooledSupervisor] = []
        self._idle_confined: list[PooledSupervisor] = []
        self._most_busy = self._most_busy_before = 0
        self._period_since_s = time.monotonic()

    def start(
        self,
        name: str,
        directory: str,
        opened: tuple[int, int] | None = None,
        *,
        fresh: bool,
        confined: bool = False,
    ) -> tuple[PooledSupervisor, bool]:
        """Give an attempt to a supervisor; return it and whether it is a new process.

        Args:
            name: of the attempt.
            directory: its spool.
            opened: what `spool.open_task` has returned for it, which the supervisor gets: it need
                not be looked at twice. The caller closes it.
            fresh: fork, even if a supervisor is idle.
            confined: nothing that the supervisor starts may gain rights, so it gives them up
                itself; it is not used for other attempts any more.

        Raises:
            OSError: no process can be forked.
        """
        while not fresh and (worker := self._take_idle(confined=confined)):
            if self._send(worker, name, directory, opened, confined=confined):
                return worker, False
        worker = self._fork()
        self._send(worker, name, directory, opened, confined=confined)
        return worker, True

    def take_library(self, path: str) -> None:
        """Let attempts from now on have the library that runs plain jobs; empty: none has it.

        What is forked from now on has it from this process, so all others are used up.
        """
        before = native.loaded()
        if why := native.load(path):
            spool.log(f"launcher: plain jobs are run without the native supervisor: {why}")
        if native.loaded() == before:
            return
        for worker in self.by_pid.values():
            worker.left = 0
        for idle in (self._idle, self._idle_confined):
            self._let_go(idle, len(idle))

    def trim(self) -> None:
        """Let idle supervisors go that the last periods had no use for."""
        now_s = time.monotonic()
        if now_s - self._period_since_s < _PERIOD_S:
            return
        self._period_since_s = now_s
        self._most_busy_before, self._most_busy = self._most_busy, len(self.by_name)
        for idle in (self._idle, self._idle_confined):
            self._let_go(idle, len(idle) - self._idle_max())

    def _idle_max(self) -> int:
        return max(_IDLE_LEAST, self._most_busy, self._most_busy_before)

    @staticmethod
    def _let_go(idle: list[PooledSupervisor], count: int) -> None:
        """Let the first of some idle supervisors go: these have been idle for the longest time."""
        for worker in idle[: max(0, count)]:
            worker.channel.shutdown(socket.SHUT_RDWR)
        del idle[: max(0, count)]

    def _take_idle(self, *, confined: bool) -> PooledSupervisor | None:
        """Take an idle supervisor; for a confined attempt a confined one, if there is any."""
        if confined and self._idle_confined:
            return self._idle_confined.pop()
        return self._idle.pop() if self._idle else None

    def _send(
        self,
        worker: PooledSupervisor,
        name: str,
        directory: str,
        opened: tuple[int, int] | None,
        *,
        confined: bool,
    ) -> bool:
        rules = self._around.rules
        words = f"{int(rules.allow_root)} {rules.uid_min} {int(confined)}"
        request = os.fsencode(f"{name}\0{directory}\0{words}")
        fds = [] if opened is None else [(*_RIGHTS, _FDS.pack(*opened))]
        try:
            worker.channel.sendmsg([request], fds)
        except OSError:  # it was killed while it was idle: the reaper hears of it
            return False
        worker.confined = worker.confined or confined
        worker.name = name
        worker.left -= 1
        self.by_name[name] = worker
        self._most_busy = max(self._most_busy, len(self.by_name))
        return True

    def _fork(self) -> PooledSupervisor:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = os.fork()
            if pid == 0:
                _become_supervisor(theirs.fileno(), self._around)
        worker = PooledSupervisor(pid, ours)
        self.by_pid[pid] = worker
        self.by_fd[ours.fileno()] = worker
        return worker

    def finished(self, worker: PooledSupervisor) -> tuple[str, bool, bytes, bytes] | None:
        """Read what a supervisor says about its attempt.

        Returns:
            The attempt's name, whether it turned out to be another supervisor's, its exit record
            and that of its start (empty: see its journal); None if the supervisor is dead, which
            the reaper hears of.
        """
        try:
            answer = worker.channel.recv(2 * _ANSWER_BYTES_MAX, socket.MSG_DONTWAIT)
        except OSError:
            return None
        if not answer or not worker.name:
            return None
        name, worker.name = worker.name, ""
        del self.by_name[name]
        idle = self._idle_confined if worker.confined else self._idle
        if worker.left > 0 and len(idle) < self._idle_max():
            idle.append(worker)
        else:
            worker.channel.shutdown(socket.SHUT_RDWR)  # it reads the end and exits
        record, _, info = answer[len(_DONE) :].partition(b"\n")
        return name, answer == _FOREIGN, record, info

    def remove(self, pid: int) -> PooledSupervisor | None:
        """Forget a supervisor that was reaped; return it if it was one."""
        worker = self.by_pid.pop(pid, None)
        if worker is None:
            return None
        for idle in (self._idle, self._idle_confined):
            if worker in idle:
                idle.remove(worker)
        self.by_name.pop(worker.name, None)
        return worker

    def close_channel(self, worker: PooledSupervisor) -> None:
        """Close our end of a supervisor's channel."""
        del self.by_fd[worker.channel.fileno()]
        worker.channel.close()


def _become_supervisor(channel: int, around: Surroundings) -> NoReturn:
    """Cut every tie to the launcher but one, then run attempts until it is gone."""
    status = 1
    try:
        os.setsid()
        kernel.become_subreaper()
        # Everything above 2 was opened by the launcher for itself; it closes on exec anyway, but
        # must not be kept open by us: a lock, gnode's connections, other supervisors' channels.
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        if channel != _CHANNEL_FD:
            os.dup2(channel, _CHANNEL_FD, inheritable=False)
        os.closerange(_CHANNEL_FD + 1, highest + 1)
        failpoint.arm(os.environ.get("GSCHED_FAIL", ""))
        _serve(around)
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


class _Requests:
    """The launcher's requests, as Python takes them: see `NativeServer`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def obey(self, rules: bytes, around: Surroundings) -> None:
        """Do nothing: they are asked for when they are needed."""

    def is_pending(self) -> bool:
        """Return whether the request that was returned is still the next one."""
        return False

    def wait(self, last: str) -> tuple[bytes, tuple[int, int] | None, None, str]:
        """Return the next request, and the descriptors that came with it, if they did."""
        kernel.set_name(b"gsv idle")
        request, opened = _receive(self._channel)
        kernel.set_name(b"gsv " + request.partition(b"\0")[0])
        # Orders and alarms of the attempt before mean nothing to the next one.
        while signal.sigtimedwait(supervise.WATCHED, 0) is not None:
            pass
        return request, opened, None, last


def _receive(channel: socket.socket) -> tuple[bytes, tuple[int, int] | None]:
    """Return a request of the launcher, and the descriptors that came with it, if they did."""
    request, ancillary, _, _ = channel.recvmsg(8192, _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == _RIGHTS and len(data) == _FDS.size:
            place, fd = _FDS.unpack(data)
            return request, (place, fd)
        for fd in array.array("i", data):  # there was no room for both: it opens them itself
            os.close(fd)
    return request, None


def _serve(around: Surroundings) -> None:
    own = supervise.SupervisorIdentity()
    channel = socket.socket(fileno=_CHANNEL_FD)
    identity = (own.pid, own.start_ticks)
    server = native.server(_CHANNEL_FD, around, identity) or _Requests(channel)
    last, known_rules = "", b""
    while True:
        request, opened, course, last = server.wait(last)
        if not request:
            spool.keep_exit(last)  # the launcher may not have passed it on
            return
        _, directory, rules = request.split(b"\0")
        if rules != known_rules:  # since the last attempt, or since this process was forked
            known_rules = rules
            _obey_rules(rules, around)
            server.obey(rules, around)
        if server.is_pending():
            continue
        ended = supervise.run(os.fsdecode(directory), around, own, opened, course)
        last = "" if ended is None else os.fsdecode(directory)
        answer = _FOREIGN if ended is None else _DONE + b"\n".join(ended)
        if len(answer) > _ANSWER_BYTES_MAX:
            answer = _DONE
        try:
            os.write(_CHANNEL_FD, answer)
        except OSError:  # the launcher is gone
            spool.keep_exit(last)
            return


def _obey_rules(rules: bytes, around: Surroundings) -> None:
    allow_root, uid_min, confined = map(int, rules.split())
    around.rules = PrivilegeRules(allow_root=bool(allow_root), uid_min=uid_min)
    if confined and not around.confined:
        kernel.forbid_new_privileges()
        around.confined = True
