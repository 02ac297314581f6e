"""Errors of predicted step times, on the step times that were measured for Sia's evaluation.

For each network and GPU type: at held-out batch sizes and at held-out configurations (every second
one; the rest is fitted). Then as a job grows, its next number of GPUs predicted from what it has
run on: without a profile, with one on one GPU, and with all that was measured (oracle). Then on
several GPUs of a type on which it was only profiled: with perfect scaling, with that of another
type on which it has run (borrowed), and with all that was measured.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np

from scripts.reproduce import goodput_speed
from scripts.reproduce import goodput_steps as steps_of
from scripts.reproduce.goodput_steps import NETWORKS, TRACES, TYPES, Errors

Table = dict[str, dict[str, Errors]]


def measured(networks: Sequence[str], types: Sequence[str]) -> dict[str, Table]:
    """Return the errors of each experiment, by row and column."""
    found: dict[str, Table] = {"held out": {}, "growing": {}, "another type": {}}
    for network in networks:
        steps = {name: steps_of.read_steps(network, name) for name in types}
        for name in types:
            row = f"{network} {name}"
            found["held out"][row] = {
                "batch sizes": steps_of.held_out(steps[name], steps_of.batch_of),
                "GPU counts": steps_of.held_out(steps[name], steps_of.configuration_of),
            }
            found["growing"][row] = {
                "none": steps_of.grown(steps[name], with_profile=False),
                "one GPU": steps_of.grown(steps[name], with_profile=True),
                "oracle": steps_of.known(steps[name]),
            }
        for name, other in permutations(types, 2):
            found["another type"][f"{network} {name} by {other}"] = {
                "perfect": steps_of.borrowed(steps[name], steps[other], lent=False),
                "borrowed": steps_of.borrowed(steps[name], steps[other], lent=True),
                "oracle": steps_of.known(steps[name]),
            }
    return found


def printed(title: str, table: Table) -> None:
    """Print median and 90th percentile of each column, and those of rows together."""
    columns = list(next(iter(table.values())))
    print(f"\n{title}: error of step time, median and 90th percentile, %")
    print(f"{'':32}" + "".join(f"{name:>18}" for name in columns))
    for row, cells in table.items():
        print(_line(row, [cells]))
    for gpu_type in TYPES:
        of_type = [cells for row, cells in table.items() if row.split()[1] == gpu_type]
        if of_type:
            print(_line(f"all on {gpu_type}", of_type))
    print(_line("all", list(table.values())))


def _line(name: str, rows: Sequence[Mapping[str, Errors]]) -> str:
    text = f"{name:32}"
    for column in rows[0]:
        together = [error for cells in rows for error in cells[column]]
        half, most = np.percentile(together, [50, 90]) * 100
        text += f"{half:10.1f}{most:8.1f}"
    return text


def main() -> int:
    """Run the experiments and print their tables."""
    parser = argparse.ArgumentParser(prog="scripts/reproduce/goodput", description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="of %(default)s")
    parser.add_argument("--types", default=",".join(TYPES), help="GPU types, of %(default)s")
    parser.add_argument("--speed", action="store_true", help="print what models cost instead")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all errors there")
    arguments = parser.parse_args()
    if arguments.speed:
        print("\n".join(goodput_speed.lines()))
        return 0
    networks, types = arguments.networks.split(","), arguments.types.split(",")
    unknown = [*(set(networks) - set(NETWORKS)), *(set(types) - set(TYPES))]
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not TRACES.is_dir():
        print(f"no traces: {TRACES} is missing", file=sys.stderr)
        return 2
    found = measured(networks, types)
    for title, table in found.items():
        if table:
            printed(title, table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
