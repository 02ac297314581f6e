"""The token daemon's life, as gnode sees it: started when needed, and again when it has died."""

import json
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from gnode.gpushare.addresses import CONTROL_SOCKET, GROUPS_FILE
from gnode.gpushare.errors import ShareRefusedError
from gsched.config import full_environment
from gsched.unix_address import address_of

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 15.0
ANSWER_TIMEOUT_S: Final = 5.0
RESTART_PAUSE_S: Final = 0.2
_READY_FD: Final = 3
LOG_FILE: Final = "tokend.log"
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


class Keeper:
    """Starts the daemon, talks to it, and restarts it while it is wanted.

    Args:
        directory: of the daemon's files.
        options: of the daemon's command line.
    """

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self._directory = directory
        self._options = tuple(options)
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._closing, self._close_now = os.pipe2(os.O_CLOEXEC)
        self.restarts = 0

    def ensure(self) -> None:
        """Start the daemon unless it answers; watch it from now on.

        Raises:
            ShareRefusedError: it does not start.
        """
        with self._lock:
            pid = self._pid() or self._start()
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
            new = path.with_name(f"{GROUPS_FILE}.new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(kept), encoding="utf-8")
            os.replace(new, path)

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
        if finished and poll.poll(ANSWER_TIMEOUT_S * 1000):
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
            channel.settimeout(ANSWER_TIMEOUT_S)
            with address_of(self._directory / CONTROL_SOCKET) as address:
                channel.connect(address)
            channel.send(json.dumps(order).encode())
            return cast("dict[str, object]", json.loads(channel.recv(_ANSWER_BYTES_MAX)))

    def _pid(self) -> int | None:
        metrics = self.look()
        return None if metrics is None else int(cast("int", metrics["pid"]))

    def _start(self) -> int:
        """Start the daemon and wait until it listens; return its process id."""
        ready, told = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-m", "gnode.gpushare.tokend", "--dir", str(self._directory)]
        command += [*self._options, "--ready-fd", str(_READY_FD)]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        output = os.open(self._directory / LOG_FILE, flags, 0o600)
        try:
            pid = os.posix_spawn(
                sys.executable,
                command,
                full_environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                    (os.POSIX_SPAWN_DUP2, told, _READY_FD),
                ],
                setsid=True,
            )
        finally:
            os.close(output)
            os.close(told)
        poll = select.poll()
        poll.register(ready, select.POLLIN | select.POLLHUP)
        poll.poll(START_TIMEOUT_S * 1000)
        os.close(ready)
        if self._pid() is None:
            _reap(pid)
            raise ShareRefusedError(
                "the token daemon of GPU sharing does not start",
                hint=f"its log is {self._directory / LOG_FILE}",
            )
        return pid

    def _watch(self, pid: int) -> None:
        while True:
            if self._ends_before_close(pid):
                return
            with self._lock:
                try:
                    pid = self._pid() or self._start()
                except ShareRefusedError as error:
                    log.error("%s (%s)", error.message, error.hint)
                    if self._closed(RESTART_PAUSE_S):
                        return
                    continue
            self.restarts += 1
            log.warning("the token daemon had ended and was started again (process %d)", pid)

    def _ends_before_close(self, pid: int) -> bool:
        """Wait for the daemon's end; return whether the keeper is closed instead."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return self._closed(RESTART_PAUSE_S)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        events = {descriptor for descriptor, _ in poll.poll()}
        os.close(process)
        if self._closing in events:
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
