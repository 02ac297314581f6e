"""Operands and option values that several commands about existing jobs read in the same way."""

import difflib
import signal

import click
import msgspec

from gsched.cli.common import (
    Callback,
    option,
    report_results,
)
from gsched.cli.times import read_duration_s
from gsched.client import HeadClient
from gsched.errors import BadStateError, InvalidRequestError, UsageError
from gsched.head_calls import body_of
from gsched.model.arrays import format_spans, read_spans
from gsched.model.ids import job_number, read_job_id
from gsched.model.states import HoldKind, JobState
from gsched.protocol.actions import AnyJobAction
from gsched.protocol.api import ActionReply, ActionResult

ALL = "all"
RUNNING = frozenset({JobState.RUNNING})
UNFINISHED = frozenset(JobState) - {JobState.DONE}
HOLD_LETTERS = {"u": HoldKind.USER, "o": HoldKind.OPERATOR, "s": HoldKind.SYSTEM}

# Torque's words; gsched stops the processes but, unlike Torque, keeps the job's place.
_SIGNAL_WORDS = {"SUSPEND": signal.SIGSTOP, "RESUME": signal.SIGCONT}


def jobs_argument(function: Callback) -> Callback:
    """Add the operands ``JOB...`` as the parameter ``jobs``."""
    return click.argument("jobs", nargs=-1, required=True, metavar="JOB...")(function)


def normal_ids(jobs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the operands with ``ALL`` written as the API wants it; others as they are."""
    return tuple(ALL if job.lower() == ALL else job for job in jobs)


def tasks_option(function: Callback) -> Callback:
    """Add ``-t RANGE`` as the parameter ``tasks`` for `with_tasks`."""
    return option(
        "-t",
        "tasks",
        default="",
        metavar="RANGE",
        help="Only these elements of each array JOB: 5-10 or 1,3.",
    )(function)


def whole(text: str) -> str:
    """Return the identifier of the array where several of its elements are named."""
    job = read_job_id(text)
    return text if job.element is not None else str(job._replace(elements=""))


def with_tasks(jobs: tuple[str, ...], tasks: str) -> tuple[str, ...]:
    """Return the elements ``-t`` of arrays that operands name: ``12[5-10].server``.

    Raises:
        UsageError: the range cannot be read, or an operand names elements itself.
        UnknownJobError: an operand is no job identifier.
    """
    if not tasks:
        return jobs
    try:
        spans = read_spans(tasks)
    except InvalidRequestError as error:
        raise UsageError(f"-t: {error.message}", hint="write 5-10 or 1,3,7-9") from None
    found: list[str] = []
    for text in jobs:
        job = read_job_id(text) if text != ALL else None
        if job is None or job.elements not in {"", "[]"}:
            raise UsageError(
                f"-t {tasks} and {text} are mutually exclusive", hint="name an array: 12[]"
            )
        found.append(str(job._replace(elements=f"[{format_spans(spans)}]")))
    return tuple(found)


def grace_option(function: Callback) -> Callback:
    """Add ``-W DELAY``, also ``--grace``, as the parameter ``grace`` for `parse_grace_s`."""
    return option(
        "-W",
        "--grace",
        "grace",
        default="",
        metavar="DELAY",
        help="Time from TERM to KILL: seconds, MM:SS or 5m; force: KILL at once.",
    )(function)


def parse_grace_s(text: str) -> float | None:
    """Return the seconds from TERM to KILL that ``-W`` states, None for the job's own.

    Torque's form is a number of seconds; of OpenPBS's, ``force`` is taken.

    Raises:
        UsageError: it is neither.
    """
    if not text:
        return None
    if text in {"0", "force"}:
        return 0.0
    if text.startswith("suppress_email="):  # of OpenPBS; gsched sends no mail
        return None
    if "=" in text:
        raise UsageError(
            f"-W: invalid value {text!r}", hint="give the seconds from TERM to KILL, or force"
        )
    return read_duration_s("-W", text)


def hold_option(function: Callback) -> Callback:
    """Add ``-h HOLD_LIST`` as the parameter ``hold_list``. It is never help (POSIX)."""
    return option(
        "-h",
        "hold_list",
        default="u",
        show_default=True,
        metavar="HOLD_LIST",
        help="Holds: u (user), o (operator), s (system), or several such as uo; n: none.",
    )(function)


def parse_hold_list(text: str) -> tuple[str, ...]:
    """Return the kinds of hold that ``-h`` names, empty for ``n``.

    Raises:
        UsageError: another letter, or ``n`` beside others.
    """
    if text == "n":
        return ()
    if not text or set(text) - set(HOLD_LETTERS):
        raise UsageError(
            f"-h: invalid hold list {text!r}", hint="write u, o and s in any order, or n alone"
        )
    return tuple(HOLD_LETTERS[letter].value for letter in dict.fromkeys(text))


def parse_signal(text: str, option: str = "-s") -> int:
    """Return the number of a signal: ``TERM``, ``SIGTERM``, ``15``, ``suspend``, ``NULL``.

    Raises:
        UsageError: there is no such signal.
    """
    name = text.upper()
    if name in _SIGNAL_WORDS:
        return int(_SIGNAL_WORDS[name])
    name = name.removeprefix("SIG")
    if name in {"NULL", "0"}:
        return 0
    if name.isdigit() and int(name) in set(signal.valid_signals()):
        return int(name)
    known = {each.name.removeprefix("SIG"): int(each) for each in signal.Signals}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"{option}: unknown signal {text!r}",
        hint=f"did you mean {close[0]!r}?" if close else "see `kill -l`",
    )


def carry_out(head: HeadClient, request: AnyJobAction, *, as_json: bool) -> tuple[ActionReply, int]:
    """Ask the head for an action, print what became of it, return the answer and the exit code.

    Nothing is printed for what was done, as POSIX has it; a dry run says for each job what would.
    """
    reply = head.act(request)
    results = reply.results
    if request.dry_run and not as_json:
        results = tuple(
            msgspec.structs.replace(result, text=f"{result.id}: {result.text}")
            for result in results
        )
    return reply, report_results(results, as_json=as_json, show_text=request.dry_run)


def check_only(
    head: HeadClient, jobs: tuple[str, ...], *, states: frozenset[JobState], as_json: bool
) -> int:
    """Tell of the operands that are no job in one of ``states``; do nothing: ``gsig -s 0``."""
    listing = head.jobs([job for job in jobs if job != ALL])
    rows = {row.id: row for row in listing.jobs}
    results = []
    for job in jobs:
        error = listing.errors.get(job)
        if job != ALL and error is None:
            row = rows[job_number(read_job_id(job))]
            if row.state not in states:
                wanted = " or ".join(sorted(states))
                name = row.shown_id(listing.server)
                error = body_of(BadStateError(f"job {name} is {row.state}, not {wanted}"))
        results.append(ActionResult(id=job, error=error))
    return report_results(results, as_json=as_json)
