"""``galter``: change what jobs ask for."""

import os
from collections.abc import Callable

import click
import msgspec

from gsched.cli.common import connected, gsched_command, run
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
from gsched.cli.submit.habits import kept_streams
from gsched.cli.submit.mail import check_recipients, mail_points
from gsched.cli.submit.rows import galter_options
from gsched.cli.submit.submission import join_of, refuse_other_user, rerunnable_of
from gsched.cli.times import parse_start_time, read_duration_s
from gsched.client import Head
from gsched.clock import SystemClock
from gsched.errors import UsageError
from gsched.protocol.actions import Alteration, AlterJob

Value = str | int | tuple[str, ...] | None  # of an option

EPILOG = """\b
Examples:
  galter -l walltime=+1:00:00 17      add one hour, even while it runs
  galter -l nodes=2:gpus=4 -p 10 17
  galter --deadline 8h 17             new deadline: eight hours from now
"""


@gsched_command("galter", epilog=EPILOG)
@jobs_argument
@tasks_option
@galter_options
@click.option(
    "-h",
    "hold_list",
    metavar="HOLD_LIST",
    help="Set the holds: u, o, s, or several such as uo; n: none.",
)
@click.option(
    "-W",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Other attributes: depend=TYPE:JOB, or kill_delay=SECONDS (--grace).",
)
@click.option("--dry-run", is_flag=True, help="Check the change, without making it.")
@connected
def galter(
    head: Head,
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
    if options.get("_users") is not None:
        refuse_other_user(str(options["_users"]))
    if options.get("mail_to") is not None:
        check_recipients(str(options["mail_to"]))
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    kept = kept_streams(str(given.pop("keep"))) if "keep" in given else None
    stated = bool(given) or kept is not None
    given = {name: value for name, value in given.items() if not name.startswith("_")}
    if not stated:
        raise UsageError("nothing to change", hint="see `galter --help`")
    if "deadline" in given and "urgency" in given:
        raise UsageError("--deadline and --urgency are mutually exclusive", hint="give one of them")
    readers = _readers(now_s, directory)
    plain = set(Alteration.__struct_fields__) - set(readers)
    changes: dict[str, object] = {name: given[name] for name in plain if name in given}
    for name, read in readers.items():
        if name in given:
            field, value = read(str(given[name]))
            changes[field] = value
    changes |= {
        field: "~/"
        for letter, field in (("o", "stdout_path"), ("e", "stderr_path"))
        if letter in (kept or "")
    }
    changes |= _attributes(_texts(given.get("attributes")))
    return msgspec.convert(changes, Alteration)


def _readers(now_s: float, directory: str) -> dict[str, Callable[[str], tuple[str, object]]]:
    """Return, for each option whose value is not taken as it stands, what reads it."""
    return {
        "stdout_path": lambda text: ("stdout_path", absolute_output(text, directory)),
        "stderr_path": lambda text: ("stderr_path", absolute_output(text, directory)),
        "start_after": lambda text: ("start_after_s", parse_start_time(text, now_s=now_s)),
        "hold_list": lambda text: ("holds", parse_hold_list(text)),
        "join": lambda text: ("join", join_of(text)),
        "rerunnable": lambda text: ("rerunnable", rerunnable_of(text)),
        "grace": lambda text: ("grace_s", read_duration_s("--grace", text)),
        "deadline": lambda text: _deadline(text, now_s),
        "mail_points": lambda text: ("mail_points", mail_points(text)),
    }


def _deadline(text: str, now_s: float) -> tuple[str, float]:
    """Return the field and its value; ``none`` takes a deadline away."""
    from gsched.cli.submit.deadline import NONE, parse_deadline  # late: most change something else

    if text == NONE:
        return "deadline_s", 0.0
    deadline = parse_deadline(text, now_s=now_s)
    if deadline.after_s:
        return "deadline_after_s", deadline.after_s
    return "deadline_s", deadline.at_s


def _texts(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _attributes(texts: tuple[str, ...]) -> dict[str, object]:
    """Return what ``-W`` changes: the grace period, or the dependencies, all of them.

    Raises:
        UsageError: an attribute is unknown.
    """
    found: dict[str, object] = {}
    depends: list[str] = []
    for text in texts:
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


def main() -> None:
    """Run the command."""
    run(galter)


if __name__ == "__main__":
    main()
