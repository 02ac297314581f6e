"""A GPU with the runtime ``interception``, real or the driver without a GPU, and its processes."""

import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import pynvml

from gnode.compiling import find_compiler
from gnode.daemon.sharing import merged
from gnode.gpushare import ShareClass, SharedTask
from gnode.gpushare.build import NATIVE
from gnode.gpushare.errors import NativeBuildError
from gnode.gpushare.interception import InterceptionRuntime
from gnode.hw.nvml import Nvml
from gsched.config.nodes import GpuShareConfig
from gsched.cuda_driver import find_driver
from scripts.gpu.sharing_rehearsal import Rehearsal

HERE: Final = Path(__file__).resolve().parent
PROBE: Final = HERE / "sharing_probe.py"
SOURCES: Final = HERE / "native"
GIB: Final = 1 << 30
MIB: Final = 1 << 20
#: NVML itself averages over up to a second.
SAMPLE_S: Final = 1.0
#: A process that was killed is waited for so long: a hanging GPU may keep it for ever.
END_S: Final = 5.0


class OutOfTimeError(Exception):
    """The time that was given for all parts is over."""


class Process:
    """A process that prints one JSON value on each line, and waits for a line behind some of them.

    Attributes:
        pid: it leads a process group of its own.
    """

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], *, passed: Sequence[int] = ()
    ) -> None:
        self._name = " ".join(Path(word).name for word in words[:4])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is
        self._process = subprocess.Popen(
            list(words),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            pass_fds=passed,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def read(self) -> Any:
        """Return the next value.

        Raises:
            subprocess.SubprocessError: there is none: the process has ended, or was killed.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise subprocess.SubprocessError(
                f"{self._name}: exit {self._wait()}: {last_line(self.said)}"
            )
        return json.loads(line)

    def go(self) -> None:
        """Let it go on behind a value."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the last value, and what has become of the process.

        Raises:
            subprocess.SubprocessError: it has failed.
        """
        assert self._process.stdout is not None
        lines = self._process.stdout.read().splitlines()
        code = self._wait()
        if code or not lines:
            raise subprocess.SubprocessError(f"{self._name}: exit {code}: {last_line(self.said)}")
        return json.loads(lines[-1])

    def goes(self) -> Any:
        """Let it go on, and return its last value."""
        self.go()
        return self.answer()

    def output(self, timeout_s: float) -> tuple[int | None, str]:
        """Return how it has ended and all that it has printed; None: it was killed for its time."""
        try:
            printed, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None, ""
        return self._process.returncode, printed

    def wait(self, timeout_s: float) -> int | None:
        """Return how it has ended; None: it runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self) -> int | None:
        return self.wait(END_S)

    @property
    def said(self) -> str:
        """Return its error output. It may still write: its place in the file stays where it is."""
        descriptor = self._errors.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def kill(self) -> None:
        """End it, with all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(END_S)

    def close(self) -> None:
        """End it, and close what belongs to it."""
        if self._errors.closed:
            return
        self.kill()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                if file is not None:
                    file.close()


class Site:
    """A token daemon of its own on the GPU, and the jobs that it has admitted.

    Args:
        node: with the GPU.
        name: of its directory.
        settings: of ``[gpu_share]``.
    """

    def __init__(self, node: "Node", name: str, **settings: Any) -> None:
        self._node = node
        folder = node.folder / name
        folder.mkdir()
        (folder / "lib").symlink_to(node.library)
        config = GpuShareConfig(driver=node.driver, **{"watchdog_s": 0.0, **settings})
        self.runtime = InterceptionRuntime(config, folder, nvml=node.nvml)
        self._tasks: list[SharedTask] = []

    def task(self, share_class: ShareClass, memory_bytes: int) -> SharedTask:
        """Return the task of a new job."""
        task = SharedTask(
            job=str(len(self._tasks) + 1),
            attempt=1,
            gpu_index=0,
            gpu_uuid=self._node.gpu,
            percent=50,
            memory_bytes=memory_bytes,
            share_class=share_class,
        )
        self._tasks.append(task)
        return task

    def shared(self, share_class: ShareClass, memory_bytes: int = 16 * GIB) -> dict[str, str]:
        """Return the environment of a new job that shares the GPU."""
        return self.admitted(self.task(share_class, memory_bytes))

    def admitted(self, task: SharedTask) -> dict[str, str]:
        """Return the environment of a job, as gnode makes it of the one that the job has itself."""
        return {**merged(os.environ, self.runtime.admit(task)), **self._node.extra}

    def metrics(self) -> Mapping[str, Any]:
        """Return the token daemon's counters."""
        return self.runtime.metrics()

    def row(self, task: SharedTask) -> Mapping[str, Any]:
        """Return the token daemon's counters of a job."""
        row: Mapping[str, Any] = self.metrics()["groups"][f"{task.job}.{task.attempt}"]
        return row

    @property
    def used(self) -> bool:
        """Return whether a job has shared the GPU."""
        return bool(self._tasks)

    def close(self) -> None:
        """End the token daemon."""
        if not self._tasks:
            return
        for task in self._tasks:
            self.runtime.release(task)
        self.runtime.close()


class Node:
    """One GPU, the library, and all processes that are started on it.

    Args:
        folder: for the runtime's files.
        budget_s: for all processes together.
        rehearse: on the driver without a GPU.

    Attributes:
        library: the directory of its builds.
        stretch: repetitions and times of questions are so many times as large.
        main: the token daemon for whatever needs none of its own.
        late: whether the time of the current question is over.
        is_calibrated: whether kernels take as long as they are told.
    """

    def __init__(self, folder: Path, *, budget_s: float, rehearse: bool) -> None:
        self.rehearsal = Rehearsal(folder) if rehearse else None
        self.library_of_nvml = pynvml if self.rehearsal is None else self.rehearsal.library()
        self.nvml = Nvml(self.library_of_nvml)
        self.gpus = self.nvml.gpus()
        self.gpu = self.gpus[0].uuid if self.gpus else ""
        self.driver = str(self.rehearsal.driver) if self.rehearsal else find_driver() or ""
        self._until_s = time.monotonic() + budget_s
        self._processes: list[Process] = []
        self._sites = 0
        self.folder = folder
        self.stretch = 1.0
        self.late = self.is_calibrated = False
        self.extra = {"PYTHONPATH": f"{HERE.parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
        if self.rehearsal is not None:
            self.extra |= self.rehearsal.environment()
        self.library = self.rehearsal.builds if self.rehearsal else folder / "lib"
        self.library.mkdir(exist_ok=True)
        self.main = Site(self, "main")

    @functools.cached_property
    def program(self) -> Path:
        """Return the program of jobs, which is compiled at the first call.

        Raises:
            NativeBuildError: there is no compiler, or it fails.
        """
        compiler = find_compiler()
        if compiler is None:
            raise NativeBuildError("no C compiler", hint="install gcc and libc6-dev")
        return build_program(self.folder, compiler)

    def calibrate(self) -> Mapping[str, float]:
        """Let kernels take as long as they are told from now on; return the device's speed."""
        rates: Mapping[str, float] = self.ask(self.plain(), "calibrate")
        self.is_calibrated = True
        self.extra |= {
            "GPU_LOOPS_PER_US": str(rates["loops_per_us"]),
            "GPU_VECTORS_PER_US": str(rates["vectors_per_us"]),
        }
        return rates

    @contextmanager
    def site(self, **settings: Any) -> Iterator[Site]:
        """Yield a token daemon of its own: what happens to it happens to no other question."""
        self._sites += 1
        made = Site(self, f"site{self._sites}", **settings)
        try:
            yield made
        finally:
            self.end_processes()
            made.close()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Kill all processes of a question that takes longer, so that what waits for them fails.

        Raises:
            OutOfTimeError: there is no time left.
        """
        if self.left_s <= 0:
            raise OutOfTimeError
        self.late = False
        timer = threading.Timer(min(seconds * max(1.0, self.stretch), self.left_s), self._end_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.end_processes()

    @property
    def left_s(self) -> float:
        """Return how much of the time for all is left."""
        return self._until_s - time.monotonic()

    def _end_late(self) -> None:
        self.late = True
        for process in tuple(self._processes):
            process.kill()

    def end_processes(self) -> None:
        """End all processes."""
        while self._processes:
            self._processes.pop().close()

    def shared(self, share_class: ShareClass, memory_bytes: int = 16 * GIB) -> dict[str, str]:
        """Return the environment of a new job that shares the GPU."""
        return self.main.shared(share_class, memory_bytes)

    def plain(self) -> dict[str, str]:
        """Return the environment of a process that uses the driver itself."""
        library = {} if self.rehearsal is None else self.rehearsal.library_path()
        return {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu, **library, **self.extra}

    def take(self, real: float, rehearsed: float) -> float:
        """Return the first number, stretched as was requested, or in a rehearsal the second."""
        return real * self.stretch if self.rehearsal is None else rehearsed

    def close(self) -> None:
        """End the runtime; no process is left."""
        self.end_processes()
        self.main.close()

    # ---- processes ----

    def command(self, name: str, **options: float) -> list[str]:
        """Return a command of the program of jobs."""
        return [str(self.program), name, *(f"{key}={value}" for key, value in options.items())]

    def start(
        self, environment: Mapping[str, str], words: Sequence[str], *, passed: Sequence[int] = ()
    ) -> Process:
        """Start a process; it is ended with the question.

        Raises:
            subprocess.SubprocessError: the time of the question is over.
        """
        if self.late:
            raise subprocess.SubprocessError("its time is over")
        process = Process(words, environment, passed=passed)
        self._processes.append(process)
        return process

    def job(
        self,
        environment: Mapping[str, str],
        name: str,
        *,
        passed: Sequence[int] = (),
        **options: float,
    ) -> Process:
        """Start a command of the program of jobs."""
        return self.start(environment, self.command(name, **options), passed=passed)

    def ready(
        self,
        environment: Mapping[str, str],
        name: str,
        *,
        passed: Sequence[int] = (),
        **options: float,
    ) -> Process:
        """Start a command of the program of jobs, and wait until it is ready."""
        process = self.job(environment, name, passed=passed, **options)
        process.read()
        return process

    def ask(self, environment: Mapping[str, str], name: str, **options: float) -> Any:
        """Return what a command of the program of jobs answers."""
        return self.job(environment, name, **options).answer()

    def probe(self, environment: Mapping[str, str], *words: str) -> Any:
        """Return what the probe answers."""
        return self.start(environment, [sys.executable, str(PROBE), *words]).answer()

    def train(
        self, jobs: Sequence[tuple[Sequence[str], Mapping[str, str]]]
    ) -> list[list[tuple[float, float]]]:
        """Run training jobs at once; return when each iteration began and ended while all ran.

        Raises:
            subprocess.SubprocessError: one failed.
        """
        return common(self.spans(jobs))

    def spans(
        self, jobs: Sequence[tuple[Sequence[str], Mapping[str, str]]]
    ) -> list[list[tuple[float, float]]]:
        """Run training jobs at once; return when each of their iterations began and ended."""
        processes = [self.start(environment, words) for words, environment in jobs]
        for process in processes:
            process.read()
        for process in processes:
            process.go()
        answers = [process.answer() for process in processes]
        for process in processes:
            process.close()
        return [[(float(begun), float(end)) for begun, end in answer] for answer in answers]


def build_program(folder: Path, compiler: str) -> Path:
    """Compile the program of jobs; return its path.

    Raises:
        NativeBuildError: the compiler fails.
    """
    path = folder / "gpu-job"
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", f"-I{NATIVE}", f"-I{SOURCES}"]
    ran = subprocess.run(
        [compiler, *flags, *sources, "-ldl", "-o", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise NativeBuildError(f"{compiler} cannot compile {SOURCES}:\n{ran.stderr[:2000]}")
    return path


def common(spans: Sequence[Sequence[tuple[float, float]]]) -> list[list[tuple[float, float]]]:
    """Return the iterations of each that ended while all of them ran."""
    since = max(each[0][0] for each in spans)
    until = min(each[-1][1] for each in spans)
    return [[one for one in each if since <= one[0] and one[1] <= until] for each in spans]


def medians_ms(spans: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Return the median iteration of each, ms; 0 where there is none."""
    return [
        statistics.median([end - begun for begun, end in each]) * 1e3 if each else 0.0
        for each in spans
    ]


def mean_ms(spans: Sequence[tuple[float, float]]) -> float:
    """Return the mean time from one iteration to the next, ms, also of a job ahead of the GPU."""
    return (spans[-1][1] - spans[0][0]) / len(spans) * 1e3 if spans else 0.0


def last_line(text: str) -> str:
    """Return the last line of an error output."""
    return (text.strip().splitlines() or ["no message"])[-1]


class Utilisation:
    """Samples how busy a GPU is by NVML, once a second, for as long as a block lasts.

    Attributes:
        percent: of the samples; empty without NVML.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.percent: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            samples = self._nvml.samples()
            if not samples:
                return
            self.percent.append(samples[0].util_percent)

    @property
    def mean(self) -> float | None:
        """Return the mean, percent; None without samples."""
        return statistics.fmean(self.percent) if self.percent else None
