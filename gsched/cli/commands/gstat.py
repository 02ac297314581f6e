"""gstat: show jobs."""

import sys
from collections.abc import Iterable, Sequence

import click
from msgspec import structs

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    print_json,
    print_note,
    report_errors,
    run,
)
from gsched.cli.show.joblist import WHY_COLUMNS, plain_list, terminal_list, why_rows
from gsched.cli.show.render import print_table, write_plain
from gsched.client import Head, body_of
from gsched.errors import GschedError, UsageError
from gsched.model.states import JobState
from gsched.protocol.api import ErrorBody, JobList, JobStory

NAME = "gstat"
_WAITING = (JobState.QUEUED, JobState.HELD, JobState.WAITING)

_EPILOG = """\b
Examples:
  gstat                                  all unfinished jobs
  gstat -u $USER -s R                    my running jobs
  gstat --why                            why each waiting job waits
  gstat -f 12                            all details of one job
  gstat -x 12 --json | jq .jobs[0].outcome
"""


@gsched_command(NAME, epilog=_EPILOG)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@click.option("-f", "--full", is_flag=True, help="Show all details: attempts, usage, events.")
@click.option(
    "-u", "--user", default="", metavar="USERS", help="Show only jobs of these users: a,b."
)
@click.option(
    "-s",
    "--state",
    "states",
    default="",
    metavar="STATES",
    help="Show only jobs in these states: Q,R or held.",
)
@click.option("-a", "-x", "--all", "finished", is_flag=True, help="Include jobs that have ended.")
@click.option("--why", is_flag=True, help="Show only waiting jobs: reason and expected start.")
@click.option("--watch", is_flag=True, help="Refresh the list every 2 s, until Ctrl-C.")
@color_option
@connected
def gstat(head: Head, /, jobs: tuple[str, ...], **given: object) -> int:
    """Show all unfinished jobs, or each JOB, finished or not.

    On a terminal the table fits the width. In a pipe there is a line of titles and a line for each
    job, separated by TABs, and nothing is truncated.
    """
    options = _Options(given)
    if options.watch:
        return _watch(head, jobs, options)
    if options.full or (options.why and jobs):
        return _stories(head, jobs, options)
    reply = _jobs(head, jobs, options)
    if reply.warning:
        print_note(reply.warning, command="gstat")
    if options.as_json:
        print_json(reply)
    elif options.why:
        print_table(WHY_COLUMNS, why_rows(reply), color=options.color)
    elif sys.stdout.isatty():
        columns, rows = terminal_list(reply)
        print_table(columns, rows, color=options.color)
    elif reply.jobs or not reply.errors:
        write_plain(*plain_list(reply), sys.stdout)
    return report_errors(reply.errors.items(), as_json=options.as_json)


class _Options:
    """The command line's options, checked."""

    __slots__ = ("as_json", "color", "finished", "full", "states", "users", "watch", "why")

    def __init__(self, given: dict[str, object]):
        self.users = frozenset(filter(None, str(given["user"]).split(",")))
        self.states = parse_states(str(given["states"]))
        self.full = bool(given["full"])
        self.finished = bool(given["finished"]) or JobState.DONE in self.states
        self.why = bool(given["why"])
        self.watch = bool(given["watch"])
        self.as_json = bool(given["as_json"])
        self.color = str(given["color"])
        if self.watch and (self.as_json or self.full or not sys.stdout.isatty()):
            raise UsageError(
                "--watch needs a terminal, and shows the list only",
                hint="omit --json and -f, and do not use a pipe",
            )


def parse_states(text: str) -> tuple[JobState, ...]:
    """Return the states of ``Q,R``, ``QR`` or ``queued,running``; F and C both mean done.

    Raises:
        UsageError: an invalid state.
    """
    letters = {state.letter: state for state in JobState} | {"F": JobState.DONE}
    found: dict[JobState, None] = {}
    for word in filter(None, text.replace(" ", ",").split(",")):
        if word.lower() in {state.value for state in JobState}:
            found[JobState(word.lower())] = None
        elif all(letter in letters for letter in word.upper()):
            found.update({letters[letter]: None for letter in word.upper()})
        else:
            names = ", ".join(f"{state.letter} {state.value}" for state in JobState)
            raise UsageError(f"-s: invalid state {word!r}", hint=f"valid states: {names}")
    return tuple(found)


def _jobs(head: Head, jobs: Sequence[str], options: _Options) -> JobList:
    states = options.states or (_WAITING if options.why else ())
    user = next(iter(options.users)) if len(options.users) == 1 else ""
    reply = head.jobs(jobs, user=user, states=states, finished=options.finished)
    if not jobs and len(options.users) < 2:
        return reply
    # The head filters neither by several users nor among jobs that are named.
    rows = tuple(
        row
        for row in reply.jobs
        if (not options.users or row.user in options.users) and (not states or row.state in states)
    )
    return structs.replace(reply, jobs=rows)


def _stories(head: Head, jobs: Sequence[str], options: _Options) -> int:
    """Print the full story of each job; the reasons only, with --why."""
    wanted: Iterable[int | str] = jobs or [row.id for row in _jobs(head, (), options).jobs]
    stories: list[JobStory] = []
    errors: dict[str, ErrorBody] = {}
    from gsched.cli.show.story import print_story, print_why  # late: the list is what must be quick

    for job in wanted:
        try:
            story = head.job(job)
        except GschedError as error:
            errors[str(job)] = body_of(error)
            continue
        if options.as_json:
            stories.append(story)
        elif options.why:
            print_why(story)
        else:
            print_story(story)
    if options.as_json:
        print_json({"jobs": stories, "errors": errors})
    return report_errors(errors.items(), as_json=options.as_json)


def _watch(head: Head, jobs: Sequence[str], options: _Options) -> int:
    from gsched.cli.show.watch import watch_table

    def look() -> JobList:
        return _jobs(head, jobs, options)

    try:
        watch_table(look, color=options.color)
    except KeyboardInterrupt:
        return 0  # the way it is meant to end
    return 0


def main() -> None:
    """Run gstat."""
    run(gstat)


if __name__ == "__main__":
    main()
