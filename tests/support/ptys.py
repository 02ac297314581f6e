"""A command on a real pseudo-terminal: what a person at a keyboard sees and types."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from tests.support.forks import popen, take_terminal

WAIT_S = 60.0
_READ_BYTES = 1 << 16


class Sitting:
    """A person at a terminal on which one command runs.

    Attributes:
        seen: all that was shown.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None = None,
        size: tuple[int, int] = (24, 80),
        user: int | None = None,
    ) -> None:
        self.seen = b""
        self._at = 0
        self.master, slave = os.openpty()
        self.resize(*size)
        if user is not None:
            os.fchown(slave, user, user)
        self.process = popen(
            list(words),
            env=dict(env),
            cwd=cwd,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(slave)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window; the kernel tells whoever is in it."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Type text."""
        data = text.encode()
        while data:
            data = data[os.write(self.master, data) :]

    def until(self, text: str, timeout_s: float = WAIT_S) -> str:
        """Wait until a text that was not waited for yet is shown; return what came up to it."""
        return self.match(re.escape(text), timeout_s)[0]

    def match(self, pattern: str, timeout_s: float = WAIT_S) -> re.Match[str]:
        """Wait until a pattern is shown behind what was waited for before; return the match."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            text = self.seen.decode("utf-8", "replace")
            found = re.compile(pattern).search(text, self._at)
            if found:
                self._at = found.end()
                return found
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"waited for {pattern!r}, saw:\n{text[-3000:]}"
            if not self._read(left_s):
                text = self.seen.decode("utf-8", "replace")
                found = re.compile(pattern).search(text, self._at)
                assert found, f"it ended before {pattern!r} was shown:\n{text[-3000:]}"

    def _read(self, timeout_s: float) -> bool:
        """Take in what is shown; return False if nothing will come any more."""
        ready, _, _ = select.select([self.master], [], [], timeout_s)
        if not ready:
            return True
        try:
            data = os.read(self.master, _READ_BYTES)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def code(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end of the command and return its exit code; show what it has shown."""
        deadline_s = time.monotonic() + timeout_s
        while self._read(0.05) and time.monotonic() < deadline_s:
            if self.process.poll() is not None and not select.select([self.master], [], [], 0)[0]:
                break
        try:
            return self.process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended; it has shown:\n{self.text[-3000:]}") from None

    @property
    def text(self) -> str:
        """Return all that was shown."""
        return self.seen.decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill the command with SIGKILL: the window is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Take the terminal away."""
        if self.process.poll() is None:
            self.kill()
        os.close(self.master)
