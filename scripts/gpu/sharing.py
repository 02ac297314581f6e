"""GPU sharing by interception on a real GPU: is it correct, and what does it cost?

`questions`: the machine, the driver and NVML: whether the library has all entry points of this
driver, whether it is loaded in its place, what NVML shows, whether the watchdog, the fence and the
watch for processes of no job work here.

`cases`: what jobs do to each other: recordings of graphs while the token is lost, kernels that wait
for later launches, processes and contexts that end meanwhile, a token daemon that is killed or
stopped, memory in the order of streams and of graphs.

`correctness`: programs of the driver alone, PyTorch, CuPy, JAX, Triton and NCCL under a limit of 8
GiB: each gets its limit and not more, and kernels compute what they should.

`performance`: high jobs of several shapes, alone, with the library, packed, and beside a low job;
then VGG11, VGG16, VGG19, MobileNet and SqueezeNet on images of CIFAR's size that stay on the
device, a data loader's stall of 10 ms in each iteration. Fast GPUs are limited by launches with
these networks, so the stall stands for the idle time of an older GPU's input.

`all`: these four, in this order, within the time of --budget. Some of them are named with commas,
in the order in which they are to run. What is left out is said. Each question has a time limit of
its own: what hangs is killed, has failed, and the next one is asked. The file of --json has a line
for each answer, written at once.

Without a GPU it says so and ends with 0, or with 3 if there must be one (--require-gpu). With
--rehearse all of it runs on a driver without a GPU, with programs that use the driver alone in
place of networks and frameworks: the figures mean nothing, but the day a GPU is there nothing is
run for the first time.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from gnode.gpushare import ShareClass
from gnode.gpushare.errors import NativeBuildError, ShareRefusedError
from scripts.gpu.sharing_answers import Answer, Question, Record, ask_all, show
from scripts.gpu.sharing_cases import CASES
from scripts.gpu.sharing_figures import FIGURES
from scripts.gpu.sharing_node import (
    GIB,
    HERE,
    Node,
    OutOfTimeError,
    Utilisation,
    last_line,
    medians_ms,
)
from scripts.gpu.sharing_programs import PROGRAMS, Program
from scripts.gpu.sharing_questions import LIMIT, QUESTIONS

TRAIN: Final = HERE / "sharing_train.py"
#: Kernels, µs each, of an iteration that stands for a network where there is none.
STAND_INS: Final[Mapping[str, tuple[int, int]]] = {
    "vgg11": (6, 1000),
    "vgg16": (10, 1000),
    "vgg19": (13, 1000),
    "mobilenet": (20, 250),
    "squeezenet": (12, 300),
}
PIECE: Final = 64 << 20
PROGRAM_S: Final = 90.0
#: Programs at once: most of their time is the start of a framework.
BESIDE: Final = max(1, min(4, (os.cpu_count() or 1) // 4))
NETWORK_S: Final = 150.0
PARTS: Final = ("questions", "cases", "correctness", "performance")
WAYS: Final = ("alone", "library", "packed", "high", "low")
NO_GPU: Final = 3
EXAMPLES: Final = """examples:
  scripts/gpu/sharing all --json sharing.json
  scripts/gpu/sharing --wheels DIR questions,cases --require-gpu
                                       with packages that the machine lacks, without a network
  scripts/gpu/sharing performance --figures pipelined,bursts --models vgg16,mobilenet
  scripts/gpu/sharing all --rehearse --iterations 20
"""

Figures = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts, print what is found, and write the record."""
    asked = parser().parse_args(arguments)
    parts = PARTS if asked.parts == "all" else _names(asked.parts)
    for names, known in (
        (parts, PARTS),
        (_names(asked.questions), QUESTIONS),
        (_names(asked.cases), CASES),
        (_names(asked.figures), FIGURES),
        (_names(asked.models), STAND_INS),
    ):
        if unknown := sorted(set(names) - set(known)):
            print(f"sharing: no {unknown[0]!r}: there are {', '.join(known)}", file=sys.stderr)
            return 2
    record = Record(Path(asked.json) if asked.json else None)
    with tempfile.TemporaryDirectory(prefix="gsched-gpu-") as folder:
        node = Node(Path(folder).resolve(), budget_s=asked.budget, rehearse=asked.rehearse)
        node.stretch = asked.stretch
        if asked.cudart:
            node.extra["GPU_CUDART"] = str(Path(asked.cudart).resolve())
        missing = lacking(node)
        if missing is not None:
            print(f"{missing}: nothing is measured")
            record.add("end", "missing", {"said": missing})
            return NO_GPU if asked.require_gpu else 0
        try:
            return 1 if run(node, parts, asked, record) else 0
        finally:
            node.close()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/gpu/sharing",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("parts", metavar="PART,PART", help=f"all, or some of {', '.join(PARTS)}")
    made.add_argument("--questions", default=",".join(QUESTIONS), metavar="A,B", help="[all]")
    made.add_argument("--cases", default=",".join(CASES), metavar="A,B", help="[all]")
    made.add_argument("--figures", default=",".join(FIGURES), metavar="A,B", help="[all]")
    made.add_argument("--models", default=",".join(STAND_INS), metavar="A,B", help="[all]")
    made.add_argument("--iterations", type=int, default=150, help="of a training [150]")
    made.add_argument("--stall-ms", type=float, default=10.0, help="of a data loader [10]")
    made.add_argument("--rounds", type=int, default=1, help="of networks [1]")
    made.add_argument(
        "--stretch", type=float, default=1.0, metavar="N", help="times and counts on a GPU, times N"
    )
    made.add_argument("--budget", type=float, default=540.0, metavar="S", help="for all [540]")
    made.add_argument("--rehearse", action="store_true", help="on a driver without a GPU")
    made.add_argument(
        "--cudart", metavar="FILE", help="libcudart.so of CUDA 12, for one of the programs"
    )
    made.add_argument("--require-gpu", action="store_true", help="without one end with 3")
    made.add_argument("--json", metavar="FILE", help="write all answers, one on each line")
    return made


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def lacking(node: Node) -> str | None:
    """Return why nothing can be measured, or None; the library and the program are compiled."""
    if not node.gpus:
        return "no GPU that NVML sees"
    try:
        missing = node.main.runtime.missing()
        if missing is None:
            node.main.runtime.prepare()
            print(f"{node.gpus[0].type}, {node.gpus[0].uuid}; {node.program.name} is compiled")
    except (NativeBuildError, ShareRefusedError) as error:
        return str(error)
    return missing


def run(node: Node, parts: Iterable[str], asked: argparse.Namespace, record: Record) -> int:
    """Run what was requested while there is time; return how much of it has failed."""
    calls: Mapping[str, Callable[[], None]] = {
        "questions": lambda: ask_all(node, "questions", QUESTIONS, _names(asked.questions), record),
        "cases": lambda: ask_all(node, "cases", CASES, _names(asked.cases), record),
        "correctness": lambda: correctness(node, record),
        "performance": lambda: performance(node, asked, record),
    }
    record.add("begin", node.gpus[0].type, {"rehearsal": asked.rehearse, "parts": list(parts)})
    left_out = []
    begun_s = time.monotonic()
    for part in parts:
        try:
            if not node.is_calibrated and part != "questions":
                ask_all(node, "questions", QUESTIONS, ["speed"], record)
            calls[part]()
        except OutOfTimeError:
            print(f"no time is left for the rest of {part}")
            left_out.append(part)
    end: Answer = {
        "took_s": round(time.monotonic() - begun_s, 1),
        "failed": record.failed,
        "left_out": left_out,
        "metrics": node.main.metrics()["gpus"] if node.main.used else {},
    }
    record.add("end", "end", end)
    print(f"{end['took_s']} s; {record.failed} failed")
    return record.failed


# ---- correctness ----


def correctness(node: Node, record: Record) -> None:
    """Run all programs, some of them at once."""
    with node.limited(node.left_s), ThreadPoolExecutor(BESIDE) as pool:
        answers = {program.name: pool.submit(answer_of, node, program) for program in PROGRAMS}
        for program in PROGRAMS:
            answer = answers[program.name].result()
            if node.late:  # the time for all is over, and what ran was killed
                raise OutOfTimeError
            record.add("correctness", program.name, answer)
            show(program.name, answer)
    unhooked = node.main.metrics()["unhooked_symbols"] if node.main.used else 0
    newer: Answer = {"ok": unhooked == 0, "count": unhooked}
    record.add("correctness", "entry points newer than the library's table", newer)
    show("entry points newer than the library's table", newer)


def answer_of(node: Node, program: Program) -> Answer:
    """Return what has become of a program."""
    if node.rehearsal is None and program.needs and not is_there(node, program.needs):
        return {"skipped": f"{program.needs} is not installed"}
    begun_s = time.monotonic()
    try:
        fault = run_program(node, program)
    except subprocess.SubprocessError as error:
        fault = str(error)
    answer: Answer = {"ok": fault is None, "took_s": round(time.monotonic() - begun_s, 2)}
    return answer if fault is None else {**answer, "said": fault}


def is_there(node: Node, needed: str) -> bool:
    """Return whether a module of this interpreter, or the file of --cudart, is there."""
    if needed == "libcudart":
        return "GPU_CUDART" in node.extra
    return importlib.util.find_spec(needed) is not None


def run_program(node: Node, program: Program) -> str | None:
    """Return what is wrong, or None."""
    text = program.stand_in if node.rehearsal is not None and program.stand_in else program.code
    environment = {**node.shared(ShareClass.LOW, LIMIT), **dict(program.variables)}
    limit_s = min(PROGRAM_S, node.left_s)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # Triton reads its source
        file.write(f"LIMIT, PIECE = {LIMIT}, {PIECE}\n{text}\nprint(int(got))\n")
        file.flush()
        process = node.start(environment, [sys.executable, file.name])
        code, printed = process.output(limit_s)
        said = process.said
        process.close()
    if code is None:
        return f"not done in {limit_s:.0f} s: {last_line(said)}"
    if code:
        return f"exit {code}: {last_line(said)}"
    return judge(program, printed)


def judge(program: Program, printed: str) -> str | None:
    """Return what is wrong with what a program has printed, or None."""
    words = printed.split()
    if not words or not words[-1].lstrip("-").isdigit():
        return f"it printed {printed[-80:]!r}"
    got = int(words[-1])
    if program.exact is not None:
        return None if got == program.exact else f"{got}, and not {program.exact}"
    good = program.least * LIMIT <= got <= program.most * LIMIT
    return None if good else f"{got / GIB:.2f} GiB of {LIMIT / GIB:.0f}"


# ---- performance ----


def performance(node: Node, asked: argparse.Namespace, record: Record) -> None:
    """Measure programs of the driver, and networks."""
    ask_all(node, "performance", FIGURES, _names(asked.figures), record)
    models = _names(asked.models)
    if node.rehearsal is None and not is_there(node, "torch"):
        models = []
        print("skip  networks: PyTorch is not installed for this interpreter")
    networks = {
        model: Question(partial(network, model=model, asked=asked), NETWORK_S * asked.rounds)
        for model in models
    }
    ask_all(node, "networks", networks, models, record)


def command_of(node: Node, model: str, asked: argparse.Namespace) -> list[str]:
    """Return the command of a training."""
    if node.rehearsal is not None:
        kernels, us = STAND_INS[model]
        options = {"us": us, "kernels": kernels, "gap_ms": asked.stall_ms}
        return node.command("train", **options, iterations=asked.iterations)
    options_of_torch = [f"--iterations={asked.iterations}", f"--stall-ms={asked.stall_ms}"]
    return [sys.executable, str(TRAIN), model, *options_of_torch]


def network(node: Node, *, model: str, asked: argparse.Namespace) -> Answer:
    """Return the medians of a network's iterations in each way, ms, and what they mean."""
    rounds = [one_round(node, model, asked) for _ in range(asked.rounds)]
    row = median(rounds)
    if not all(row[way] for way in WAYS):
        return {"ok": False, "said": "two training jobs did not run at the same time", **row}
    return {
        **row,
        "library_percent": 100 * (row["library"] / row["alone"] - 1),
        "packed_percent": 100 * (row["packed"] / row["alone"] - 1),
        "high_percent": 100 * (row["high"] / row["alone"] - 1),
        "low_speed_percent": 100 * row["alone"] / row["low"],
    }


def one_round(node: Node, model: str, asked: argparse.Namespace) -> Figures:
    """Return the medians of a network's iterations in each way, ms."""
    words = command_of(node, model, asked)
    with Utilisation(node.nvml) as alone_seen:
        (alone,) = medians_ms(node.train([(words, node.plain())]))
    (library,) = medians_ms(node.train([(words, node.shared(ShareClass.HIGH))]))
    packed, _ = medians_ms(node.train([(words, node.plain()), (words, node.plain())]))
    with Utilisation(node.nvml) as shared_seen:
        high, low = medians_ms(
            node.train(
                [(words, node.shared(ShareClass.HIGH)), (words, node.shared(ShareClass.LOW))]
            )
        )
    return {
        **dict(zip(WAYS, (alone, library, packed, high, low), strict=True)),
        "alone_nvml_percent": alone_seen.mean,
        "shared_nvml_percent": shared_seen.mean,
    }


def median(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure of several rounds; None where there is none."""
    found: Figures = {}
    for key in rounds[0]:
        values = sorted(each[key] for each in rounds if each[key] is not None)
        found[key] = values[len(values) // 2] if values else None
    return found


if __name__ == "__main__":
    sys.exit(main())
