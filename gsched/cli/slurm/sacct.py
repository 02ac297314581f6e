"""sacct: fields of jobs, finished or not, in Slurm's columns."""

import grp
import os
import pwd
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from gsched.cli.common import check_width
from gsched.cli.slurm import words as w
from gsched.cli.slurm.elements import with_elements
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.window import window_of
from gsched.client import Head
from gsched.model.host_lists import compact
from gsched.model.ids import array_of, index_of, submitted_number
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.model.units import format_duration
from gsched.protocol.api import JobList, JobRow, JobStory

_DEFAULT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
_BRIEF: Final = "JobID,State,ExitCode"


class Source(NamedTuple):
    """What a field is read from; the details are there where a field needs them."""

    row: JobRow
    listing: JobList
    story: JobStory | None


class Field(NamedTuple):
    """A field: its title, the width of its column, and its value; that of None is empty."""

    title: str
    width: int
    read: Callable[[Source], str] | None
    needs_story: bool = False


def _tres(row: JobRow, nodes: int) -> str:
    parts = [f"billing={row.cpus}", f"cpu={row.cpus}"]
    parts += [f"gres/gpu={row.gpus}"] if row.gpus else []
    parts += [f"mem={megabytes(row.memory_bytes)}"] if row.memory_bytes else []
    return ",".join([*parts, f"node={nodes}"])


def megabytes(size_bytes: int) -> str:
    """Return a size as Slurm writes it: ``500M``, ``2G`` where that is exact."""
    if size_bytes and not size_bytes % 1024**3:
        return f"{size_bytes // 1024**3}G"
    return f"{-(-size_bytes // 1024**2)}M"


def _alloc_tres(source: Source) -> str:
    row = source.row
    return _tres(row, len(row.nodes)) if row.nodes else ""


def _req_tres(source: Source) -> str:
    return _tres(source.row, source.row.places)


def _wall_s(row: JobRow, listing: JobList) -> float:
    if row.wall_s or row.started_s is None:
        return row.wall_s
    return (row.ended_s or listing.now_s) - row.started_s


def _cpu_time(source: Source) -> float:
    """Return for how long a job has had its CPUs, times their number: Slurm's CPUTime."""
    return source.row.cpus * _wall_s(source.row, source.listing)


def _waited(source: Source) -> str:
    row = source.row
    until_s = row.started_s or row.ended_s or source.listing.now_s
    return format_duration(max(0.0, until_s - row.submitted_s))


def _user_id(source: Source) -> str:
    try:
        return str(pwd.getpwnam(source.row.user).pw_uid)
    except KeyError:
        return ""


def _group(source: Source) -> str:
    try:
        return grp.getgrgid(pwd.getpwnam(source.row.user).pw_gid).gr_name
    except KeyError:
        return ""


def _group_id(source: Source) -> str:
    try:
        return str(pwd.getpwnam(source.row.user).pw_gid)
    except KeyError:
        return ""


def _per_node(amount: float, row: JobRow) -> float:
    return amount / max(1, len(row.nodes))


def _limit(source: Source) -> str:
    row = source.row
    return w.slurm_days(row.walltime_s) if row.walltime_s else "UNLIMITED"


def _row(read: Callable[[JobRow], str]) -> Callable[[Source], str]:
    return lambda source: read(source.row)


def _story(read: Callable[[JobStory], str]) -> Callable[[Source], str]:
    return lambda source: read(source.story) if source.story is not None else ""


_FIELDS: Final = (
    Field("Account", 10, _row(lambda row: row.account)),
    Field("AllocCPUS", 10, _row(lambda row: str(row.cpus))),
    Field("AllocNodes", 10, _row(lambda row: str(len(row.nodes)))),
    Field("AllocTRES", 10, _alloc_tres),
    Field("AveCPU", 10, _row(lambda row: format_duration(_per_node(row.cpu_s, row)))),
    Field("AveRSS", 10, _row(lambda row: w.kib(row.memory_mean_bytes // max(1, len(row.nodes))))),
    Field("Cluster", 10, lambda source: source.listing.server),
    Field("Comment", 14, _row(lambda row: row.comment)),
    Field("CPUTime", 10, lambda source: format_duration(_cpu_time(source))),
    Field("CPUTimeRAW", 10, lambda source: str(round(_cpu_time(source)))),
    Field("DerivedExitCode", 15, lambda _: "0:0"),
    Field("Elapsed", 10, lambda source: w.slurm_days(_wall_s(source.row, source.listing))),
    Field("ElapsedRaw", 10, lambda s: str(int(w.elapsed_s(s.row, s.listing.now_s)))),
    Field("Eligible", 19, _row(lambda row: w.slurm_time(row.submitted_s))),
    Field("End", 19, _row(lambda row: w.slurm_time(row.ended_s, none="Unknown"))),
    Field("ExitCode", 8, _row(w.exit_code)),
    Field("GID", 6, _group_id),
    Field("Group", 9, _group),
    Field("JobID", -12, _row(w.slurm_id)),
    Field("JobIDRaw", -12, _row(lambda row: str(w.number_of(row)))),
    Field("JobName", 10, _row(lambda row: row.name)),
    Field("MaxRSS", 10, _row(lambda row: w.kib(row.memory_peak_bytes))),
    Field("MaxVMSize", 10, _row(lambda row: w.kib(row.memory_peak_bytes))),
    Field("NCPUS", 10, _row(lambda row: str(row.cpus))),
    Field("NNodes", 8, _row(lambda row: str(len(row.nodes) or row.places))),
    Field("NodeList", 15, _row(lambda row: compact(row.nodes) or "None assigned")),
    Field("NTasks", 8, None),  # of steps; a job's own line has none
    Field("Partition", 10, _row(lambda row: row.queue)),
    Field("Planned", 10, _waited),
    Field("Priority", 10, _row(lambda row: str(row.priority))),
    Field("QOS", 10, lambda _: "normal"),
    Field("Reason", 22, _row(w.reason_word)),
    Field("ReqCPUS", 8, _row(lambda row: str(row.cpus))),
    Field("ReqMem", 10, _row(lambda row: megabytes(row.memory_bytes) if row.memory_bytes else "")),
    Field("ReqNodes", 8, _row(lambda row: str(row.places))),
    Field("ReqTRES", 10, _req_tres),
    Field("Reserved", 10, _waited),
    Field("Start", 19, _row(lambda row: w.slurm_time(row.started_s, none="Unknown"))),
    Field("State", 10, _row(lambda row: w.state_of(row)[0])),
    Field("StdErr", 20, _story(lambda story: w.output_path(story, "e")), needs_story=True),
    Field("StdOut", 20, _story(lambda story: w.output_path(story, "o")), needs_story=True),
    Field("Submit", 19, _row(lambda row: w.slurm_time(row.submitted_s, none="Unknown"))),
    Field("Suspended", 10, lambda _: "00:00:00"),
    Field("Timelimit", 10, _limit),
    Field(
        "TimelimitRaw",
        10,
        _row(lambda row: str(int(row.walltime_s // 60)) if row.walltime_s else "UNLIMITED"),
    ),
    Field("TotalCPU", 10, _row(lambda row: format_duration(row.cpu_s))),
    Field("UID", 6, _user_id),
    Field("User", 9, _row(lambda row: row.user)),
    Field("WorkDir", 20, _story(lambda story: story.workdir), needs_story=True),
)
#: Fields of Slurm 22.05 to 25.11 that have no value here, with the widths of their columns.
_EMPTY: Final[Mapping[str, int]] = {
    **dict.fromkeys(("AveCPUFreq", "AvePages", "AveVMSize", "DBIndex", "MaxRSSNode"), 10),
    **dict.fromkeys(("MaxRSSTask", "MinCPU", "MinCPUNode", "MinCPUTask", "ReqCPUFreq"), 10),
    **dict.fromkeys(("PlannedCPU", "PlannedCPURAW", "ResvCPU", "ResvCPURAW", "SystemCPU"), 10),
    **dict.fromkeys(("UserCPU", "WCKey", "WCKeyID", "Restarts", "QOSREQ", "SLUID"), 10),
    **dict.fromkeys(("AveDiskRead", "AveDiskWrite", "ConsumedEnergy", "MaxPagesTask"), 14),
    **dict.fromkeys(("MaxVMSizeNode", "MaxVMSizeTask", "TRESUsageInAve", "TRESUsageInMax"), 14),
    **dict.fromkeys(("TRESUsageInMin", "TRESUsageInTot"), 14),
    **dict.fromkeys(("AdminComment", "MaxDiskReadNode", "MaxDiskReadTask", "SystemComment"), 15),
    **dict.fromkeys(("TRESUsageOutAve", "TRESUsageOutMax", "TRESUsageOutMin"), 15),
    "TRESUsageOutTot": 15,
    **dict.fromkeys(("BlockID", "MaxDiskWriteNode", "MaxDiskWriteTask"), 16),
    **dict.fromkeys(("MaxDiskRead", "MaxDiskWrite", "MaxPagesNode", "McsLabel"), 12),
    **dict.fromkeys(("ReqCPUFreqGov", "ReqCPUFreqMax", "ReqCPUFreqMin"), 13),
    **dict.fromkeys(("TRESUsageInMaxNode", "TRESUsageInMaxTask", "TRESUsageInMinNode"), 18),
    "TRESUsageInMinTask": 18,
    **dict.fromkeys(("TRESUsageOutMaxNode", "TRESUsageOutMaxTask", "TRESUsageOutMinNode"), 19),
    **dict.fromkeys(("TRESUsageOutMinTask", "Constraints", "Container", "Flags"), 19),
    **dict.fromkeys(("Reservation", "SubmitLine", "Extra", "FailedNode", "Licenses", "StdIn"), 20),
    "AssocID": 7,
    "ConsumedEnergyRaw": 17,
    "Layout": 9,
    "MaxPages": 8,
    "QOSRAW": 6,
    "ReservationId": 8,
}
#: By name in lower case, in the order of their names.
FIELDS: Final[Mapping[str, Field]] = {
    field.title.lower(): field
    for field in sorted(
        (*_FIELDS, *(Field(title, width, None) for title, width in _EMPTY.items())),
        key=lambda each: each.title.lower(),
    )
}
_NAMES_ON_A_LINE: Final = 4


def sacct(words: Sequence[str]) -> int:
    """Print fields of jobs, finished or not, in the order of their submission."""
    flags = {
        **dict.fromkeys(("-X", "--allocations"), "allocations"),
        **dict.fromkeys(("-n", "--noheader"), "noheader"),
        **dict.fromkeys(("-p", "--parsable"), "parsable"),
        **dict.fromkeys(("-P", "--parsable2"), "parsable2"),
        **dict.fromkeys(("-L", "--allclusters"), "clusters"),
        **dict.fromkeys(("-a", "--allusers"), "allusers"),
        **dict.fromkeys(("-b", "--brief"), "brief"),
        **dict.fromkeys(("-e", "--helpformat"), "helpformat"),
    }
    valued = {
        **dict.fromkeys(("-j", "--job", "--jobs"), "jobs"),
        **dict.fromkeys(("-o", "--format"), "format"),
        **dict.fromkeys(("-u", "--user", "--uid"), "users"),
        **dict.fromkeys(("-M", "--clusters"), "clusters"),
        **dict.fromkeys(("-S", "--starttime"), "since"),
        **dict.fromkeys(("-E", "--endtime"), "until"),
        **dict.fromkeys(("-s", "--state"), "states"),
        "--name": "name",
    }
    options, operands = w.parse(words, flags=flags, valued=valued)
    if "helpformat" in options:
        _print_names()
        return 0
    fields = _chosen(options.get("format", _BRIEF if "brief" in options else _DEFAULT))
    states = _states(options.get("states", ""))
    named = w.job_ids([options.get("jobs", ""), *operands])
    users = _users(options, named)
    head = Head()
    reply = head.jobs(named)
    window = window_of(
        options.get("since", ""),
        options.get("until", ""),
        is_named=bool(named),
        has_states=bool(states),
        now_s=reply.now_s,
    )
    rows = reply.jobs if named else (*reply.jobs, *_ended(head, window.since_s, users))
    if users:
        rows = tuple(row for row in rows if row.user in users)
    if "name" in options:
        rows = tuple(row for row in rows if row.name in options["name"].split(","))
    reply = with_elements(head, structs.replace(reply, jobs=tuple(rows)))
    rows = tuple(row for row in sorted(reply.jobs, key=_place) if window.holds(row, states))
    stories: dict[int, JobStory] = {}
    if any(field.needs_story for field, _ in fields) and rows:
        stories = {each.row.id: each for each in head.stories([row.id for row in rows]).jobs}
    lines = []
    if "noheader" not in options:
        lines.append([field.title for field, _ in fields])
        if not {"parsable", "parsable2"} & set(options):
            lines.append(["-" * abs(width) for _, width in fields])
    for row in rows:
        source = Source(row, reply, stories.get(row.id))
        lines.append([field.read(source) if field.read else "" for field, _ in fields])
    print_table(lines, [width for _, width in fields], options)
    return 0


def _users(options: Mapping[str, str], named: Sequence[str]) -> frozenset[str]:
    """Return the users whose jobs are to be listed; none: of all."""
    if named or "allusers" in options:
        return frozenset()
    own = pwd.getpwuid(os.getuid()).pw_name
    return frozenset(options.get("users", own).split(","))


def _ended(head: Head, since_s: float, users: frozenset[str]) -> Sequence[JobRow]:
    """Return the jobs that have ended since then, the newest ones where there are too many."""
    (user,) = users if len(users) == 1 else ("",)
    past = head.history(since=since_s, user=user, limit=str(MAX_HISTORY_ROWS))
    if past.more:
        text = f"only the newest {MAX_HISTORY_ROWS} jobs that have ended are searched"
        print(f"sacct: warning: {text}; state a later -S", file=sys.stderr)
    return past.jobs


def _place(row: JobRow) -> tuple[int, bool, int]:
    """Return the key of the order of submission; elements that wait are behind the others."""
    index = index_of(row.id) if array_of(row.id) else 0
    return submitted_number(row.id), row.array is not None, index


def _states(text: str) -> frozenset[str]:
    try:
        return w.read_states(text)
    except SlurmError as error:
        name = error.message.split("\n", maxsplit=1)[0].rpartition(": ")[2]
        raise SlurmError(
            f"sacct: fatal: unrecognized job state value '{name}'", plain=True
        ) from None


def _print_names() -> None:
    titles = [field.title for field in FIELDS.values()]
    for at in range(0, len(titles), _NAMES_ON_A_LINE):
        print(" ".join(f"{title:<19}" for title in titles[at : at + _NAMES_ON_A_LINE]))


def _chosen(text: str) -> list[tuple[Field, int]]:
    """Return the fields of a list, with the widths of their columns; below 0: to the left.

    Raises:
        SlurmError: there is no such field.
    """
    found = []
    for word in filter(None, text.split(",")):
        name, _, stated = word.partition("%")
        field = FIELDS.get(name.strip().lower())
        if field is None:
            raise SlurmError(f'Invalid field requested: "{name.strip()}"')
        check_width(stated, "--format")
        is_width = stated.lstrip("-").isdecimal() and int(stated) != 0
        found.append((field, int(stated) if is_width else field.width))
    return found


def print_table(
    lines: Iterable[Sequence[str]], widths: Sequence[int], options: Mapping[str, str]
) -> None:
    """Print lines in columns, cut with a ``+``, or with bars between their fields (-p, -P).

    Args:
        lines: their texts.
        widths: of the columns; below 0: to the left.
        options: of the command.
    """
    for line in lines:
        if "parsable2" in options or "parsable" in options:
            print("|".join(line) + ("|" if "parsable" in options else ""))
        else:
            cells = zip(line, widths, strict=True)
            print(" ".join(_cell(text, width) for text, width in cells) + " ")


def _cell(text: str, width: int) -> str:
    size = abs(width)
    if len(text) > size:
        text = f"{text[: size - 1]}+"
    return f"{text:<{size}}" if width < 0 else f"{text:>{size}}"
