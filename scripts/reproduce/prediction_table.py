"""Prediction error of the paper's rule and of gsched's own, side by side.

Every job is predicted when it starts, from the jobs that had ended by then; the first half only
teaches, the second half is scored. An error is ``|predicted - measured| / measured``.
"""

import argparse
import csv
import heapq
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from baselines.kit.paper_model import PaperModel
from gschedd.models.predict import Model
from gschedd.models.records import Record
from gschedd.models.robust import RobustModel
from gschedd.plan.load import Kind, NodeLoad, NodeRates, Prediction, Use
from scripts.reproduce.arguments import shared_data
from scripts.reproduce.generated_kinds import Run, generate

MODELS: Mapping[str, Callable[[], Model]] = {"paper": PaperModel, "gsched": RobustModel}
DURATIONS = shared_data("elasticflow")


class Scored(NamedTuple):
    """One held-out job: what was measured, and what each model had said."""

    record: Record
    said: dict[str, Prediction]


def replay(runs: Sequence[Run], score_from: int) -> list[Scored]:
    """Let all models predict every run at its start and learn from it at its end."""
    models = {name: make() for name, make in MODELS.items()}
    ends: list[tuple[float, int]] = []
    scored = []
    for number, run in enumerate(runs):
        while ends and ends[0][0] <= run.start_s:
            ended = runs[heapq.heappop(ends)[1]].record
            for model in models.values():
                model.learn(ended)
        record = run.record
        if number >= score_from:
            node = NodeLoad(name=record.node, rates=record.rates)
            said = {
                name: model.predict(record.kind, node, run.start_s)
                for name, model in models.items()
            }
            scored.append(Scored(record, said))
        heapq.heappush(ends, (record.ended_s, number))
    return scored


def errors(scored: Iterable[Scored], model: str, quantity: str) -> list[float]:
    """Return the relative errors of one model in one quantity."""
    return [
        abs(expected(job.said[model], quantity) - measured(job.record, quantity))
        / measured(job.record, quantity)
        for job in scored
    ]


def measured(record: Record, quantity: str) -> float:
    """Return what a run used."""
    values = {"cpu": record.used.cpu_cores, "memory": record.used.memory_bytes}
    return values.get(quantity, record.wall_s)


def expected(said: Prediction, quantity: str) -> float:
    """Return what was predicted; nothing known counts as nothing used."""
    values = {"cpu": said.use.cpu_cores, "memory": said.use.memory_bytes}
    return values.get(quantity, said.wall_s or 0.0)


def quantile(values: Iterable[float], part: float) -> float:
    """Return the value that ``part`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]


def table(scored: Sequence[Scored], quantities: Sequence[str]) -> list[dict[str, float | str]]:
    """Return a row for each quantity and model."""
    rows: list[dict[str, float | str]] = []
    for quantity in quantities:
        for model in MODELS:
            off = errors(scored, model, quantity)
            rows.append(
                {
                    "quantity": quantity,
                    "model": model,
                    "median": round(quantile(off, 0.5), 4),
                    "p90": round(quantile(off, 0.9), 4),
                    "within_high": round(_within_high(scored, model, quantity), 4),
                }
            )
    return rows


def _within_high(scored: Sequence[Scored], model: str, quantity: str) -> float:
    """Return the share of jobs that did not exceed the high value."""
    inside = 0
    for job in scored:
        said = job.said[model]
        high = Prediction(use=said.high, high=said.high, basis=said.basis, wall_s=said.wall_high_s)
        inside += measured(job.record, quantity) <= expected(high, quantity)
    return inside / len(scored)


def read_durations(folder: Path) -> dict[str, list[Run]]:
    """Return the recorded training jobs of each cluster: only their run times are real."""
    clusters = {}
    for path in sorted(folder.glob("cluster*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            runs = [_training(path.stem, row) for row in csv.DictReader(file)]
        clusters[path.stem] = sorted(runs, key=lambda run: run.start_s)
    return clusters


def _training(cluster: str, row: Mapping[str, str]) -> Run:
    gpus, wall_s = int(row["num_gpu"]), float(row["duration"])
    start_s = float(row["submission_time"])
    script = f"{row['model_name']}/{row['batch_size']}/{gpus}"
    record = Record(
        kind=Kind(key=script, program=row["model_name"], owner_uid=1, cpus=gpus, gpus=gpus),
        node=cluster,
        rates=NodeRates(cores=1, memory_bytes=1, gpus=1),
        wall_s=max(wall_s, 1.0),
        used=Use(),
        ended_s=start_s + wall_s,
    )
    return Run(start_s, record)


def show(title: str, rows: Sequence[Mapping[str, float | str]]) -> None:
    """Print a table for people."""
    print(f"\n{title}\n{'quantity':<10}{'model':<8}{'median':>9}{'p90':>9}{'<= high':>9}")
    for row in rows:
        print(
            f"{row['quantity']:<10}{row['model']:<8}{row['median']:>9.1%}{row['p90']:>9.1%}"
            f"{row['within_high']:>9.1%}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and write them as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-9", help="A-B, of the generated jobs")
    parser.add_argument("--jobs", type=int, default=4000, help="for each seed")
    parser.add_argument("--durations", type=Path, default=DURATIONS, help="folder of cluster*.csv")
    parser.add_argument("--json", type=Path, help="file to write the tables to")
    asked = parser.parse_args(arguments)
    first, _, last = asked.seeds.partition("-")
    scored: list[Scored] = []
    for seed in range(int(first), int(last or first) + 1):
        scored += replay(generate(seed, asked.jobs)[1], asked.jobs // 2)
    report: dict[str, object] = {"seeds": asked.seeds, "held_out_jobs": len(scored)}
    rows = table(scored, ["cpu", "memory", "wall"])
    report["generated"] = rows
    show(f"generated kinds, seeds {asked.seeds}: {len(scored)} held-out jobs", rows)
    clusters = read_durations(asked.durations)
    held_out = [job for runs in clusters.values() for job in replay(runs, len(runs) // 2)]
    if held_out:
        report["durations_held_out_jobs"] = len(held_out)
        rows = table(held_out, ["wall"])
        report["durations"] = rows
        show(f"ElasticFlow durations: {len(held_out)} held-out jobs", rows)
    else:
        report["durations"] = f"skipped: no cluster*.csv in {asked.durations.name}"
        print(f"\nElasticFlow durations: {report['durations']}")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
