"""Sia's job lists by policy, beside published figures and those of its authors' own simulator.

Every policy decides through gsched's own head, in its simulator; how fast jobs really run is taken
from the traces of Sia's artifact. Times are hours; JCT is the mean time from submission to end.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import structs
from rich.console import Console

from baselines.registry import ALL, TRAININGS
from gsched.errors import GschedError, UsageError
from gschedd.plan.snapshot import Policy
from scripts.reproduce.arguments import shared_data
from scripts.reproduce.sia_bootstrap import Bootstrap
from scripts.reproduce.sia_floor import print_floor
from scripts.reproduce.sia_lists import (
    CLUSTERS,
    Cluster,
    Says,
    lists_of,
    read_list,
    with_rigid,
)
from scripts.reproduce.sia_report import CLUSTER as PUBLISHED_ON
from scripts.reproduce.sia_report import line, lists_said, pooled, print_table
from scripts.reproduce.sia_runs import Contender, ListFigures, Setup, run_list
from scripts.reproduce.sia_truth import Application

DATA: Final = shared_data("sia")
TRACES: Final = ("philly", "newtrace")
#: Policies of queues: they give jobs the GPUs that were requested.
QUEUES: Final = ("fifo",)
#: Those that choose the type of GPUs only.
RIGID: Final = ("gavel",)
#: Those that are compared if none are named.
DEFAULT: Final = "sia,pollux,gavel,themis,fifo"
EXAMPLES: Final = """examples:
  scripts/reproduce/sia --trace ../shared/data/sia/workloads/philly --lists 1
  scripts/reproduce/sia --policies sia,themis --cluster homo64 --json sia.json
"""


def contender(name: str) -> Contender:
    """Return a policy by its name."""
    adaptive = ALL.choose(name).plans_adaptive and name not in QUEUES
    says = Says.JOBS if name in QUEUES else Says.TRAININGS
    if adaptive:
        says = Says.RIGID if name in RIGID else Says.ADAPTIVE
    return Contender(name=name, make=partial(_plan, name), says=says, plans_adaptive=adaptive)


def _plan(name: str) -> Policy:
    return ALL.choose(name).plan


@lru_cache(100)
def _application(name: str, folder: Path) -> Application:
    return Application(name, folder)


def run(task: tuple[Path, str], asked: argparse.Namespace) -> ListFigures:
    """Run one list under one policy."""
    path, name = task
    applications = _applications(path, asked)
    setup = Setup(
        cluster=Cluster(asked.cluster),
        applications=applications,
        alike=asked.alike,
        bootstrap=asked.bootstrap,
        limit=asked.jobs,
        rigid=asked.rigid,
    )
    return run_list(path, contender(name), setup)


def _applications(path: Path, asked: argparse.Namespace) -> dict[str, Application]:
    wanted = sorted({row.application for row in read_list(path)})
    return {each: _application(each, asked.truth) for each in wanted}


def run_all(tasks: Sequence[tuple[Path, str]], asked: argparse.Namespace) -> list[ListFigures]:
    """Run all, and tell of each as soon as it is done."""
    each = partial(run, asked=asked)
    found: list[ListFigures] = []
    if asked.processes == 1:
        for task in tasks:
            found.append(each(task))
            print(line(found[-1]), file=sys.stderr, flush=True)
        return found
    with ProcessPoolExecutor(asked.processes) as pool:
        for figures in pool.map(each, tasks):
            found.append(figures)
            print(line(figures), file=sys.stderr, flush=True)
    return found


def report(found: Sequence[ListFigures], asked: argparse.Namespace, console: Console) -> None:
    """Print a table for each trace: of all its lists together, and of each if that is requested."""
    published = asked.cluster == PUBLISHED_ON and asked.jobs is None
    for trace, figures in groupby(sorted(found, key=lambda each: each.trace), lambda e: e.trace):
        of_trace = list(figures)
        lists = list(dict.fromkeys(each.list for each in of_trace))
        if asked.each or len(lists) == 1:
            for name in lists:
                rows = [each for each in of_trace if each.list == name]
                print_table(f"{trace}, {name}, {asked.cluster}", rows, console, known=published)
        if len(lists) > 1:
            rows = [
                pooled([each for each in of_trace if each.policy == policy])
                for policy in asked.policies
            ]
            title = f"{trace}, {lists_said(len(lists))}, {asked.cluster}"
            print_table(title, rows, console, known=published)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 130)


def _policies(text: str) -> list[str]:
    """Return the names of policies that are requested."""
    names, known = text.split(","), (*QUEUES, *TRAININGS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no policy {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )
    return names


def numbers_of(text: str) -> list[int]:
    """Return the numbers of ``1,3-5``."""
    found: list[int] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        try:
            found += range(int(first), int(last or first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: 1,3-5") from None
    return found


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return number


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part: 0 to 1")
    return part


def add_data_arguments(made: argparse.ArgumentParser) -> None:
    """Let a command line name the traces, the cluster and the lists."""
    made.add_argument(
        "--truth", type=Path, default=DATA / "traces", metavar="DIR", help="traces of the models"
    )
    made.add_argument("--cluster", choices=sorted(CLUSTERS), default="hetero64", help="[hetero64]")
    made.add_argument(
        "--lists", type=numbers_of, metavar="N,N-N", help="of each folder, counted from 1 [all]"
    )
    made.add_argument("--jobs", type=_count, metavar="N", help="only the first of each list [all]")


def chosen_lists(folder: Path, numbers: Sequence[int] | None) -> list[Path]:
    """Return the lists of a folder with these numbers, counted from 1; None: all.

    Raises:
        UsageError: the folder has none of them.
    """
    here = lists_of([folder])
    found = [here[number - 1] for number in numbers or () if 0 < number <= len(here)]
    if numbers and not found:
        raise UsageError(f"{folder} has lists 1 to {len(here)}", hint="choose --lists among them")
    return found or here


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/sia",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--trace",
        type=Path,
        action="append",
        metavar="DIR",
        help="folder of lists, or one list; may be given again [philly and newtrace]",
    )
    add_data_arguments(made)
    made.add_argument(
        "--policies",
        type=_policies,
        default=DEFAULT,
        metavar="sorted(ALL.queue)",
        help=f"comma-separated, of {', '.join(sorted((*QUEUES, *TRAININGS)))} [{DEFAULT}]",
    )
    made.add_argument("--each", action="store_true", help="print a table for each list, too")
    made.add_argument(
        "--alike",
        action="store_true",
        help="jobs of one model are of one kind: what was learned of one is known of the next",
    )
    made.add_argument(
        "--bootstrap",
        type=Bootstrap,
        choices=list(Bootstrap),
        default=Bootstrap.TYPES,
        help="what is profiled of a job: nothing, batches on one GPU when it runs on a type, "
        "before it starts on each type, or all before it starts [types]",
    )
    made.add_argument(
        "--floor",
        action="store_true",
        help="run nothing: print how long each job of the lists takes alone on the whole cluster",
    )
    made.add_argument(
        "--rigid",
        type=_part,
        default=0.0,
        metavar="PART",
        help="of the jobs keep the number of GPUs and the batch of their users, 0 to 1 [0]",
    )
    made.add_argument("--processes", type=_count, default=1, metavar="N", help="lists at once [1]")
    made.add_argument("--json", type=Path, metavar="OUT", help="file to write all figures to")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all lists, print tables, and write the figures as JSON if asked to."""
    asked = parser().parse_args(arguments)
    try:
        paths: list[Path] = []
        for folder in asked.trace or [DATA / "workloads" / name for name in TRACES]:
            paths += chosen_lists(folder, asked.lists)
        if asked.floor:
            for path in paths:
                rows = with_rigid(read_list(path)[: asked.jobs], asked.rigid)
                name, cluster = f"{path.parent.name}, {path.stem}", Cluster(asked.cluster)
                print_floor(name, rows, cluster, _applications(path, asked), _console())
            return 0
        found = run_all([(path, name) for path in paths for name in asked.policies], asked)
    except (GschedError, OSError) as error:
        print(f"sia: {error}", file=sys.stderr)
        return 2
    report(found, asked, _console())
    if asked.json:
        said = {"cluster": asked.cluster, "lists": [structs.asdict(each) for each in found]}
        for each in said["lists"]:
            each["each"] = [structs.asdict(job) for job in each["each"]]
        asked.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
