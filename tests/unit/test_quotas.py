"""The table of limits: each row has its number from one place, an enforcer, and a document."""

import ast
import importlib
from pathlib import Path

import pytest

from gsched.config.tables import Config
from gsched.model import limits
from tests.support.limit_records import Limit, Scope
from tests.support.quotas import LIMITS

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- limits -->\n", "<!-- end of limits -->"


def name_of(limit: Limit) -> str:
    return limit.name.rpartition("." if not limit.is_key else " ")[2]


def used_in(module: str) -> set[str]:
    """Return the names that the code of a module reads, without its imports."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    return names | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_each_limit_is_used_by_the_module_that_enforces_it(limit: Limit) -> None:
    assert name_of(limit) in used_in(limit.by)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_each_limit_has_the_number_of_its_constant_or_key(limit: Limit) -> None:
    if limit.is_key:
        table = getattr(Config(), limit.name.partition("]")[0].removeprefix("["))
        assert getattr(table, name_of(limit)) == limit.most
    else:
        module = limit.name.rpartition(".")[0] or limits.__name__
        assert getattr(importlib.import_module(module), name_of(limit)) == limit.most


def test_each_number_of_the_limits_stands_in_the_table() -> None:
    names = {name for name in vars(limits) if name.startswith("MAX_")}

    assert names - {limit.name for limit in LIMITS} == set()


def test_what_users_can_fill_has_a_limit_for_each_user_and_one_in_all() -> None:
    both = {Scope.USER, Scope.ALL}
    scopes: dict[str, set[Scope]] = {}
    for limit in LIMITS:
        scopes.setdefault(limit.of, set()).add(limit.scope)

    for of in (
        *("requests in flight", "connections to the head", "terminal sessions"),
        "code snapshots on the head",
    ):
        assert both <= scopes[of], of


def test_the_table_of_limits_is_that_of_the_manual() -> None:
    """docs/protocol.md shows each limit with its reason, and nothing else."""
    manual = ROOT.joinpath("docs", "protocol.md").read_text(encoding="utf-8")
    shown = manual.split(BEGIN)[1].split(END)[0].splitlines()

    assert shown[2:] == [limit.row for limit in LIMITS]
