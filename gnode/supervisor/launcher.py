"""The pre-forked parent of all supervisors: small, without threads, quick to fork.

``python -I -m gnode.supervisor.launcher --socket PATH --state STATE`` serves gnode on a Unix
socket (JSON lines) and prints ``ready`` once it listens. Requests: ``{"launch": "12.1"}`` (with
``"confined": true`` if nothing that its supervisor starts may gain rights),
``{"rules": {"allow_root": false, "uid_min": 1000}}`` (whose jobs run from now on; before it only
ordinary users'; with ``"keeps": true`` if the sender makes exit records durable),
``{"native": "/path"}`` (the library that runs plain jobs, empty: none: see `native`),
``{"kept": ["12.1"]}`` (the exit records of these attempts are durable),
``{"clean": "12.1"}`` (remove what the container of an attempt without a
supervisor has left), ``{"epilog": "12.1"}`` (run the epilog of an attempt that has ended),
``{"stop": true}`` (leave when no supervisor is left).
Messages: ``{"launched": ..., "pid": ..., "start_ticks": ...}`` or
``{"failed": ..., "message": ..., "errno": ...}`` to who asked, and
``{"ended": ..., "pid": ..., "record": ...}`` to all once an attempt's exit record is written
(``"unflushed": true``: and who hears of it is to make it durable, and say so),
``{"epilog": ...}`` to all once a process that ran an epilog is gone; the journal has its result.

It outlives gnode, and the supervisors outlive it. Where a supervisor was killed, it takes over.
Exit records are flushed by gnode, for many attempts at once; by the launcher where no gnode is
connected, where its connection ends before it has, and where it takes too long.
"""

import argparse
import contextlib
import fcntl
import gc
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import time

from gnode.supervisor import child, errand, kernel, native, proc, site_programs, spool
from gnode.supervisor.connection import Connection, ConnectionLostError
from gnode.supervisor.errors import reason
from gnode.supervisor.lost import LostAttempts
from gnode.supervisor.pool import PooledSupervisor, SupervisorPool
from gnode.supervisor.privilege import PrivilegeRules
from gsched import failpoint, trust
from gsched.files import replace_file

_NAME = re.compile(r"[0-9]{1,18}\.[0-9]{1,9}")
_LOCK = "launcher.lock"
_SPOOL_LOOK_S = 10.0  # how often an idle launcher makes sure that its spool is still there
_REPLIES_AT_ONCE = 16  # gnode hears of the first of a thousand launches before the last
_KEEP_S = 5.0  # what a gnode has not made durable after that time, the launcher flushes


class Launcher:
    """Everything the launcher knows; one method per kind of event."""

    def __init__(self, state: str, listener: socket.socket, lock_fd: int) -> None:
        self._state = state
        self._listener = listener
        self._lock_fd = lock_fd
        self._around = child.Surroundings()
        resource.setrlimit(resource.RLIMIT_CORE, (0, self._around.core_limits[1]))
        self._signals = kernel.open_signalfd((signal.SIGCHLD, signal.SIGTERM))
        self._epoll = select.epoll()
        self._epoll.register(self._signals, select.EPOLLIN)
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._pool = SupervisorPool(self._around)
        self._lost = LostAttempts(f"{state}/attempts", self._epoll)
        self._cleaners: dict[int, str] = {}  # pids, and the names of their attempts
        self._epilogs: dict[int, str] = {}  # likewise
        self._stopping = False

    def serve(self) -> None:
        """Serve until told to stop and no supervisor is left."""
        self._lost.look_for_strays()
        while not self._stopping or self._pool.by_name or self._lost.adopted():
            patience_s = self._lost.patience_s()
            if patience_s < 0 and any(each.unkept for each in self._connections.values()):
                patience_s = _KEEP_S
            elif not self._stopping and patience_s < 0:
                patience_s = _SPOOL_LOOK_S
            for fd, events in self._epoll.poll(patience_s):
                self._handle(fd, events)
            self._look_after_spool()
            self._pool.trim()
            for name, pid in self._lost.step(
                self._pool.by_pid.keys() | self._cleaners.keys() | self._epilogs.keys()
            ):
                self._tell_ended(name, pid)
            for connection in tuple(self._connections.values()):
                self._flush(connection)
                self._keep_late(connection)
        for connection in self._connections.values():
            self._keep_all(connection)

    def _look_after_spool(self) -> None:
        """Leave once the supervisors have, if the spool was wiped: another one has its place."""
        if not self._stopping and not self.has_spool():
            spool.log(f"launcher: {self._state} is gone or replaced: leaving")
            self._stopping = True
            for connection in tuple(self._connections.values()):
                self._drop(connection, "closed")
            self._epoll.unregister(self._listener.fileno())

    def has_spool(self) -> bool:
        """Return whether the state directory is still the one that this launcher locked."""
        return spool.is_same_file(f"{self._state}/{_LOCK}", self._lock_fd)

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._signals:
            self._heed_signals()
        elif fd == self._listener.fileno():
            self._accept()
        elif fd in self._connections:
            connection = self._connections[fd]
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._receive(connection)
        elif fd in self._pool.by_fd:
            self._hear(self._pool.by_fd[fd])
        else:
            self._lost.supervisor_ended(fd)

    # --- gnode's side ---

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        connection = Connection(accepted)
        if connection.peer_uid() not in (0, os.getuid()):
            connection.close()
            return
        self._connections[connection.fileno()] = connection
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _receive(self, connection: Connection) -> None:
        try:
            requests = connection.requests()
        except ConnectionLostError as error:
            self._drop(connection, str(error))
            return
        for count, request in enumerate(requests, 1):
            self._obey(connection, request)
            if count % _REPLIES_AT_ONCE == 0:
                self._flush(connection)

    def _obey(self, connection: Connection, request: dict[str, object]) -> None:
        match request:
            case {"launch": str(name)}:
                confined = request.get("confined") is True
                connection.put(self._launch(name, confined=confined))
            case {"clean": str(name)}:
                self._clean(name)
            case {"epilog": str(name)}:
                self._run_epilog(name)
            case {"rules": {"allow_root": bool(allow_root), "uid_min": int(uid_min)}}:
                self._around.rules = PrivilegeRules(allow_root=allow_root, uid_min=uid_min)
                connection.keeps = request.get("keeps") is True
            case {"native": str(path)}:
                self._pool.take_library(path)
            case {"kept": list(names)}:
                for name in names:
                    connection.unkept.pop(str(name), None)
            case {"stop": True}:
                self._stopping = True
            case _:
                spool.log(f"launcher: unknown request {request!r}")

    def _tell_all(self, message: dict[str, object]) -> None:
        for connection in self._connections.values():
            connection.put(message)

    def _flush(self, connection: Connection) -> None:
        if connection.fileno() < 0 or not connection.has_unsent:
            return
        try:
            waits = connection.flush()
        except ConnectionLostError as error:
            self._drop(connection, str(error))
            return
        if waits != connection.waits:
            connection.waits = waits
            interest = select.EPOLLIN | (select.EPOLLOUT if waits else 0)
            self._epoll.modify(connection.fileno(), interest)

    def _drop(self, connection: Connection, why: str) -> None:
        if why != "closed":
            spool.log(f"launcher: dropped a connection: {why}")
        self._epoll.unregister(connection.fileno())
        del self._connections[connection.fileno()]
        connection.close()
        self._keep_all(connection)

    # --- the supervisors' side ---

    def _launch(self, name: str, *, confined: bool) -> dict[str, object]:
        """Start an attempt, unless it is under way, and return the answer for gnode."""
        if not _NAME.fullmatch(name):
            return {"failed": name, "message": "not the name of an attempt"}
        if worker := self._pool.by_name.get(name):
            return {"launched": name, "pid": worker.pid, "start_ticks": worker.start_ticks}
        if pid := self._lost.supervisor_pid(name):
            return {"launched": name, "pid": pid, "start_ticks": proc.start_ticks(pid)}
        directory = f"{self._state}/attempts/{name}"
        try:
            opened = spool.open_task(directory)
        except OSError as error:
            return {"failed": name, "message": f"cannot use the task: {error}"}
        try:
            return self._start(name, directory, opened, fresh=False, confined=confined)
        finally:
            for fd in opened:
                os.close(fd)

    def _clean(self, name: str) -> None:
        """Have removed what the container of an attempt without a supervisor has left."""
        directory = f"{self._state}/attempts/{name}"
        if not _NAME.fullmatch(name) or name in self._cleaners.values():
            return
        try:
            task = spool.read_task(directory)
            if task is None:
                return
            pid = os.fork()
        except (OSError, ValueError) as error:
            spool.log(f"{directory}: its container cannot be removed: {error}")
            return
        if pid == 0:
            errand.become_cleaner(directory, task, self._around)
        self._cleaners[pid] = name

    def _run_epilog(self, name: str) -> None:
        """Have the epilog of an attempt run, unless it does."""
        directory = f"{self._state}/attempts/{name}"
        if not _NAME.fullmatch(name) or name in self._epilogs.values():
            return
        try:
            pid = os.fork()
        except OSError as error:
            spool.log(f"{directory}: its epilog cannot be run now: {error}")
            self._tell_all({"epilog": name})
            return
        if pid == 0:
            site_programs.become_epilog(directory)
        self._epilogs[pid] = name

    def _start(
        self,
        name: str,
        directory: str,
        opened: tuple[int, int] | None = None,
        *,
        fresh: bool,
        confined: bool = False,
    ) -> dict[str, object]:
        try:
            worker, is_new = self._pool.start(
                name, directory, opened, fresh=fresh, confined=confined
            )
        except OSError as error:
            message = f"cannot fork: {reason(error)}"
            return {"failed": name, "message": message, "errno": error.errno or 0}
        if is_new:
            self._epoll.register(worker.channel.fileno(), select.EPOLLIN)
        return {"launched": name, "pid": worker.pid, "start_ticks": worker.start_ticks}

    def _hear(self, worker: PooledSupervisor) -> None:
        """Take in that a supervisor is through with its attempt."""
        ended = self._pool.finished(worker)
        if ended is None:
            return
        name, is_foreign, record, info = ended
        if is_foreign and not spool.has_ended(f"{self._state}/attempts/{name}"):
            self._lost.add_stray(name)
        else:
            self._tell_ended(name, worker.pid, record, info)

    def _tell_ended(self, name: str, pid: int, record: bytes = b"", info: bytes = b"") -> None:
        """Tell that an attempt has ended; its exit record is flushed here if nobody else does."""
        if not any(connection.keeps for connection in self._connections.values()):
            self._keep(name)
        for connection in self._connections.values():
            connection.put_ended(name, pid, record, info)

    def _keep(self, name: str) -> None:
        spool.keep_exit(f"{self._state}/attempts/{name}")

    def _keep_all(self, connection: Connection) -> None:
        """Flush what a gnode that is gone has not made durable."""
        for name in connection.unkept:
            self._keep(name)

    def _keep_late(self, connection: Connection) -> None:
        """Flush what gnode has known for a while and not made durable: it may hang."""
        while connection.unkept:
            name, since_s = next(iter(connection.unkept.items()))
            if since_s + _KEEP_S > time.monotonic():
                return
            del connection.unkept[name]
            self._keep(name)

    def _heed_signals(self) -> None:
        records = os.read(self._signals, 16 * kernel.SIGNALFD_RECORD_BYTES)
        for start in range(0, len(records), kernel.SIGNALFD_RECORD_BYTES):
            if int.from_bytes(records[start : start + 4], sys.byteorder) == signal.SIGTERM:
                self._stopping = True
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = self._pool.remove(pid)
            if self._cleaners.pop(pid, None) is not None:
                continue
            if name := self._epilogs.pop(pid, None):
                self._tell_all({"epilog": name})
                continue
            if worker is None:
                self._lost.reaped(pid, status, usage)
                continue
            self._epoll.unregister(worker.channel.fileno())
            self._pool.close_channel(worker)
            if worker.name:
                self._bury(worker)

    def _bury(self, worker: PooledSupervisor) -> None:
        """Deal with the attempt of a supervisor that died over it."""
        name = worker.name
        directory = f"{self._state}/attempts/{name}"
        if spool.has_ended(directory):
            self._tell_ended(name, worker.pid)
            return
        if not worker.is_new() and not spool.was_begun(directory):
            # It was killed while idle and had not noticed yet: the attempt has lost nothing.
            self._tell_all(self._start(name, directory, fresh=True))
            return
        spool.log(f"launcher: supervisor {worker.pid} of {name} was lost: taking over")
        self._lost.take_over(name, worker.pid)


def _listen(path: str) -> socket.socket:
    """Return a listening socket at ``path`` that only this user can connect to.

    The address of a Unix socket holds 107 bytes, so a longer path goes by its directory.
    """
    directory, name = os.path.split(os.path.abspath(path))
    os.chdir(directory)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(name)  # the umask makes it 0600
    listener.listen(64)
    listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    os.chdir("/")
    return listener


def _lock(state: str) -> int:
    """Return a descriptor whose lock makes this the only launcher of ``state``."""
    fd = os.open(f"{state}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = (spool.read_file(f"{state}/launcher.json") or b"?").decode("utf-8", "replace")
        sys.exit(f"launcher: another one serves {state} already: {owner}")
    return fd


def _detach() -> None:
    """Become independent of whoever started us: descriptors, session, signals, dumps."""
    if sys.getfilesystemencoding() != "utf-8":
        sys.exit("launcher: start it with LC_ALL=C.UTF-8, or file names of jobs get mangled")
    os.umask(0o077)
    os.closerange(3, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20))
    try:
        os.setsid()
    except PermissionError:  # started as the leader of a session or group of its own
        assert os.getpgrp() == os.getpid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # jobs must not inherit an ignored signal
    signal.pthread_sigmask(signal.SIG_SETMASK, kernel.BLOCKED_SIGNALS)
    if os.getuid() == 0:
        kernel.forbid_dumps()
    kernel.become_subreaper()
    kernel.set_name(b"gnode-launcher")


def _record(state: str) -> None:
    """Say which process this is, and which library it can use: gnode reads it when it connects."""
    own = {"pid": os.getpid(), "start_ticks": proc.start_ticks("self"), "native": native.ABI}
    try:
        replace_file(f"{state}/launcher.json", json.dumps(own).encode())
    except OSError as error:  # a full disk: the lock and the socket are what counts
        spool.log(f"launcher: cannot write launcher.json: {reason(error)}")


def _announce() -> None:
    """Say that this process listens."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # nobody reads it any more, or the log's disk is full
        os.write(1, b"ready\n")
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def main() -> None:
    """Run the launcher."""
    parser = argparse.ArgumentParser(prog="gnode-launcher", description="Starts gnode's jobs.")
    parser.add_argument("--socket", required=True, help="Unix socket to listen on")
    parser.add_argument("--state", required=True, help="gnode's state directory")
    arguments = parser.parse_args()
    failpoint.arm("")  # they are the supervisors'; each of them arms its own
    state = os.path.abspath(arguments.state)
    socket_path = os.path.abspath(arguments.socket)
    _detach()
    try:
        trust.check_directory(state)  # gnode has looked, but it is this process that acts
    except OSError as error:
        sys.exit(f"launcher: {error}")
    os.makedirs(f"{state}/attempts", mode=0o700, exist_ok=True)
    os.makedirs(f"{state}/user", mode=0o711, exist_ok=True)
    os.chmod(f"{state}/user", 0o711)  # noqa: S103 - owners have to pass through to their own
    lock_fd = _lock(state)
    _record(state)
    launcher = Launcher(state, _listen(socket_path), lock_fd)
    gc.collect()
    gc.disable()  # a collection in a forked child would touch, and so copy, every page
    gc.freeze()
    _announce()
    launcher.serve()
    if launcher.has_spool():  # else the socket there is another launcher's
        os.unlink(socket_path)


if __name__ == "__main__":
    main()
