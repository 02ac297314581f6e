"""``pbsdsh`` inside a job on one node: runs a program on its slots."""

import os
import subprocess
from collections.abc import Sequence

import click

from gsched.cli.common import gsched_command
from gsched.config import environment, full_environment
from gsched.errors import UsageError


class _TailCommand(click.Command):
    """What stands behind the program belongs to it."""

    allow_interspersed_args = False


@gsched_command("pbsdsh", cls=_TailCommand, interspersed=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT...]")
@click.option("-c", "copies", type=click.IntRange(min=1), metavar="COPIES", help="So many copies.")
@click.option("-n", "node", type=click.IntRange(min=0), metavar="NUMBER", help="Only on this slot.")
@click.option("-h", "host", default="", metavar="HOST", help="Only on this host.")
@click.option("-u", "once", is_flag=True, help="Once on each node instead of once on each slot.")
@click.option("-s", "one_by_one", is_flag=True, help="One copy after the other.")
@click.option("-o", "no_wait", is_flag=True, help="Accepted for compatibility; output is joined.")
@click.option("-v", "verbose", is_flag=True, help="Tell of each copy on stderr.")
def pbsdsh(  # noqa: PLR0913 - one parameter for each option
    *,
    command: tuple[str, ...],
    copies: int | None,
    node: int | None,
    host: str,
    once: bool,
    one_by_one: bool,
    no_wait: bool,
    verbose: bool,
    head_address: str,
    as_json: bool,
) -> int:
    """Run PROGRAM on the slots of the job in which pbsdsh is called, and return its exit code."""
    del no_wait, head_address, as_json
    if not command:
        raise UsageError("no program given", hint="pbsdsh PROGRAM [ARGUMENT...]")
    slots = _slots()
    if len(set(slots)) > 1:
        raise UsageError(
            "pbsdsh starts programs on one node only, and the job has several",
            hint="submit the program with gsub --every-node",
        )
    chosen = list(range(1 if once else len(slots)))
    if copies is not None:
        chosen = list(range(copies))
    if node is not None:
        if node >= len(slots):
            raise UsageError(f"-n {node}: the job has {len(slots)} slots", hint="counted from 0")
        chosen = [node]
    if host and host != slots[0]:
        raise UsageError(f"-h {host}: the job is on {slots[0]}")
    return _run(command, chosen, one_by_one=one_by_one, verbose=verbose)


def _slots() -> Sequence[str]:
    path = environment("PBS_NODEFILE")
    if not environment("PBS_JOBID") or not path:
        raise UsageError("pbsdsh runs inside a job only", hint="see gsub(1)")
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().split() or [os.uname().nodename]
    except OSError as error:
        raise UsageError(f"cannot read $PBS_NODEFILE {path}: {error.strerror}") from None


def _run(command: Sequence[str], slots: Sequence[int], *, one_by_one: bool, verbose: bool) -> int:
    running: list[subprocess.Popen[bytes]] = []
    status = 0
    for slot in slots:
        own = {**full_environment(), "PBS_VNODENUM": str(slot), "PBS_TASKNUM": str(slot + 2)}
        try:
            process = subprocess.Popen(list(command), env=own, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror}") from None
        if verbose:
            click.echo(f"pbsdsh: spawned task {slot}", err=True)
        if one_by_one:
            status = max(status, _code(process.wait()))
        else:
            running.append(process)
    return max([status, *(_code(process.wait()) for process in running)])


def _code(status: int) -> int:
    return 128 - status if status < 0 else status
