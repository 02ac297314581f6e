"""``ghist``: past jobs, and what was predicted of them, from the database."""

from collections.abc import Iterable

import click

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    option,
    print_json,
    report_errors,
)
from gsched.cli.moments import parse_moment
from gsched.cli.running import runner
from gsched.cli.show.fields import fields_of, shape_options, shaped
from gsched.cli.show.history import print_history, totals_of
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import UnknownJobError, UsageError
from gsched.model.ids import read_job_id
from gsched.model.states import OutcomeKind
from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import HistoryReply, JobRow

DEFAULT_LIMIT = 50
NO_LIMIT = 10**9  # the head gives as many as it can in one answer
FAILED = "failed"  # the head's word for every outcome but exit code 0 and a cancellation

EPILOG = """\b
Examples:
  ghist --since yesterday --failed
  ghist --user alice --since 2026-11-01 --until 2026-12-01 --limit 0
  ghist --json 17 18
  ghist --predictions --since 7d      prediction errors, job by job
"""


#: Fields of --predictions --json; their module is loaded only where they are requested.
_PREDICTED = (
    *("job", "node", "kind", "basis", "records", "succeeded"),
    *("measured", "predicted", "high", "errors"),
)


@gsched_command("ghist", cls=shaped("Ghist", (*fields_of(JobRow), *_PREDICTED)), epilog=EPILOG)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@shape_options
@option("-u", "--user", metavar="USER", help="Show only jobs of this user.")
@option(
    "--since",
    metavar="MOMENT",
    help="Show only jobs that ended at or after: 2026-11-20, '2026-11-20 08:00', 2d, today.",
)
@option("--until", metavar="MOMENT", help="Show only jobs that ended before that time.")
@option(
    "--outcome",
    type=click.Choice([kind.value for kind in OutcomeKind]),
    metavar="KIND",
    help=f"Show only jobs with this outcome: {', '.join(OutcomeKind)}.",
)
@option("--failed", is_flag=True, help="Show only jobs that failed; cancelled jobs do not count.")
@option("-q", "--queue", metavar="QUEUE", help="Show only jobs of this queue.")
@option("-N", "--name", metavar="NAME", help="Show only jobs of this name; * and ? are wildcards.")
@option(
    "--limit",
    type=click.IntRange(min=0),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Number of jobs to show, newest first; 0: all.",
)
@option(
    "--predictions",
    is_flag=True,
    help="Show predicted and measured use of each job on each of its nodes.",
)
@color_option
@connected
def ghist(
    head: HeadClient,
    /,
    *,
    jobs: tuple[str, ...],
    color: str,
    as_json: bool,
    predictions: bool,
    **filters: "str | int | bool | None",
) -> int:
    """Show jobs that have ended, newest first, and their total use.

    With --predictions: what each job was predicted to use on each of its nodes, what it used, and
    the error: +50% means that the prediction was half too high.
    """
    if predictions:
        return _predictions(head, jobs, filters, color=color, as_json=as_json)
    reply, errors = _ask_ids(head, jobs, filters) if jobs else (_ask(head, filters), [])
    if as_json:
        print_json(reply)
    else:
        print_history(reply, color=color)
    return report_errors([("", each) for each in errors], as_json=as_json)


def _ask(head: HeadClient, filters: "dict[str, str | int | bool | None]") -> HistoryReply:
    return head.history(**_wanted(filters))


def _wanted(filters: "dict[str, str | int | bool | None]") -> "dict[str, str | float]":
    """Return the filters as the head takes them.

    Raises:
        UsageError: two of them exclude each other, or a moment is none.
    """
    if filters["failed"] and filters["outcome"]:
        raise UsageError("--failed and --outcome are mutually exclusive", hint="give one of them")
    now_s = SystemClock().wall_s()
    moments = {
        name: parse_moment(str(filters[name]), now_s=now_s, option=f"--{name}")
        for name in ("since", "until")
        if filters[name] is not None
    }
    texts = {
        name: str(filters[name])
        for name in ("user", "outcome", "queue", "name", "limit")
        if filters[name] is not None
    }
    if filters["limit"] == 0:
        texts["limit"] = str(NO_LIMIT)
    if filters["failed"]:
        texts["outcome"] = FAILED
    return {**texts, **moments}


def _ask_ids(
    head: HeadClient, jobs: tuple[str, ...], filters: "dict[str, str | int | bool | None]"
) -> tuple[HistoryReply, list[ErrorBody]]:
    _check_no_filter(filters)
    several = [job for job in jobs if _names_several(job)]
    if several:
        return _with_elements(head, several, [job for job in jobs if job not in several])
    listing = head.jobs(jobs, finished=True)
    reply = totals_of(
        listing.jobs, server=listing.server, now_s=listing.now_s, arrays=_arrays(listing.jobs)
    )
    return reply, [listing.errors[job] for job in jobs if job in listing.errors]


def _names_several(text: str) -> bool:
    """Return whether an operand names all or several elements of an array: ``12[3-5]``."""
    try:
        job = read_job_id(text)
    except UnknownJobError:
        return False
    return job.elements != "" and job.element is None


def _with_elements(
    head: HeadClient, several: list[str], others: list[str]
) -> tuple[HistoryReply, list[ErrorBody]]:
    """Return arrays with their elements that have ended, and other jobs."""
    past = head.history(ids=",".join(several), limit=str(NO_LIMIT))
    arrays = [str(read_job_id(text)._replace(elements="")) for text in several]
    listing = head.jobs([*arrays, *others], finished=True)
    rows = {row.shown_id(past.server): row for row in (*past.jobs, *listing.jobs)}
    reply = totals_of(
        tuple(rows.values()),
        server=listing.server,
        now_s=listing.now_s,
        arrays=_arrays(listing.jobs) - {read_job_id(text).number for text in several},
    )
    return reply, list(listing.errors.values())


def _arrays(rows: Iterable[JobRow]) -> set[int]:
    return {row.id for row in rows if row.array is not None}


def _check_no_filter(filters: "dict[str, str | int | bool | None]") -> None:
    given = [name for name, value in filters.items() if value and name != "limit"]
    if given:
        raise UsageError(
            f"job ids and --{given[0]} are mutually exclusive",
            hint="give one of them; quote a pattern, as in -N 'train*', or the shell expands it",
        )


def _predictions(
    head: HeadClient,
    jobs: tuple[str, ...],
    filters: "dict[str, str | int | bool | None]",
    *,
    color: str,
    as_json: bool,
) -> int:
    """Show predictions and what came of them; return the exit code."""
    from gsched.cli.show.predictions import print_predictions  # late: plain ghist does without

    errors: list[ErrorBody] = []
    if jobs:
        _check_no_filter(filters)
        listing = head.jobs(jobs, finished=True)
        errors = [listing.errors[job] for job in jobs if job in listing.errors]
        if not listing.jobs:
            return report_errors([("", each) for each in errors], as_json=as_json)
        reply = head.predictions([row.id for row in listing.jobs], limit=NO_LIMIT)
    else:
        reply = head.predictions((), **_wanted(filters))
    if as_json:
        print_json(reply)
    else:
        print_predictions(reply, color=color)
    return report_errors([("", each) for each in errors], as_json=as_json)


main = runner(ghist)

if __name__ == "__main__":
    main()
