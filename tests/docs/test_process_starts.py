"""Every place of the node's code that starts a process is in the table of docs/architecture.md.

What runs for a user outside its attempt has no limit, no clock and no accounting, and outlives the
job. So a new place has to say where it runs, and what ends it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- processes -->\n", "<!-- end of processes -->"
#: What starts a process, or makes this one another program, by the module that it is in.
STARTS = {
    "os": (
        *("fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp"),
        *(f"exec{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
        *(f"spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    ),
    "asyncio": ("create_subprocess_exec", "create_subprocess_shell"),
    "subprocess": (
        *("Popen", "run", "call", "check_call", "check_output"),
        *("getoutput", "getstatusoutput"),
    ),
    "pty": ("fork", "spawn"),
    "multiprocessing": ("Process", "Pool", "get_context", "Manager"),
    "concurrent.futures": ("ProcessPoolExecutor",),
}
ANNOTATIONS = ("annotation", "returns")


class Finder(ast.NodeVisitor):
    """Finds the functions of one module that start processes."""

    def __init__(self, module: str) -> None:
        self.found: set[str] = set()
        self._where = [module]

    def visit(self, node: ast.AST) -> None:
        """Visit a node, and all below it that is no annotation."""
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._where.append(node.name)
        if _starts(node):
            self.found.add(".".join(self._where))
        for name, value in ast.iter_fields(node):
            if name in ANNOTATIONS:
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    self.visit(each)
        if is_named:
            self._where.pop()


def _starts(node: ast.AST) -> bool:
    """Return whether a node names a function that starts a process, or imports one."""
    if isinstance(node, ast.Attribute):
        return node.attr in STARTS.get(ast.unparse(node.value), ())
    if isinstance(node, ast.ImportFrom):
        names = STARTS.get(node.module or "", ())
        return any(each.name in names for each in node.names)
    return False


def starts_in(text: str, module: str) -> set[str]:
    """Return the functions of a module's text that start processes."""
    finder = Finder(module)
    finder.visit(ast.parse(text))
    return finder.found


def modules() -> Iterator[tuple[str, str]]:
    # srun and the head have these in common with gnode
    shared = [ROOT / "gsched" / f"{name}.py" for name in ("owner_files", "step_process")]
    for path in (*sorted(ROOT.joinpath("gnode").rglob("*.py")), *shared):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name, path.read_text(encoding="utf-8")


def test_each_place_that_starts_a_process_is_in_the_table() -> None:
    found = {place for name, text in modules() for place in starts_in(text, name)}
    manual = ROOT.joinpath("docs", "architecture.md").read_text(encoding="utf-8")
    rows = manual.split(BEGIN)[1].split(END)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    listed = {name.strip("` ") for row in cells for name in row[0].split(",")}

    assert found == listed
    assert all(len(row) == 5 and all(row) for row in cells), "each says all of it"


def test_the_search_finds_every_way_to_start_a_process() -> None:
    text = """
import os, subprocess
from subprocess import run
process: subprocess.Popen[bytes] | None = None
def a(): return os.fork()
class B:
    async def c(self) -> "subprocess.Popen[bytes]":
        await asyncio.create_subprocess_exec("x")
    def d(self, start=os.execve): pass
    def e(self, pid: int): os.kill(pid, 9)
"""
    assert starts_in(text, "m") == {"m", "m.a", "m.B.c", "m.B.d"}
