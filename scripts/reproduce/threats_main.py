"""Which test has which number of the lists of threats (T) and faults (A to H).

A test has the numbers in its name (``test_t23_t70_...``) and in its docstring, and those in the
docstring of its module if no other test of the module names any. ``--check`` fails if a number of
hosts, identity or two heads has neither a test nor a reason.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

IN_NAME: Final = re.compile(r"(?<=_)([a-ht][0-9]{1,2})(?=_)")
IN_TEXT: Final = re.compile(r"\b([A-HT][0-9]{1,2})\b")
#: Words of that form that are no numbers of a list.
OTHERS: Final = frozenset({"A40", "H100", "H200"})
#: Numbers of hosts, identity, roles, tokens, two heads and the link between them: each has a test.
NEEDED: Final = (
    *(f"T{number}" for number in (*range(1, 26), 47, 49, 51, *range(53, 72))),
    *(f"A{number}" for number in (11, 12, 13, 14, 17, 19, 20, 21, 22)),
    *("C12", "C13", "C17", "C19", "D21", "D22", "F3"),
    *(f"E{number}" for number in range(1, 22)),
)
#: Those of them that no test has, and why.
ELSEWHERE: Final = {
    "T20": "a job may depend on a job of another user, as in Torque: it tells when that ends",
    "T66": "packages are checked where they are built, with a network: not a test of this checkout",
    "E7": "nodes of one job do not speak with each other through gsched: torchrun ends the job",
    "E17": "needs a name service: each connection of gnode resolves the name of the head again",
    "E20": "needs netem, which many kernels lack: delays are those of E1 and E2",
}


def numbers_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the numbers that a file's tests have, and the test."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = False
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name.startswith("test_")
        ):
            named = [each.upper() for each in IN_NAME.findall(f"{node.name}_")]
            named += IN_TEXT.findall(ast.get_docstring(node) or "")
            for number in dict.fromkeys(named):
                if number not in OTHERS:
                    found = True
                    yield number, f"{path}::{node.name}"
    if not found:
        for number in dict.fromkeys(IN_TEXT.findall(ast.get_docstring(tree) or "")):
            if number not in OTHERS:
                yield number, str(path)


def tests_by_number(folder: Path) -> dict[str, list[str]]:
    """Return the tests of each number, both in order."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for number, test in numbers_of(path):
            tests[number].append(test)
    return {key: tests[key] for key in sorted(tests, key=_order)}


def _order(number: str) -> tuple[str, int]:
    return number[0], int(number[1:])


def table_of(tests: Mapping[str, Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| number | tests |", "|---|---|"]
    rows = {number: f"none: {why}" for number, why in ELSEWHERE.items()}
    rows |= {number: "<br>".join(found) for number, found in tests.items()}
    lines += [f"| {number} | {rows[number]} |" for number in sorted(rows, key=_order)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a number has no test")
    parser.add_argument("--tests", type=Path, default=Path("tests"), help="folder of the tests")
    given = parser.parse_args(arguments)
    tests = tests_by_number(given.tests)
    if not given.check:
        print(table_of(tests), end="")
        return 0
    missing = [number for number in NEEDED if number not in tests and number not in ELSEWHERE]
    late = [number for number in ELSEWHERE if number in tests]
    if late:
        print(f"threats: {', '.join(late)} have tests: remove the reasons", file=sys.stderr)
    if missing:
        print(f"threats: no test has {', '.join(missing)}", file=sys.stderr)
    if missing or late:
        return 1
    print(
        f"threats: of {len(NEEDED)} numbers of hosts, identity and two heads {len(ELSEWHERE)} have "
        f"no test, with a reason; {len(tests)} numbers have tests"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
