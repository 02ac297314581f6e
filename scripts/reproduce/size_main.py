"""Counts the product's modules, lines, types and functions at commits of this repository."""

import argparse
import ast
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator

from scripts.tidy import code_lines

PRODUCT = ("gsched", "gschedd", "gnode")
ROWS = ("modules", "lines", "lines of code", "types", "functions", "largest module, lines")


def sources(commit: str) -> Iterator[str]:
    """Yield the text of each module of the product at a commit."""
    names = _git("ls-tree", "-r", "--name-only", commit, "--", *PRODUCT).split("\n")
    for name in names:
        if name.endswith(".py"):
            yield _git("show", f"{commit}:{name}")


def counted(texts: Iterable[str]) -> Counter[str]:
    """Return each of `ROWS`. A line of code has a token that is neither comment nor docstring."""
    total: Counter[str] = Counter()
    for text in texts:
        tree = ast.parse(text)
        lines = text.count("\n")
        total["modules"] += 1
        total["lines"] += lines
        total["largest module, lines"] = max(total["largest module, lines"], lines)
        total["lines of code"] += code_lines(text)
        for node in ast.walk(tree):
            total["types"] += isinstance(node, ast.ClassDef)
            total["functions"] += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return total


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print a table: a row a count, a column a commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", default=["HEAD"], metavar="COMMIT")
    commits = parser.parse_args().commits
    columns = [counted(sources(commit)) for commit in commits]
    print(f"{'':<24}" + "".join(f"{commit:>12}" for commit in commits))
    for row in ROWS:
        print(f"{row:<24}" + "".join(f"{column[row]:>12,}" for column in columns))


if __name__ == "__main__":
    main()
