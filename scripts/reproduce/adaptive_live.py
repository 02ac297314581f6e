"""Three real adaptive training jobs under sia, on two types of GPUs that are parts of a core.

Their gradients are averaged by gloo; the policy gives them GPUs and batches, and they report what
their steps take. Each report is compared with the prediction of the goodput model that the head had
just before it. In the end the accuracy is compared with that of a run with the tuned batch.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import click
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from gsched.errors import GschedError
from gsched.model.training import Adaptive
from gschedd.core.state import facts as f
from gschedd.models.adaptive import GoodputKnowledge
from gschedd.models.goodput.evaluation import step_times
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import ThroughputParameters
from gschedd.plan.training import gpus_by_node
from gschedd.store.reader import Reader
from scripts.reproduce.adaptive_gpus import declared_gpus
from scripts.reproduce.live_cluster import Cluster

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = ROOT / "scripts" / "reproduce" / "adaptive_train.py"
#: GPU type and parts of a core of a GPU, by node.
NODES: Final = {"n1": ("fast", 0.2), "n2": ("slow", 0.08)}
GPUS: Final = 2
BATCH: Final = Adaptive(batch=32, batch_max=512)
SETTINGS: Final = """[training]
policy = "sia"
[training.sia]
round_s = 20
lambda_n = 5
"""
#: Hidden units of the network of each training, by its name; and when it is submitted, seconds.
TRAININGS: Final = (("narrow", 1280, 0.0), ("middle", 1536, 60.0), ("wide", 2048, 100.0))
POLL_S: Final = 1.0
WAIT_S: Final = 3600.0
#: After this time predictions are to be near.
SETTLED_S: Final = 300.0
NEAR: Final = 0.15
WIDTH: Final = 120


class Told(Struct, frozen=True, kw_only=True):
    """A report of a training: what a step took where."""

    job: int
    at_s: float
    gpu_type: str
    counts: tuple[int, ...]
    batch_per_gpu: int
    accumulation: int
    step_s: float

    @property
    def configuration(self) -> tuple[str, int]:
        """Return type and number of the GPUs."""
        return self.gpu_type, sum(self.counts)

    @property
    def samples(self) -> int:
        """Return the samples of a step."""
        return sum(self.counts) * self.batch_per_gpu * (self.accumulation + 1)


class Compared(Struct, frozen=True, kw_only=True):
    """A report beside what was predicted just before; None: nothing was known of the job."""

    told: Told
    age_s: float
    predicted_s: float | None

    @property
    def error(self) -> float:
        """Return the relative error of the throughput."""
        assert self.predicted_s is not None, "it is asked of predictions only"
        return self.told.step_s / self.predicted_s - 1


class Run(Struct, kw_only=True):
    """A training: what it was submitted as, and what became of it."""

    name: str
    job: int
    submitted_s: float
    out: Path
    told: list[Told]
    done: bool = False


def command(cluster: Cluster, run: Run, *, width: int, epochs: int, gpus: Path) -> None:
    """Submit a training."""
    said, _ = cluster.run(
        *("gsub", "-N", run.name, "--kind", run.name, "--adaptive", "--gpus", f"1..{GPUS}"),
        *("--batch", str(BATCH.batch), "--batch-max", str(BATCH.batch_max)),
        *("--python", sys.executable, "--torchrun", str(SCRIPT), "--out", str(run.out)),
        *("--gpus", str(gpus), "--epochs", str(epochs), "--width", str(width)),
    )
    run.job, run.submitted_s = int(said.split(".")[0]), time.time()


def look(cluster: Cluster, run: Run) -> None:
    """Note the latest report of a training."""
    story = cluster.head.job(str(run.job))
    run.done = story.row.state == "done"
    progress, attempt = story.progress, story.attempts[-1] if story.attempts else None
    if run.done or progress is None or attempt is None or not progress.batch_per_gpu:
        return
    by_node = {part.node: len(part.gpu_indices) for part in attempt.parts}
    if attempt.started_s is None or progress.at_s < attempt.started_s:
        return  # of the attempt before
    told = Told(
        job=run.job,
        at_s=progress.at_s,
        gpu_type=NODES[next(iter(by_node))][0],
        counts=tuple(sorted(by_node.values(), reverse=True)),
        batch_per_gpu=progress.batch_per_gpu,
        accumulation=progress.accumulation,
        step_s=progress.step_s,
    )
    if told.step_s > 0 and (not run.told or run.told[-1].at_s != told.at_s):
        run.told.append(told)


def follow(cluster: Cluster, folder: Path, epochs: int, gpus: Path) -> list[Run]:
    """Submit the training jobs, one after the other, and look at them until they are done."""
    runs: list[Run] = []
    begin_s = time.time()
    waiting = list(TRAININGS)
    while waiting or not all(run.done for run in runs):
        if time.time() > begin_s + WAIT_S:
            raise click.ClickException(f"not all training jobs were done after {WAIT_S:g} s")
        if waiting and time.time() >= begin_s + waiting[0][2]:
            name, width, _ = waiting.pop(0)
            run = Run(name=name, job=0, submitted_s=0.0, out=folder / f"{name}.json", told=[])
            command(cluster, run, width=width, epochs=epochs, gpus=gpus)
            runs.append(run)
        for run in runs:
            if not run.done:
                look(cluster, run)
        time.sleep(POLL_S)
    return runs


def predicted_step_s(model: GoodputModel, told: Told) -> float:
    """Return what a model says of the step that was reported, seconds."""
    found = model.on(told.gpu_type)
    own, scaling = found.parameters, found.scaling or found.parameters

    def times(parameters: ThroughputParameters) -> tuple[float, float]:
        made = step_times(
            parameters,
            nodes=len(told.counts),
            replicas=sum(told.counts),
            per_gpu=told.batch_per_gpu,
            accumulation=told.accumulation,
        )
        return float(made.gradient_s), float(made.step_s)

    (own_s, _), (gradient_s, step_s) = times(own), times(scaling)
    return step_s * own_s / gradient_s


def compared(run: Run, facts: Sequence[f.AnyFact]) -> list[Compared]:
    """Return each report of a training beside the prediction from all facts before it."""
    measured = [fact for fact in facts if isinstance(fact, f.StepsMeasured)]
    known, found, at = GoodputKnowledge(), [], 0
    for told in run.told:
        while at < len(measured) and measured[at].at_s < told.at_s - POLL_S:
            fact = measured[at]
            known.learn(fact.kind, fact.job, fact.steps, fact.at_s)
            at += 1
        kind = next((each.kind for each in measured if each.job == run.job), "")
        model = known.model(run.job, kind, BATCH)
        predicted_s = predicted_step_s(model, told) if model.models else None
        age_s = told.at_s - run.submitted_s
        found.append(Compared(told=told, age_s=age_s, predicted_s=predicted_s))
    return found


def show_courses(runs: Iterable[Run], facts: Sequence[f.AnyFact], console: Console) -> None:
    """Print the GPUs of each training over its time."""
    table = Table("training", "GPUs, from which second on", title="courses", box=None)
    for run in runs:
        words = []
        for fact in facts:
            if isinstance(fact, f.AttemptAssigned) and fact.job == run.job:
                by_node = gpus_by_node(fact.allocation)
                where = NODES[next(iter(by_node))][0]
                after_s = fact.at_s - run.submitted_s
                words.append(f"{sum(by_node.values())} {where} at {after_s:.0f}")
        table.add_row(run.name, ", ".join(words))
    console.print(table)


def show_predictions(found: Iterable[tuple[Run, list[Compared]]], console: Console) -> list[float]:
    """Print predicted beside measured throughputs; return the errors after five minutes."""
    table = Table("training", title="samples a second", box=None)
    for title in ("GPUs", "reports", "predicted first", "measured first", "error", "last error"):
        table.add_column(title, justify="right")
    table.add_column(f"median |error| after {SETTLED_S:.0f} s", justify="right")
    settled: list[float] = []
    for run, every in found:
        for key in dict.fromkeys(each.told.configuration for each in every):
            here = [each for each in every if each.told.configuration == key]
            known = [each for each in here if each.predicted_s]
            if not known:
                continue
            first, last = known[0], known[-1]
            assert first.predicted_s is not None, "it was chosen for that"
            late = [abs(each.error) for each in known if each.age_s >= SETTLED_S]
            settled += late
            table.add_row(
                run.name,
                f"{key[1]} {key[0]}",
                str(len(here)),
                f"{first.told.samples / first.predicted_s:.0f}",
                f"{first.told.samples / first.told.step_s:.0f}",
                f"{first.error:+.0%}",
                f"{last.error:+.0%}",
                f"{median(late):.0%}" if late else "",
            )
    console.print(table)
    return settled


def fixed_accuracy(folder: Path, *, width: int, epochs: int) -> float:
    """Return the accuracy of a run with the tuned batch, outside gsched."""
    out = folder / f"fixed-{width}.json"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    asked = ("--out", str(out), "--epochs", str(epochs), "--width", str(width))
    subprocess.run([*torchrun, "--nproc-per-node", "1", str(SCRIPT), *asked], check=True)
    return float(json.loads(out.read_text())["accuracy"])


def show_results(runs: Sequence[Run], folder: Path, epochs: int, console: Console) -> None:
    """Print what the training jobs have reached, beside runs with a fixed batch."""
    table = Table("training", title="results", box=None)
    for title in ("seconds", "steps", "worth", "last batch", "accuracy", "with the tuned batch"):
        table.add_column(title, justify="right")
    for run, (_, width, _) in zip(runs, TRAININGS, strict=True):
        told = json.loads(run.out.read_text())
        fixed = fixed_accuracy(folder, width=width, epochs=epochs)
        seconds = run.told[-1].at_s - run.submitted_s if run.told else 0.0
        table.add_row(
            run.name,
            f"{seconds:.0f}",
            str(told["steps"]),
            f"{told['progress']:.0f}",
            str(told["batch"]),
            f"{told['accuracy']:.3f}",
            f"{fixed:.3f}",
        )
    console.print(table)


@click.command()
@click.option("--epochs", default=80, metavar="N", help="Of each training, tuned [80].")
def main(epochs: int) -> None:
    """Run adaptive training jobs under sia, and compare predicted with measured throughputs.

    Example: scripts/reproduce/adaptive --epochs 80
    """
    console = Console(width=max(WIDTH, Console().width))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gsched-")))
        gpus = folder / "gpus.json"
        cores = {node: part for node, (_, part) in NODES.items()}
        types = tuple(gpu_type for gpu_type, _ in NODES.values())
        try:
            stack.enter_context(declared_gpus(cores, GPUS, gpus))
        except GschedError as error:
            raise click.ClickException(f"{error}; {error.hint}") from None
        cluster = Cluster(folder / "c", gpus=GPUS, gpu_types=types, settings=SETTINGS)
        with cluster:
            runs = follow(cluster, folder, epochs, gpus)
            facts = Reader(str(folder / "c" / "gsched.db")).all_facts()
        show_courses(runs, facts, console)
        settled = show_predictions([(run, compared(run, facts)) for run in runs], console)
        if settled:
            near = sum(error <= NEAR for error in settled) / len(settled)
            console.print(
                f"{len(settled)} reports after {SETTLED_S:.0f} s: {near:.0%} within {NEAR:.0%} of "
                f"the prediction, median {median(settled):.1%}"
            )
        show_results(runs, folder, epochs, console)
    console.print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
