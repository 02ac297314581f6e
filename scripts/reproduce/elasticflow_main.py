"""Deadlines met on ElasticFlow's traces, by policy, beside the figures of its authors' simulator.

Every policy decides through gsched's own head, in its simulator. A job counts as met if it is done
by its deadline; one that was refused counts as missed.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from baselines import edf, themis
from baselines.registry import TRAININGS
from gsched.errors import GschedError
from gschedd.plan.snapshot import Policy
from gschedd.policies.training import elasticflow
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.arguments import count_of, positive_of, shared_data
from scripts.reproduce.elasticflow_traces import (
    Row,
    as_asked,
    asked_load,
    possible,
    read_tables,
    read_trace,
    training_jobs,
)

DATA: Final = shared_data("elasticflow")
#: All that plans training jobs, by name: what a head may be given, and what is there for this only.
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        **TRAININGS,
        "edf-scaled": edf.plan_scaled,
        "elasticflow-slots": elasticflow.plan_in_slots,
        "themis-asked": themis.plan,
    }
)
#: Those that are compared if none are named.
DEFAULT: Final = (
    "edf,edf-scaled,fifowhole,themis,themis-asked,drs,elasticflow,elasticflow-slots,deadline"
)
#: With these, jobs have exactly the GPUs that their users asked for.
AS_ASKED: Final = frozenset({"themis-asked"})
#: Nodes of 8 GPUs that the authors' own script takes for a trace (its figure 8b; 195job: the real
#: cluster of the paper).
NODES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "195job": 16,
        "philly_103959": 32,
        **dict.fromkeys(("cluster01", "cluster02", "cluster03", "cluster05", "cluster06"), 64),
        **dict.fromkeys(("cluster04", "cluster08"), 128),
    }
)
#: What the authors' simulator gives on 195job, by number of nodes of 8 A100.
PUBLISHED: Final[Mapping[tuple[str, int], Mapping[str, float]]] = MappingProxyType(
    {
        ("195job", 16): {
            "elasticflow": 0.749,
            "elasticflow-slots": 0.749,
            "edf-scaled": 0.087,
            "themis-asked": 0.410,
        },
        ("195job", 8): {
            "elasticflow": 0.703,
            "elasticflow-slots": 0.703,
            "edf-scaled": 0.010,
        },
    }
)


class Figures(Struct, frozen=True, kw_only=True):
    """What a policy made of a trace.

    Attributes:
        met: jobs done by their deadline, of all.
        accepted: jobs whose deadline was guaranteed, of all; what a policy only expects so far is
            no guarantee.
        met_of_accepted: jobs done by their deadline, of those; None if there are none.
        published: ``met`` as the authors' simulator gives it, where it is known.
        waiting_s: mean time from submission to the first start.
        completion_s: mean time from submission to the end.
        gpu_use: GPUs owned, averaged over the run, 0 to 1.
        moves: of running jobs, suspensions included.
    """

    policy: str
    jobs: int
    met: float
    accepted: float
    met_of_accepted: float | None
    published: float | None
    unfinished: int
    waiting_s: float
    completion_s: float
    gpu_use: float
    moves: int
    cycles: int
    took_s: float


def run(name: str, jobs: Sequence[TraceJob], cluster: str, move_s: float) -> Figures:
    """Return what a policy makes of some jobs."""
    met: set[int] = set()
    accepted: set[int] = set()

    def note(result: JobResult) -> None:
        if result.deadline_met:
            met.add(result.job)
        if result.guaranteed:
            accepted.add(result.job)

    began_s = time.perf_counter()
    options = Options(plans_training=True, move_s=move_s)
    simulation = Simulation(
        read_cluster(cluster), jobs, POLICIES[name], options=options, on_result=note
    )
    simulation.run()
    summary = simulation.summary(name)
    accepted.update(number for number, job in simulation.head.state.jobs.items() if job.guaranteed)
    return Figures(
        policy=name,
        jobs=len(jobs),
        met=len(met) / len(jobs),
        accepted=len(accepted) / len(jobs),
        met_of_accepted=len(met & accepted) / len(accepted) if accepted else None,
        published=None,
        unfinished=summary.unfinished,
        waiting_s=summary.waiting_s.mean,
        completion_s=summary.completion_s.mean,
        gpu_use=summary.gpu.utilisation,
        moves=summary.migrations + summary.requeues,
        cycles=summary.cycles,
        took_s=time.perf_counter() - began_s,
    )


def report(
    path: Path, nodes: int, asked: argparse.Namespace, show: Callable[[str], None]
) -> dict[str, object]:
    """Run all policies on a trace, show a table, and return what is in it."""
    rows: list[Row] = read_trace(path)
    tables = read_tables(asked.throughputs)
    gpus = nodes * asked.gpus_per_node
    jobs = list(training_jobs(rows, tables, gpus))
    if asked.reject_late:
        jobs = [structs.replace(job, reject_if_late=True) for job in jobs]
    head: dict[str, object] = {
        "trace": path.stem,
        "nodes": nodes,
        "gpus_per_node": asked.gpus_per_node,
        "move_s": asked.move_s,
        "reject_late": asked.reject_late,
        "asked_load": asked_load(rows, gpus),
        "possible": possible(rows, tables, gpus),
    }
    show(
        f"\n{path.stem}: {len(rows)} jobs on {nodes} x {asked.gpus_per_node} GPUs; users asked for "
        f"{head['asked_load']:.2f} of their time;\nalone on the cluster {head['possible']:.3f} of "
        f"the jobs could be in time\n{'policy':<18}{'met':>7}{'publ.':>7}{'accepted':>10}"
        f"{'of these':>10}{'mean wait':>11}{'mean end':>10}{'GPUs':>6}{'moves':>8}{'took':>8}"
    )
    results: list[Figures] = []
    for name in asked.policies:
        of = as_asked(jobs, rows) if name in AS_ASKED else jobs
        cluster = f"{nodes}xcpus={max(64, asked.gpus_per_node)},gpus={asked.gpus_per_node}"
        figures = structs.replace(
            run(name, of, cluster, asked.move_s),
            published=PUBLISHED.get((path.stem, nodes), {}).get(name),
        )
        results.append(figures)
        show(_line(figures))
    return {**head, "policies": [structs.asdict(each) for each in results]}


def _line(each: Figures) -> str:
    published = "" if each.published is None else f"{each.published:.3f}"
    of_these = "" if each.met_of_accepted is None else f"{each.met_of_accepted:.3f}"
    return (
        f"{each.policy:<18}{each.met:>7.3f}{published:>7}{each.accepted:>10.3f}{of_these:>10}"
        f"{each.waiting_s:>9.0f} s{each.completion_s:>8.0f} s{each.gpu_use:>6.2f}{each.moves:>8}"
        f"{each.took_s:>6.0f} s"
    )


def sizes(path: Path, asked: argparse.Namespace) -> list[int]:
    """Return on how many nodes a trace is run.

    As many as were named, or as bring about the load that was named, or as its authors take; 195job
    runs on 16 and on 8.
    """
    if asked.nodes is not None:
        return [asked.nodes]
    if asked.load is not None:
        per_node = asked_load(read_trace(path), asked.gpus_per_node)
        return [max(1, math.ceil(per_node / asked.load))]
    return [16, 8] if path.stem == "195job" else [NODES.get(path.stem, 16)]


def _policies(text: str) -> list[str]:
    """Return the names of policies that are requested."""
    names = text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        known = ", ".join(sorted(POLICIES))
        raise argparse.ArgumentTypeError(f"no policy {unknown[0]!r}; there are {known}")
    return names


def _not_negative(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{number} is not 0 or more")
    return number


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument(
        "--trace", type=Path, action="append", help="file; may be given again [195job.csv]"
    )
    made.add_argument(
        "--throughputs", type=Path, default=DATA / "throughputs_A100", help="folder [A100]"
    )
    made.add_argument("--nodes", type=count_of, help="[those of the authors' script]")
    made.add_argument(
        "--load", type=positive_of, help="as many nodes as users asked for, over this"
    )
    made.add_argument("--gpus-per-node", type=count_of, default=8, help="[8]")
    made.add_argument(
        "--policies",
        type=_policies,
        default=DEFAULT,
        help=f"names, comma-separated: {', '.join(sorted(POLICIES))}",
    )
    made.add_argument(
        "--move-s", type=_not_negative, default=10.0, help="cost of a move, seconds [10]"
    )
    made.add_argument(
        "--reject-late",
        action="store_true",
        help="jobs ask to be refused if they would be late, instead of running when they can",
    )
    made.add_argument("--json", type=Path, help="file to write the figures to")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each trace, and write them as JSON if asked to."""
    asked = parser().parse_args(arguments)
    paths = asked.trace or [DATA / "195job.csv"]
    try:
        found = [
            report(path, nodes, asked, lambda line: print(line, flush=True))
            for path in paths
            for nodes in sizes(path, asked)
        ]
    except (GschedError, OSError) as error:
        print(f"elasticflow: {error}", file=sys.stderr)
        return 2
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
