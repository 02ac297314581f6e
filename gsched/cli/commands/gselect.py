"""``gselect``: print the ids of the jobs that meet all criteria."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gsched.cli.common import connected, gsched_command, option, print_json
from gsched.cli.running import runner
from gsched.cli.times import parse_start_time
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import BadResourceError, UsageError
from gsched.model.states import JobState
from gsched.model.units import parse_duration_s, parse_size_bytes
from gsched.protocol.job_rows import JobRow, JobStory

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "eq": lambda one, other: one == other,
    "ne": lambda one, other: one != other,
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other,
    "ge": lambda one, other: one >= other,
}
_COMPARED: Final = re.compile(r"\.(eq|ne|lt|le|gt|ge)\.(.*)", re.DOTALL)
_TERM: Final = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?P<op>\.\w\w\.|=)\s*(?P<value>[^,]*)")
_LETTERS: Final = {
    "E": (JobState.EXITING,),
    "H": (JobState.HELD,),
    "Q": (JobState.QUEUED,),
    "R": (JobState.RUNNING,),
    "T": (JobState.MIGRATING,),
    "W": (JobState.WAITING,),
    "C": (JobState.DONE,),
    "F": (JobState.DONE,),
    "S": (),  # suspended: gsched keeps no such state
}
_HOLDS: Final = {"u": "user", "o": "operator", "s": "system"}

Test = Callable[[JobRow], bool]
StoryTest = Callable[[JobStory], bool]

EPILOG = """\b
Examples:
  gdel $(gselect -u $USER -s Q)       delete all of my queued jobs
  gselect -l walltime.gt.24:00:00     jobs that may run longer than a day
"""


@gsched_command("gselect", epilog=EPILOG)
@option("-a", "start", default="", metavar="[OP]DATE", help="Execution time, as after -a.")
@option("-A", "account", default=None, metavar="ACCOUNT", help="Account.")
@option("-c", "checkpoint", default="", metavar="[OP]WHEN", help="Checkpoint attribute.")
@option("-h", "holds", default="", metavar="HOLD_LIST", help="Exactly these holds; n: none.")
@option("-l", "resources", multiple=True, metavar="LIST", help="Resources: mem.gt.4gb,...")
@option("-N", "name", default=None, metavar="NAME", help="Job name.")
@option("-p", "priority", default="", metavar="[OP]N", help="Priority: .ge.100.")
@option("-q", "destination", default="", metavar="QUEUE", help="Queue of the job.")
@option("-r", "rerunnable", default="", metavar="y|n", help="Whether it can be rerun.")
@option("-s", "states", default="", metavar="STATES", help="States, as one word: QR.")
@option("-u", "users", default="", metavar="USERS", help="Owners: a,b@host.")
@option("-e", "execution", is_flag=True, help="Only jobs in execution queues: all are.")
@option("-x", "finished", is_flag=True, help="Include finished jobs.")
@option("-H", "history", is_flag=True, help="Only finished jobs.")
@connected
def gselect(head: HeadClient, /, *, as_json: bool, **given: object) -> int:
    """Print the id of each job that meets all criteria, one on each line.

    A value may begin with an operator: .eq. (the default), .ne., .lt., .le., .gt. or .ge.
    """
    now_s = SystemClock().wall_s()
    tests = list(_row_tests(given))
    details = list(_story_tests(given, now_s))
    finished = bool(given["finished"]) or bool(given["history"]) or _names_finished(given)
    reply = head.jobs(finished=finished)
    rows = [row for row in reply.jobs if all(test(row) for test in tests)]
    if given["history"]:
        rows = [row for row in rows if row.state == JobState.DONE]
    _check_server(str(given["destination"]), reply.server)
    if details:
        stories = head.stories(row.id for row in rows).jobs
        rows = [story.row for story in stories if _meets(story, details)]
    ids = [row.shown_id(reply.server) for row in rows]
    if as_json:
        print_json({"jobs": ids})
    else:
        sys.stdout.write("".join(f"{each}\n" for each in ids))
    return 0


def _check_server(destination: str, server: str) -> None:
    """Check that ``queue@server`` or ``@server`` names this server.

    Raises:
        UsageError: it names another one.
    """
    named = destination.partition("@")[2]
    if named and named.lower() != server.lower():
        raise UsageError(
            f"-q {destination}: cannot connect to server {named}", hint=f"this server: {server}"
        )


def _meets(story: JobStory, tests: Iterable[StoryTest]) -> bool:
    return all(test(story) for test in tests)


def _names_finished(given: dict[str, object]) -> bool:
    return bool({"C", "F"} & set(str(given["states"]).upper()))


def _row_tests(given: dict[str, object]) -> Iterator[Test]:
    """Yield the criteria that a job's row decides."""
    if given["account"] is not None:
        yield lambda row: row.account == given["account"]
    if given["name"] is not None:
        yield lambda row: row.name == given["name"]
    if given["priority"]:
        compare, text = _compared(str(given["priority"]))
        wanted = _whole("-p", text)
        yield lambda row: compare(row.priority, wanted)
    if given["destination"]:
        queue = str(given["destination"]).partition("@")[0]
        if queue:
            yield lambda row: row.queue == queue
    if given["users"]:
        names = {each.partition("@")[0] for each in str(given["users"]).split(",")}
        yield lambda row: row.user in names
    if given["states"]:
        states = _states(str(given["states"]))
        yield lambda row: row.state in states


def _story_tests(given: dict[str, object], now_s: float) -> Iterator[StoryTest]:
    """Yield the criteria for which a job's details are needed."""
    if given["start"]:
        compare_start, text = _compared(str(given["start"]))
        at_s = parse_start_time(text, now_s=now_s)
        yield lambda story: compare_start(story.start_after_s, at_s)
    if given["checkpoint"]:
        yield _checkpoint_test(str(given["checkpoint"]))
    if given["holds"]:
        holds = _holds(str(given["holds"]))
        yield lambda story: set(story.holds) == holds
    if given["rerunnable"]:
        if given["rerunnable"] not in {"y", "n"}:
            raise UsageError(f"-r: invalid value {given['rerunnable']!r}", hint="write y or n")
        yield lambda story: story.rerunnable == (given["rerunnable"] == "y")
    texts = given["resources"]
    assert isinstance(texts, tuple)
    for text in texts:
        yield from _resource_tests(str(text))


def _compared(text: str) -> tuple[Callable[[float, float], bool], str]:
    """Return the comparison that a value begins with, ``.eq.`` if with none, and its rest.

    Raises:
        UsageError: the operator is unknown.
    """
    match = _COMPARED.fullmatch(text)
    if match is not None:
        return _OPERATORS[match[1]], match[2]
    if text.startswith("."):
        raise UsageError(
            f"unknown operator in {text!r}", hint="valid: .eq. .ne. .lt. .le. .gt. .ge."
        )
    return _OPERATORS["eq"], text


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise UsageError(f"{option}: invalid number {text!r}", hint="write .ge.100, or 100")
    return int(text)


def _states(text: str) -> frozenset[JobState]:
    found: set[JobState] = set()
    for letter in text.upper().replace(",", ""):
        if letter not in _LETTERS:
            raise UsageError(
                f"-s: invalid state {letter!r}", hint=f"valid letters: {''.join(_LETTERS)}"
            )
        found |= set(_LETTERS[letter])
    return frozenset(found)


def _holds(text: str) -> set[str]:
    if text == "n":
        return set()
    if set(text) - set(_HOLDS):
        raise UsageError(f"-h: invalid hold list {text!r}", hint="write u, o and s, or n alone")
    return {_HOLDS[letter] for letter in text}


def _checkpoint_test(text: str) -> StoryTest:
    """Return the test of ``-c``: in gsched every job has ``u``, unspecified.

    The order is n > s > c=minutes >= c, and ``u`` compares with nothing but itself.
    """
    compare, value = _compared(text)
    ranks = {"n": 3.0, "s": 2.0, "c": 1.0, "u": 0.0}
    if value not in ranks and not re.fullmatch(r"c=[0-9]{1,9}", value):
        raise UsageError(f"-c: invalid value {value!r}", hint="valid: n, s, c, c=MINUTES, u")
    same = value == "u"
    equal_only = compare(0.0, 0.0)
    unequal = compare is _OPERATORS["ne"]
    return lambda _: equal_only if same else unequal


def _resource_tests(text: str) -> Iterator[StoryTest]:
    """Yield a test for each term of ``mem.gt.4gb,walltime=1:00:00``.

    Raises:
        UsageError: a term that cannot be read, or an unknown resource.
    """
    at = 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            raise UsageError(f"-l: invalid term {text[at:]!r}", hint="write mem.gt.4gb,ncpus.ge.2")
        operator = "eq" if match["op"] == "=" else match["op"].strip(".")
        if operator not in _OPERATORS:
            raise UsageError(
                f"-l: unknown operator {match['op']!r}", hint="valid: .eq. .ne. .lt. .le. .gt. .ge."
            )
        yield _resource_test(match["name"], _OPERATORS[operator], match["value"].strip())
        at = match.end() + 1


def _resource_test(name: str, compare: Callable[[float, float], bool], value: str) -> StoryTest:
    read = _RESOURCES.get(name)
    if read is None:
        raise UsageError(f"-l: unknown resource {name!r}", hint=f"valid: {', '.join(_RESOURCES)}")
    parse, of = read
    try:
        wanted = parse(value)
    except (BadResourceError, ValueError):
        raise UsageError(f"-l: invalid value {name}={value}") from None

    def test(story: JobStory) -> bool:
        stated = of(story.row)
        return stated is not None and compare(stated, wanted)

    return test


_RESOURCES: Final[dict[str, tuple[Callable[[str], float], Callable[[JobRow], float | None]]]] = {
    "walltime": (parse_duration_s, lambda row: row.walltime_s),
    "mem": (parse_size_bytes, lambda row: row.memory_bytes or None),
    "ncpus": (int, lambda row: row.cpus),
    "procs": (int, lambda row: row.cpus),
    "gpus": (int, lambda row: row.gpus),
    "ngpus": (int, lambda row: row.gpus),
    "nodect": (int, lambda row: row.places),
    "nodes": (int, lambda row: row.places),
}


main = runner(gselect)

if __name__ == "__main__":
    main()
