"""The product as parsed modules: what each imports, also late, and what its names refer to."""

import ast
import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PRODUCT = ("gsched", "gschedd", "gnode")


class Target(NamedTuple):
    """What a name refers to: a module of the product, and a name in it; empty: the module."""

    module: str
    name: str = ""


class Module:
    """One module.

    Attributes:
        name: dotted; of a package its own.
        lines: of its text.
        imports: modules of the product that it imports, also late or for types.
        imported: what each imported name refers to.
        defined: its functions and classes by name.
        classes: names of its classes, also of nested ones.
        names: that it gives to classes, functions, arguments and variables.
    """

    def __init__(self, name: str, text: str, modules: frozenset[str]) -> None:
        self.name = name
        self.lines = text.count("\n")
        self.imports: set[str] = set()
        self.imported: dict[str, Target] = {}
        self.classes: list[str] = []
        self.names: set[str] = set()
        tree = ast.parse(text)
        for node in ast.walk(tree):
            self._note(node, modules)
        self.imports.discard(name)
        self.defined: dict[str, ast.AST] = {
            each.name: each
            for each in tree.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }

    def _note(self, node: ast.AST, modules: frozenset[str]) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                self.names.add(name)
            case ast.arg(arg=name):
                self.names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.names.add(name)
            case ast.ClassDef(name=name):
                self.names.add(name)
                self.classes.append(name)
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                self._import_from(module, aliases, modules)
            case ast.Import(names=aliases):
                self.imports.update(each.name for each in aliases if each.name in modules)
            case _:
                pass

    def _import_from(self, module: str, aliases: list[ast.alias], modules: frozenset[str]) -> None:
        for alias in aliases:
            whole = f"{module}.{alias.name}"
            if whole in modules:
                self.imported[alias.asname or alias.name] = Target(whole)
                self.imports.add(whole)
            elif module in modules:
                self.imported[alias.asname or alias.name] = Target(module, alias.name)
                self.imports.add(module)


def read_product(root: Path) -> dict[str, Module]:
    """Return the modules of the product below ``root`` by name."""
    paths = {
        module_name(path.relative_to(root)): path
        for folder in PRODUCT
        for path in sorted((root / folder).rglob("*.py"))
    }
    names = frozenset(paths)
    with _no_collections():
        return {
            name: Module(name, path.read_text(encoding="utf-8"), names)
            for name, path in paths.items()
        }


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage: trees are none, and to look through them takes longer than to parse."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def module_name(path: Path) -> str:
    """Return the dotted name of a module's file."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the modules that import each other, also by way of others: each group sorted.

    Tarjan's strongly connected components, without recursion.
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for start in edges:
        if start in number:
            continue
        work = [(start, iter(edges[start]))]
        number[start] = low[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        while work:
            module, following = work[-1]
            each = next(following, None)
            if each is not None:
                if each not in number:
                    number[each] = low[each] = len(number)
                    stack.append(each)
                    on_stack.add(each)
                    work.append((each, iter(edges.get(each, ()))))
                elif each in on_stack:
                    low[module] = min(low[module], number[each])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[module])
            if low[module] == number[module]:
                first = stack.index(module)
                group = stack[first:]
                del stack[first:]
                on_stack.difference_update(group)
                if len(group) > 1:
                    found.append(sorted(group))
    return sorted(found)


def back_arrows(edges: Mapping[str, Iterable[str]], rooms: list[str]) -> Iterator[str]:
    """Yield the imports of a module that stands in a higher room.

    Args:
        edges: what each module imports.
        rooms: packages and modules from the highest to the lowest.
    """
    for module, imported in edges.items():
        here = _room(module, rooms)
        for each in sorted(imported):
            there = _room(each, rooms)
            if here is not None and there is not None and there < here:
                yield f"{module} -> {each}"


def _room(module: str, rooms: list[str]) -> int | None:
    return next(
        (i for i, room in enumerate(rooms) if module == room or module.startswith(room + ".")),
        None,
    )
