"""A real launcher on a state directory of its own, and what gnode's side of it does.

`Launcher` writes tasks and orders, talks to the launcher's socket and reads the records. Waiting
is done on the socket and on files with a deadline, so a hang fails the test.
"""

import functools
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnode.supervisor import journal
from tests.support import records
from tests.support.forks import ForkServer, popen_launcher
from tests.support.v1_groups import V1Groups

WAIT_S = 90.0  # of a machine on which much else runs


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Return the first true value of ``condition``; fail after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
    return value


def process_is_there(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


@dataclass(frozen=True)
class Way:
    """How a launcher runs jobs.

    Attributes:
        library: that runs plain jobs; empty: none.
        has_groups: each job has control groups with limits that it does not reach.
    """

    library: str = ""
    has_groups: bool = False


class Launcher:
    """One launcher process and the spool it works on."""

    def __init__(
        self,
        state: pathlib.Path,
        environment: dict[str, str] | None = None,
        *,
        allow_root: bool = True,
        under: Sequence[str] = (),
        library: str = "",
        has_groups: bool = False,
        server: ForkServer | None = None,
        is_real: bool = False,
    ) -> None:
        """Start one, as a fork of ``server``: one with torch, in which its jobs' programs find it.

        With ``is_real``, and ``under`` another command, it gets an interpreter of its own.
        """
        self.allow_root = allow_root
        self.library = library  # that runs plain jobs
        self.has_groups = has_groups
        self._groups: list[V1Groups] = []
        self.server = server
        self.is_real = is_real
        self.under = under  # a command that starts the launcher in its own place
        self.state = state
        self.out = state / "out"
        self.environment = environment or {}
        self._received = b""
        self._told: list[dict[str, Any]] = []
        state.mkdir(exist_ok=True)
        state.chmod(0o711)
        self.out.mkdir(exist_ok=True)
        self.out.chmod(0o777)
        self.start()

    def start(self) -> None:
        """Start the launcher (again) and connect."""
        address = self.state / "launcher.sock"
        command = [sys.executable, "-I", "-m", "gnode.supervisor.launcher"]
        command += ["--socket", str(address), "--state", str(self.state)]
        start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen
        if not self.is_real and not self.under:
            start = functools.partial(popen_launcher, server=self.server)
        with (self.state / "launcher.log").open("ab") as log:
            self.process = start(
                [*self.under, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", **self.environment},
            )
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            assert stdout.readline() == b"ready\n", self.log()
        self.connect()
        self.say_rules()

    def connect(self) -> None:
        """Connect to the launcher, as a gnode that has just started."""
        self._received = b""
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.connect(str(self.state / "launcher.sock"))

    def say_rules(self) -> None:
        """Say whose jobs may run here."""
        if self.allow_root:
            self.ask({"rules": {"allow_root": True, "uid_min": 0}})
        if self.library:
            self.ask({"native": self.library})

    def log(self) -> str:
        """Return what the launcher and its supervisors have logged."""
        return (self.state / "launcher.log").read_text()

    def close(self) -> None:
        """Kill everything that this launcher's jobs left, then the launcher."""
        for directory in records.running(self.state / "attempts"):
            self._order(directory.name, {"do": "stop", "reason": "delete", "grace_s": 0})
        try:
            wait_until(self._all_ended, "the jobs' ends")
        finally:
            self.channel.close()
            self.process.kill()
            self.process.wait()
            for groups in self._groups:
                groups.remove()

    def _all_ended(self) -> bool:
        return not records.running(self.state / "attempts")

    # --- gnode's side ---

    def task(self, job: int, argv: list[str], **changes: Any) -> dict[str, Any]:
        """Return a task that runs ``argv`` as this user, with fields replaced."""
        name = f"{job}.{changes.get('attempt', 1)}"
        task: dict[str, Any] = {
            "job": job,
            "attempt": 1,
            "user": "",
            "uid": os.getuid(),
            "gid": os.getgid(),
            "switch_user": False,
            "argv": argv,
            "env": {
                "PATH": os.defpath,
                "PBS_NODEFILE": f"{self.state}/user/{name}/nodefile",
            },
            "cwd": "/",
            "stdout_path": f"{self.out}/",
            "stderr_path": f"{self.out}/",
            "stdout_name": f"job.o{job}",
            "stderr_name": f"job.e{job}",
            "join": "n",
            "append": False,
            "umask": 0o022,
            "files": [],
            "user_dir": f"{self.state}/user/{name}",
            "cgroup": None,
            "memory_cgroup": None,
            "walltime_s": None,
            "grace_s": 5.0,
            "failure_report": None,
            "nice": 0,
            "leftover_grace_s": 0.3,
        }
        if self.has_groups:
            self._groups.append(V1Groups())
            task |= self._groups[-1].all(sorted(os.sched_getaffinity(0)))
        return task | changes

    def launch_prepared(self, launched: dict[str, Any]) -> None:
        """Launch job 1's task, which waits at its gate, as gnode does."""
        (self.directory(1) / "launched.json").write_text(json.dumps(launched))
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.order(1, {"do": "launch", "at_s": at_s, "walltime_s": launched["walltime_s"]})

    def directory(self, job: int, attempt: int = 1) -> pathlib.Path:
        """Return the spool directory of an attempt."""
        return self.state / "attempts" / f"{job}.{attempt}"

    def accept(self, task: dict[str, Any]) -> None:
        """Write task and journal, as gnode does before it requests a launch."""
        directory = self.directory(task["job"], task["attempt"])
        directory.mkdir(mode=0o700)
        journal.make_journal(str(directory)).close()
        (directory / "task.json").write_text(json.dumps(task))

    def ask(self, request: dict[str, Any]) -> None:
        """Send one request."""
        self.channel.sendall(json.dumps(request).encode() + b"\n")

    def launch(self, task: dict[str, Any], *, confined: bool = False) -> int:
        """Accept and launch a task; return the supervisor's pid."""
        self.accept(task)
        name = f"{task['job']}.{task['attempt']}"
        self.ask({"launch": name} | ({"confined": True} if confined else {}))
        return int(self.hear("launched", name)["pid"])

    def hear(self, what: str, name: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Return the next message of that kind about that attempt; others are kept for later."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for index, message in enumerate(self._told):
                if message.get(what) == name:
                    return self._told.pop(index)
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self.channel], [], [], max(0.0, left_s))
            assert ready, f"no {what!r} about {name} in {timeout_s} s; log: {self.log()}"
            chunk = self.channel.recv(1 << 16)
            assert chunk, f"the launcher is gone: {self.log()}"
            *lines, self._received = (self._received + chunk).split(b"\n")
            self._told += [json.loads(line) for line in lines]

    def started(self, job: int, attempt: int = 1) -> dict[str, Any]:
        """Return who runs an attempt once that is there."""
        directory = self.directory(job, attempt)
        found = wait_until(lambda: records.started(directory), f"a start; log: {self.log()}")
        return dict(found)

    def exit(self, job: int, attempt: int = 1) -> dict[str, Any]:
        """Wait for the end and return the exit record."""
        self.hear("ended", f"{job}.{attempt}")
        return self.exit_record(job, attempt)

    def exit_record(self, job: int, attempt: int = 1) -> dict[str, Any]:
        """Return the exit record, which has to be there."""
        record = records.ended(self.directory(job, attempt))
        assert record is not None
        return record

    def run(self, task: dict[str, Any], *, confined: bool = False) -> dict[str, Any]:
        """Launch a task and return its exit record."""
        self.launch(task, confined=confined)
        return self.exit(task["job"], task["attempt"])

    def order(self, job: int, order: dict[str, Any], attempt: int = 1) -> None:
        """Append an order and tell the supervisor."""
        self._order(f"{job}.{attempt}", order)

    def _order(self, name: str, order: dict[str, Any]) -> None:
        directory = self.state / "attempts" / name
        records.add_order(directory, json.dumps(order) + "\n")
        record = records.started(directory)
        if record is None:  # its supervisor was killed: the launcher looks by itself
            return
        if process_is_there(record["pid"]):
            os.kill(record["pid"], signal.SIGUSR1)

    def output(self, job: int, stream: str = "o") -> str:
        """Return what the job wrote."""
        return (self.out / f"job.{stream}{job}").read_text()

    def wait_for_output(self, job: int, text: str) -> str:
        """Return the job's output once ``text`` is in it."""
        path = self.out / f"job.o{job}"
        wait_until(lambda: path.exists() and text in path.read_text(), f"{text!r} in {path}")
        return path.read_text()
