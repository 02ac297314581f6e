"""What commands load when they start: each module that they do not need costs every user time."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter

import click
import pytest

from gsched.cli.late_modules import absent, load_late
from gsched.model.patterns import pattern

#: What click, msgspec and the standard library would load without need.
UNUSED = {
    *("ast", "dis", "tokenize", "locale", "typing_extensions", "dataclasses", "asyncio", "ssl"),
    *(
        "http.client",
        "urllib.parse",
        "tempfile",
        "subprocess",
        "selectors",
        "rich",
        "gsched.config.tables",
    ),
    *("gsched.protocol.actions", "gsched.protocol.stories", "gsched.config.words"),
}
START = """
import json, sys
from gsched.cli.running import status_of
from gsched.cli.commands.{name} import {name}
status_of({name}, ["--version"])
print(json.dumps(list(sys.modules)))
"""


def python(program: str) -> str:
    """Return the last line that a program prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        timeout=60,
        check=True,
        encoding="utf-8",
    )
    return ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["gsub", "gstat", "gdel"])
def test_a_command_loads_no_module_that_it_does_not_need(name: str) -> None:
    loaded = set(json.loads(python(START.format(name=name))))

    assert not loaded & (UNUSED - {"gsched.protocol.actions"} if name == "gdel" else UNUSED)


def test_no_garbage_is_collected_while_a_command_is_imported() -> None:
    count = "sum(each['collections'] for each in gc.get_stats())"
    begin = f"import gc, gsched.cli.commands; begin = {count}"
    assert python(f"{begin}; import gsched.cli.commands.gsub; print({count} - begin)") == "0"


@pytest.mark.parametrize("name", ["gsub", "gstat", "galter", "ghist", "gnodes", "gdel"])
def test_no_two_parameters_of_a_command_have_one_name(name: str) -> None:
    command = getattr(importlib.import_module(f"gsched.cli.commands.{name}"), name)
    parameters = command.get_params(click.Context(command))

    names = Counter(each.name for each in parameters)
    options = Counter(word for each in parameters for word in each.opts)

    assert max(names.values()) == max(options.values()) == 1
    assert parameters[-1].opts == ["--help"]


def test_a_module_that_loads_late_is_whole_when_it_is_used() -> None:
    name = "graphlib"  # nobody here has it
    sys.modules.pop(name, None)
    load_late(name)
    stand_in = importlib.import_module(name)

    assert "TopologicalSorter" not in vars(stand_in)
    assert list(stand_in.TopologicalSorter({1: [2]}).static_order()) == [2, 1]
    assert importlib.import_module(name).TopologicalSorter is stand_in.TopologicalSorter
    with pytest.raises(AttributeError):
        stand_in.no_such_name  # noqa: B018 - the access is the test


def test_a_module_is_absent_in_the_block_alone() -> None:
    sys.modules.pop("graphlib", None)
    with absent("graphlib"), pytest.raises(ImportError):
        importlib.import_module("graphlib")

    assert importlib.import_module("graphlib").TopologicalSorter


def test_a_pattern_is_compiled_at_its_first_use() -> None:
    broken = pattern("(")
    with pytest.raises(Exception, match="missing \\)"):
        broken.fullmatch("x")

    found = pattern(r"(?P<n>\d+)").fullmatch("12")
    assert found is not None
    assert found["n"] == "12"
