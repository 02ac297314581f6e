"""``qstat``: jobs, queues and the server, in the formats of Torque and OpenPBS."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec

from gsched.cli.common import connected, gsched_command, print_error
from gsched.cli.dialect import spoken
from gsched.cli.pbs import listing
from gsched.cli.pbs.attributes import (
    LINE_SIZE,
    attributes_of,
    exec_host,
    session_id,
    wrapped,
)
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
from gsched.client import Head, error_from
from gsched.errors import GschedError, UnknownQueueError, UsageError
from gsched.model.ids import job_number, read_job_id
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.protocol.api import JobList, JobRow, JobStory, StatusReply
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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
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
        function = click.option(flag, target, is_flag=True, help=text)(function)
    return function


@gsched_command("qstat", cls=_QstatCommand)
@click.argument("operands", nargs=-1, metavar="[JOB|QUEUE|@SERVER|QUEUE@SERVER...]")
@_options
@click.option("-u", "user", default="", metavar="USERS", help="Only jobs of these users: a,b@host.")
@click.option("-F", "form", default="", metavar="json|dsv", help="With -f: OpenPBS's JSON or DSV.")
@click.option("-D", "delimiter", default="|", metavar="TEXT", help="With -F dsv: between fields.")
@click.option("-W", "letters", default="", metavar="LETTERS", help="Options as one word: -W an.")
@connected
def qstat(head: Head, /, operands: tuple[str, ...], letters: str, **given: object) -> int:
    """Show jobs, queues (-Q, -q) or the server (-B), as Torque or OpenPBS prints them."""
    asked = _asked(operands, letters, given)
    if asked.servers:
        return _servers(head, asked)
    if asked.queues or asked.queue_limits:
        return _queues(head, asked)
    return _jobs(head, asked)


def _asked(operands: tuple[str, ...], letters: str, given: dict[str, object]) -> Asked:
    """Return the options, checked against each other as qstat does.

    Raises:
        UsageError: a letter of -W that is none, or options that contradict each other.
    """
    said = {name: given[name] for name in Asked.__struct_fields__ if name in given}
    said |= {"operands": operands, "openpbs": spoken().name == OPENPBS}
    at = 0
    while at < len(letters):
        letter = letters[at]
        if letter == "u":  # the last one: all the rest is names
            said["user"] = letters[at + 1 :].strip()
            break
        if letter != " " and letter not in _LETTERS:
            raise UsageError(f"-W: unknown letter {letter!r}", hint=f"valid: {''.join(_LETTERS)}u")
        if letter != " ":
            said[_LETTERS[letter]] = True
        at += 1
    asked = msgspec.convert(said, Asked)
    modes = (asked.alternate, asked.inactive, asked.running, asked.queue_limits, asked.history_only)
    conflicts = (
        sum(modes) > 1,
        asked.gigabytes and asked.megawords,
        asked.queue_limits and asked.full,
        asked.queues and asked.servers,
        (asked.queues or asked.servers) and asked.is_long,
        asked.one_line and not (asked.nodes or asked.comment or asked.full),
    )
    if any(conflicts):
        raise UsageError(_CONFLICT)
    if asked.form not in {"", "json", "dsv"}:
        raise UsageError(f"-F: unknown format {asked.form!r}", hint="valid: json, dsv")
    return asked


def _write(parts: Iterator[str]) -> None:
    sys.stdout.write("".join(parts))


def _servers(head: Head, asked: Asked) -> int:
    status = head.status()
    errors = 0
    for name in asked.operands:
        if name.lower() not in {status.server.lower(), f"@{status.server.lower()}"}:
            print_error(UsageError(f"Unknown server {name}"), command="qstat")
            errors = 1
    if errors and len(set(asked.operands)) == 1:
        return errors
    show = server_attributes if asked.full else server_list
    _write(show(status, openpbs=asked.openpbs))
    return errors


def _queues(head: Head, asked: Asked) -> int:
    status = head.status()
    names, result = _named_queues(asked.operands, status)
    rows = [row for row in status.queue_rows if not asked.operands or row.name in names]
    if asked.operands and not rows:
        return result
    if asked.queue_limits:
        _write(queue_limits(rows, server=status.server, openpbs=asked.openpbs))
    elif asked.full:
        for row in rows:
            _write(queue_attributes(row, openpbs=asked.openpbs))
    else:
        _write(queue_list(rows, openpbs=asked.openpbs))
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


def _jobs(head: Head, asked: Asked) -> int:
    found = _find(head, asked)
    rows = [row for row in found.rows if _wanted(row, asked)]
    if asked.as_xml or asked.full or asked.form:
        return _full(head, asked, found, rows)
    lines = list(_lines(head, asked, found, rows))
    if asked.is_long:
        unit = "gb" if asked.gigabytes else "mw" if asked.megawords else ""
        columns = listing.Long(
            nodes=asked.nodes,
            comment=asked.comment,
            one_line=asked.one_line,
            unit=unit,
            space=asked.space,
            start=asked.start,
            wide=asked.wide,
        )
        openpbs = asked.openpbs or asked.wide or asked.start
        _write(listing.long_list(lines, server=found.server, asked=columns, openpbs=openpbs))
    else:
        openpbs = asked.openpbs or asked.percent
        _write(listing.short_list(lines, openpbs=openpbs, percent=asked.percent))
    return found.result


def _find(head: Head, asked: Asked) -> _Found:
    """Return the jobs that the operands name, in their order; without any, all unfinished ones.

    A bad operand is told on stderr, and the others are still shown.
    """
    found = _Found()
    ids = [each for each in asked.operands if each[:1].isdigit()]
    destinations = [each for each in asked.operands if not each[:1].isdigit()]
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
            if number in rows and _shown_by_id(rows[number], asked, found):
                named[number] = rows[number]
    rest: list[JobRow] = []
    if destinations or not asked.operands:
        queues: set[str] = set()
        if destinations:
            queues, result = _named_queues(destinations, head.status())
            found.result = found.result or result
        states = (JobState.DONE,) if asked.history_only else ()
        listed = head.jobs(states=states, finished=asked.with_history, forecast=asked.start)
        found.server, found.now_s = listed.server, listed.now_s
        rest = [row for row in listed.jobs if not destinations or row.queue in queues]
    found.rows = [*named.values(), *rest]
    if asked.subjobs:
        listed = JobList(server=found.server, now_s=found.now_s, jobs=tuple(found.rows))
        found.rows = list(all_elements(head, listed).jobs)
    return found


def _shown_by_id(row: JobRow, asked: Asked, found: _Found) -> bool:
    """Return whether a job that was named is shown: OpenPBS hides finished ones without -x."""
    if row.state != JobState.DONE or not asked.openpbs or asked.x or asked.history_only:
        return True
    job_id = row.shown_id(found.server)
    text = f"{job_id} Job has finished, use -x or -H to obtain historical job information"
    print(f"qstat: {text}", file=sys.stderr)
    found.result = found.result or 35  # PBSE_HISTJOBID & 255
    return False


def _wanted(row: JobRow, asked: Asked) -> bool:
    if asked.user:
        users = {each.partition("@")[0] for each in re.split(r"[,:]", asked.user)}
        if row.user not in users:
            return False
    if asked.inactive and row.letter not in _INACTIVE:
        return False
    if asked.running and row.letter not in _RUNNING:
        return False
    if asked.history_only and row.state != JobState.DONE:
        return False
    if asked.hide_complete and row.state == JobState.DONE:
        return False
    return row.array is not None or not asked.arrays_only


def _lines(
    head: Head, asked: Asked, found: _Found, rows: Sequence[JobRow]
) -> Iterator[listing.Line]:
    """Yield the jobs with what only their details tell; these are fetched where they are shown."""
    detailed = asked.nodes or asked.is_long
    started = [row.id for row in rows if detailed and row.started_s is not None]
    stories = {story.row.id: story for story in head.stories(started).jobs}
    for row in rows:
        shown = _as_shown(row, asked)
        story = stories.get(row.id)
        is_done = row.state == JobState.DONE
        start = ""
        if asked.start and row.predicted_start_s is not None:
            start = format_duration(max(0.0, row.predicted_start_s - found.now_s))
        yield listing.Line(
            row=shown,
            job_id=row.shown_id(found.server),
            elapsed=str(FIELDS["elapsed"].shown(row, found)) if row.started_s else "",
            exec_host=exec_host(story) if story is not None and asked.nodes else "",
            session=session_id(story) if story is not None and not is_done else "",
            comment=local_times(row.reason),
            start=start,
        )


def _as_shown(row: JobRow, asked: Asked) -> JobRow:
    if asked.as_openpbs and row.letter == "C":
        return msgspec.structs.replace(row, letter="F")
    return row


def _full(head: Head, asked: Asked, found: _Found, rows: Sequence[JobRow]) -> int:
    """Print all attributes of the jobs, as text, XML, JSON or DSV."""
    finished_as_f = asked.as_openpbs
    jobs = []
    reply = head.stories(row.id for row in rows)
    for text, gone in reply.errors.items():  # it was removed meanwhile
        print_error(gone, command="qstat", operand=text)
        found.result = found.result or spoken().exit_code(error_from(gone))
    openpbs = asked.openpbs or bool(asked.form)
    for story in reply.jobs:
        fields = attributes_of(story, openpbs=openpbs, finished_as_f=finished_as_f)
        jobs.append((story, fields))
    if asked.form == "json":
        sys.stdout.write(
            jobs_json(jobs, server=found.server, version=f"gsched-{VERSION}", now_s=found.now_s)
        )
    elif asked.as_xml:
        sys.stdout.write(jobs_xml((_job_id(story), fields) for story, fields in jobs))
    elif asked.form == "dsv":
        lines = (job_dsv(_job_id(story), fields, asked.delimiter) for story, fields in jobs)
        sys.stdout.write("".join(lines))
    else:
        line_size = 0 if asked.wide or asked.one_line else LINE_SIZE
        for story, fields in jobs:
            text = "".join(wrapped(each, line_size=line_size) + "\n" for each in fields)
            sys.stdout.write(f"Job Id: {_job_id(story)}\n{text}\n")
    return found.result


def _job_id(story: JobStory) -> str:
    return story.row.shown_id(story.server)
