"""gstat: show jobs."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import click
from msgspec import structs

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    option,
    print_json,
    report_errors,
)
from gsched.cli.running import runner
from gsched.cli.show.fields import fields_of, shape_options, shaped
from gsched.cli.show.joblist import (
    TABLES,
    WHY,
    first_page,
    other_lines,
    plain_list,
    table_of,
    terminal_list,
)
from gsched.cli.show.render import drawn_table, print_table, terminal_lines, write_plain
from gsched.client import HeadClient
from gsched.config.environment import environment
from gsched.errors import UnknownQueueError, UsageError
from gsched.head_calls import body_of
from gsched.model.states import JobState
from gsched.protocol.api import QueueRow
from gsched.protocol.job_rows import JobList, JobRow, JobStory

NAME = "gstat"
FIRST_PAGE: Final = 250  # jobs of a long list that are shown before the others are there
LINES_AT_ONCE: Final = 2000
_WAITING = (JobState.QUEUED, JobState.HELD, JobState.WAITING)
_RUNNING = (JobState.RUNNING, JobState.MIGRATING, JobState.EXITING)

_EPILOG = """\b
Examples:
  gstat                                  all unfinished jobs
  gstat --me -r                          my running jobs
  gstat -Q                               the queues
  gstat --sort -gpus --format '{id} {gpus} {name}'
  gstat --why                            why each waiting job waits
  gstat -f 12                            all details of one job
  gstat -x 12 --jq .jobs[0].outcome
  gstat --why --json job_id,state,start.expected_iso
"""


@gsched_command(NAME, cls=shaped("Gstat", fields_of(JobRow, JobStory, QueueRow)), epilog=_EPILOG)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@option("-f", "--full", is_flag=True, help="Show all details: attempts, usage, events.")
@option("-u", "--user", default="", metavar="USERS", help="Show only jobs of these users: a,b.")
@option(
    "-s",
    "--state",
    "states",
    default="",
    metavar="STATES",
    help="Show only jobs in these states: Q,R or held.",
)
@option("--me", is_flag=True, help="Show only my own jobs.")
@option("-x", "--all", "finished", is_flag=True, help="Include jobs that have ended.")
@option("-a", "_unfinished", is_flag=True, help="Show unfinished jobs: the default.")
@option("-r", "running", is_flag=True, help="Show only jobs that run.")
@option("-i", "inactive", is_flag=True, help="Show only unfinished jobs that do not run.")
@option("-n", "nodes", is_flag=True, help="Show the nodes of each job instead of reasons.")
@option("-t", "elements", is_flag=True, help="Show the elements of arrays, one by one.")
@option("-Q", "-q", "queues", is_flag=True, help="List the queues.")
@option("--sort", default="", metavar="FIELDS", help="Sort by fields: gpus,-elapsed.")
@option(
    "--format", "form", default="", metavar="FORMAT", help="A line for each job: '{id} {name:<20}'."
)
@option("--plain", is_flag=True, help="Print TAB-separated lines, also on a terminal.")
@option("--no-pager", is_flag=True, help="Do not show long lists with a pager.")
@option("--why", is_flag=True, help="Show only waiting jobs: reason and expected start.")
@shape_options
@option("--watch", is_flag=True, help="Refresh the list every 2 s, until Ctrl-C.")
@color_option
@connected
def gstat(head: HeadClient, /, jobs: tuple[str, ...], **given: object) -> int:
    """Show all unfinished jobs, or each JOB, finished or not.

    On a terminal the table fits the width. In a pipe there is a line of titles and a line for each
    job, separated by TABs, and nothing is truncated.
    """
    options = _Options(given, named=bool(jobs))
    if any("[" in each for each in jobs):
        from gsched.cli.show.arrays import expanded_ids  # late: few name elements

        jobs = tuple(expanded_ids(jobs))
    if options.queues:
        return _queues(head, jobs, options)
    if options.watch:
        return _watch(head, jobs, options)
    if options.full or (options.why and jobs):
        return _stories(head, jobs, options)
    reply = _jobs(head, jobs, options)
    if reply.is_cut:
        return _long_list(head, reply, options)
    if options.as_json:
        print_json(reply)
    elif reply.jobs or reply.columns or not reply.errors:
        if jobs and any(row.array is not None and row.array.failed for row in reply.jobs):
            from gsched.cli.show.arrays import with_failed  # late: few name arrays

            reply = with_failed(head, reply)
        _print_list(reply, options)
    return report_errors(reply.errors.items(), as_json=options.as_json)


def _nothing(options: "_Options") -> str:
    """Return what a terminal gets instead of titles without a line below them."""
    if options.users or options.states or options.elements:
        return "no jobs match"
    if options.why:
        return "no waiting jobs"
    return "no jobs" if options.finished else "no unfinished jobs (ghist shows finished ones)"


def _print_list(reply: JobList, options: "_Options") -> None:
    """Print the list in the form that is wanted; on a terminal through the pager if it is long."""
    plain = options.plain or not sys.stdout.isatty()
    if options.form:
        if options.form not in TABLES:
            from gsched.cli.show.formats import formatted  # late: few choose their own form

            sys.stdout.write("".join(formatted(reply, options.form)))
            return
        table = table_of(TABLES[options.form], reply, terminal=not plain)
    elif options.why:
        table = table_of(WHY, reply, terminal=not plain)
    elif plain:
        sys.stdout.writelines(plain_list(reply))
        return
    else:
        table = terminal_list(reply, nodes=options.nodes, fold=not options.named)
    columns, rows = table
    if plain:
        write_plain(columns, rows, sys.stdout)
        return
    if not rows:
        print(_nothing(options))
        return
    if len(rows) < terminal_lines() - 1:
        print_table(columns, rows, color=options.color)
        return
    from gsched.cli.show.pager import page  # late: short lists are the rule

    page(drawn_table(columns, rows, color=options.color), wanted=not options.no_pager)


def _long_list(head: HeadClient, first: JobList, options: "_Options") -> int:
    """Print the first page of a list on a terminal, then get and print the others."""
    begin = first_page(first, nodes=options.nodes)
    if begin is None:
        _print_list(_unfinished(head, options), options)
        return 0
    from gsched.cli.show.pager import page_long  # late: few lists are long

    shown = {row.id for row in first.jobs}

    def pieces() -> Iterator[str]:
        yield "".join(begin)
        others = other_lines(_unfinished(head, options), shown, nodes=options.nodes)
        while piece := "".join(islice(others, LINES_AT_ONCE)):
            yield piece

    page_long(pieces(), wanted=not options.no_pager)
    return 0


def _unfinished(head: HeadClient, options: "_Options", *, first: int = 0) -> JobList:
    return head.unfinished(user=options.one_user, states=options.states, first=first)


def _queues(head: HeadClient, names: Sequence[str], options: "_Options") -> int:
    """Print the queues, or those named."""
    from gsched.cli.show.queuelist import QUEUE_COLUMNS, queue_rows  # late: the list is of jobs

    status = head.status()
    known = {row.name: row for row in status.queue_rows}
    rows = [known[name] for name in names or known if name in known]
    errors = {
        name: body_of(UnknownQueueError(f"unknown queue {name!r}", hint=f"queues: {_few(known)}"))
        for name in names
        if name not in known
    }
    if options.as_json:
        print_json({"server": status.server, "now_s": status.now_s, "queues": rows})
    elif rows and options.plain:
        write_plain(QUEUE_COLUMNS, queue_rows(rows), sys.stdout)
    elif rows:
        print_table(QUEUE_COLUMNS, queue_rows(rows), color=options.color)
    return report_errors(errors.items(), as_json=options.as_json)


def _few(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:20])


class _Options:
    """The command line's options, checked."""

    __slots__ = (
        *(
            "as_json",
            "color",
            "elements",
            "finished",
            "forecast",
            "form",
            "full",
            "named",
            "no_pager",
            "nodes",
            "plain",
            "queues",
        ),
        *("sort", "states", "users", "watch", "why"),
    )

    def __init__(self, given: dict[str, object], *, named: bool):
        self.named = named
        self.users = frozenset(filter(None, str(given["user"]).split(",")))
        if given["me"]:
            self.users |= {_own_name()}
        self.states = parse_states(str(given["states"]))
        for flag, states in (("running", _RUNNING), ("inactive", _WAITING)):
            if given[flag]:
                left = tuple(each for each in states if not self.states or each in self.states)
                if not left:
                    raise UsageError(
                        f"-s {given['states']} leaves no state for -{flag[0]}", hint="omit one"
                    )
                self.states = left
        self.nodes, self.plain = bool(given["nodes"]), bool(given["plain"])
        self.queues, self.no_pager = bool(given["queues"]), bool(given["no_pager"])
        self.sort, self.elements = str(given["sort"]), bool(given["elements"])
        shows_list = not (given["as_json"] or given["full"] or given["why"])
        self.form = self._form(str(given["form"]), from_variable=shows_list)
        self.full = bool(given["full"])
        self.finished = bool(given["finished"]) or JobState.DONE in self.states
        self.why = bool(given["why"])
        self.forecast = self.why or self._shows_start()
        self.watch = bool(given["watch"])
        self.as_json = bool(given["as_json"])
        self.color = str(given["color"])
        if self.form and (self.as_json or self.full or self.why):
            raise UsageError(
                "--format is for the list of jobs only", hint="omit --json, -f and --why"
            )
        if self.watch and (self.as_json or self.full or not sys.stdout.isatty()):
            raise UsageError(
                "--watch needs a terminal, and shows the list only",
                hint="omit --json and -f, and do not use a pipe",
            )

    @property
    def one_user(self) -> str:
        """Return the only user whose jobs are shown; empty: there are several, or all."""
        return next(iter(self.users)) if len(self.users) == 1 else ""

    @property
    def is_plain_list(self) -> bool:
        """Return whether the usual columns of jobs are shown, of one user or all."""
        others = (self.as_json, self.why, self.form, self.sort, self.elements, self.finished)
        return not any(others) and len(self.users) < 2

    def _shows_start(self) -> bool:
        if not (self.form or self.sort):
            return False
        from gsched.cli.show.formats import names_start  # late: few choose their own form

        return names_start(self.form, self.sort)

    def _form(self, stated: str, *, from_variable: bool) -> str:
        """Return the format, of the option or, for lists only, of ``$GSTAT_FORMAT``."""
        variable = environment("GSTAT_FORMAT") if from_variable else ""
        if not (stated or variable):
            return ""
        from gsched.cli.show.formats import checked_format  # late: few choose their own form

        return checked_format(stated or variable, "--format" if stated else "$GSTAT_FORMAT")


def _own_name() -> str:
    import pwd  # late: only --me needs it

    return pwd.getpwuid(os.getuid()).pw_name


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


def _jobs(head: HeadClient, jobs: Sequence[str], options: _Options) -> JobList:
    states = options.states or (_WAITING if options.why else ())
    user = options.one_user
    sent = () if options.elements else states  # elements that are not jobs yet have no state
    if not jobs and options.is_plain_list:
        streams = not (options.plain or options.watch) and sys.stdout.isatty()
        return _unfinished(head, options, first=FIRST_PAGE if streams else 0)
    reply = head.jobs(
        jobs, user=user, states=sent, finished=options.finished, forecast=options.forecast
    )
    if options.elements:
        from gsched.cli.show.arrays import all_elements  # late: few expand arrays

        reply = all_elements(head, reply, user=user, finished=bool(jobs))
    if options.sort:
        from gsched.cli.show.formats import sorted_rows  # late: few sort

        reply = structs.replace(reply, jobs=tuple(sorted_rows(reply, options.sort)))
    if not jobs and len(options.users) < 2 and not options.elements:
        return reply
    # The head filters neither by several users nor among jobs that are named.
    rows = tuple(
        row
        for row in reply.jobs
        if (not options.users or row.user in options.users) and (not states or row.state in states)
    )
    return structs.replace(reply, jobs=rows)


def _stories(head: HeadClient, jobs: Sequence[str], options: _Options) -> int:
    """Print the full story of each job; the reasons only, with --why."""
    wanted: Iterable[int | str] = jobs or [row.id for row in _jobs(head, (), options).jobs]
    from gsched.cli.show.story import print_story  # late: the list is what must be quick
    from gsched.cli.show.why import print_why

    reply = head.stories(wanted, forecast=True)
    stories, errors = reply.jobs, reply.errors
    for story in () if options.as_json else stories:
        (print_why if options.why else print_story)(story)
    if options.as_json:
        print_json({"jobs": stories, "errors": errors})
    return report_errors(errors.items(), as_json=options.as_json)


def _watch(head: HeadClient, jobs: Sequence[str], options: _Options) -> int:
    from gsched.cli.show.watch import watch_table

    def look() -> JobList:
        return _jobs(head, jobs, options)

    try:
        watch_table(look, color=options.color)
    except KeyboardInterrupt:
        return 0  # the way it is meant to end
    return 0


main = runner(gstat)

if __name__ == "__main__":
    main()
