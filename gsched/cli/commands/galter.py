"""``galter``: change what jobs ask for."""

import os
from collections.abc import Callable, Mapping
from typing import Final

import click
import msgspec

from gsched.cli.common import (
    QuickCommand,
    connected,
    gsched_command,
    option,
)
from gsched.cli.operands import (
    UNFINISHED,
    carry_out,
    check_only,
    jobs_argument,
    normal_ids,
    parse_hold_list,
    tasks_option,
    with_tasks,
)
from gsched.cli.running import runner
from gsched.cli.submit.options import read_value
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.readers import kept
from gsched.cli.submit.rows import ROWS, galter_options
from gsched.cli.submit.submission import KEPT
from gsched.cli.times import read_duration_s
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.config.environment import full_environment
from gsched.errors import UsageError
from gsched.protocol.actions import Alteration, AlterJob

Value = str | int | tuple[str, ...] | None  # of an option

EPILOG = """\b
Examples:
  galter -l walltime=+1:00:00 17      add one hour, even while it runs
  galter -l nodes=2:gpus=4 -p 10 17
  galter --deadline 8h 17             new deadline: eight hours from now
"""


_RESOURCES: Final = (
    "-l changes resources",
    "as in galter -l gpu_share=60%:8gb:high or -l nodes=2:gpus=4,walltime=2:00:00",
)
#: Options of gsub that galter does not have: what changes the same, and an example.
_OTHERS: Final = {
    **dict.fromkeys(
        ("--nodes", "--cpus", "--gpus", "--gpu-share", "--share-class", "--mem", "--walltime"),
        _RESOURCES,
    ),
    "--dependency": (
        "-W depend= changes dependencies",
        "as in galter -W depend=afterok:12 17, or -W depend= for none",
    ),
}


class _Galter(QuickCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _OTHERS:
                raise
            other, example = _OTHERS[error.option_name]
            raise UsageError(
                f"galter has no option {error.option_name}: {other}", hint=example
            ) from None


@gsched_command("galter", cls=_Galter, epilog=EPILOG)
@jobs_argument
@tasks_option
@galter_options
@option(
    "-h",
    "hold_list",
    metavar="HOLD_LIST",
    help="Set the holds: u, o, s, or several such as uo; n: none.",
)
@option(
    "-W",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Other attributes: depend=TYPE:JOB, or kill_delay=SECONDS (--grace).",
)
@option("--dry-run", is_flag=True, help="Check the change, without making it.")
@connected
def galter(
    head: HeadClient,
    /,
    *,
    jobs: tuple[str, ...],
    tasks: str,
    dry_run: bool,
    as_json: bool,
    **options: Value,
) -> int:
    """Change attributes of jobs: for each job all of the changes, or none.

    Every attribute of a waiting job can be changed; of a running job its walltime, deadline, grace,
    account, mail, holds, and whether it can be rerun.
    """
    now_s = SystemClock().wall_s()
    jobs = with_tasks(normal_ids(jobs), tasks)
    alteration = make_alteration(options, now_s=now_s, directory=os.getcwd())
    if alteration == Alteration():  # only options without effect; unknown jobs are still reported
        return check_only(head, jobs, states=UNFINISHED, as_json=as_json)
    request = AlterJob(ids=jobs, alteration=alteration, dry_run=dry_run)
    return carry_out(head, request, as_json=as_json)[1]


def make_alteration(options: dict[str, Value], *, now_s: float, directory: str) -> Alteration:
    """Return what the options ask to change.

    Args:
        options: by the names of `Alteration`'s fields, but as the user wrote them.
        now_s: for ``-a``, seconds since the epoch.
        directory: to which relative paths of ``-o`` and ``-e`` belong.

    Raises:
        UsageError: nothing at all is to be changed, or a value cannot be read.
    """
    place = SubmitContext(cwd=directory, environment=full_environment(), now_s=now_s, umask=0)
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if not given:
        raise UsageError("nothing to change", hint="see `galter --help`")
    if "deadline" in given and "urgency" in given:
        raise UsageError("--deadline and --urgency are mutually exclusive", hint="give one of them")
    changes: dict[str, object] = {}
    for row in ROWS:
        if row.alter in given and row.alter not in _OTHERWISE:
            value, names = read_value(row, given[row.alter], place), row.job.split()
            changes |= dict.fromkeys(names, value)  # those that only are read have none
    for name, read in _OTHERWISE.items():
        if name in given:
            changes |= read(given[name], place)
    return msgspec.convert(changes, Alteration)


def _outputs(option: str) -> Callable[[Value, SubmitContext], dict[str, object]]:
    return lambda text, place: {option: absolute_output(str(text), place.cwd)}


def _kept(text: Value, place: SubmitContext) -> dict[str, object]:
    letters = kept(str(text), place)
    paths = (("o", "stdout_path"), ("e", "stderr_path"))
    return {field: KEPT for letter, field in paths if letter in letters}


def _deadline(text: Value, place: SubmitContext) -> dict[str, object]:
    """Return the field and its value; ``none`` takes a deadline away."""
    from gsched.cli.submit.deadline import NONE, parse_deadline  # late: most change something else

    if text == NONE:
        return {"deadline_s": 0.0}
    deadline = parse_deadline(str(text), now_s=place.now_s)
    if deadline.after_s:
        return {"deadline_after_s": deadline.after_s}
    return {"deadline_s": deadline.at_s}


def _attributes(texts: Value, _place: SubmitContext) -> dict[str, object]:
    """Return what ``-W`` changes: the grace period, or the dependencies, all of them.

    Raises:
        UsageError: an attribute is unknown.
    """
    found: dict[str, object] = {}
    depends: list[str] = []
    for text in texts if isinstance(texts, tuple) else ():
        name, _, value = text.partition("=")
        if name == "kill_delay":
            found["grace_s"] = read_duration_s(f"-W {name}", value)
        elif name == "depend":
            depends.append(value)
            found["depends"] = tuple(filter(None, depends))
        else:
            raise UsageError(
                f"-W {text}: unknown attribute {name!r}",
                hint="valid: depend=TYPE:JOB, kill_delay=SECONDS",
            )
    return found


def absolute_output(path: str, directory: str) -> str:
    """Return where output goes, absolute; ``host:`` is dropped, a final ``/`` kept.

    ``~`` and ``$PBS_JOBID`` are left to the node, which expands them as the job's owner.
    """
    host, colon, rest = path.partition(":")
    if colon and "/" not in host:
        path = rest
    if not path:
        raise UsageError("the output path is empty", hint="give a file or a directory")
    return path if path[0] in "/~$" else os.path.join(directory, path)


#: Options of galter that are not what they are in gsub, and what reads them.
_OTHERWISE: Final[Mapping[str, Callable[[Value, SubmitContext], dict[str, object]]]] = {
    "stdout_path": _outputs("stdout_path"),
    "stderr_path": _outputs("stderr_path"),
    "keep": _kept,
    "resources": lambda texts, _: {"resources": texts},
    "hold_list": lambda text, _: {"holds": parse_hold_list(str(text))},
    "deadline": _deadline,
    "attributes": _attributes,
}


main = runner(galter)

if __name__ == "__main__":
    main()
