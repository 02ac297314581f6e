"""What sharing GPUs gains and costs, beside the figures of the paper that the method is from.

The experiments of Wang et al., "GPU sharing method for deep learning clusters with priorities",
Computer Science 2023, 50(6): 86-91, from the head's real core in simulated time:

1. 12 training jobs of the class ``low`` arrive on 4 GPUs: completion and utilisation, with a GPU
each
   and with shares.
2. What the set-up implies: with arrivals within so many minutes, durations chosen so that the jobs
   with a GPU each take as long as published, and duty cycles so that these GPUs are as busy.
3. A ``high`` job beside a ``low`` one: how much slower it gets, and how fast the low one runs; and
   packed, without a token.

The paper does not publish its jobs, so they are drawn here: five kinds of networks with the part of
the time for which each keeps a GPU busy. Three models of what sharing costs (`gschedd.sim.gpu_work`
and `gpu_costs`): ``bound``: nothing; ``measured``: as on the driver without a GPU, by
``scripts/bench/gpushare``; ``fitted``: as the paper's own figures of its third experiment imply.

``--live`` runs 1 on a cluster of this machine, on drivers without GPUs, time scaled 1:100.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from gsched.config.nodes import SharingRules
from gschedd.sim.gpu_costs import SharingCosts
from scripts.reproduce.arguments import seeds_of
from scripts.reproduce.sharing_live import run_live
from scripts.reproduce.sharing_model import (
    BENCH_USE,
    KINDS,
    MEASURED,
    MINUTE_S,
    PAPER,
    Group,
    Outcome,
    draw,
    fitted_costs,
    fitted_use,
    measured_costs,
    run_pair,
    sharing,
    simulate,
)

WIDTH: Final = 110
#: Minutes in which the jobs arrive.
WINDOWS: Final = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
#: Halvings of the interval in which the scale of durations is looked for.
HALVINGS: Final = 10
DUTY_CYCLES: Final = (0.4, 0.6, BENCH_USE, 0.9)
#: An endless low job.
ENDLESS: Final = 1.0
PARTS: Final = ("group", "sensitivity", "pairs")
EXAMPLES: Final = """examples:
  scripts/reproduce/sharing
  scripts/reproduce/sharing --window 60 --low-max 2
  scripts/reproduce/sharing --live --seeds 0-2
"""

Gains = dict[str, list[float]]


def models() -> Mapping[str, SharingCosts | None]:
    """Return the models of what sharing costs low jobs among themselves, by name."""
    return {"bound": None, "measured": measured_costs()}


def compare(
    seed: int, rules: SharingRules, group: Group, costs: SharingCosts | None = None
) -> tuple[Outcome, Outcome]:
    """Return the outcomes of a list of jobs with a GPU each, and with shares."""
    jobs = draw(seed, group)
    return simulate(jobs, rules), simulate([sharing(job) for job in jobs], rules, costs)


def gains(pairs: Sequence[tuple[Outcome, Outcome]]) -> Gains:
    """Return what sharing changes, for each pair."""
    return {
        "completion_percent": [100 * (b.completion_s / a.completion_s - 1) for a, b in pairs],
        "utilisation_points": [100 * (b.utilisation - a.utilisation) for a, b in pairs],
        "run_percent": [100 * (b.run_s / a.run_s - 1) for a, b in pairs],
        "wait_minutes": [(b.wait_s - a.wait_s) / MINUTE_S for a, b in pairs],
    }


def as_published(seeds: Sequence[int], window_s: float) -> Group:
    """Return a group that takes as long and is as busy as published, with a GPU for each job.

    The scale of durations is found by halving an interval; what sharing gains plays no part.
    """

    def alone(scale: float) -> list[Outcome]:
        group = Group(window_s=window_s, scale=scale)
        return [simulate(draw(seed, group), SharingRules()) for seed in seeds]

    least, most = 0.02, 4.0
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        took_s = fmean(each.completion_s for each in alone(middle))
        least, most = (middle, most) if took_s < PAPER.alone_minutes * 60 else (least, middle)
    busy = fmean(each.utilisation for each in alone(middle))
    use_scale = PAPER.utilisation_percent / 100.0 / busy
    return Group(window_s=window_s, scale=middle, use_scale=use_scale)


def print_group(asked: argparse.Namespace, rules: SharingRules, console: Console) -> object:
    """Run the first experiment, print it and return its figures."""
    group = Group(window_s=asked.window * MINUTE_S)
    table = Table(
        "model",
        *("GPU each, min", "shares, min", "completion, %", "utilisation, points", "run time, %"),
        title=f"12 low jobs on 4 GPUs, arrivals within {asked.window:g} minutes, "
        f"{len(asked.seeds)} lists",
    )
    found: dict[str, Gains] = {}
    for name, costs in models().items():
        pairs = [compare(seed, rules, group, costs) for seed in asked.seeds]
        gained = found[name] = gains(pairs)
        table.add_row(
            name,
            f"{fmean(a.completion_s for a, _ in pairs) / 60:.1f}",
            f"{fmean(b.completion_s for _, b in pairs) / 60:.1f}",
            *(_said(gained[key]) for key in list(gained)[:3]),
        )
    table.add_row(
        "paper",
        f"{PAPER.alone_minutes:.1f}",
        f"{PAPER.shared_minutes:.1f}",
        f"{PAPER.completion_percent:+.2f}",
        f"{PAPER.utilisation_points:+.2f}",
        "",
    )
    console.print(table)
    return found


def print_sensitivity(asked: argparse.Namespace, rules: SharingRules, console: Console) -> object:
    """Run the second experiment, print it and return its figures."""
    table = Table(
        *("arrivals within, min", "job, min", "duty cycle", "GPU each: busy, %"),
        *("completion: bound", "measured", "utilisation: bound", "measured"),
        title=f"GPU each as published: {PAPER.alone_minutes:.1f} min, "
        f"{PAPER.utilisation_percent:g} % busy. What shares change, % and points",
    )
    mean_use = fmean(kind.use for kind in KINDS)
    rows: list[dict[str, float]] = []
    for window in WINDOWS:
        group = as_published(asked.seeds, window * MINUTE_S)
        bound = [compare(seed, rules, group) for seed in asked.seeds]
        costly = [compare(seed, rules, group, measured_costs()) for seed in asked.seeds]
        row = {
            "window_minutes": window,
            "job_minutes": 15.0 * group.scale,
            "duty_cycle": mean_use * group.use_scale,
            "busy_percent": 100 * fmean(a.utilisation for a, _ in bound),
            "bound_completion": fmean(gains(bound)["completion_percent"]),
            "measured_completion": fmean(gains(costly)["completion_percent"]),
            "bound_utilisation": fmean(gains(bound)["utilisation_points"]),
            "measured_utilisation": fmean(gains(costly)["utilisation_points"]),
        }
        rows.append(row)
        texts = [f"{value:+.1f}" for value in list(row.values())[4:]]
        first = f"{window:g}", f"{row['job_minutes']:.1f}", f"{row['duty_cycle']:.2f}"
        table.add_row(*first, f"{row['busy_percent']:.1f}", *texts)
    table.add_row(
        *("paper", "", "", f"{PAPER.utilisation_percent}"),
        *(f"{PAPER.completion_percent:+.2f}", "", f"{PAPER.utilisation_points:+.2f}", ""),
    )
    console.print(table)
    return rows


def print_pairs(console: Console) -> object:
    """Run the third experiment, print it and return its figures."""
    packed = SharingCosts(packed=True)
    table = Table(
        *("high", "low", "model", "high slower, %", "low, % of alone", "packed: high slower, %"),
        title="A high job beside a low one",
    )
    rows: list[dict[str, object]] = []

    def add(high: float, low: float, name: str, costs: SharingCosts) -> None:
        beside, alike = run_pair(high, low, costs), run_pair(high, low, packed)
        row: dict[str, object] = {"high": high, "low": low, "model": name}
        row |= {
            "high_loss_percent": 100 * (1 / beside.high - 1),
            "low_percent": 100 * beside.low,
            "packed_loss_percent": 100 * (1 / alike.high - 1),
        }
        rows.append(row)
        texts = [f"{row[key]:.2f}" for key in list(row)[3:]]
        table.add_row(f"{high:.2f}", f"{low:.2f}", name, *texts)

    for window in MEASURED:
        name = f"measured, window {window}" if window else "measured, adapted window"
        add(BENCH_USE, ENDLESS, name, measured_costs(window))
    for use in DUTY_CYCLES:
        for low in (0.3, 0.6, ENDLESS):
            add(use, low, "measured", measured_costs())
    use = fitted_use()
    add(use, use, "measured", measured_costs())
    add(use, use, "fitted", fitted_costs())
    published = PAPER.high_loss_percent, PAPER.low_percent, PAPER.packed_loss_percent
    table.add_row("", "", "paper", *(f"{value:.2f}" for value in published))
    console.print(table)
    return rows


def _said(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:+.1f}"
    return f"{fmean(values):+.1f} ± {stdev(values):.1f}"


def _parts(text: str) -> list[str]:
    """Return the names of parts of a list with commas."""
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {name!r}: there are {', '.join(PARTS)}")
    return names


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/sharing",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seeds", type=seeds_of, metavar="A-B", help="lists of jobs [0-29]")
    made.add_argument("--low-max", type=int, default=3, metavar="N", help="jobs on one GPU [3]")
    made.add_argument("--printed", action="store_true", help="compare as the paper's listing")
    made.add_argument(
        "--assumed",
        type=float,
        default=0.3,
        metavar="U",
        help="utilisation of jobs just placed [0.3]",
    )
    made.add_argument(
        "--window", type=float, default=20.0, metavar="MIN", help="of arrivals, in 1 [20]"
    )
    made.add_argument(
        "--live", action="store_true", help="real processes; 2 minutes for each list [0 only]"
    )
    made.add_argument(
        "--only",
        type=_parts,
        default=PARTS,
        metavar="A,B",
        help=f"of {', '.join(PARTS)} [all]",
    )
    made.add_argument("--json", metavar="FILE", help="write all figures")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments and print them."""
    asked = parser().parse_args(arguments)
    rules = SharingRules(
        low_max=asked.low_max, low_max_printed=asked.printed, utilisation_assumed=asked.assumed
    )
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    asked.seeds = list(asked.seeds or range(1 if asked.live else 30))
    parts: dict[str, Callable[[], object]] = {
        "group": lambda: print_group(asked, rules, console),
        "sensitivity": lambda: print_sensitivity(asked, rules, console),
        "pairs": lambda: print_pairs(console),
    }
    record: dict[str, object] = {"seeds": asked.seeds}
    if asked.live:
        group = Group(window_s=asked.window * MINUTE_S)
        try:
            record["live"] = run_live(asked.seeds, group, rules, console)
        except click.ClickException as error:
            print(f"sharing: {error.format_message()}", file=sys.stderr)
            return 1
    else:
        record |= {name: parts[name]() for name in asked.only}
    if asked.json:
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
