"""What the files of ``gsched install-shims`` start: a command under its name of PBS."""

import copy
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NoReturn

import click

from gsched.cli.dialect import speak
from gsched.cli.pbs.personality import PbsDialect
from gsched.cli.running import run

#: Module and name of the command behind each name of PBS.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "qsub": ("gsched.cli.commands.gsub", "gsub"),
        "qstat": ("gsched.cli.pbs.qstat", "qstat"),
        "qdel": ("gsched.cli.commands.gdel", "gdel"),
        "qhold": ("gsched.cli.commands.ghold", "ghold"),
        "qrls": ("gsched.cli.commands.grls", "grls"),
        "qalter": ("gsched.cli.commands.galter", "galter"),
        "qmove": ("gsched.cli.commands.gmove", "gmove"),
        "qmsg": ("gsched.cli.commands.gmsg", "gmsg"),
        "qrerun": ("gsched.cli.commands.grerun", "grerun"),
        "qselect": ("gsched.cli.commands.gselect", "gselect"),
        "qsig": ("gsched.cli.commands.gsig", "gsig"),
        "qmgr": ("gsched.cli.pbs.qmgr", "qmgr"),
        "pbsdsh": ("gsched.cli.pbs.pbsdsh", "pbsdsh"),
        "pbsnodes": ("gsched.cli.pbs.pbsnodes", "pbsnodes"),
        "pbs_ralter": ("gsched.cli.pbs.reservations", "pbs_ralter"),
        "pbs_rdel": ("gsched.cli.pbs.reservations", "pbs_rdel"),
        "pbs_rstat": ("gsched.cli.pbs.reservations", "pbs_rstat"),
        "pbs_rsub": ("gsched.cli.pbs.reservations", "pbs_rsub"),
        "tracejob": ("gsched.cli.pbs.tracejob", "tracejob"),
    }
)


def command_of(name: str) -> click.Command:
    """Return the command behind a name of PBS; its messages begin with that name."""
    module, attribute = COMMANDS[name]
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    named = copy.copy(command)
    named.name = name
    return named


def main(name: str, personality: str) -> NoReturn:
    """Run a command under its name of PBS with this process's arguments.

    Args:
        name: a key of COMMANDS.
        personality: ``torque`` or ``openpbs``.
    """
    speak(PbsDialect(personality))
    run(command_of(name))
