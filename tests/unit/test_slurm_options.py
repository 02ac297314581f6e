"""The options of Slurm's commands, beside those of Slurm 22.05.8, 24.11.5 and 26.05.5.

The names and kinds in `tests/golden/slurm_options.json` were found by calling these commands with
each beginning of a name, which getopt completes, and with and without a value: 0 has no value, 1
requires one, 2 may have one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gsched.cli.slurm.options import parsed
from gsched.cli.submit.slurm_options import NONE, OPTIONS, REQUIRED, OptionError, parse

RECORDED: Final = json.loads(Path("tests/golden/slurm_options.json").read_text(encoding="utf-8"))
#: squeue looks at the next word itself where getopt finds no value.
BY_HAND: Final = {("squeue", "jobs"), ("squeue", "steps")}
#: In no release, but in scripts: Pyxis' options, and names of releases before 22.05.
OTHERS: Final = {"container-image", "container-mounts", "container-workdir", "workdir", "licences"}


def cases() -> Iterator[tuple[str, str, str, int]]:
    for version, commands in RECORDED.items():
        for command, options in commands.items():
            for name, kind in options.items():
                if (command, name) not in BY_HAND:
                    yield version, command, name, kind


def is_refused(command: str, word: str) -> str:
    """Return how getopt refuses a word; empty if it does not."""
    try:
        if command in OPTIONS:
            parse([word], OPTIONS[command])
        else:
            parsed([word], command)
    except OptionError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 # known, but not a thing of gsched
        return "" if "is not supported by gsched" in str(error) else str(error)
    return ""


def test_each_option_of_slurm_is_known_with_its_kind() -> None:
    faults = []
    for version, command, name, kind in cases():
        with_value, without = f"--{name}=x", f"--{name}"
        if kind != NONE and (why := is_refused(command, with_value)):
            faults.append(f"{version} {command} {with_value}: {why}")
        if kind != REQUIRED and (why := is_refused(command, without)):
            faults.append(f"{version} {command} {without}: {why}")
        if kind == REQUIRED and "requires an argument" not in is_refused(command, without):
            faults.append(f"{version} {command} {without}: accepted without a value")
    assert faults == []
    assert sum(1 for _ in cases()) > 1000, "of three releases and eight commands"


@pytest.mark.parametrize("command", sorted(OPTIONS))
def test_no_option_is_known_that_no_release_has(command: str) -> None:
    theirs = {name for commands in RECORDED.values() for name in commands[command]}
    ours = {name.removeprefix("--") for name in OPTIONS[command] if name.startswith("--")}
    aliases = {"clusters", "tasks-per-node"}  # getopt completes to one of two names of an option
    assert ours - theirs - OTHERS - aliases == set()
