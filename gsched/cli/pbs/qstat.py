"""``qstat``: jobs, queues and the server, in the formats of Torque and OpenPBS."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
    print_error,
)
from gsched.cli.dialect import spoken
from gsched.cli.pbs import listing
from gsched.cli.pbs.attributes import LINE_SIZE, attributes_of, exec_host, session_id, wrapped
from gsched.cli.pbs.documents import job_dsv, jobs_json, jobs_xml
from gsched.cli.pbs.personality import OPENPBS, TORQUE
from gsched.cli.pbs.queues import (
    queue_attributes,
    queue_limits,
    queue_list,
    server_attributes,
    server_list,
)
from gsched.cli.show.arrays import all_elements
from gsched.cli.show.jobfields import FIELDS
from gsched.cli.times import local_times
from gsched.client import HeadClient
from gsched.errors import GschedError, UnknownQueueError, UsageError
from gsched.head_calls import error_from
from gsched.model.ids import job_number, read_job_id
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.protocol.api import StatusReply
from gsched.protocol.job_rows import JobList, JobRow, JobStory
from gsched.version import VERSION

_INACTIVE: Final = frozenset("EHQTW")  # qstat -i
_RUNNING: Final = frozenset("RS")  # qstat -r
_CONFLICT: Final = "conflicting options."
_LETTERS: Final = {  # of Torque's -W, which OpenPBS has, too
    "a": "alternate",
    "i": "inactive",
    "r": "running",
    "n": "nodes",
    "s": "comment",
    "q": "queue_limits",
    "G": "gigabytes",
    "M": "megawords",
    "R": "space",
    "H": "history_only",
    "1": "one_line",
}


class QstatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; flags by the names of the click parameters."""

    operands: tuple[str, ...] = ()
    full: bool = False
    queues: bool = False
    servers: bool = False
    alternate: bool = False
    inactive: bool = False
    running: bool = False
    nodes: bool = False
    one_line: bool = False
    comment: bool = False
    gigabytes: bool = False
    megawords: bool = False
    space: bool = False
    user: str = ""
    queue_limits: bool = False
    x: bool = False
    history_only: bool = False
    start: bool = False
    arrays_only: bool = False
    subjobs: bool = False
    percent: bool = False
    wide: bool = False
    hide_complete: bool = False
    form: str = ""
    delimiter: str = "|"
    openpbs: bool = False

    @property
    def is_long(self) -> bool:
        """Return whether the list of ``-a`` is printed."""
        flags = (self.alternate, self.inactive, self.running, self.nodes, self.comment)
        more = (self.space, self.gigabytes, self.megawords, self.start, self.history_only)
        return any(flags) or any(more) or bool(self.user)

    @property
    def with_history(self) -> bool:
        """Return whether finished jobs are listed without being named."""
        return self.history_only or (self.x and not self.as_xml)

    @property
    def as_xml(self) -> bool:
        """Return whether ``-x`` means Torque's XML: not beside -F, nor as OpenPBS."""
        return self.x and not self.form and not self.openpbs

    @property
    def as_openpbs(self) -> bool:
        """Return whether finished jobs are ``F``: as OpenPBS, or with one of its options."""
        return self.openpbs or bool(self.form) or self.wide or self.history_only


_FLAGS: Final = (
    ("-f", "full", "Show all attributes of each job, queue (-Q) or server (-B)."),
    ("-Q", "queues", "List the queues."),
    ("-B", "servers", "List the server."),
    ("-a", "alternate", "List jobs with requested resources and elapsed time."),
    ("-i", "inactive", "The same, for jobs that do not run."),
    ("-r", "running", "The same, for running jobs."),
    ("-n", "nodes", "Show the allocation of each job behind its line."),
    ("-1", "one_line", "With -n, -s and -f: do not break lines."),
    ("-s", "comment", "Show the comment of each job: why it waits."),
    ("-G", "gigabytes", "Show sizes in gigabytes."),
    ("-M", "megawords", "Show sizes in megawords of eight bytes."),
    ("-R", "space", "Torque: columns for scratch space."),
    ("-q", "queue_limits", "List the limits of the queues and their numbers of jobs."),
    ("-x", "x", "Torque: print XML. OpenPBS, and with -F: include finished jobs."),
    ("-H", "history_only", "List only finished jobs."),
    ("-T", "start", "Show the estimated start time."),
    ("-J", "arrays_only", "List only job arrays."),
    ("-t", "subjobs", "List the elements of arrays instead of the arrays."),
    ("-p", "percent", "OpenPBS: show the percentage of the walltime used."),
    ("-w", "wide", "OpenPBS: wide columns; with -f do not break lines."),
    ("-c", "hide_complete", "Torque: hide finished jobs."),
)
#: Accepted: what they ask for is so anyway.
_SILENT: Final = (
    ("-e", "execution", "Only jobs in execution queues: all are."),
    ("-l", "aliases", "Torque: long names of jobs."),
)


class _QstatCommand(click.Command):
    """qstat's own options: ``-E`` is a flag in OpenPBS and has a value in Torque."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Drop ``-E``, and Torque's value behind it, before click sees them."""
        kept: list[str] = []
        skip = False
        for word in args:
            if skip:
                skip = False
            elif word == "-E":
                skip = spoken().name == TORQUE
            else:
                kept.append(word)
        return super().parse_args(ctx, kept)


def _options(function: click.decorators.FC) -> click.decorators.FC:
    for flag, target, text in reversed((*_FLAGS, *_SILENT)):
        function = option(flag, target, is_flag=True, help=text)(function)
    return function


@gsched_command("qstat", cls=_QstatCommand)
@click.argument("operands", nargs=-1, metavar="[JOB|QUEUE|@SERVER|QUEUE@SERVER...]")
@_options
@option("-u", "user", default="", metavar="USERS", help="Only jobs of these users: a,b@host.")
@option("-F", "form", default="", metavar="json|dsv", help="With -f: OpenPBS's JSON or DSV.")
@option("-D", "delimiter", default="|", metavar="TEXT", help="With -F dsv: between fields.")
@option("-W", "letters", default="", metavar="LETTERS", help="Options as one word: -W an.")
@connected
def qstat(head: HeadClient, /, operands: tuple[str, ...], letters: str, **given: object) -> int:
    """Show jobs, queues (-Q, -q) or the server (-B), as Torque or OpenPBS prints them."""
    options = _checked_options(operands, letters, given)
    if options.servers:
        return _servers(head, options)
    if options.queues or options.queue_limits:
        return _queues(head, options)
    return _jobs(head, options)


def _checked_options(
    operands: tuple[str, ...], letters: str, given: dict[str, object]
) -> QstatOptions:
    """Return the options, checked against each other as qstat does.

    Raises:
        UsageError: a letter of -W that is none, or options that contradict each other.
    """
    values = {name: given[name] for name in QstatOptions.__struct_fields__ if name in given}
    values |= {"operands": operands, "openpbs": spoken().name == OPENPBS}
    at = 0
    while at < len(letters):
        letter = letters[at]
        if letter == "u":  # the last one: all the rest is names
            values["user"] = letters[at + 1 :].strip()
            break
        if letter != " " and letter not in _LETTERS:
            raise UsageError(f"-W: unknown letter {letter!r}", hint=f"valid: {''.join(_LETTERS)}u")
        if letter != " ":
            values[_LETTERS[letter]] = True
        at += 1
    options = msgspec.convert(values, QstatOptions)
    modes = (
        options.alternate,
        options.inactive,
        options.running,
        options.queue_limits,
        options.history_only,
    )
    conflicts = (
        sum(modes) > 1,
        options.gigabytes and options.megawords,
        options.queue_limits and options.full,
        options.queues and options.servers,
        (options.queues or options.servers) and options.is_long,
        options.one_line and not (options.nodes or options.comment or options.full),
    )
    if any(conflicts):
        raise UsageError(_CONFLICT)
    if options.form not in {"", "json", "dsv"}:
        raise UsageError(f"-F: unknown format {options.form!r}", hint="valid: json, dsv")
    return options


def _write(parts: Iterator[str]) -> None:
    sys.stdout.write("".join(parts))


def _servers(head: HeadClient, options: QstatOptions) -> int:
    status = head.status()
    errors = 0
    for name in options.operands:
        if name.lower() not in {status.server.lower(), f"@{status.server.lower()}"}:
            print_error(UsageError(f"Unknown server {name}"), command="qstat")
            errors = 1
    if errors and len(set(options.operands)) == 1:
        return errors
    show = server_attributes if options.full else server_list
    _write(show(status, openpbs=options.openpbs))
    return errors


def _queues(head: HeadClient, options: QstatOptions) -> int:
    status = head.status()
    names, result = _named_queues(options.operands, status)
    rows = [row for row in status.queue_rows if not options.operands or row.name in names]
    if options.operands and not rows:
        return result
    if options.queue_limits:
        _write(queue_limits(rows, server=status.server, openpbs=options.openpbs))
    elif options.full:
        for row in rows:
            _write(queue_attributes(row, openpbs=options.openpbs))
    else:
        _write(queue_list(rows, openpbs=options.openpbs))
    return result


def _named_queues(operands: Sequence[str], status: StatusReply) -> tuple[set[str], int]:
    """Return the queues of ``queue``, ``@server`` and ``queue@server``, and the exit code."""
    found: set[str] = set()
    result = 0
    for operand in operands:
        queue, _, server = operand.partition("@")
        if server and server.lower() != status.server.lower():
            error: GschedError = UsageError(f"cannot connect to server {server}")
        elif queue and queue not in status.queues:
            error = UnknownQueueError(f"no queue {queue!r}", hint="see qstat -Q")
        else:
            found |= {queue} if queue else set(status.queues)
            continue
        print_error(error, command="qstat", operand=operand)
        result = result or spoken().exit_code(error)
    return found, result


class _Found(msgspec.Struct):
    """The jobs to show, in order, and the exit code so far."""

    server: str = ""
    now_s: float = 0.0
    rows: list[JobRow] = []
    result: int = 0


def _jobs(head: HeadClient, options: QstatOptions) -> int:
    found = _find(head, options)
    rows = [row for row in found.rows if _wanted(row, options)]
    if options.as_xml or options.full or options.form:
        return _full(head, options, found, rows)
    lines = list(_lines(head, options, found, rows))
    if options.is_long:
        unit = "gb" if options.gigabytes else "mw" if options.megawords else ""
        columns = listing.Long(
            nodes=options.nodes,
            comment=options.comment,
            one_line=options.one_line,
            unit=unit,
            space=options.space,
            start=options.start,
            wide=options.wide,
        )
        openpbs = options.openpbs or options.wide or options.start
        _write(listing.long_list(lines, server=found.server, columns=columns, openpbs=openpbs))
    else:
        openpbs = options.openpbs or options.percent
        _write(listing.short_list(lines, openpbs=openpbs, percent=options.percent))
    return found.result


def _find(head: HeadClient, options: QstatOptions) -> _Found:
    """Return the jobs that the operands name, in their order; without any, all unfinished ones.

    A bad operand is told on stderr, and the others are still shown.
    """
    found = _Found()
    ids = [each for each in options.operands if each[:1].isdigit()]
    destinations = [each for each in options.operands if not each[:1].isdigit()]
    named: dict[int, JobRow] = {}
    if ids:
        reply = head.jobs(ids)
        found.server, found.now_s = reply.server, reply.now_s
        for text in ids:
            error = reply.errors.get(text)
            if error is not None:
                print_error(error, command="qstat", operand=text)
                found.result = found.result or spoken().exit_code(error_from(error))
        rows = {row.id: row for row in reply.jobs}
        numbers = [job_number(read_job_id(text)) for text in ids if text not in reply.errors]
        for number in dict.fromkeys(numbers):
            if number in rows and _shown_by_id(rows[number], options, found):
                named[number] = rows[number]
    rest: list[JobRow] = []
    if destinations or not options.operands:
        queues: set[str] = set()
        if destinations:
            queues, result = _named_queues(destinations, head.status())
            found.result = found.result or result
        states = (JobState.DONE,) if options.history_only else ()
        listed = head.jobs(states=states, finished=options.with_history, forecast=options.start)
        found.server, found.now_s = listed.server, listed.now_s
        rest = [row for row in listed.jobs if not destinations or row.queue in queues]
    found.rows = [*named.values(), *rest]
    if options.subjobs:
        listed = JobList(server=found.server, now_s=found.now_s, jobs=tuple(found.rows))
        found.rows = list(all_elements(head, listed).jobs)
    return found


def _shown_by_id(row: JobRow, options: QstatOptions, found: _Found) -> bool:
    """Return whether a job that was named is shown: OpenPBS hides finished ones without -x."""
    if row.state != JobState.DONE or not options.openpbs or options.x or options.history_only:
        return True
    job_id = row.shown_id(found.server)
    text = f"{job_id} Job has finished, use -x or -H to obtain historical job information"
    print(f"qstat: {text}", file=sys.stderr)
    found.result = found.result or 35  # PBSE_HISTJOBID & 255
    return False


def _wanted(row: JobRow, options: QstatOptions) -> bool:
    if options.user:
        users = {each.partition("@")[0] for each in re.split(r"[,:]", options.user)}
        if row.user not in users:
            return False
    if options.inactive and row.letter not in _INACTIVE:
        return False
    if options.running and row.letter not in _RUNNING:
        return False
    if options.history_only and row.state != JobState.DONE:
        return False
    if options.hide_complete and row.state == JobState.DONE:
        return False
    return row.array is not None or not options.arrays_only


def _lines(
    head: HeadClient, options: QstatOptions, found: _Found, rows: Sequence[JobRow]
) -> Iterator[listing.JobLine]:
    """Yield the jobs with what only their details tell; these are fetched where they are shown."""
    detailed = options.nodes or options.is_long
    started = [row.id for row in rows if detailed and row.started_s is not None]
    stories = {story.row.id: story for story in head.stories(started).jobs}
    for row in rows:
        shown = _as_shown(row, options)
        story = stories.get(row.id)
        is_done = row.state == JobState.DONE
        start = ""
        if options.start and row.predicted_start_s is not None:
            start = format_duration(max(0.0, row.predicted_start_s - found.now_s))
        yield listing.JobLine(
            row=shown,
            job_id=row.shown_id(found.server),
            elapsed=str(FIELDS["elapsed"].shown(row, found)) if row.started_s else "",
            exec_host=exec_host(story) if story is not None and options.nodes else "",
            session=session_id(story) if story is not None and not is_done else "",
            comment=local_times(row.reason),
            start=start,
        )


def _as_shown(row: JobRow, options: QstatOptions) -> JobRow:
    if options.as_openpbs and row.letter == "C":
        return msgspec.structs.replace(row, letter="F")
    return row


def _full(head: HeadClient, options: QstatOptions, found: _Found, rows: Sequence[JobRow]) -> int:
    """Print all attributes of the jobs, as text, XML, JSON or DSV."""
    finished_as_f = options.as_openpbs
    jobs = []
    reply = head.stories(row.id for row in rows)
    for text, gone in reply.errors.items():  # it was removed meanwhile
        print_error(gone, command="qstat", operand=text)
        found.result = found.result or spoken().exit_code(error_from(gone))
    openpbs = options.openpbs or bool(options.form)
    for story in reply.jobs:
        fields = attributes_of(story, openpbs=openpbs, finished_as_f=finished_as_f)
        jobs.append((story, fields))
    if options.form == "json":
        sys.stdout.write(
            jobs_json(jobs, server=found.server, version=f"gsched-{VERSION}", now_s=found.now_s)
        )
    elif options.as_xml:
        sys.stdout.write(jobs_xml((_job_id(story), fields) for story, fields in jobs))
    elif options.form == "dsv":
        lines = (job_dsv(_job_id(story), fields, options.delimiter) for story, fields in jobs)
        sys.stdout.write("".join(lines))
    else:
        line_size = 0 if options.wide or options.one_line else LINE_SIZE
        for story, fields in jobs:
            text = "".join(wrapped(each, line_size=line_size) + "\n" for each in fields)
            sys.stdout.write(f"Job Id: {_job_id(story)}\n{text}\n")
    return found.result


def _job_id(story: JobStory) -> str:
    return story.row.shown_id(story.server)
