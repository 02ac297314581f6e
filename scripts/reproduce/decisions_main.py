"""Records what a change of the code must not change, and compares with a record.

`record FILE` runs the parts below and writes what they came to, as one JSON file. `compare FILE`
runs the same again and prints what is equal, and what differs: old, new, difference. Simulations
are exact, so any difference is one of decisions. What is meant to change is recorded anew, and the
difference belongs into the commit's message.

Exit status of compare: 0 all is equal, 1 something differs, 2 something could not be compared.
"""

import argparse
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gsched.clock import SystemClock
from scripts.reproduce.decisions_differences import Difference, differences
from scripts.reproduce.decisions_parts import PARTS, Part, Ran, SkippedError, Wanted
from scripts.reproduce.still_world import StuckError

VERSION: Final = 1
DIFFERS: Final = 1
NOT_COMPARED: Final = 2
WIDTH: Final = 160  # of what goes to a file or a pipe: tables are not to be broken there
MAX_ROWS: Final = 30  # of differences in each part, unless all are requested
TOLD_S: Final = 5.0  # between two lines of progress where stderr is no terminal
EXAMPLES: Final = """examples:
  scripts/reproduce/decisions record before.json
  scripts/reproduce/decisions compare before.json
  scripts/reproduce/decisions compare before.json --quick
  scripts/reproduce/decisions compare before.json --only balance,schema
  scripts/reproduce/decisions record tests/golden/formats.json --only formats,schema
"""


class Recorded(Struct, kw_only=True, omit_defaults=True):
    """One part of a record.

    Attributes:
        took_s: wall time, which is compared with nothing.
        skipped: why it was not run; empty: it was.
        cases: what it came to, by case.
    """

    took_s: float = 0.0
    skipped: str = ""
    cases: dict[str, object] = {}


class Record(Struct, kw_only=True):
    """A record file; ``of`` says of which code it is, and is compared with nothing."""

    version: int = VERSION
    of: dict[str, str]
    parts: dict[str, Recorded]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare; return the exit status."""
    asked = parser().parse_args(arguments)
    try:
        return record(asked) if asked.action == "record" else compare(asked)
    except (OSError, msgspec.DecodeError) as error:
        print(f"decisions: {asked.file}: {error}", file=sys.stderr)
        return NOT_COMPARED
    except StuckError as error:
        print(f"decisions: replies: {error}", file=sys.stderr)
        return NOT_COMPARED
    except KeyboardInterrupt:
        print("decisions: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parts = "\n".join(
        f"  {part.name:<12}{part.took}\n{'':14}{part.what}" for part in PARTS.values()
    )
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/decisions",
        description=__doc__,
        epilog=f"parts, and how long they take with nice -n 19 on one of two busy cores:\n{parts}"
        f"\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("action", choices=["record", "compare"])
    made.add_argument("file", type=Path, metavar="FILE", help="the record, a JSON file")
    made.add_argument(
        "--only",
        type=parts_of,
        metavar="A,B",
        help=f"of {','.join(PARTS)}; default all, or all that the record holds",
    )
    made.add_argument("--quick", action="store_true", help="only what takes seconds")
    made.add_argument("--all", action="store_true", help="compare: show all differences")
    return made


def parts_of(text: str) -> tuple[str, ...]:
    """Return the names of parts of a list with commas, in the order in which they run."""
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {name!r}: there are {', '.join(PARTS)}")
    return tuple(name for name in PARTS if name in names)


def record(asked: argparse.Namespace) -> int:
    """Run parts and write what they came to, after each of them."""
    made = Record(of=_code(), parts={})
    for name in asked.only or PARTS:
        try:
            ran, took_s = _run(PARTS[name], Wanted(quick=asked.quick))
        except SkippedError as error:
            made.parts[name] = Recorded(skipped=str(error))
            print(f"{name}: skipped: {error}", flush=True)
        else:
            made.parts[name] = Recorded(took_s=round(took_s, 1), cases=dict(ran.cases))
            print(f"{name}: {len(ran.cases)} cases in {took_s:.0f} s", flush=True)
        text = msgspec.json.format(msgspec.json.encode(made, order="deterministic"), indent=1)
        asked.file.write_bytes(text + b"\n")
    return 0


def _code() -> dict[str, str]:
    """Return of which code a record is, and what it was run with."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {"commit": said.stdout.strip(), "python": platform.python_version()}


def compare(asked: argparse.Namespace) -> int:
    """Run what a record holds again, and print what differs."""
    old = msgspec.json.decode(asked.file.read_bytes(), type=Record)
    lacking = [name for name in asked.only or () if name not in old.parts]
    if old.version != VERSION or lacking:
        why = f"has no part {', '.join(lacking)}" if lacking else "is of another version"
        print(f"decisions: the record {asked.file} {why}", file=sys.stderr)
        return NOT_COMPARED
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    found: list[int] = []
    for name in asked.only or [name for name in PARTS if name in old.parts]:
        before = old.parts[name]
        found.append(_compare_part(name, before, asked, console))
    return DIFFERS if DIFFERS in found else max(found, default=0)


def _compare_part(name: str, before: Recorded, asked: argparse.Namespace, console: Console) -> int:
    """Run a part again, print what differs, and return the status for it."""
    if before.skipped:
        console.print(f"{name}: not in the record: {before.skipped}")
        return 0
    try:
        ran, took_s = _run(PARTS[name], Wanted(names=frozenset(before.cases), quick=asked.quick))
    except SkippedError as error:
        console.print(f"{name}: NOT COMPARED: {error}")
        return NOT_COMPARED
    old = {case: each for case, each in before.cases.items() if case not in ran.left_out}
    found = differences(old, ran.cases)
    cases = len({each.case for each in found})
    verdict = f"DIFFERS in {cases} of {len(old.keys() | ran.cases)} cases" if found else "equal"
    console.print(f"{name}: {verdict} ({len(ran.cases)} cases, {took_s:.0f} s)")
    if not found:
        return 0
    shown = found if asked.all else found[:MAX_ROWS]
    console.print(_table(shown))
    if len(shown) < len(found):
        console.print(f"... and {len(found) - len(shown)} more: --all shows them")
    return DIFFERS


def _table(found: Sequence[Difference]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for column in ("case", "field", "old", "new"):
        table.add_column(column, overflow="fold")
    table.add_column("difference", justify="right")
    for each in found:
        table.add_row(*map(escape, (each.case, each.field, each.old, each.new, each.by)))
    return table


def _run(part: Part, wanted: Wanted) -> tuple[Ran, float]:
    """Run a part and say how far it is; return what it came to, as JSON gives it, and its time.

    Raises:
        SkippedError: it cannot run here.
    """
    clock = SystemClock()
    began_s = told_s = clock.monotonic_s()

    def tell(text: str) -> None:
        nonlocal told_s
        now_s = clock.monotonic_s()
        line = f"{part.name}, {now_s - began_s:.0f} s: {text}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)
        elif now_s - told_s >= TOLD_S:
            told_s = now_s
            print(line, file=sys.stderr, flush=True)

    ran = part.run(wanted, tell)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    cases = msgspec.json.decode(msgspec.json.encode(ran.cases), type=dict[str, object])
    return Ran(cases=cases, left_out=ran.left_out), clock.monotonic_s() - began_s


if __name__ == "__main__":
    sys.exit(main())
