"""A GPU that is a file: the fake CUDA driver, the device behind it, and jobs that share it."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass, SharedTask
from gnode.gpushare.build import LIBRARY, NATIVE, symbol_table
from gnode.gpushare.interception import InterceptionRuntime
from gsched.config.nodes import GpuShareConfig
from tests.support.processes import PATIENCE_S, attempts

SOURCES = Path(__file__).with_name("fake_cuda")
JOB = Path(__file__).with_name("gpu_job.py")
GIB = 1 << 30
MIB = 1 << 20
LOG_MAX = 1 << 20


#: Below the directory of a run of tests: the library of the driver, and builds of the runtime's.
FAKE_DRIVER = ("fake-driver", LIBRARY)
BUILDS = "gpushare-lib"


def build_driver(folder: Path, *, flags: Sequence[str] = ()) -> Path:
    """Compile the fake driver; return the path of its library."""
    compiler = find_compiler()
    assert compiler is not None
    table = symbol_table((NATIVE / "cuda_symbols.txt").read_text().splitlines(), ())
    (folder / "symbols.inc").write_text(table)
    library = folder / LIBRARY
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-O2", "-g", "-fPIC", "-pthread", "-shared", "-w", *flags),
            *(f"-I{folder}", f"-I{NATIVE}", f"-I{SOURCES}"),
            *(str(path) for path in sorted(SOURCES.glob("*.c"))),
            *("-Wl,-Bsymbolic", f"-Wl,-soname,{LIBRARY}", "-ldl", "-o", str(library)),
        ],
        check=True,
    )
    return library


#: As ``struct fake_state`` of fake.h: five numbers, processes, calls of stubs, and the log.
_HEAD = struct.Struct("<5Q")
_PROCESS = struct.Struct("<IIQQ")
_RECORD = struct.Struct("<IIQQQQ")
_PROCESSES_MAX = 2048
_STUBS_MAX = 1024
_STUBS_AT = _HEAD.size + _PROCESSES_MAX * _PROCESS.size
_LOG_AT = _STUBS_AT + _STUBS_MAX * 4
_STATE_BYTES = _LOG_AT + LOG_MAX * _RECORD.size


@dataclass(frozen=True, slots=True)
class Ran:
    """One piece of work on the device; times of CLOCK_MONOTONIC, ns."""

    pid: int
    kind: int
    called_ns: int
    started_ns: int
    ended_ns: int


class Device:
    """The device's file, as the oracle of tests sees it."""

    def __init__(self, path: Path, *, total_bytes: int = 16 * GIB) -> None:
        self.path = path
        with path.open("xb") as file:
            file.write(total_bytes.to_bytes(8, "little"))
            file.truncate(_STATE_BYTES)  # with holes: most of the log stays empty

    def _read(self, count: int, offset: int = 0) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(count)

    @property
    def used_bytes(self) -> int:
        """Return the memory that is taken."""
        return int(_HEAD.unpack(self._read(_HEAD.size))[1])

    @property
    def events(self) -> int:
        """Return how many events processes have created and not destroyed."""
        return int(_HEAD.unpack(self._read(_HEAD.size))[4])

    def peak_bytes(self, pid: int) -> int:
        """Return the most that a process has had at once."""
        table = self._read(_STUBS_AT - _HEAD.size, _HEAD.size)
        return max((row[3] for row in _PROCESS.iter_unpack(table) if row[0] == pid), default=0)

    def used_by_process(self) -> dict[int, int]:
        """Return what each process has had last, also of those that are dead meanwhile."""
        table = self._read(_STUBS_AT - _HEAD.size, _HEAD.size)
        return {row[0]: row[2] for row in _PROCESS.iter_unpack(table) if row[0] and row[2]}

    def log(self) -> list[Ran]:
        """Return what has been launched, in the order of the calls."""
        count = int(_HEAD.unpack(self._read(_HEAD.size))[3])
        assert count <= LOG_MAX, "the log has overflown"
        return self.newest()

    def newest(self) -> list[Ran]:
        """Return what the log still has, in any order."""
        count = min(int(_HEAD.unpack(self._read(_HEAD.size))[3]), LOG_MAX)
        rows = _RECORD.iter_unpack(self._read(count * _RECORD.size, _LOG_AT))
        return [Ran(row[0], row[1], *row[3:]) for row in rows]

    def since(self, number: int) -> tuple[int, list[Ran]]:
        """Return how much has been launched, and what since so much was; the log is a ring."""
        count = int(_HEAD.unpack(self._read(_HEAD.size))[3])
        assert count - number <= LOG_MAX, "the log has overflown"
        rows: list[Ran] = []
        while number < count:
            first = number % LOG_MAX
            size = min(count - number, LOG_MAX - first)
            data = self._read(size * _RECORD.size, _LOG_AT + first * _RECORD.size)
            rows += [Ran(row[0], row[1], *row[3:]) for row in _RECORD.iter_unpack(data)]
            number += size
        return count, rows

    def stub_calls(self) -> dict[str, int]:
        """Return how often entry points were called that do nothing."""
        lines = (NATIVE / "cuda_symbols.txt").read_text().splitlines()
        names = [line.split()[0] for line in lines if not line.startswith("#")]
        counts = struct.unpack(f"<{len(names)}I", self._read(4 * len(names), _STUBS_AT))
        return {name: count for name, count in zip(names, counts, strict=True) if count}


class Job:
    """A process of a job; `call` evaluates an expression in it."""

    def __init__(
        self, environment: Mapping[str, str], *, library: str = "libcuda.so.1", log: Path
    ) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), library],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.pid = self._answer()

    def send(self, expression: str) -> None:
        """Begin to evaluate an expression."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the job has ended: {self.process.wait()}\n{self.log.read_text()}"
        return json.loads(line)

    def receive(self) -> Any:
        """Return the value of the expression that was sent first."""
        return self._answer()

    def call(self, expression: str) -> Any:
        """Return the value of an expression."""
        self.send(expression)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def wait_until(condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; fail if it does not in time."""
    assert any(condition() for _ in attempts(timeout_s)), "it has not happened in time"


@dataclass(slots=True)
class SharedGpu:
    """A node with one shared GPU: the real library, the real daemon, and the fake driver."""

    folder: Path
    driver: Path
    library: Path
    settings: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    total_bytes: int = 16 * GIB
    jobs: list[Job] = field(default_factory=list)
    device: Device = field(init=False)
    runtime: InterceptionRuntime = field(init=False)

    def __post_init__(self) -> None:
        self.device = Device(self.folder / "device", total_bytes=self.total_bytes)
        config = GpuShareConfig(driver=str(self.driver), **self.settings)
        gpushare = self.folder / "gpushare"
        gpushare.mkdir()
        (gpushare / "lib").symlink_to(self.library)
        self.runtime = InterceptionRuntime(config, gpushare, daemon_options=self.options)

    def task(
        self, name: str, share_class: ShareClass = ShareClass.LOW, *, memory_bytes: int = GIB
    ) -> SharedTask:
        """Return a task on the GPU."""
        return SharedTask(
            job=name,
            attempt=1,
            gpu_index=0,
            gpu_uuid="GPU-fake",
            percent=30,
            memory_bytes=memory_bytes,
            share_class=share_class,
        )

    def admit(self, task: SharedTask) -> dict[str, str]:
        """Admit a task; return its environment."""
        return {**self.runtime.admit(task), "GSCHED_FAKE_STATE": str(self.device.path)}

    def run(
        self, task: SharedTask, *, library: str = "libcuda.so.1", start: bool = True, **more: str
    ) -> Job:
        """Start a process of a task; it has a context unless told otherwise."""
        job = self.start({**self.admit(task), **more}, library=library)
        if start:
            assert job.call("cuda.start()") == 0
        return job

    def start(self, environment: Mapping[str, str], *, library: str = "libcuda.so.1") -> Job:
        """Start a process with this environment."""
        job = Job(environment, library=library, log=self.folder / "jobs.log")
        self.jobs.append(job)
        return job

    @property
    def said(self) -> str:
        """Return what processes of jobs have written to their error output."""
        return (self.folder / "jobs.log").read_text()

    def metrics(self) -> dict[str, Any]:
        """Return the daemon's metrics."""
        return dict(self.runtime.metrics())

    def daemon_pid(self) -> int:
        """Return the daemon's process id."""
        return int(self.metrics()["pid"])

    def close(self) -> None:
        """End all processes."""
        for job in self.jobs:
            job.close()
        try:
            for group in list(self.metrics()["groups"]):
                self.runtime.keeper.ask(order="remove", group=group)
        finally:
            self.runtime.close()
