"""``gsched install-shims``: install the commands of PBS or Slurm in a directory."""

import os
import sys
from typing import Final

import click

from gsched.cli.common import option
from gsched.cli.local.options import SETTINGS
from gsched.cli.pbs.personality import PERSONALITIES
from gsched.cli.pbs.shim import COMMANDS
from gsched.errors import CannotWriteError

SLURM: Final = "slurm"
SLURM_COMMANDS: Final = (
    "sacct",
    "salloc",
    "sacctmgr",
    "sbatch",
    "scancel",
    "scontrol",
    "sinfo",
    "squeue",
    "srun",
    "sreport",
    "sshare",
    "sstat",
)
MARK: Final = "made by gsched install-shims"
_MODE: Final = 0o755


def shim_text(name: str, personality: str, python: str) -> str:
    """Return the program that stands for a command of PBS or Slurm."""
    module = "gsched.cli.pbs.shim" if personality != SLURM else "gsched.cli.slurm.commands"
    call = f"main({name!r}, {personality!r})" if personality != SLURM else f"main({name!r})"
    return (
        f"#!{python} -I\n"
        f"# {MARK} --personality {personality}\n"
        "import sys\n\n"
        f"sys.path[:0] = {_own_path()!r}\n"
        f"from {module} import main\n\n"
        f"{call}\n"
    )


def _own_path() -> list[str]:
    """Return where gsched lies if this Python does not find it by itself, as in a checkout."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    found = {os.path.realpath(each) for each in sys.path if "site-packages" in each}
    return [] if os.path.realpath(root) in found else [root]


@click.command("install-shims", context_settings=SETTINGS)
@click.argument("directory", metavar="DIR")
@option(
    "--personality",
    type=click.Choice([*PERSONALITIES, SLURM]),
    default="torque",
    show_default=True,
    help="Whose formats, letters and exit codes the commands use.",
)
@option("--force", is_flag=True, help="Replace files that gsched did not make.")
def install_shims(*, directory: str, personality: str, force: bool) -> int:
    """Install qsub, qstat and the other commands of PBS, or those of Slurm, into DIR.

    They are gsched's commands with the formats, texts and exit codes of Torque, OpenPBS or Slurm,
    for scripts and workflow tools. Put DIR at the front of PATH.
    """
    commands = SLURM_COMMANDS if personality == SLURM else COMMANDS
    paths = {name: os.path.join(directory, name) for name in commands}
    try:
        os.makedirs(directory, exist_ok=True)
        foreign = [path for path in paths.values() if os.path.lexists(path) and not _is_ours(path)]
        if foreign and not force:
            raise CannotWriteError(
                f"{foreign[0]} exists, and gsched did not make it",
                hint="choose another directory, or replace it with --force",
            )
        for name, path in paths.items():
            _write(path, shim_text(name, personality, sys.executable))
    except OSError as error:
        raise CannotWriteError(
            f"{directory}: {error.strerror or error}", hint="choose a directory of your own"
        ) from None
    print(f"export PATH={os.path.abspath(directory)}:$PATH")
    return 0


def _is_ours(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return MARK in stream.read(4096)
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    """Write a program so that whoever starts it meanwhile gets the old or the new one."""
    beside = f"{path}.new"
    with open(os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _MODE), "w") as stream:
        stream.write(text)
    os.chmod(beside, _MODE)
    os.replace(beside, path)
