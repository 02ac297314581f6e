"""Counts the product's modules, lines, types and functions at commits of this repository."""

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator

PRODUCT = ("gsched", "gschedd", "gnode")
ROWS = ("modules", "lines", "lines of code", "types", "functions", "largest module, lines")
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


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
        total["lines of code"] += len(_code_lines(text) - _docstring_lines(tree))
        for node in ast.walk(tree):
            total["types"] += isinstance(node, ast.ClassDef)
            total["functions"] += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return total


def _code_lines(text: str) -> set[int]:
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT and token.type != tokenize.ENDMARKER:
            found.update(range(token.start[0], token.end[0] + 1))
    return found


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            assert node.end_lineno is not None
            found.update(range(node.lineno, node.end_lineno + 1))
    return found


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
