"""Who writes the head's state: the durable part `apply`, the indices what keeps them in step."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gschedd.core
from gschedd.core.state.state import State

CORE = Path(gschedd.core.__file__).parent
WRITERS = {
    *(f"apply/{name}.py" for name in ("arrays", "jobs", "nodes")),
    *(f"apply/{name}.py" for name in ("recovery", "reservations", "training")),
    *("state/indexing.py", "state/ledger.py"),
}
CHANGING = {"add", "append", "clear", "discard", "insert", "pop", "remove", "setdefault", "update"}


def parts(method: str) -> frozenset[str]:
    """Return the attributes that one of `State`'s methods makes."""
    state = State.__new__(State)
    getattr(state, method)()
    return frozenset(vars(state))


KEPT = parts("_init_durable") | parts("_init_indices")


def attribute_of_state(node: ast.expr) -> str:
    """Return ``x`` for ``state.x``, ``state.x[...]`` and ``self.state.x``; empty for all else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Attribute):
        return ""
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return node.attr if name in {"state", "_state"} else ""


def written(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the attribute of each change of the state."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func.value] if node.func.attr in CHANGING else []
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else (target,):
                name = attribute_of_state(each)
                if name:
                    yield target.lineno, name


def test_only_apply_and_the_indices_write_what_is_kept() -> None:
    found = [
        f"{path.relative_to(CORE)}:{line}: {name}"
        for path in sorted(CORE.rglob("*.py"))
        if str(path.relative_to(CORE)) not in WRITERS
        for line, name in written(ast.parse(path.read_text()))
        if name in KEPT
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("state.jobs[1] = job", "jobs"),
        ("self._state.next_job += 1", "next_job"),
        ("a, head.state.keys = 1, {}", "keys"),
        ("del state.nodes['n1']", "nodes"),
        ("state.reached.pop(1, None)", "reached"),
    ],
)
def test_each_way_to_write_is_seen(source: str, name: str) -> None:
    assert [each for _, each in written(ast.parse(source))] == [name]
    assert name in KEPT


def test_a_new_state_has_nothing_transient() -> None:
    """A head that starts looks at everything, and knows nothing else that is not stored."""
    state = State()
    assert (state.dirty.any, state.dirty.every) == (True, True)
    for part in (state.dirty.job_classes, state.dirty.nodes, state.dirty.ends.known):
        assert not part
    volatile = vars(state.volatile)
    assert volatile.pop("reservations_changed")
    for kept in (vars(state.caches), volatile, vars(state.unstored)):
        assert not any(kept.values())
