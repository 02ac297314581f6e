"""Starts scripts of torch in forks of one process that has imported it (`fork_server`)."""

import json
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence

from tests.support.cluster import wait_until
from tests.support.processes import MARKER
from tests.support.torch_python import torch_python

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Forked:
    """A script that runs in a fork; what `subprocess.Popen` has of the same names."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self._server = server
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self._status is None:
            self._status = self._server.ask(poll=self.pid)
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended; return its exit code, negative for a signal."""
        wait_until(lambda: self.poll() is not None, timeout, what=f"the end of {self.pid}")
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """Gives scripts a process of their own that has imported torch already.

    They differ from a new interpreter's in that: all forks of a server have one hash seed.
    """

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment.pop(MARKER, None)  # it is of no single test
        self._process = subprocess.Popen(
            [torch_python(), str(ROOT / "tests" / "support" / "fork_server.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: object) -> int | None:
        """Return the server's answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: pathlib.Path,
        errors: pathlib.Path | None = None,
    ) -> Forked:
        """Start a script.

        Args:
            command: its path and its arguments.
            environment: all of it.
            output: a file, which gets its standard output.
            errors: a file, which gets its standard error; None: the same.
        """
        start = {
            "command": command,
            "environment": dict(environment),
            "output": str(output),
            "errors": str(errors or output),
        }
        pid = self.ask(start=start)
        assert pid is not None
        return Forked(self, pid)

    def close(self) -> None:
        """End it, and with it each fork."""
        self._process.communicate()
