"""Sum the demo up on one screen, and judge it: asks the head what became of each job.

``demo_summary.py --result digits.json --accuracy 0.95 1.head=0 2.head=0 3.head=3``: the accuracy
that must have been reached, and the exit status that each job must have ended with. The exit code
is 0 only if all of it is so.
"""

import argparse
import json
import sys
from pathlib import Path

from gsched.client import HeadClient
from gsched.model.units import format_duration
from gsched.protocol.job_rows import JobRow


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="judge the demo")
    parser.add_argument("--result", type=Path, required=True, help="JSON that the training wrote")
    parser.add_argument("--accuracy", type=float, required=True, help="at least, 0..1")
    parser.add_argument("jobs", nargs="+", metavar="ID=STATUS")
    return parser.parse_args()


def job_line(row: JobRow, status_wanted: int) -> tuple[str, str]:
    """Return one line about a job, and what is wrong with its outcome or the empty string."""
    waited = (row.started_s or row.submitted_s) - row.submitted_s
    ran = (row.ended_s or 0.0) - row.started_s if row.started_s and row.ended_s else None
    if row.outcome is None:
        outcome, fault = f"{row.state}: {row.reason}", f"{row.name} has no outcome"
    else:
        outcome = f"{row.outcome.kind} {row.outcome.exit_status}"
        is_right = row.outcome.kind == "exited" and row.outcome.exit_status == status_wanted
        fault = "" if is_right else f"{row.name} ended {outcome}, not exited {status_wanted}"
    line = (
        f"{row.id:>4}  {row.name:<12} {outcome:<14} {format_duration(waited):>9} "
        f"{format_duration(ran):>9}  {row.cpu_s:>6.1f}  {' '.join(row.nodes)}"
    )
    return line, fault


def training_line(result: Path, wanted: float) -> tuple[str, str]:
    """Return one line about the training, and what is wrong with it or the empty string."""
    try:
        values = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return "training: no result", f"the training wrote no result: {error}"
    line = (
        f"training: accuracy {values['accuracy']:.4f} on the test set (wanted: {wanted}), "
        f"{values['world_size']} ranks, {values['backend']}, "
        f"{values['epochs']} epochs in {values['seconds']} s"
    )
    reached = values["accuracy"] >= wanted and values["world_size"] > 1
    return line, "" if reached else f"accuracy {values['accuracy']:.4f} is below {wanted}"


def main() -> int:
    """Print the summary and return the exit code."""
    args = options()
    head = HeadClient()
    wanted = {name: int(status) for name, _, status in (job.rpartition("=") for job in args.jobs)}
    line, fault = training_line(args.result, args.accuracy)
    faults = [fault]
    print(f"\n{line}\n")
    print(f"{'job':>4}  {'name':<12} {'outcome':<14} {'waited':>9} {'ran':>9}  {'CPU s':>6}  nodes")
    for name, status in wanted.items():
        line, fault = job_line(head.job(name).row, status)
        print(line)
        faults.append(fault)
    faults = [fault for fault in faults if fault]
    print()
    for fault in faults:
        print(f"WRONG: {fault}")
    if not faults:
        print(f"all {len(wanted)} jobs have their outcome, and the accuracy was reached")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
