"""The six experiments of the DRS paper, simulated with the head's real core.

Every policy gets the same lists of training jobs, one for each seed. Figures are means over the
seeds with their standard deviation. `drs` and `norm` are the paper's algorithm with and without
migration, `drs-ours` is gsched's variant of it; `edf` and `fifo` give all GPUs to one training at a
time, `themis` shares them; `elasticflow` and `deadline`, the default of a head, resize running
training jobs. A move costs nothing, as in the paper, unless --move-s says otherwise.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from scripts.reproduce import drs_report as report
from scripts.reproduce.arguments import seeds_of
from scripts.reproduce.drs_runs import POLICIES, Outcome, simulate
from scripts.reproduce.drs_workload import SWEEPS, Scenario, Sweep

WIDTH = 130  # of what goes to a file or a pipe: tables are not to be broken there
EXAMPLES = """examples:
  scripts/reproduce/drs
  scripts/reproduce/drs --seeds 0-29 --sweeps lambda --policies drs,edf --workers 4
  scripts/reproduce/drs --move-s 60 --json drs.json --figures figures
"""

Task = tuple[str, Scenario, int, float]  # policy, scenario, seed, cost of a move


def policies_of(text: str) -> tuple[str, ...]:
    """Return the policies of a list with commas."""
    return _known(text, list(POLICIES), "policy")


def sweeps_of(text: str) -> tuple[Sweep, ...]:
    """Return the sweeps of a list with commas."""
    by_name = {sweep.name: sweep for sweep in SWEEPS}
    return tuple(by_name[name] for name in _known(text, list(by_name), "sweep"))


def _known(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"unknown {what} {name!r}: known are {', '.join(known)}"
            )
    return names


def positive(text: str) -> int:
    """Return a number of 1 or more."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return value


def seconds(text: str) -> float:
    """Return a number of seconds that is not below 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/drs",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ",".join(sweep.name for sweep in SWEEPS)
    made.add_argument(
        "--seeds", type=seeds_of, default=range(10), metavar="A-B", help="default 0-9"
    )
    made.add_argument(
        "--policies",
        type=policies_of,
        default=tuple(POLICIES),
        metavar="A,B",
        help=f"of {','.join(POLICIES)}; default all",
    )
    made.add_argument(
        "--sweeps", type=sweeps_of, default=SWEEPS, metavar="A,B", help=f"of {names}; default all"
    )
    made.add_argument(
        "--move-s", type=seconds, default=0.0, metavar="S", help="cost of a move; default 0"
    )
    made.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="processes; default 1"
    )
    made.add_argument("--json", type=Path, metavar="OUT", help="file to write all outcomes to")
    made.add_argument("--figures", type=Path, metavar="DIR", help="folder for drawings (PNG)")
    return made


def run_all(tasks: Sequence[Task], workers: int) -> dict[Task, Outcome]:
    """Run every task once, on some processes, and say on a line how far that is."""
    found: dict[Task, Outcome] = {}
    for number, (task, outcome) in enumerate(_outcomes(tasks, workers), 1):
        found[task] = outcome
        if sys.stderr.isatty() or number % 50 == 0 or number == len(tasks):
            end = "\r" if sys.stderr.isatty() and number < len(tasks) else "\n"
            print(f"{number} of {len(tasks)} runs", end=end, file=sys.stderr, flush=True)
    return found


def _outcomes(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Outcome]]:
    if workers == 1:
        yield from map(_run, tasks)
        return
    with multiprocessing.Pool(workers) as pool:
        yield from pool.imap_unordered(_run, tasks)


def _run(task: Task) -> tuple[Task, Outcome]:
    return task, simulate(*task)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments, print what they came to, and write it where asked."""
    wanted = parser().parse_args(arguments)
    points = [
        (sweep, label, scenario) for sweep in wanted.sweeps for label, scenario in sweep.points
    ]
    tasks: dict[Task, None] = {}  # a point that belongs to several sweeps is run once
    for _, _, scenario in points:
        for seed in wanted.seeds:
            tasks.update(
                dict.fromkeys((name, scenario, seed, wanted.move_s) for name in wanted.policies)
            )
    outcomes = run_all(list(tasks), wanted.workers)
    found: dict[str, dict[str, dict[str, list[Outcome]]]] = {}
    for sweep, label, scenario in points:
        found.setdefault(sweep.name, {})[label] = {
            name: [outcomes[name, scenario, seed, wanted.move_s] for seed in wanted.seeds]
            for name in wanted.policies
        }
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for sweep in wanted.sweeps:
        if sweep.name == "utilisation":
            report.print_use(found[sweep.name], console)
            continue
        report.print_sweep(sweep, found[sweep.name], console)
        if sweep.name == "lambda":
            report.print_published(found[sweep.name], console)
    if wanted.json:
        said = {"seeds": list(wanted.seeds), "move_s": wanted.move_s, "sweeps": found}
        text = json.dumps(msgspec.to_builtins(said), indent=1)
        wanted.json.write_text(text + "\n", encoding="utf-8")
    if wanted.figures:
        try:
            report.draw_figures(wanted.sweeps, found, wanted.figures)
        except ImportError as error:
            print(f"no drawings: {error}: pip install '.[figures]'", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
