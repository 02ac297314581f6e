"""Two training jobs fragment two nodes, a third needs a whole one: live and simulated."""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from msgspec import structs
from rich.console import Console
from rich.table import Table

from scripts.reproduce.compaction_case import GPUS, PARTS, Told
from scripts.reproduce.compaction_live import Live
from scripts.reproduce.compaction_sim import MOVE_S, Costs, simulate
from scripts.reproduce.live_cluster import Cluster

#: Policies that may not move what runs.
STILL: Final = frozenset({"drs-still", "edf", "fifowhole"})
#: Must be in time where running training jobs are moved, and cannot be where they are not.
WANTED: Final = "whole"


def play(policy: str, console: Console) -> Told:
    """Run the case on a real cluster, to the end of all its jobs."""
    still = policy == "drs-still"
    settings = f'[training]\npolicy = "{"drs" if still else policy}"\nmove_s = {MOVE_S:g}\n'
    settings += "[training.drs]\nmoves_max = 0\n" if still else ""
    with (
        tempfile.TemporaryDirectory(prefix="gsched-") as name,
        Cluster(Path(name) / "c", gpus=GPUS, settings=settings) as cluster,
    ):
        live = Live(cluster, policy)
        with console.status(f"{policy}: training jobs run"):
            live.fragment()
            live.add_last()
            live.wait_for(part.name for part in PARTS)
        console.print(f"{policy}, live: {live.said[WANTED]}", highlight=False)
        return live.told()


def costs_of(told: Told) -> Costs:
    """Return what a live run has measured; what nobody has measured is as it is by default."""
    return Costs(
        move_s=max(told.move_s.values(), default=MOVE_S),
        step_s=told.step_s,
        startup_s=told.startup_s,
        submitted_s=told.submitted_s,
    )


def show(runs: Mapping[tuple[str, str], Told], console: Console) -> None:
    """Print who was moved, and what that came to for all."""
    table = Table("policy", "run", "moved", box=None, title=f"seconds; moments of {WANTED!r}")
    for title in ("lost", "came", "began", "ended", "deadline", "met", "others met"):
        table.add_column(title, justify="right", no_wrap=True)
    for (policy, how), told in runs.items():
        others = [name for name in told.deadline_s if name != WANTED]
        table.add_row(
            policy,
            how,
            ", ".join(map(str, told.moves)) or "-",
            ", ".join(f"{lost_s:.1f}" for lost_s in told.lost_s.values()) or "-",
            f"{told.submitted_s[WANTED]:.1f}",
            f"{told.started_s[WANTED]:.1f}",
            f"{told.ended_s[WANTED]:.1f}",
            f"{told.deadline_s[WANTED]:.1f}",
            "yes" if told.met(WANTED) else "no",
            f"{sum(map(told.met, others))} of {len(others)}",
        )
    console.print(table)
    for (policy, how), told in runs.items():
        decided = ", ".join(map(str, told.steps))
        console.print(f"{policy}, {how}: {decided}", highlight=False, soft_wrap=True)


def faults(runs: Mapping[tuple[str, str], Told]) -> list[str]:
    """Return what did not come out as it must."""
    found: list[str] = []
    for (policy, how), told in runs.items():
        met, moves = told.met(WANTED), policy not in STILL
        if met is not moves:
            found.append(f"{policy}, {how}: the deadline was {'met' if met else 'missed'}")
        if bool(told.moves) is not moves:
            found.append(f"{policy}, {how}: {len(told.moves)} moves")
        live = runs.get((policy, "live"))
        if live is not None and list(live.steps) != list(told.steps):
            found.append(f"{policy}: {how} decided otherwise than live")
    return found


@click.command()
@click.option(
    "--policies",
    default="drs,drs-still",
    show_default=True,
    metavar="A,B",
    help="Policies for training jobs.",
)
@click.option("--simulated", is_flag=True, help="Only simulate: a second instead of minutes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also as JSON there.")
def main(policies: str, *, simulated: bool, json_path: Path | None) -> None:
    """Fragment two nodes with real training jobs, and see whether moves make room in time.

    Each run is done live, on a head and two nodes of this machine, and then in the simulator, which
    takes submissions, how long training jobs take to start and the cost of a move from the live
    one.

    Example: scripts/reproduce/compaction --policies drs,drs-still,deadline --json out.json
    """
    console = Console()
    runs: dict[tuple[str, str], Told] = {}
    costs = Costs()
    for policy in policies.split(","):
        if not simulated:
            runs[policy, "live"] = told = play(policy, console)
            measured = costs_of(told)
            costs = measured if told.moves else structs.replace(measured, move_s=costs.move_s)
        runs[policy, "sim"] = simulate(policy, costs)
    show(runs, console)
    if json_path is not None:
        rows = [structs.asdict(told) | {"how": how} for (_, how), told in runs.items()]
        json_path.write_text(json.dumps(rows, default=structs.asdict, indent=1) + "\n")
    wrong = faults(runs)
    for each in wrong:
        console.print(f"wrong: {each}", highlight=False)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
