"""Real training jobs with deadlines, on a head and two nodes of this machine.

Each node declares GPUs that are not there; a training's step takes as long as its user says (see
``examples/paced``), its gradients are averaged by gloo over torchrun's ranks. What gsub said at
submission is compared with what ghist says at the end.

In the first round the head does not know yet how long such training jobs take to start; in the next
ones it has learned that.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import click
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from scripts.reproduce.live_cluster import Cluster

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "examples" / "paced" / "train.py"
POLL_S: Final = 1.0
WAIT_S: Final = 900.0
#: Columns of the tables, also where the output is a file.
WIDTH: Final = 120


class Wish(Struct, frozen=True, kw_only=True):
    """A training as its user wants it: on 1 to ``gpus`` GPUs, done after so many seconds."""

    name: str
    samples: int
    deadline_s: float
    gpus: int = 4
    batch: int = 16
    step_time_ms: float = 200.0

    @property
    def alone_s(self) -> float:
        """Return how long its steps take on one GPU, seconds."""
        return self.samples / self.batch * self.step_time_ms / 1000


class Told(Struct, kw_only=True):
    """What became of one: all moments in seconds since the epoch."""

    wish: Wish
    job: int
    submitted_s: float
    said: str
    gpus: int = 0
    predicted_end_s: float | None = None
    predicted_at_start_s: float | None = None
    deadline_s: float = 0.0
    marked_late_s: float | None = None
    last_predicted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""


#: Eight GPUs: the first five fill them; the last cannot be in time behind them, which is known
#: from its submission on.
WISHES: Final = (
    Wish(name="large", samples=12800, deadline_s=110.0),
    Wish(name="urgent", samples=6400, deadline_s=75.0),
    Wish(name="small", samples=3200, deadline_s=90.0, gpus=2),
    Wish(name="long", samples=9600, deadline_s=200.0),
    Wish(name="narrow", samples=4800, deadline_s=120.0, gpus=1),
    Wish(name="queued", samples=6400, deadline_s=160.0),
    Wish(name="hopeless", samples=12800, deadline_s=62.0),
)


def rows_of(cluster: Cluster) -> dict[int, dict[str, object]]:
    """Return all jobs, done or not, by id."""
    found = json.loads(cluster.run("gstat", "--all", "--json")[0])
    return {row["id"]: row for row in found["jobs"]}


def submit(cluster: Cluster, wish: Wish) -> Told:
    """Submit a training as its user would."""
    size = ("--samples", str(wish.samples), "--batch", str(wish.batch), "--epochs", "1")
    at_s = time.time()
    out, said = cluster.run(
        *("gsub", "-N", wish.name, "--gpus", f"1..{wish.gpus}" if wish.gpus > 1 else "1"),
        *("--deadline", f"{wish.deadline_s:g}s", "--params", "10k", *size),
        *("--step-time", f"{wish.step_time_ms:g}ms", "--python", sys.executable),
        *("--torchrun", str(EXAMPLE), *size, "--step-time-ms", f"{wish.step_time_ms:g}"),
    )
    job = int(out.split(".")[0])
    return Told(wish=wish, job=job, submitted_s=at_s, said=" ".join(said.split()))


def follow(cluster: Cluster, told: list[Told], console: Console) -> None:
    """Look at all of them until they are done, and note when each is first marked late."""
    until_s = time.time() + WAIT_S
    with console.status("training jobs run") as status:
        while time.time() < until_s:
            rows = rows_of(cluster)
            for each in told:
                _note(each, rows[each.job])
            left = sum(each.ended_s is None for each in told)
            status.update(f"{left} of {len(told)} training jobs are left")
            if not left:
                return
            time.sleep(POLL_S)
    raise click.ClickException(f"not all training jobs were done after {WAIT_S:g} s")


def _note(told: Told, row: dict[str, object]) -> None:
    predicted, outcome = row.get("predicted_end_s"), row.get("outcome")
    told.deadline_s = float(str(row.get("deadline_s") or 0.0))
    if predicted is not None and told.ended_s is None:
        told.last_predicted_s = float(str(predicted))
        if told.predicted_end_s is None:
            told.predicted_end_s = told.last_predicted_s
        if told.predicted_at_start_s is None and row.get("started_s") is not None:
            told.predicted_at_start_s = told.last_predicted_s
    waits = outcome is None and told.marked_late_s is None
    if waits and row.get("meets_deadline") is False:
        told.marked_late_s = time.time()
    if row.get("started_s") is not None:
        told.started_s = float(str(row["started_s"]))
    if isinstance(outcome, dict) and row.get("ended_s") is not None:
        told.ended_s = float(str(row["ended_s"]))
        told.outcome = str(outcome["kind"])


def show(told: list[Told], console: Console) -> None:
    """Print what was predicted beside what became of it."""
    table = Table("training", "said at submission", box=None)
    for each in told:
        table.add_row(each.wish.name, each.said)
    console.print(table)
    figures = Table("training", title="seconds since its submission", box=None)
    for title in (
        "deadline",
        "predicted",
        "start",
        "end",
        "error",
        "from its start",
        "marked late",
    ):
        figures.add_column(title, justify="right")
    figures.add_column("met", justify="right")
    for each in told:
        moments_s = (each.deadline_s, each.predicted_end_s, each.started_s, each.ended_s)
        figures.add_row(
            each.wish.name,
            *(_since(at_s, each.submitted_s) for at_s in moments_s),
            _signed(error_s(each.ended_s, each.predicted_end_s)),
            _signed(error_s(each.ended_s, each.predicted_at_start_s)),
            _since(each.marked_late_s, each.submitted_s),
            "yes" if (each.ended_s or 0.0) <= each.deadline_s else "no",
        )
    console.print(figures)
    for words, errors_s in (
        ("at submission", [error_s(each.ended_s, each.predicted_end_s) for each in told]),
        ("at their start", [error_s(each.ended_s, each.predicted_at_start_s) for each in told]),
    ):
        sizes_s = sorted(abs(each) for each in errors_s if each is not None)
        if sizes_s:
            middle = f"{median(sizes_s):.1f} s in the middle"
            console.print(f"off {words}: {middle}, {sizes_s[-1]:.1f} s at most")
    console.print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


def _since(at_s: float | None, begin_s: float) -> str:
    return "" if not at_s else f"{at_s - begin_s:.1f}"


def error_s(end_s: float | None, predicted_s: float | None) -> float | None:
    """Return how much later than predicted something ended; None where one of both is not known."""
    return None if end_s is None or predicted_s is None else end_s - predicted_s


def _signed(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:+.1f}"


def faults(told: list[Told]) -> list[str]:
    """Return what did not come out as it must."""
    found = [
        f"{each.wish.name} ended as {each.outcome}" for each in told if each.outcome != "exited"
    ]
    for each in told:
        late = (each.ended_s or 0.0) > each.deadline_s
        marked = each.marked_late_s is not None and each.marked_late_s < each.deadline_s
        if late and not marked:
            found.append(f"{each.wish.name} was late, and nobody had said so before")
    if not any(each.marked_late_s for each in told):
        found.append("nothing was marked late: the last training should have been")
    return found


@click.command()
@click.option("--policy", default="", metavar="NAME", help="[training] policy, instead of drs.")
@click.option("--rounds", default=2, metavar="N", help="So often, one after the other; default 2.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also as JSON there.")
def main(policy: str, rounds: int, json_path: Path | None) -> None:
    """Run real training jobs with deadlines, and compare predicted with actual ends.

    Example: scripts/reproduce/deadlines --policy deadline --json out.json
    """
    console = Console(width=max(WIDTH, Console().width))
    every: list[list[Told]] = []
    settings = f'[training]\npolicy = "{policy}"\n' if policy else ""
    with (
        tempfile.TemporaryDirectory(prefix="gsched-") as name,
        Cluster(Path(name) / "c", gpus=4, settings=settings) as cluster,
    ):
        for number in range(1, rounds + 1):
            console.rule(f"round {number}")
            told = [submit(cluster, wish) for wish in WISHES]
            every.append(told)
            follow(cluster, told, console)
            show(told, console)
    if json_path is not None:
        found = [[structs.asdict(each) for each in told] for told in every]
        json_path.write_text(json.dumps(found, default=str))
    wrong = [fault for told in every for fault in faults(told)]
    for each in wrong:
        console.print(f"wrong: {each}", highlight=False)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
