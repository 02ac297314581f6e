"""GPU sharing by interception on a real GPU: is it correct, and what does it cost?

`questions`: what is to be known of a driver before sharing is trusted on it: whether it loads
through the library, whether its addresses are the controlled ones, what a launch, a change of the
holder and a context cost, whether drains break recordings, what NVML shows, whether the watchdog
finds who goes around the library. It needs no PyTorch.

`correctness`: programs of the driver alone, PyTorch, CuPy, JAX, Triton and NCCL under a limit of 8
GiB: each gets its limit and not more, and kernels compute what they should.

`performance`: VGG11, VGG16, VGG19, MobileNet and SqueezeNet on images of CIFAR's size that stay on
the device, a data loader's stall of 10 ms in each iteration: alone; alone with the library; packed
with another one, without the library; as a high job beside a low one. Fast GPUs are limited by
launches with these networks, so the stall stands for the idle time of an older GPU's input.

`all`: these three, in this order, within the time of --budget. What is left out is said.

Without a GPU it says so and ends with 0. With --rehearse all of it runs on a driver without a GPU,
with programs that use the driver alone in place of networks and frameworks: the figures mean
nothing, but the day a GPU is there nothing is run for the first time.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gnode.gpushare import ShareClass
from gnode.gpushare.errors import NativeBuildError, ShareRefusedError
from gnode.hw.nvml import Nvml
from scripts.gpu.sharing_cases import CASES, Case
from scripts.gpu.sharing_node import (
    GIB,
    HERE,
    Node,
    OutOfTimeError,
    Utilisation,
    last_line,
    medians_ms,
)
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
MODELS: Final = tuple(STAND_INS)
PIECE: Final = 64 << 20
CASE_S: Final = 120.0
PARTS: Final = ("questions", "correctness", "performance")
WAYS: Final = ("alone", "library", "packed", "high", "low")
EXAMPLES: Final = """examples:
  scripts/gpu/sharing all --json sharing.json
  scripts/gpu/sharing --wheels wheels all          a venv of its own, without a network
  scripts/gpu/sharing all --rehearse --iterations 20
"""

Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts, print tables, and write the record."""
    asked = parser().parse_args(arguments)
    for names, known in ((asked.questions, QUESTIONS), (asked.models, STAND_INS)):
        if unknown := set(names.split(",")) - set(known):
            print(f"sharing: no {min(unknown)!r}: there are {', '.join(known)}", file=sys.stderr)
            return 2
    if not asked.rehearse and not Nvml().gpus():
        print("no GPU that NVML sees: nothing is measured")
        return 0
    with tempfile.TemporaryDirectory(prefix="gsched-gpu-") as folder:
        node = Node(Path(folder), budget_s=asked.budget, rehearse=asked.rehearse)
        missing = node.runtime.missing()
        try:
            if missing is None:
                node.runtime.prepare()
        except (NativeBuildError, ShareRefusedError) as error:
            missing = str(error)
        if missing is not None:
            print(f"{missing}: nothing is measured")
            return 0
        gpu = node.gpus[0]
        print(f"{gpu.type}, {gpu.memory_bytes / GIB:.0f} GiB, {gpu.uuid}")
        record: Record = {"gpu": gpu.type, "rehearsal": asked.rehearse, "left_out": []}
        try:
            failed = run(node, asked, record)
        finally:
            node.close()
    if asked.json:
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/gpu/sharing",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("script", choices=(*PARTS, "all"))
    made.add_argument("--iterations", type=int, default=150, help="of a training [150]")
    made.add_argument("--stall-ms", type=float, default=10.0, help="of a data loader [10]")
    made.add_argument("--questions", default=",".join(QUESTIONS), metavar="A,B", help="[all]")
    made.add_argument("--models", default=",".join(MODELS), metavar="A,B")
    made.add_argument("--rounds", type=int, default=1, help="of performance [1]")
    made.add_argument("--budget", type=float, default=540.0, metavar="S", help="for all [540]")
    made.add_argument("--rehearse", action="store_true", help="on a driver without a GPU")
    made.add_argument("--json", metavar="FILE", help="write all figures")
    return made


def run(node: Node, asked: argparse.Namespace, record: Record) -> int:
    """Run what was asked for while there is time; return how much of it has failed."""
    parts: Mapping[str, Callable[[], int]] = {
        "questions": lambda: questions(node, asked.questions.split(","), record),
        "correctness": lambda: correctness(node, record),
        "performance": lambda: performance(node, asked, record),
    }
    failed = 0
    begun_s = time.monotonic()
    for part in PARTS if asked.script == "all" else (asked.script,):
        try:
            failed += parts[part]()
        except OutOfTimeError:
            print(f"no time is left for the rest of {part}")
            record["left_out"].append(part)
    record["took_s"] = time.monotonic() - begun_s
    record["metrics"] = node.runtime.metrics()["gpus"] if node.used else {}
    print(f"{record['took_s']:.0f} s; {failed} failed")
    return failed


def questions(node: Node, names: Sequence[str], record: Record) -> int:
    """Ask questions; one that fails does not keep the others from being asked."""
    answers = record.setdefault("questions", {})
    for name in names:
        try:
            answer = QUESTIONS[name](node)
        except OutOfTimeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is: the next one is asked
            answer = {"ok": False, "said": f"{type(error).__name__}: {error}"}
        answers[name] = answer
        words = {True: "ok", False: "FAIL", None: ""}[answer.get("ok")]
        if "skipped" in answer:
            words = "skip"
        told = ", ".join(f"{key} {_short(one)}" for key, one in answer.items() if key != "ok")
        print(f"{words:4}  {name}: {told}", flush=True)
    return sum(each.get("ok") is False for each in answers.values())


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        shown = ", ".join(_short(one) for one in value[:4])
        return f"[{shown}{', …' if len(value) > 4 else ''}]"
    return str(value)


def correctness(node: Node, record: Record) -> int:
    """Run all cases; return how many have failed."""
    found = record.setdefault("correctness", {})
    for case in CASES:
        is_there = not case.needs or importlib.util.find_spec(case.needs) is not None
        if node.rehearsal is None and not is_there:
            found[case.name] = f"skipped: {case.needs} is not installed"
            print(f"skip  {case.name}: {case.needs} is not installed")
            continue
        fault = run_case(node, case)
        found[case.name] = fault or "ok"
        print(
            f"{'FAIL' if fault else 'ok':4}  {case.name}{': ' + fault if fault else ''}", flush=True
        )
    unhooked = node.runtime.metrics()["unhooked_symbols"]
    record["unhooked_symbols"] = unhooked
    print(f"      entry points newer than the library's table: {unhooked}")
    return sum(each != "ok" and not each.startswith("skipped") for each in found.values())


def run_case(node: Node, case: Case) -> str | None:
    """Return what is wrong, or None."""
    code = case.stand_in if node.rehearsal is not None and case.stand_in else case.code
    environment = {**node.shared(ShareClass.LOW, LIMIT), **dict(case.variables)}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:  # Triton reads its source
        program.write(f"LIMIT, PIECE = {LIMIT}, {PIECE}\n{code}\nprint(int(got))\n")
        program.flush()
        try:
            ran = subprocess.run(
                [sys.executable, program.name],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=node.left_s(CASE_S),
            )
        except subprocess.TimeoutExpired:
            return f"not done in {CASE_S:g} s"
    if ran.returncode:
        return f"exit {ran.returncode}: {last_line(ran.stderr)}"
    return judge(case, ran.stdout)


def judge(case: Case, printed: str) -> str | None:
    """Return what is wrong with what a case has printed, or None."""
    words = printed.split()
    if not words or not words[-1].lstrip("-").isdigit():
        return f"it printed {printed[-80:]!r}"
    got = int(words[-1])
    if case.exact is not None:
        return None if got == case.exact else f"{got}, and not {case.exact}"
    good = case.least * LIMIT <= got <= case.most * LIMIT
    return None if good else f"{got / GIB:.2f} GiB of {LIMIT / GIB:.0f}"


def command_of(node: Node, model: str, asked: argparse.Namespace) -> list[str]:
    """Return the command of a training."""
    if node.rehearsal is not None:
        kernels, kernel_us = STAND_INS[model]
        numbers = (kernel_us, kernels, asked.stall_ms, asked.iterations)
        return node.question("train", *map(str, numbers))
    options = [f"--iterations={asked.iterations}", f"--stall-ms={asked.stall_ms}"]
    return [sys.executable, str(TRAIN), model, *options]


def performance(node: Node, asked: argparse.Namespace, record: Record) -> int:
    """Print medians of iterations, ms, and what they mean; return how many trainings failed."""
    if node.rehearsal is None and importlib.util.find_spec("torch") is None:
        print("skip  performance: PyTorch is not installed for this interpreter")
        return 0
    found = record.setdefault("performance", {})
    failed = 0
    for model in asked.models.split(","):
        rounds: list[Record] = []
        try:
            rounds += [one_round(node, model, asked) for _ in range(asked.rounds)]
        except subprocess.SubprocessError as error:
            failed += 1
            print(f"FAIL  {model}: {error}", flush=True)
            continue
        found[model] = row = _median(rounds)
        times = "".join(f"{row[way]:9.2f}" for way in WAYS)
        if len(found) == 1:
            print(f"{'':12}" + "".join(f"{way:>9}" for way in WAYS) + "   ms")
        print(f"{model:12}{times}", flush=True)
        print(
            f"{'':12}slow-down of high {row['high'] / row['alone'] - 1:+.1%}, packed "
            f"{row['packed'] / row['alone'] - 1:+.1%}, library "
            f"{row['library'] / row['alone'] - 1:+.1%}; low runs at "
            f"{row['alone'] / row['low']:.1%} of its own speed; "
            f"busy by NVML {_short(row['alone_percent'])} % alone, "
            f"{_short(row['shared_percent'])} % shared"
        )
    return failed


def one_round(node: Node, model: str, asked: argparse.Namespace) -> Record:
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
    if not all((alone, library, packed, high, low)):
        raise subprocess.SubprocessError("two trainings did not run at the same time")
    return {
        **dict(zip(WAYS, (alone, library, packed, high, low), strict=True)),
        "alone_percent": alone_seen.mean,
        "shared_percent": shared_seen.mean,
    }


def _median(rounds: Sequence[Record]) -> Record:
    found: Record = {}
    for key in rounds[0]:
        values = sorted(each[key] for each in rounds if each[key] is not None)
        found[key] = values[len(values) // 2] if values else None
    return found


if __name__ == "__main__":
    sys.exit(main())
