"""GPU sharing by interception on a real GPU: `correctness` (2 minutes) and `performance`.

`correctness`: programs of PyTorch, CuPy, JAX, Triton and NCCL under a limit of 8 GiB: each gets its
limit and not more, and kernels compute what they should. It prints what NVML shows beyond the
library's own count, the footprint of a context.

`performance`: VGG11, VGG16, VGG19, MobileNet and SqueezeNet on images of CIFAR's size that stay on
the device, a data loader's stall of 10 ms in each iteration: alone; alone with the library; packed
with another one, without the library; as a high job beside a low one. Fast GPUs are limited by
launches with these networks, so the stall stands for the idle time of an older GPU's input.

Without a GPU both say so and end with 0.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from sharing_cases import CASES, Case

from gnode.gpushare import ShareClass, SharedTask
from gnode.gpushare.interception import InterceptionRuntime
from gnode.hw.nvml import Nvml
from gsched.config_gpu_share import GpuShareConfig

TRAIN = Path(__file__).with_name("sharing_train.py")
MODELS = ("vgg11", "vgg16", "vgg19", "mobilenet", "squeezenet")
GIB = 1 << 30
LIMIT = 8 * GIB
PIECE = 64 << 20


def main() -> None:
    """Run one of the scripts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", choices=("correctness", "performance"))
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--stall-ms", type=float, default=10.0)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    gpus = Nvml().gpus()
    if not gpus:
        print("no GPU that NVML sees: nothing is measured")
        return
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed for this interpreter: nothing is measured")
        return
    with tempfile.TemporaryDirectory() as folder:
        runtime = InterceptionRuntime(GpuShareConfig(watchdog_s=0.0), Path(folder, "gpushare"))
        missing = runtime.missing()
        if missing is not None:
            print(f"{missing}: nothing is measured")
            return
        print(f"{gpus[0].type}, {gpus[0].memory_bytes / GIB:.0f} GiB, {gpus[0].uuid}")
        node = Node(runtime, gpus[0].uuid)
        try:
            if given.script == "correctness":
                sys.exit(1 if node.correctness() else 0)
            node.performance(
                given.models.split(","),
                rounds=given.rounds,
                options=[f"--iterations={given.iterations}", f"--stall-ms={given.stall_ms}"],
            )
        finally:
            node.close()


class Node:
    """One real GPU and the runtime."""

    def __init__(self, runtime: InterceptionRuntime, gpu: str) -> None:
        self._runtime, self._gpu = runtime, gpu
        self._tasks: list[SharedTask] = []

    def admit(self, share_class: ShareClass, memory_bytes: int) -> dict[str, str]:
        """Return the environment of a new job."""
        task = SharedTask(
            job=str(len(self._tasks) + 1),
            attempt=1,
            gpu_index=0,
            gpu_uuid=self._gpu,
            percent=50,
            memory_bytes=memory_bytes,
            share_class=share_class,
        )
        self._tasks.append(task)
        return {**os.environ, **self._runtime.admit(task)}

    def close(self) -> None:
        """End all jobs and the daemon."""
        for task in self._tasks:
            self._runtime.release(task)
        self._runtime.close()

    # ---- correctness ----

    def correctness(self) -> int:
        """Run all cases; return how many have failed."""
        failed = 0
        for case in CASES:
            if importlib.util.find_spec(case.needs) is None:
                print(f"skip  {case.name}: {case.needs} is not installed")
                continue
            fault = self._try(case)
            failed += fault is not None
            print(f"{'FAIL' if fault else 'ok':4}  {case.name}{': ' + fault if fault else ''}")
        metrics = self._runtime.metrics()
        print(f"      entry points newer than the library's table: {metrics['unhooked_symbols']}")
        self._footprint()
        return failed

    def _try(self, case: Case) -> str | None:
        environment = {**self.admit(ShareClass.LOW, LIMIT), **dict(case.variables)}
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:  # Triton reads its source
            program.write(f"LIMIT, PIECE = {LIMIT}, {PIECE}\n{case.code}\nprint(int(got))\n")
            program.flush()
            ran = subprocess.run(
                [sys.executable, program.name],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        if ran.returncode:
            return f"exit {ran.returncode}: {ran.stderr.strip().splitlines()[-1:]}"
        got = int(ran.stdout.split()[-1])
        if case.exact is not None:
            return None if got == case.exact else f"{got}, and not {case.exact}"
        good = case.least * LIMIT <= got <= case.most * LIMIT
        return None if good else f"{got / GIB:.2f} GiB of {LIMIT / GIB:.0f}"

    def _footprint(self) -> None:
        """Print what NVML shows of a process beyond what the library has counted."""
        code = (
            "import sys, torch; x = torch.empty(1 << 30, dtype=torch.uint8, device='cuda'); "
            "(x[:1024].float() @ x[:1024].float()).item(); print('ready', flush=True); "
            "sys.stdin.readline()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env=self.admit(ShareClass.LOW, LIMIT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            counted = self._runtime.metrics()["groups"][f"{self._tasks[-1].job}.1"]["used_bytes"]
            shown = Nvml().samples()[0].process_memory_bytes.get(process.pid)
            process.communicate("\n")
        if shown is None:
            print("      NVML does not show this process: footprint of a context unknown")
        else:
            print(f"      footprint of a context: {(shown - counted) / (1 << 20):.0f} MiB")

    # ---- performance ----

    def performance(self, models: Sequence[str], *, rounds: int, options: list[str]) -> None:
        """Print medians of iterations, ms, and what they mean."""
        plain = {**os.environ, "CUDA_VISIBLE_DEVICES": self._gpu}
        half = 16 * GIB
        print(f"{'model':12}{'alone':>9}{'library':>9}{'packed':>9}{'high':>9}{'low':>9}   ms")
        for model in models:
            runs: dict[str, list[float]] = {
                way: [] for way in ("alone", "library", "packed", "high", "low")
            }
            for _ in range(rounds):
                (alone,) = train([(model, plain)], options)
                (library,) = train([(model, self.admit(ShareClass.HIGH, half))], options)
                packed, _ = train([(model, plain), (model, plain)], options)
                high, low = train(
                    [
                        (model, self.admit(ShareClass.HIGH, half)),
                        (model, self.admit(ShareClass.LOW, half)),
                    ],
                    options,
                )
                for way, value in zip(runs, (alone, library, packed, high, low), strict=True):
                    runs[way].append(value)
            medians = {way: statistics.median(values) * 1e3 for way, values in runs.items()}
            print(f"{model:12}" + "".join(f"{value:9.2f}" for value in medians.values()))
            print(
                f"{'':12}slow-down of high {percent(medians['high'], medians['alone'])}, packed "
                f"{percent(medians['packed'], medians['alone'])}, library "
                f"{percent(medians['library'], medians['alone'])}; "
                f"low runs at {medians['alone'] / medians['low']:.1%} of its own speed"
            )
        print(json.dumps(self._runtime.metrics()["gpus"]))


def percent(value: float, base: float) -> str:
    """Return how much more a value is than its base."""
    return f"{value / base - 1:+.1%}"


def train(jobs: Sequence[tuple[str, Mapping[str, str]]], options: list[str]) -> list[float]:
    """Run trainings at once; return the median iteration of each while all of them run, s."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(TRAIN), model, *options],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for model, environment in jobs
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    spans = [json.loads(process.communicate()[0]) for process in processes]
    until = min(span[-1][1] for span in spans)
    return [statistics.median(end - begun for begun, end in span if end <= until) for span in spans]


if __name__ == "__main__":
    main()
