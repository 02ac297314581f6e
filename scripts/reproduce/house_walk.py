"""How often a reader of one stage of a submission turns back to a file that was left before.

The walk reads the stage's functions name by name. A function of the same file is read where it is
mentioned first. A function or a constant of another file is looked up there once, but not read, and
the reader comes back; types are known. A *stay* is an unbroken time in a file; stays less files are
*returns*.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from scripts.reproduce.house_code import Module, Target


class Walk(NamedTuple):
    """The files that a reader visits, in order."""

    stays: list[str]

    @property
    def files(self) -> int:
        """Return how many files there are."""
        return len(set(self.stays))

    @property
    def returns(self) -> int:
        """Return how often a file is visited again that was left before."""
        return len(self.stays) - self.files


def walk(modules: Mapping[str, Module], first: Target, *others: Target) -> Walk:
    """Read a function, and others where they are mentioned, although they are in other files."""
    reader = _Reader(modules, frozenset(others))
    reader.read(first)
    return Walk(reader.stays)


class _Reader:
    def __init__(self, modules: Mapping[str, Module], followed: frozenset[Target]) -> None:
        self._modules = modules
        self._followed = followed
        self._known: set[Target] = set()
        self.stays: list[str] = []

    def read(self, target: Target) -> None:
        """Read a function in its file; what it refers to is looked up where it is mentioned."""
        module = self._modules[target.module]
        self._known.add(target)
        self._visit(module.name)
        for each in references(module, module.defined[target.name]):
            found = self._modules[each.module].defined.get(each.name)
            is_function = isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
            if each in self._known or not each.name or isinstance(found, ast.ClassDef):
                continue
            if is_function and (each.module == module.name or each in self._followed):
                self.read(each)
            else:
                self._known.add(each)
                self._visit(each.module)
            self._visit(module.name)

    def _visit(self, module: str) -> None:
        if not self.stays or self.stays[-1] != module:
            self.stays.append(module)


def references(module: Module, function: ast.AST) -> Iterator[Target]:
    """Yield what the names of a function refer to, in the order of its text."""
    found: list[tuple[int, int, Target]] = []
    for node in ast.walk(function):
        target = _target(module, node)
        if target is not None and isinstance(node, ast.expr):
            found.append((node.lineno, node.col_offset, target))
    yield from (target for _, _, target in sorted(found, key=lambda each: each[:2]))


def _target(module: Module, node: ast.AST) -> Target | None:
    if isinstance(node, ast.Name):
        imported = module.imported.get(node.id)
        if imported is not None:
            return imported
        return Target(module.name, node.id) if node.id in module.defined else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = module.imported.get(node.value.id)
        return Target(owner.module, node.attr) if owner is not None and not owner.name else None
    return None
