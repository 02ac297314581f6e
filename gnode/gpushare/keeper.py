"""The token daemon's life, as gnode sees it: started when needed, and again when it has died.

The daemon outlives gnode, so the next gnode may be of another release, or have other settings. The
daemon that it finds is then replaced (decision 18), and so is a daemon that does not answer.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from gnode.gpushare.addresses import CONTROL_SOCKET, GROUPS_FILE
from gnode.gpushare.errors import ShareRefusedError
from gsched.config.environment import full_environment
from gsched.files import replace_file
from gsched.unix_address import address_of

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 15.0
ANSWER_TIMEOUT_S: Final = 5.0
RESTART_PAUSE_S: Final = 0.2
#: The daemon is asked so often; one that has not answered so often in a row is replaced.
LOOK_S: Final = 10.0
SILENCES_MAX: Final = 2
_READY_FD: Final = 3
_REPLACE_FD: Final = 4
LOG_FILE: Final = "tokend.log"
LOCK_FILE: Final = "tokend.lock"
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


def edition_of(options: Sequence[str]) -> str:
    """Return what names the daemon's code with these options: another daemon is replaced."""
    content = hashlib.sha256("\0".join(options).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        content.update(f"\0{path.name}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


class DaemonKeeper:
    """Starts the daemon, talks to it, and restarts it while it is wanted.

    Args:
        directory: of the daemon's files.
        options: of the daemon's command line.
        look_s: time between two questions whether it answers, seconds.
        answer_s: for an answer, seconds.
    """

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        look_s: float = LOOK_S,
        answer_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._directory = directory
        self._options = tuple(options)
        self._edition = edition_of(options)
        self._look_s = look_s
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._closing, self._close_now = os.pipe2(os.O_CLOEXEC)
        self.restarts = 0

    def ensure(self) -> None:
        """Start the daemon unless it answers; watch it from now on.

        Raises:
            ShareRefusedError: it does not start.
            OSError: its files cannot be used.
        """
        with self._lock:
            pid = self._current()
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, args=(pid,), name="gpushare-keeper", daemon=True
                )
                self._watcher.start()

    def ask(self, **order: object) -> dict[str, object]:
        """Send an order and return the answer.

        Raises:
            ShareRefusedError: the daemon does not answer, or refuses.
        """
        try:
            answer = self._exchange_twice(order)
        except (OSError, ValueError) as error:
            raise ShareRefusedError(
                f"the token daemon of GPU sharing does not answer: {error}",
                hint=f"its log is {self._directory / LOG_FILE}",
            ) from error
        if "error" in answer:
            raise ShareRefusedError(f"the token daemon refuses an order: {answer['error']}")
        return answer

    def look(self) -> dict[str, object] | None:
        """Return the daemon's metrics; None: it does not run, and is not started for that."""
        try:
            return self._exchange({"order": "metrics"})
        except (OSError, ValueError):
            return None

    def keep(self, groups: Collection[str]) -> None:
        """Remove all jobs but these from the daemon, or from its file where it does not run.

        Raises:
            ShareRefusedError: the daemon does not answer any more.
            OSError: its file cannot be removed.
        """
        metrics = self.look()
        if metrics is None:
            self._keep_in_file(groups)
            return
        for group in cast("dict[str, object]", metrics["groups"]):
            if group not in groups:
                log.warning("job %s is over: its share of a GPU is given back", group)
                self.ask(order="remove", group=group)

    def _keep_in_file(self, groups: Collection[str]) -> None:
        """Remove all others from what the next daemon reads.

        Those that are kept must be in it: processes connect to the next daemon at once, before
        gnode has admitted their jobs again, and are refused for ever if it does not know them.
        """
        path = self._directory / GROUPS_FILE
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            kept = [row for row in rows if row["group"] in groups]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            log.error("%s cannot be used: %s", path, error)
            return
        if len(kept) < len(rows):
            replace_file(str(path), json.dumps(kept).encode())

    def close(self) -> None:
        """Watch no longer; a daemon without jobs ends."""
        os.write(self._close_now, b"x")
        if self._watcher is not None:
            self._watcher.join()
        pid = self._pid()
        if pid is None:
            return
        try:
            process = os.pidfd_open(pid)
            finished = self._exchange({"order": "finish"}).get("finished")
        except (OSError, ValueError):
            return
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if finished and poll.poll(self._answer_s * 1000):
            _reap(pid)
        os.close(process)

    def _exchange_twice(self, order: Mapping[str, object]) -> dict[str, object]:
        """A daemon that has died is started before the second time."""
        try:
            return self._exchange(order)
        except (OSError, ValueError):
            self.ensure()
            return self._exchange(order)

    def _exchange(self, order: Mapping[str, object]) -> dict[str, object]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(self._answer_s)
            with address_of(self._directory / CONTROL_SOCKET) as address:
                channel.connect(address)
            channel.send(json.dumps(order).encode())
            return cast("dict[str, object]", json.loads(channel.recv(_ANSWER_BYTES_MAX)))

    def _pid(self) -> int | None:
        metrics = self.look()
        return None if metrics is None else int(cast("int", metrics["pid"]))

    def _current(self) -> int:
        """Return the process id of a daemon that answers and is of this edition.

        Another one is replaced: its jobs go on with the new daemon, as after its death.
        """
        metrics = self.look()
        if metrics is None:
            stuck = self._holder_of_lock()
            if stuck is None or (metrics := self.look()) is None:  # twice: it may only be slow
                return self._start(stuck)
        pid = int(cast("int", metrics["pid"]))
        if metrics.get("edition") == self._edition:
            return pid
        log.warning("the token daemon (process %d) is of another release or has other options", pid)
        return self._start(pid)

    def _holder_of_lock(self) -> int | None:
        """Return the process id of a daemon that lives, whether it answers or not."""
        with contextlib.suppress(OSError, ValueError), open(self._directory / LOCK_FILE) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
        return None

    def _start(self, replaced: int | None = None) -> int:
        """Start the daemon and wait until it listens; return its process id.

        Args:
            replaced: process of the daemon that the new one ends as soon as it is ready itself.
        """
        if replaced is None:
            return self._spawn(-1)
        try:
            process = os.pidfd_open(replaced)
        except ProcessLookupError:  # it has ended meanwhile
            return self._spawn(-1)
        try:
            high = fcntl.fcntl(process, fcntl.F_DUPFD_CLOEXEC, 16)  # above those of the new one
            try:
                pid = self._spawn(high)
            finally:
                os.close(high)
        finally:
            os.close(process)
        _reap(replaced)
        log.warning("token daemon %d has replaced process %d", pid, replaced)
        return pid

    def _spawn(self, replaced: int) -> int:
        command = [sys.executable, "-m", "gnode.gpushare.tokend", "--dir", str(self._directory)]
        command += [*self._options, "--edition", self._edition, "--ready-fd", str(_READY_FD)]
        replace = []
        if replaced >= 0:
            command += ["--replace-fd", str(_REPLACE_FD)]
            replace = [(os.POSIX_SPAWN_DUP2, replaced, _REPLACE_FD)]
        ready, ready_writer = os.pipe2(os.O_CLOEXEC)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        output = -1
        try:
            output = os.open(self._directory / LOG_FILE, flags, 0o600)
            pid = os.posix_spawn(
                sys.executable,
                command,
                full_environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                    (os.POSIX_SPAWN_DUP2, ready_writer, _READY_FD),
                    *replace,
                ],
                setsid=True,
            )
        except OSError:
            os.close(ready)
            raise
        finally:
            os.close(ready_writer)
            if output >= 0:
                os.close(output)
        poll = select.poll()
        poll.register(ready, select.POLLIN | select.POLLHUP)
        poll.poll(START_TIMEOUT_S * 1000)
        os.close(ready)
        serving = self._pid()
        if serving != pid:
            os.kill(pid, signal.SIGKILL)  # a child, ended or not
            os.waitpid(pid, 0)
        if serving is None:
            raise ShareRefusedError(
                "the token daemon of GPU sharing does not start",
                hint=f"its log is {self._directory / LOG_FILE}",
            )
        return serving

    def _watch(self, pid: int) -> None:
        while True:
            if self._closes_first(pid):
                return
            with self._lock:
                try:
                    serving = self._current()
                except (ShareRefusedError, OSError) as error:
                    log.error("the token daemon cannot be started again: %s", error)
                    if self._closed(RESTART_PAUSE_S):
                        return
                    continue
            if serving != pid:
                self.restarts += 1
                log.warning("the token daemon was started again (process %d)", serving)
            pid = serving

    def _closes_first(self, pid: int) -> bool:
        """Wait until the daemon ends or does not answer; return whether the keeper is closed."""
        try:
            process = os.pidfd_open(pid)
        except OSError:  # it has ended, or there are no descriptors for a moment
            return self._closed(RESTART_PAUSE_S)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        silences = 0
        try:
            while not (events := poll.poll(self._look_s * 1000)):
                silences = 0 if self.look() else silences + 1
                if silences == SILENCES_MAX:
                    log.error("the token daemon (process %d) does not answer: it is replaced", pid)
                    return False
        finally:
            os.close(process)
        if self._closing in {descriptor for descriptor, _ in events}:
            return True
        _reap(pid)
        return False

    def _closed(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._closing, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


def _reap(pid: int) -> None:
    """Take the status of an ended daemon, if it is a child: it may be an earlier gnode's."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        log.debug("the token daemon was an earlier gnode's")
