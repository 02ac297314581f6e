"""What scripts of users of Torque, OpenPBS and Slurm ask for and get, as a table."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.processes import MARKER
from tests.support.site_cases import CASES
from tests.support.site_scripts import Case, Result, ScriptSite


def cells(case: Case, result: Result, *, asks: bool) -> list[str]:
    """Return one line of the table."""
    asked = case.asked or "several jobs"
    wrong = [text for text in case.says if text not in result.output]
    good = result.got == case.got and not wrong and not result.status
    got = "; ".join(line.removeprefix("1 x ") for line in result.got)
    ignored = "; ".join(case.ignored) or "-"
    return [case.name, *([f"`{asked}`"] if asks else []), got, ignored, "yes" if good else "NO"]


def main() -> int:
    """Run all cases and print the table; the status is 1 if one did not get what it needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only scripts with one of these texts in the name")
    parser.add_argument("--asked", action="store_true", help="show the directives, too")
    options = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if not options.names or any(name in case.name for name in options.names)
    ]
    marker = f"reproduce-scripts-{os.getpid()}"
    os.environ[MARKER] = marker
    with tempfile.TemporaryDirectory(prefix="gsched-scripts-") as directory:
        cluster = Cluster(Path(directory, "cluster"), marker)
        try:
            return report(ScriptSite(cluster), chosen, asks=options.asked)
        finally:
            cluster.stop()


def report(site: ScriptSite, cases: list[Case], *, asks: bool) -> int:
    """Submit all cases, wait for their jobs, print the table and return the exit status."""
    possible = [case for case in cases if case.is_possible]
    for case in possible:
        site.submit(case)
    titles = ["script", *(["asked"] if asks else []), "got", "warned of", "right"]
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * len(titles))
    lines = []
    for case in possible:
        try:
            result = site.finish(case)
        except AssertionError as error:  # not all jobs have come to their end in time
            print(f"{case.name}: {error}", file=sys.stderr)
            result = site.submit(case)
        lines.append(cells(case, result, asks=asks))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    for case in cases:
        if case not in possible:
            print(f"not run: {case.name}: {', '.join(case.needs)} is missing", file=sys.stderr)
    wrong = [line[0] for line in lines if line[-1] != "yes"]
    print(f"{len(lines) - len(wrong)} of {len(lines)} scripts got what they requested")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
