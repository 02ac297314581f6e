"""Which test has which number of the lists of threats (T) and faults (A to H).

A test has the numbers in its name (``test_t23_t70_...``) and in its docstring, and those in the
docstring of its module if no other test of the module names any. ``--check`` fails if a number of
hosts and identity has no test.
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
#: Numbers of hosts, identity, roles and tokens: each has a test.
NEEDED: Final = (
    *(f"T{number}" for number in (*range(1, 8), *range(9, 19), *range(22, 26))),
    *(f"T{number}" for number in (*range(53, 58), *range(61, 66), *range(67, 72))),
    *("A12", "A13", "A19", "A21", "A22"),
)


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
    return {key: tests[key] for key in sorted(tests, key=lambda each: (each[0], int(each[1:])))}


def table_of(tests: Mapping[str, Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| number | tests |", "|---|---|"]
    lines += [f"| {number} | {'<br>'.join(found)} |" for number, found in tests.items()]
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
    missing = [number for number in NEEDED if number not in tests]
    if missing:
        print(f"threats: no test has {', '.join(missing)}", file=sys.stderr)
        return 1
    print(f"threats: {len(NEEDED)} numbers of hosts and identity have tests, {len(tests)} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
