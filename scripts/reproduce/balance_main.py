"""Compares policies on four unequal nodes, as the balancing paper does.

Simulated: every policy gets the same lists of jobs, one for each seed, on nodes that slow down when
they are over-used; figures are medians over the seeds, with the middle half. With --real: the same
comparison with real jobs on four gnodes in control groups, once for each policy (root only).
Imbalance is the time average of (standard deviation / mean) of the nodes' utilisation.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from gsched.errors import GschedError
from gschedd.sim import output
from scripts.reproduce import balance_report as report
from scripts.reproduce.arguments import seeds_of
from scripts.reproduce.balance_jobs import SCENARIOS, cluster, described, draw
from scripts.reproduce.balance_runs import POLICIES, Run, simulate

WIDTH = 130  # of what goes to a file or a pipe: tables are not to be broken there
EXAMPLES = """examples:
  scripts/reproduce/balance
  scripts/reproduce/balance --seeds 0-99 --scenario paper --json balance.json --figures figures
  sudo scripts/reproduce/balance --real --seeds 1-1 --policies torque,paper,balance
"""


def policies_of(text: str) -> tuple[str, ...]:
    """Return the policies of a list with commas."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in POLICIES:
            known = ", ".join(POLICIES)
            raise argparse.ArgumentTypeError(f"unknown policy {name!r}: known are {known}")
    return names


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/balance",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--seeds", type=seeds_of, metavar="A-B", help="lists of jobs; default 0-29, with --real 1"
    )
    made.add_argument(
        "--scenario", choices=[*SCENARIOS, "all"], default="all", help="simulated; default all"
    )
    made.add_argument(
        "--policies", type=policies_of, default=tuple(POLICIES), metavar="A,B", help="default all"
    )
    made.add_argument(
        "--real", action="store_true", help="run real jobs instead, for minutes with each policy"
    )
    made.add_argument("--json", type=Path, metavar="OUT", help="file to write all figures to")
    made.add_argument("--figures", metavar="DIR", help="directory for figures as PNG and SVG")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, print what it came to, and write it where asked; return the status."""
    asked = parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    try:
        if asked.figures:
            output.require("matplotlib", option="--figures", extra="'.[figures]'")
            output.make_directory(asked.figures)
        results = real(asked, console) if asked.real else simulated(asked, console)
        write(asked, results)
    except GschedError as error:
        hint = f"; {error.hint}" if error.hint else ""
        print(f"balance: {error.message}{hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("balance: interrupted", file=sys.stderr)
        return 130
    return 0


Results = dict[str, dict[str, list[Run]]]  # by scenario and policy


def simulated(asked: argparse.Namespace, console: Console) -> Results:
    """Simulate every scenario that was requested."""
    names = list(SCENARIOS) if asked.scenario == "all" else [asked.scenario]
    seeds = asked.seeds or range(30)
    results: Results = {}
    for name in names:
        scenario = SCENARIOS[name]
        nodes = cluster(scenario)
        runs: dict[str, list[Run]] = {policy: [] for policy in asked.policies}
        for seed in seeds:
            jobs = draw(scenario, seed)
            for policy, each in runs.items():
                each.append(simulate(policy, nodes, jobs, seed))
        results[name] = runs
        title = f"{scenario.title}: {scenario.jobs} jobs, seeds {seeds[0]}-{seeds[-1]}, simulated"
        report.show_table(title, runs, console)
        console.print(described(nodes), highlight=False)
    for name, runs in results.items():
        first = [each[0] for each in runs.values()]
        report.show_curves(f"{SCENARIOS[name].title}, seed {seeds[0]}", first, console)
    return results


def real(asked: argparse.Namespace, console: Console) -> Results:
    """Run real jobs under every policy that was requested, one cluster after the other."""
    from scripts.reproduce import balance_real  # late: only this needs root and control groups

    seeds = asked.seeds or range(1, 2)
    balance_real.check_possible()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up, too
    runs: dict[str, list[Run]] = {policy: [] for policy in asked.policies}
    for seed in seeds:
        jobs = balance_real.draw(seed)
        for policy, each in runs.items():
            print(f"{policy}, seed {seed}: {len(jobs)} jobs ...", file=sys.stderr, flush=True)
            each.append(balance_real.run(policy, jobs, seed))
    title = f"real jobs on four gnodes in control groups, seeds {seeds[0]}-{seeds[-1]}"
    report.show_table(title, runs, console)
    console.print(balance_real.described(), highlight=False)
    report.show_curves(f"real jobs, seed {seeds[0]}", [each[0] for each in runs.values()], console)
    return {"real": runs}


def write(asked: argparse.Namespace, results: Mapping[str, Mapping[str, Sequence[Run]]]) -> None:
    """Write figures and JSON, where they were requested."""
    if asked.figures:
        for name, runs in results.items():
            first = [each[0] for each in runs.values()]
            report.draw_curves(f"balance-{name}", first, Path(asked.figures))
    if asked.json:
        document = {
            name: {"table": report.rows(runs), "runs": runs} for name, runs in results.items()
        }
        text = msgspec.json.format(msgspec.json.encode(document), indent=1)
        try:
            asked.json.write_bytes(text + b"\n")
        except OSError as error:
            raise output.cannot_write(asked.json, error) from error


if __name__ == "__main__":
    sys.exit(main())
