"""``pbsdsh`` inside a job: runs a program on its slots, or once on each of its nodes."""

from collections.abc import Sequence

import click

from gsched.cli.common import (
    gsched_command,
    option,
)
from gsched.cli.steps.job import JobNodes, job_nodes
from gsched.cli.steps.tasks import TaskRequest, Tasks
from gsched.config.environment import full_environment
from gsched.errors import UsageError

_FIRST_TASK = 2  # the script is task 1 of its job


class _TailCommand(click.Command):
    """What stands behind the program belongs to it."""

    allow_interspersed_args = False


@gsched_command("pbsdsh", cls=_TailCommand, interspersed=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT...]")
@option("-c", "copies", type=click.IntRange(min=1), metavar="COPIES", help="So many copies.")
@option("-n", "slot", type=click.IntRange(min=0), metavar="NUMBER", help="Only on this slot.")
@option("-h", "host", default="", metavar="HOST", help="Only on the slots of this host.")
@option("-u", "once", is_flag=True, help="Once on each node instead of once on each slot.")
@option("-s", "one_by_one", is_flag=True, help="One copy after the other.")
@option("-o", "no_wait", is_flag=True, help="Accepted for compatibility; output is joined.")
@option("-v", "verbose", is_flag=True, help="Tell of each copy on stderr.")
def pbsdsh(  # noqa: PLR0913 - one parameter for each option
    *,
    command: tuple[str, ...],
    copies: int | None,
    slot: int | None,
    host: str,
    once: bool,
    one_by_one: bool,
    no_wait: bool,
    verbose: bool,
    head_address: str,
    as_json: bool,
) -> int:
    """Run PROGRAM on the slots of the job in which pbsdsh is called, and return its exit code.

    With several copies it is the highest of their exit codes.
    """
    del no_wait, head_address, as_json
    if not command:
        raise UsageError("no program given", hint="pbsdsh PROGRAM [ARGUMENT...]")
    variables = full_environment()
    job = job_nodes(variables, command="pbsdsh")
    wanted = [
        TaskRequest(
            number=number,
            node=job.slots[chosen],
            argv=command,
            env={
                **variables,
                "PBS_NODENUM": str(job.hosts.index(job.slots[chosen])),
                "PBS_VNODENUM": str(chosen),
                "PBS_TASKNUM": str(number + _FIRST_TASK),
            },
        )
        for number, chosen in enumerate(
            _chosen(job, copies=copies, slot=slot, host=host, once=once)
        )
    ]
    return _run(job, wanted, one_by_one=one_by_one, verbose=verbose)


def _chosen(
    job: JobNodes, *, copies: int | None, slot: int | None, host: str, once: bool
) -> list[int]:
    """Return the slots on which the program is to run, by their numbers."""
    slots = list(range(len(job.slots)))
    if slot is not None:
        if slot >= len(slots):
            raise UsageError(f"-n {slot}: the job has {len(slots)} slots", hint="counted from 0")
        slots = [slot]
    if host:
        node = job.find(host)
        slots = [each for each in slots if job.slots[each] == node]
        if not slots:
            raise UsageError(f"-n {slot}: this slot is not on {node}")
    if once:
        slots = list({job.slots[each]: each for each in reversed(slots)}.values())[::-1]
    if copies is not None:
        slots = [slots[number % len(slots)] for number in range(copies)]
    return slots


def _run(job: JobNodes, wanted: Sequence[TaskRequest], *, one_by_one: bool, verbose: bool) -> int:
    tasks = Tasks(job)
    tasks.open(each.node for each in wanted)
    try:
        for each in wanted:
            tasks.start(each)
            if verbose:
                click.echo(f"pbsdsh: spawned task {each.number} on {each.node}", err=True)
            if one_by_one:
                tasks.wait([each.number])
        tasks.wait()
        return max(tasks.codes.values())
    finally:
        tasks.close()
