"""A real gnode with a fake head, in the directory of one test."""

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from gnode.task import SupervisorInfo
from gsched.model.job import Owner
from tests.support import records
from tests.support.fake_head import FakeHead, launch_order
from tests.support.forks import popen
from tests.support.processes import MARKER, PATIENCE_S, attempts, kill_all, processes_of

ROOT = Path(__file__).resolve().parents[2]


def this_user() -> Owner:
    """Return the owner of jobs that run as this test's own user."""
    entry = pwd.getpwuid(os.getuid())
    return Owner(user=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


class GnodeWorld:
    """One node daemon that can be killed and started again, and the head it dials."""

    def __init__(self, directory: Path, marker: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.state = directory / "n1"
        self.work = directory / "work"
        self.work.mkdir()
        (directory / "tmp").mkdir()
        self.head = FakeHead(directory / "head.sock")
        self.head.start()
        self.owner = this_user()
        self._marker = marker
        self._process: subprocess.Popen[bytes] | None = None
        self.settings: dict[str, object] = {
            "name": "n1",
            "head": self.head.address,
            "state_dir": str(self.state),
            "tmp_dir": str(directory / "tmp"),
            "cpus": 4,
            "memory": "4gb",
            "container_runtimes": [],  # what is installed here must not show
            "allow_root_jobs": os.getuid() == 0,
            "native_supervisor": False,  # each compiles for 0.3 s
        }
        self.gpus = 0
        self.share_runtime = ""
        self.cuda_driver = ""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return gnode's process, the last one started."""
        assert self._process is not None
        return self._process

    def write_config(self) -> Path:
        """Write the configuration that the attributes describe; return its path."""
        lines = ["[node]"]
        for key, value in self.settings.items():
            lines.append(f"{key} = {_toml(value)}")
        if self.gpus:
            lines += ["[[node.gpu]]", f"count = {self.gpus}"]
        if self.share_runtime:
            lines += ["[gpu_share]", f"runtime = {_toml(self.share_runtime)}"]
            lines += [f"driver = {_toml(self.cuda_driver)}"]
        path = self.directory / "gnode.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def start(self, env: Mapping[str, str] | None = None, *, wait: bool = True) -> None:
        """Start gnode (again); with ``wait`` the head has welcomed it when this returns."""
        before = self.head.connections
        self._process = self.spawn(env)
        if wait:
            self.head.wait_for_connection(before + 1)

    def spawn(self, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start one more gnode on this configuration; the caller ends it."""
        with open(self.directory / "gnode.log", "ab") as log:
            return popen(
                [sys.executable, "-m", "gnode.main", "--config", str(self.write_config())],
                cwd=ROOT,
                env={**os.environ, MARKER: self._marker, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill gnode with SIGKILL; launcher, supervisors and jobs live on."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def terminate(self) -> int:
        """Ask gnode to end and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def wait_for_death(self) -> int:
        """Return gnode's exit status once it has ended by itself."""
        return self.process.wait(PATIENCE_S)

    def launch(self, job: int, script: str, attempt: int = 1, **settings: object) -> None:
        """Order a script to be run by ``/bin/sh``."""
        self.head.send(
            launch_order(
                job,
                self.owner,
                self.work,
                attempt=attempt,
                script=f"#!/bin/sh\n{script}\n",
                **settings,  # type: ignore[arg-type]  # as launch_order takes them
            )
        )

    @property
    def scratch(self) -> Path:
        """Return the directory below which jobs get their own."""
        found = (self.directory / "tmp").glob("gsched-*")
        return next(each for each in found if not each.name.endswith("-outbox"))

    def supervisor(self, job: int, attempt: int = 1) -> SupervisorInfo:
        """Return who runs an attempt, once it has started."""
        directory = self.state / "attempts" / f"{job}.{attempt}"
        for _ in attempts():
            if (found := records.started(directory)) is not None:
                return SupervisorInfo(**found)
        raise AssertionError(f"attempt {job}.{attempt} was not started:\n{self.log()}")

    def log(self) -> str:
        """Return gnode's and the launcher's log."""
        paths = (self.directory / "gnode.log", self.state / "launcher.log")
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}"
            for path in paths
            if path.exists()
        )

    def stop(self) -> None:
        """End gnode and everything that belongs to this test."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.head.stop()
        kill_all(lambda: processes_of(self._marker, self.directory))
        for path in _own_groups(self.state):
            os.rmdir(path)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return msgspec.json.encode(value).decode()


def lives(pid: int) -> bool:
    """Return whether a process is there and more than a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int, timeout_s: float = PATIENCE_S) -> None:
    """Return once a process has ended."""
    for _ in attempts(timeout_s):
        if not lives(pid):
            return
    raise AssertionError(f"process {pid} is still there after {timeout_s} s")


def _own_groups(state: Path) -> list[str]:
    """Return the control groups that a killed gnode has left, children first."""
    from gnode.hw import cgroups

    roots = cgroups.find_roots(
        "auto", str(state), limit_processes=True, limit_cpus=True, gpu_fence="devices"
    )
    found: list[str] = []
    for root in roots.all:
        found += [os.path.join(root, name) for name in cgroups.children(root)]
        found.append(root)
    return found
