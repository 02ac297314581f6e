"""What guarantees of `deadline` cost, on generated lists.

Lists have the distributions of ElasticFlow's traces. For each variant of the policy: the share of
deadlines that are met, the share of jobs whose deadline was guaranteed, the share of these that met
it, and the cause of each broken guarantee. Constants of the policy were chosen on seeds from 100
on; seeds below were only measured.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

import msgspec
from msgspec import Struct

from gsched.config.policies import DeadlineConfig
from gsched.errors import GschedError
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from scripts.reproduce.arguments import count_of, positive_of, seeds_of, shared_data
from scripts.reproduce.elasticflow_traces import Row, Tables, possible, read_tables, training_jobs
from scripts.reproduce.guarantees_causes import CAUSES, Watch
from scripts.reproduce.guarantees_lists import draw, pool_of

DATA: Final = shared_data("elasticflow")
GPUS: Final = 8  # of a node
EXAMPLES: Final = """examples:
  scripts/reproduce/guarantees --nodes 1 --jobs 800 --seeds 0-7
  scripts/reproduce/guarantees --variants default,guarantee_below=0,guarantee_below=1:hold_s=60
"""


class Outcome(Struct, frozen=True, kw_only=True):
    """What a variant made of one list.

    Attributes:
        possible: deadlines that jobs would meet alone on the cluster, of all.
        met: deadlines met, of all.
        given: guaranteed deadlines, of all.
        kept: guaranteed deadlines that were met, of these; None if there are none.
        migrations: of running jobs, for each job; stops included.
        causes: of each broken guarantee, by job.
    """

    variant: str
    seed: int
    jobs: int
    possible: float
    met: float
    given: float
    kept: float | None
    migrations: float
    causes: dict[int, str]


def simulate(
    variant: str,
    settings: DeadlineConfig,
    rows: Sequence[Row],
    asked: argparse.Namespace,
    tables: Tables,
    seed: int,
) -> Outcome:
    """Run one list under a variant."""
    gpus = asked.nodes * GPUS
    met, given = set[int](), set[int]()

    def note(result: JobResult) -> None:
        if result.deadline_met:
            met.add(result.job)
        if result.guaranteed:
            given.add(result.job)

    watch = Watch(settings)
    simulation = Simulation(
        read_cluster(f"{asked.nodes}xcpus=64,gpus={GPUS}"),
        list(training_jobs(rows, tables, gpus)),
        watch,
        options=Options(plans_training=True, move_s=asked.move_s),
        on_result=note,
    )
    simulation.run()
    found = simulation.summary(variant)
    return Outcome(
        variant=variant,
        seed=seed,
        jobs=len(rows),
        possible=possible(rows, tables, gpus),
        met=len(met) / len(rows),
        given=len(given) / len(rows),
        kept=len(met & given) / len(given) if given else None,
        migrations=(found.migrations + found.requeues) / len(rows),
        causes={job: watch.cause(job) for job in sorted(given - met)},
    )


def line(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return a line of the table: means over lists, and broken guarantees by cause."""
    given = sum(round(each.given * each.jobs) for each in outcomes)
    causes = Counter(cause for each in outcomes for cause in each.causes.values())
    broken = causes.total()
    kept = f"{1 - broken / given:.4f}" if given else ""
    why = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    return (
        f"{name:<32}{mean(each.met for each in outcomes):>8.4f}"
        f"{mean(each.given for each in outcomes):>8.4f}{kept:>8}{broken:>5} of {given:<6}"
        f"{mean(each.migrations for each in outcomes):>6.1f}  {why}"
    )


def run(asked: argparse.Namespace, show: Callable[[str], None]) -> list[Outcome]:
    """Run all variants on all lists, and show a table."""
    tables = read_tables(asked.throughputs)
    pool = pool_of(sorted(asked.traces.glob("*.csv")))
    lists = {
        seed: draw(
            pool, tables, seed=seed, jobs=asked.jobs, gpus=asked.nodes * GPUS, load=asked.load
        )
        for seed in asked.seeds
    }
    could = mean(possible(rows, tables, asked.nodes * GPUS) for rows in lists.values())
    show(
        f"{len(lists)} lists of {asked.jobs} jobs on {asked.nodes} x {GPUS} GPUs, load "
        f"{asked.load}; alone on the cluster {could:.4f} of the jobs could meet their deadlines\n"
        f"{'variant':<32}{'met':>8}{'given':>8}{'kept':>8}{'broken':>7}{'moves':>15}  causes"
    )
    found: list[Outcome] = []
    for name, settings in asked.variants:
        outcomes = []
        for seed, rows in lists.items():
            outcomes.append(simulate(name, settings, rows, asked, tables, seed))
            if asked.each:
                show(line(f"  {name}, seed {seed}", outcomes[-1:]))
        show(line(name, outcomes))
        found += outcomes
    causes = {cause for each in found for cause in each.causes.values()}
    for cause in sorted(causes):
        show(f"  {cause}: {CAUSES[cause]}")
    return found


def variants(text: str) -> list[tuple[str, DeadlineConfig]]:
    """Return the settings of ``default,NAME=VALUE:NAME=VALUE,...``."""
    found: list[tuple[str, DeadlineConfig]] = []
    for name in text.split(","):
        pairs = [] if name == "default" else [each.partition("=") for each in name.split(":")]
        try:
            given = {key: float(value or "nan") for key, _, value in pairs}
            found.append((name, msgspec.convert(given, DeadlineConfig, strict=False)))
        except (ValueError, TypeError) as error:
            raise argparse.ArgumentTypeError(f"variant {name!r}: {error}") from None
        unknown = given.keys() - set(DeadlineConfig.__struct_fields__)
        if unknown:
            known = ", ".join(DeadlineConfig.__struct_fields__)
            raise argparse.ArgumentTypeError(f"no setting {min(unknown)!r}; there are {known}")
    return found


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/guarantees",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seeds", type=seeds_of, default=range(4), metavar="A-B", help="[0-3]")
    made.add_argument("--nodes", type=count_of, default=16, help="nodes of 8 GPUs [16]")
    made.add_argument("--jobs", type=count_of, default=2500, help="of each list [2500]")
    made.add_argument("--load", type=positive_of, default=0.9, help="requested GPU time [0.9]")
    made.add_argument("--move-s", type=positive_of, default=10.0, help="of a migration [10]")
    made.add_argument(
        "--variants", type=variants, default=[("default", DeadlineConfig())], metavar="A,B",
        help="default, or settings of [training.deadline]: NAME=VALUE:NAME=VALUE",
    )  # fmt: skip
    made.add_argument("--traces", type=Path, default=DATA, help="folder of ElasticFlow's traces")
    made.add_argument("--throughputs", type=Path, default=DATA / "throughputs_A100", help="folder")
    made.add_argument("--each", action="store_true", help="a line for each list, too")
    made.add_argument("--json", type=Path, metavar="OUT", help="file to write all outcomes to")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write the outcomes as JSON if asked to."""
    asked = parser().parse_args(arguments)
    try:
        found = run(asked, lambda text: print(text, flush=True))
    except (GschedError, OSError) as error:
        print(f"guarantees: {error}", file=sys.stderr)
        return 2
    if asked.json:
        text = json.dumps(msgspec.to_builtins(found, str_keys=True), indent=1)
        asked.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
