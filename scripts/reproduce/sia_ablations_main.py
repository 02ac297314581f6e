"""One part of Sia at a time changed or left out, on its authors' job lists.

Each row is a run of the same lists; the columns say how it compares with the settings as published.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from gsched.config.policies import SiaConfig
from gsched.errors import GschedError
from gschedd.plan.snapshot import Policy
from gschedd.policies.training.sia import sia
from scripts.reproduce.sia_bootstrap import Bootstrap
from scripts.reproduce.sia_lists import Cluster, Says, read_list
from scripts.reproduce.sia_main import DATA, add_data_arguments, chosen_lists
from scripts.reproduce.sia_report import line, lists_said, pooled
from scripts.reproduce.sia_runs import Contender, ListFigures, Setup, run_list
from scripts.reproduce.sia_truth import Application

PUBLISHED: Final = "as published"
EXAMPLES: Final = """examples:
  scripts/reproduce/sia_ablations --lists 1
  scripts/reproduce/sia_ablations --only power,rounds --json ablations.json
"""


class Variant(Struct, frozen=True, kw_only=True):
    """One change.

    Attributes:
        part: of Sia which is changed.
        name: of the change.
        rigid: part of the jobs that are rigid.
    """

    part: str
    name: str
    settings: SiaConfig = SiaConfig()
    bootstrap: Bootstrap = Bootstrap.TYPES
    rigid: float = 0.0


def variants() -> Iterator[Variant]:
    """Yield all changes, after the settings as published."""
    yield Variant(part=PUBLISHED, name=PUBLISHED)
    yield Variant(part="restarts", name="cost 0", settings=SiaConfig(restart_factor=False))
    for p in (-1.0, -0.25, 0.25, 0.5, 1.0):
        yield Variant(part="power", name=f"p {p:g}", settings=SiaConfig(p=p))
    for round_s in (30.0, 120.0, 300.0, 600.0):
        yield Variant(part="rounds", name=f"{round_s:g} s", settings=SiaConfig(round_s=round_s))
    for bootstrap in (Bootstrap.ORACLE, Bootstrap.RUNS, Bootstrap.NONE):
        yield Variant(part="bootstrap", name=bootstrap.value, bootstrap=bootstrap)
    for rigid in (0.25, 0.5, 0.75, 1.0):
        yield Variant(part="rigid", name=f"{100 * rigid:.0f} % of jobs", rigid=rigid)


PARTS: Final = tuple(dict.fromkeys(each.part for each in variants()))[1:]


def run(variant: Variant, paths: Sequence[Path], setup: Setup) -> ListFigures:
    """Return what the policy with one change makes of some lists, pooled."""
    changed = structs.replace(setup, bootstrap=variant.bootstrap, rigid=variant.rigid)
    found: list[ListFigures] = []
    for path in paths:
        contender = Contender(
            name=f"sia, {variant.part} {variant.name}",
            make=partial(_policy, variant.settings),
            says=Says.ADAPTIVE,
            plans_adaptive=True,
        )
        found.append(run_list(path, contender, changed))
        print(line(found[-1]), file=sys.stderr, flush=True)
    return pooled(found)


def _policy(settings: SiaConfig) -> Policy:
    return sia(settings)


def print_table(title: str, found: Sequence[tuple[Variant, ListFigures]], console: Console) -> None:
    """Print a row for each change."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("part", "change"):
        table.add_column(name)
    for name in ("JCT, h", "", "p99, h", "", "makespan, h", "GPU-h a job", "restarts", "CPU, s"):
        table.add_column(name, justify="right")
    base = found[0][1]
    for part, rows in groupby(found, lambda row: row[0].part):
        for place, (variant, each) in enumerate(rows):
            name = "" if part == PUBLISHED else variant.name
            table.add_row(part if place == 0 else "", name, *_cells(each, base))
    console.print(table)


def _cells(each: ListFigures, base: ListFigures) -> tuple[str, ...]:
    jct, p99 = (100 * (a / b - 1) for a, b in ((each.jct_h, base.jct_h), (each.p99_h, base.p99_h)))
    left = f" ({each.unfinished} left)" if each.unfinished else ""
    return (
        f"{each.jct_h:.3f}{left}",
        "" if each is base else f"{jct:+.1f} %",
        f"{each.p99_h:.2f}",
        "" if each is base else f"{p99:+.1f} %",
        f"{each.makespan_h:.2f}",
        f"{each.gpu_h:.2f}",
        f"{each.restarts:.2f}",
        f"{each.took_s:.0f}",
    )


def _parts(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return names


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/sia_ablations",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--trace",
        type=Path,
        default=DATA / "workloads" / "philly",
        metavar="DIR",
        help="folder of lists, or one list [philly]",
    )
    add_data_arguments(made)
    made.add_argument(
        "--only", type=_parts, default=list(PARTS), help=f"parts, of {','.join(PARTS)} [all]"
    )
    made.add_argument("--json", type=Path, metavar="OUT", help="file to write the figures to")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all changes, print a table, and write the figures as JSON if asked to."""
    asked = parser().parse_args(arguments)
    try:
        paths = chosen_lists(asked.trace, asked.lists)
        names = {row.application for path in paths for row in read_list(path)}
        setup = Setup(
            cluster=Cluster(asked.cluster),
            applications={name: Application(name, asked.truth) for name in sorted(names)},
            limit=asked.jobs,
        )
        wanted = [each for each in variants() if each.part in (PUBLISHED, *asked.only)]
        found = [(each, run(each, paths, setup)) for each in wanted]
    except (GschedError, OSError) as error:
        print(f"sia_ablations: {error}", file=sys.stderr)
        return 2
    title = f"{paths[0].parent.name}, {lists_said(len(paths))}, {asked.cluster}"
    width = None if sys.stdout.isatty() else 130
    print_table(title, found, Console(highlight=False, width=width))
    if asked.json:
        rows = [
            {
                "part": variant.part,
                "name": variant.name,
                **{key: value for key, value in structs.asdict(each).items() if key != "each"},
            }
            for variant, each in found
        ]
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
