"""Heads that are reached through ssh: ``ssh://[user@]host[:port]``.

Each connection is an ``ssh`` that runs `gsched relay` on the host, with the connection as its
standard input and output. The relay writes a greeting on stderr; lines before it tell why there is
none. A first ssh stays as the master of the next ones for a while, unless the user's configuration
of ssh says otherwise for this host.
"""

import os
import re
import select
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gsched.clock import SystemClock
from gsched.config.environment import environment
from gsched.errors import ConfigError, HeadUnreachableError
from gsched.version import VERSION

PREFIX: Final = "ssh://"
#: What the relay writes first on stderr, followed by its version.
GREETING: Final = "gsched-relay 1 "
PERSIST_S: Final = 120
CONNECT_S: Final = 60.0
_FORM: Final = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.@-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?/?"
)
_MAX_DIRECTORY: Final = 40  # characters: ssh adds 58, of 107 that the kernel takes
_MAX_STDERR: Final = 64 * 1024
#: What ssh writes, and what is so and what to do.
_KNOWN: Final = (
    ("could not resolve", "there is no host of this name", "check the name in {source}"),
    (
        "host key verification failed",
        "its key is not known, or has changed",
        "log in once with `ssh {host}`, and check the key",
    ),
    (
        "permission denied",
        "it refuses your login",
        "log in once with `ssh {host}`: does it need another user (ssh://USER@HOST) or key?",
    ),
    ("connection refused", "no sshd answers there", "check host and port in {source}"),
    ("timed out", "it does not answer", "is it up, and reachable from this network?"),
    ("no route to host", "it cannot be reached", "is it up, and reachable from this network?"),
)


class SshHost:
    """A host that is reached through ssh.

    Args:
        text: the address, for messages.
        source: who stated it.

    Raises:
        ConfigError: the address cannot be read.
    """

    def __init__(self, text: str, *, source: str) -> None:
        form = _FORM.fullmatch(text.removeprefix(PREFIX))
        port = int(form["port"] or 22) if form else 0
        if form is None or not 0 < port < 65536:
            raise ConfigError(
                f"{source}: invalid head address {text!r}",
                hint="write ssh://HOST, ssh://USER@HOST or ssh://HOST:PORT",
            )
        self.host = form["host"].strip("[]")
        self._source = source
        self._target = [*(["-l", form["user"]] if form["user"] else [])]
        self._target += [*(["-p", form["port"]] if form["port"] else []), "--", self.host]
        self._started: list[subprocess.Popen[bytes]] = []
        self._control: list[str] | None = None

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a connection to the head that commands on the host use.

        Raises:
            HeadUnreachableError: there is none; the message says why.
        """
        near, far = socket.socketpair()
        try:
            with far:
                self.attach(far, timeout_s)
            near.settimeout(timeout_s)
        except BaseException:
            near.close()
            raise
        return near

    def attach(self, user: socket.socket, timeout_s: float) -> None:
        """Let ssh serve a connection of a user; it has its own descriptor of it then.

        Raises:
            HeadUnreachableError: it cannot; the message says why.
        """
        self._started = [each for each in self._started if each.poll() is None]
        words = [*self._ssh(), *self._options(), *self._target, *self._remote()]
        try:
            process = subprocess.Popen(
                words, stdin=user.fileno(), stdout=user.fileno(), stderr=subprocess.PIPE
            )
        except OSError as error:
            raise HeadUnreachableError(
                f"cannot run ssh, which reaches {self.host}: {error.strerror}",
                hint="install an ssh client (openssh-client)",
            ) from error
        self._started.append(process)
        self._check(process, timeout_s)

    @staticmethod
    def _ssh() -> list[str]:
        return shlex.split(environment("GSCHED_SSH")) or ["ssh"]

    @staticmethod
    def _remote() -> list[str]:
        return [environment("GSCHED_RELAY") or "gsched relay"]

    def _options(self) -> list[str]:
        """Return the options of ssh beside those of the user."""
        options = ["-T"]
        if not _has_terminal():
            options += ["-o", "BatchMode=yes"]
        if self._control is None:
            self._control = self._control_options()
        return [*options, *self._control]

    def _control_options(self) -> list[str]:
        """Return options for a shared connection; none where the user's configuration has them."""
        directory = _control_directory()
        if not directory or len(directory) > _MAX_DIRECTORY:
            return []
        words = [*self._ssh(), "-G", *self._target]
        try:
            shown = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError:  # the attempt to connect tells why
            return []
        lines = shown.stdout.decode(errors="replace").lower().splitlines()
        if any(line.startswith("controlpath ") and line != "controlpath none" for line in lines):
            return []
        options = ("ControlMaster=auto", f"ControlPersist={PERSIST_S}")
        words = [f"-o{each}" for each in options]
        return [*words, f"-oControlPath={directory}/%C"]

    def _check(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
        """Wait for the relay's greeting.

        Raises:
            HeadUnreachableError: it does not come.
        """
        assert process.stderr is not None, "it is a pipe"
        clock = SystemClock()
        give_up_s = clock.monotonic_s() + timeout_s
        seen = b""
        with process.stderr as stderr:
            while len(seen) < _MAX_STDERR:
                line = _greeting(seen.decode(errors="replace"))
                if line:
                    self._check_version(line)
                    return
                left_s = give_up_s - clock.monotonic_s()
                if left_s <= 0 or not select.select([stderr], [], [], left_s)[0]:
                    break
                piece = os.read(stderr.fileno(), 4096)
                if not piece:
                    break
                seen += piece
        if process.poll() is None and clock.monotonic_s() >= give_up_s:
            process.kill()
            raise HeadUnreachableError(
                f"ssh to {self.host} has not reached a head within {timeout_s:g} s",
                hint=f"does `ssh {self.host} gsched relay` wait for something?",
            )
        raise self._failure(process.wait(), seen.decode(errors="replace"))

    def _check_version(self, version: str) -> None:
        if version.split(".")[:2] != VERSION.split(".")[:2]:
            raise HeadUnreachableError(
                f"gsched on {self.host} is version {version}, here it is {VERSION}",
                hint=f"install the version of {self.host} here",
            )

    def _failure(self, status: int, text: str) -> HeadUnreachableError:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = next((line for line in lines if "hint:" not in line), "") if lines else ""
        if status == 255:
            last = lines[-1] if lines else "it says no reason"
            for words, what, todo in _KNOWN:
                if any(words in line.lower() for line in lines):
                    hint = todo.format(host=self.host, source=self._source)
                    return HeadUnreachableError(f"ssh to {self.host}: {what} ({last})", hint=hint)
            return HeadUnreachableError(
                f"ssh to {self.host} fails: {last}", hint=f"try `ssh {self.host}`"
            )
        if status in {126, 127}:
            return HeadUnreachableError(
                f"there is no gsched on {self.host}, or not in the PATH of commands run by ssh",
                hint="set GSCHED_RELAY to its path there, as '/opt/gsched/bin/gsched relay'",
            )
        if "no such command" in text.lower() or "unknown" in text.lower():
            return HeadUnreachableError(
                f"gsched on {self.host} is of an older version: it has no relay ({last})",
                hint=f"install gsched {VERSION} there",
            )
        why = last.removeprefix("gsched: ") or f"gsched relay ended with {status}"
        return HeadUnreachableError(
            f"on {self.host}: {why}",
            hint=f"try `ssh {self.host} gstat`",
        )


def _greeting(text: str) -> str:
    """Return the version in the relay's greeting; empty: it has not come."""
    for line in text.splitlines(keepends=True):
        if line.startswith(GREETING) and line.endswith("\n"):
            return line.removeprefix(GREETING).strip()
    return ""


def _has_terminal() -> bool:
    """Return whether ssh can ask the user for a password."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _control_directory() -> str:
    """Return a directory of the user alone for ssh's sockets; empty: there is none."""
    runtime = environment("XDG_RUNTIME_DIR")
    path = f"{runtime}/gsched-ssh" if runtime else f"/tmp/gsched-ssh-{os.getuid()}"  # noqa: S108 # checked below
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError:
        return ""
    return path if found.st_uid == os.getuid() and found.st_mode & 0o170777 == 0o040700 else ""


@contextmanager
def local_socket(host: SshHost) -> Iterator[str]:
    """Yield the path of a socket of the user alone; each connection to it goes through ssh."""
    with (
        tempfile.TemporaryDirectory(prefix="gsched-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        path = f"{directory}/head.sock"
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    user, _ = listener.accept()
                except OSError:  # it is closed
                    return
                with user:
                    try:
                        host.attach(user, CONNECT_S)
                    except HeadUnreachableError as error:
                        with suppress(OSError):
                            user.sendall(_bad_gateway(error.message))

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield path
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _bad_gateway(message: str) -> bytes:
    reason = "".join(each if each.isprintable() else " " for each in message)
    return f"HTTP/1.1 502 {reason}\r\nConnection: close\r\n\r\n".encode("latin-1", "replace")
