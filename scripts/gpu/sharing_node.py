"""A GPU with the runtime ``interception``, real or the driver without a GPU, and its processes."""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from gnode.gpushare import ShareClass, SharedTask
from gnode.gpushare.interception import InterceptionRuntime, find_driver
from gnode.hw.nvml import Nvml
from gsched.config_gpu_share import GpuShareConfig
from scripts.gpu.sharing_rehearsal import Rehearsal

HERE: Final = Path(__file__).resolve().parent
PROBE: Final = HERE / "sharing_probe.py"
GIB: Final = 1 << 30
#: Trainings that take longer are killed.
TRAIN_S: Final = 150.0
#: NVML itself averages over up to a second.
SAMPLE_S: Final = 1.0


class OutOfTimeError(Exception):
    """The time that was given for all parts is over."""


class Node:
    """One GPU, the runtime, and all processes that are started on it.

    Args:
        folder: for the runtime's files.
        budget_s: for all processes together.
        rehearse: on the driver without a GPU.
    """

    def __init__(self, folder: Path, *, budget_s: float, rehearse: bool) -> None:
        self.rehearsal = Rehearsal(folder) if rehearse else None
        self.nvml = Nvml() if self.rehearsal is None else self.rehearsal.nvml()
        self.gpus = self.nvml.gpus()
        self.gpu = self.gpus[0].uuid
        self.driver = str(self.rehearsal.driver) if self.rehearsal else find_driver() or ""
        self._until_s = time.monotonic() + budget_s
        self._tasks: list[SharedTask] = []
        self.folder = folder
        self._extra = {"PYTHONPATH": str(HERE.parents[1])}
        if self.rehearsal is not None:
            self._extra |= self.rehearsal.environment()
        self.runtime = self.make("main", watchdog_s=0.0)

    def make(self, name: str, *, watchdog_s: float) -> InterceptionRuntime:
        """Return a runtime with a token daemon of its own."""
        config = GpuShareConfig(watchdog_s=watchdog_s, driver=self.driver)
        return InterceptionRuntime(config, self.folder / name, nvml=self.nvml)

    def left_s(self, most_s: float) -> float:
        """Return how long a process may take.

        Raises:
            OutOfTimeError: there is no time left.
        """
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise OutOfTimeError
        return min(most_s, left_s)

    def question(self, *words: str) -> list[str]:
        """Return the command of the probe."""
        return [sys.executable, str(PROBE), *words]

    def task(self, share_class: ShareClass, memory_bytes: int) -> SharedTask:
        """Return the task of a new job."""
        task = SharedTask(
            job=str(len(self._tasks) + 1),
            attempt=1,
            gpu_index=0,
            gpu_uuid=self.gpu,
            percent=50,
            memory_bytes=memory_bytes,
            share_class=share_class,
        )
        self._tasks.append(task)
        return task

    def shared(self, share_class: ShareClass, memory_bytes: int = 16 * GIB) -> dict[str, str]:
        """Return the environment of a new job that shares the GPU."""
        return self.admitted(self.task(share_class, memory_bytes))

    def admitted(
        self, task: SharedTask, runtime: InterceptionRuntime | None = None
    ) -> dict[str, str]:
        """Return the environment of a job, which may share the GPU from now on."""
        return {**os.environ, **(runtime or self.runtime).admit(task), **self._extra}

    def plain(self) -> dict[str, str]:
        """Return the environment of a process that uses the driver itself."""
        library = {} if self.rehearsal is None else self.rehearsal.library_path()
        return {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu, **library, **self._extra}

    @property
    def used(self) -> bool:
        """Return whether a job has shared the GPU."""
        return bool(self._tasks)

    def close(self) -> None:
        """End the runtime; no process is left."""
        if not self.used:
            return
        for task in self._tasks:
            self.runtime.release(task)
        self.runtime.close()

    # ---- processes ----

    def ask(self, environment: Mapping[str, str], *words: str, most_s: float = 60.0) -> Any:
        """Return the answer of the probe.

        Raises:
            subprocess.SubprocessError: it failed or took too long.
        """
        ran = subprocess.run(
            self.question(*words),
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=self.left_s(most_s),
        )
        if ran.returncode:
            raise subprocess.SubprocessError(f"exit {ran.returncode}: {last_line(ran.stderr)}")
        return json.loads(ran.stdout.splitlines()[-1])

    @contextmanager
    def held(self, environment: Mapping[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
        """Yield a process of the probe that has said its first line; it is ended afterwards."""
        self.left_s(TRAIN_S)
        with subprocess.Popen(
            self.question(*words),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                yield process
            finally:
                process.kill()

    def train(
        self, jobs: Sequence[tuple[Sequence[str], Mapping[str, str]]]
    ) -> list[list[tuple[float, float]]]:
        """Run trainings at once; return when each iteration began and ended while all of them ran.

        Raises:
            subprocess.SubprocessError: one failed, or took too long.
        """
        limit_s = self.left_s(TRAIN_S)
        processes = [
            subprocess.Popen(
                list(words),
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for words, environment in jobs
        ]
        killer = threading.Timer(limit_s, lambda: [one.kill() for one in processes])
        killer.start()
        try:
            return common([*_spans(processes)])
        finally:
            killer.cancel()
            for process in processes:
                process.kill()
                process.communicate()


def _spans(processes: Sequence[subprocess.Popen[str]]) -> list[list[tuple[float, float]]]:
    for process in processes:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise subprocess.SubprocessError("a training did not begin")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = []
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise subprocess.SubprocessError("a training did not end")
        found.append([(float(begun), float(end)) for begun, end in json.loads(line)])
    return found


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
