"""The fields of Slurm's lists: a row has a value, and its names and texts in squeue and sacct.

Pure but for names and numbers of users, which it looks up.
"""

import grp
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from gsched.cli.common import check_width, printable
from gsched.cli.show.jobfields import FIELDS, elapsed_s
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.client import HeadClient
from gsched.model.host_lists import compact, natural_key
from gsched.model.ids import array_of, index_of, submitted_number
from gsched.model.units import format_duration
from gsched.protocol.job_rows import JobList, JobRow, JobStory

LONG_WIDTH: Final = 20  # characters of a field of squeue -O
_NEVER: Final = float("inf")
_RANKS: Final = {state: rank for rank, state in enumerate(w.ALL_STATES.split(","))}


class Listing(NamedTuple):
    """The jobs of a list, and the details of those of which a field needs them, by number."""

    server: str
    now_s: float
    jobs: Sequence[JobRow]
    stories: Mapping[int, JobStory] = {}

    @classmethod
    def of(cls, reply: JobList) -> Self:
        """Return the jobs of a reply."""
        return cls(reply.server, reply.now_s, reply.jobs)


Read = Callable[[JobRow, Listing], Any]
Write = Callable[[Any], str]


class SlurmField(NamedTuple):
    """A field as one command of Slurm has it.

    Attributes:
        title: its heading.
        read: its value.
        write: its text.
        width: of its column, where a format states none (characters); below 0: to the left.
        key: by what squeue sorts; None: by the value.
        story: it is read from a job's details.
    """

    title: str
    read: Read
    write: Write
    width: int = LONG_WIDTH
    key: Read | None = None
    story: bool = False

    def text(self, row: JobRow, listing: Listing) -> str:
        """Return its text in a job's line."""
        return printable(self.write(self.read(row, listing)))


# --- values ---


def _place(row: JobRow, _: Listing) -> tuple[int, bool, int]:
    """Return the key of the order of submission; elements that wait are behind the others."""
    index = index_of(row.id) if array_of(row.id) else 0
    return submitted_number(row.id), row.array is not None, index


def ends_s(row: JobRow) -> float | None:
    """Return when a job has ended, or ends by its limit at the latest; None: never."""
    if row.ended_s is not None:
        return row.ended_s
    return row.started_s + row.walltime_s if row.started_s and row.walltime_s else None


def _limit_s(row: JobRow, _: Listing) -> float:
    return row.walltime_s or _NEVER


def _run_s(row: JobRow, listing: Listing) -> float:
    return w.elapsed_s(row, listing.now_s)


def _left_s(row: JobRow, listing: Listing) -> float:
    return max(0.0, _limit_s(row, listing) - _run_s(row, listing))


def _starts_s(row: JobRow, _: Listing) -> float | None:
    return row.started_s or row.predicted_start_s


def _starts_key(row: JobRow, listing: Listing) -> float:
    return _starts_s(row, listing) or _NEVER


def _rank(row: JobRow, _: Listing) -> int:
    return _RANKS.get(w.state_of(row)[0], len(_RANKS))


def _nodes(row: JobRow, _: Listing) -> Sequence[str]:
    return row.nodes


def _nodes_key(row: JobRow, _: Listing) -> object:
    return not row.nodes, [natural_key(name) for name in row.nodes]


def _first_node(row: JobRow, _: Listing) -> str:
    return row.nodes[0] if row.nodes else "n/a"


def _first_node_key(row: JobRow, _: Listing) -> object:
    return not row.nodes, natural_key(row.nodes[0]) if row.nodes else ()


def _dependency(row: JobRow, _: Listing) -> str:
    waits = "waits for its dependencies: "
    return row.reason.removeprefix(waits) if row.reason.startswith(waits) else ""


def _alloc_tres(row: JobRow, _: Listing) -> str:
    return _tres(row, len(row.nodes)) if row.nodes else ""


def _cpu_each_s(row: JobRow, _: Listing) -> float:
    return row.cpu_s / max(1, len(row.nodes))


def _mean_each(row: JobRow, _: Listing) -> int:
    return row.memory_mean_bytes // max(1, len(row.nodes))


def _waited_s(row: JobRow, listing: Listing) -> float:
    return max(0.0, (row.started_s or row.ended_s or listing.now_s) - row.submitted_s)


def _cpu_wall_s(row: JobRow, listing: Listing) -> float:
    """Return for how long a job has had its CPUs, times their number: Slurm's CPUTime."""
    return row.cpus * (elapsed_s(row, listing.now_s) or 0.0)


def _count(row: JobRow, _: Listing) -> int:
    return len(row.nodes) or row.places


def _tres(row: JobRow, nodes: int) -> str:
    parts = [f"billing={row.cpus}", f"cpu={row.cpus}"]
    parts += [f"gres/gpu={row.gpus}"] if row.gpus else []
    parts += [f"mem={megabytes(row.memory_bytes)}"] if row.memory_bytes else []
    return ",".join([*parts, f"node={nodes}"])


def _ends_key(row: JobRow, _: Listing) -> float:
    return ends_s(row) or _NEVER


def user_id(row: JobRow) -> int | None:
    """Return the number of a job's user; None: the name is unknown here."""
    try:
        return pwd.getpwnam(row.user).pw_uid
    except KeyError:
        return None


def group_id(row: JobRow) -> int | None:
    """Return the number of the user's group, likewise."""
    try:
        return pwd.getpwnam(row.user).pw_gid
    except KeyError:
        return None


def group_name(row: JobRow) -> str:
    """Return the name of the user's group; empty: unknown."""
    number = group_id(row)
    try:
        return "" if number is None else grp.getgrgid(number).gr_name
    except KeyError:
        return ""


def _of(read: Callable[[JobRow], Any]) -> Read:
    return lambda row, _: read(row)


def _detail(read: Callable[[JobStory], str]) -> Read:
    return lambda row, listing: read(listing.stories[row.id]) if row.id in listing.stories else ""


# --- texts ---


def megabytes(size_bytes: int) -> str:
    """Return a size as Slurm writes it: ``500M``, ``2G`` where that is exact."""
    if size_bytes and not size_bytes % 1024**3:
        return f"{size_bytes // 1024**3}G"
    return f"{-(-size_bytes // 1024**2)}M"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _or(none: str, write: Write = str) -> Write:
    """Write a value; nothing, and what never comes, as Slurm writes that."""
    return lambda value: write(value) if value and value != _NEVER else none


def _short(seconds: float | None) -> str:
    return w.slurm_duration(int(seconds or 0.0))


def _days(seconds: float | None) -> str:
    return w.slurm_days(seconds or 0.0)


def _whole(seconds: float | None) -> str:
    return str(int(seconds or 0.0))


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes >> 20}M"


def _limited(write: Write) -> Write:
    return lambda seconds: "UNLIMITED" if seconds == _NEVER else write(seconds)


_time: Final = _or("N/A", w.slurm_time)
_unknown: Final = _or("Unknown", w.slurm_time)
_kib: Final = w.kib


class SlurmRow(NamedTuple):
    """A field: its value, and what squeue and sacct call it and how they write it.

    Attributes:
        read: its value, or the name of the field of gstat that it is.
        squeue: letter of ``-o``, heading, and name of ``-O``; empty: squeue has no such field.
        sacct: name, and width of its column; likewise.
        write: its text.
        other: its text in sacct, where that is another one.
        key: by what squeue sorts, where that is not the value.
        story: it is read from a job's details.
    """

    read: Read | str
    squeue: str = ""
    sacct: str = ""
    write: Write = _text
    other: Write | None = None
    key: Read | None = None
    story: bool = False

    @property
    def value(self) -> Read:
        """Return what reads its value."""
        return FIELDS[self.read].read if isinstance(self.read, str) else self.read


def _same(text: str) -> Read:
    return lambda _row, _listing: text


_NONE: Final = _same("")
_ROWS: Final = (
    SlurmRow("account", "a ACCOUNT account", "Account 10", _or("(null)"), _text),
    SlurmRow(_of(w.number_of), "A JOBID jobid", "JobIDRaw -12", key=_place),
    SlurmRow(_of(w.slurm_id), "i JOBID jobarrayid", "JobID -12", key=_place),
    SlurmRow(_of(w.array_id), "F ARRAY_JOB_ID arrayjobid", key=_place),
    SlurmRow(_of(w.task_id), "K ARRAY_TASK_ID arraytaskid", key=_place),
    SlurmRow("gpus", "b TRES_PER_NODE tres-per-node", "", _or("N/A", "gres/gpu:{}".format)),
    SlurmRow(_first_node, "B EXEC_HOST batchhost", "", key=_first_node_key),
    SlurmRow("cpus", "C CPUS numcpus", "AllocCPUS 10"),
    SlurmRow("cpus", "c MIN_CPUS mincpus", "NCPUS 10"),
    SlurmRow("cpus", "", "ReqCPUS 8"),
    SlurmRow(_same("0"), "d MIN_TMP_DISK mintmpdisk"),
    SlurmRow(_count, "D NODES numnodes", "NNodes 8"),
    SlurmRow(_of(lambda row: len(row.nodes)), "", "AllocNodes 10"),
    SlurmRow("chunks", "", "ReqNodes 8"),
    SlurmRow(_of(ends_s), "e END_TIME endtime", "", _time, key=_ends_key),
    SlurmRow("ended", "", "End 19", _unknown),
    SlurmRow(_dependency, "E DEPENDENCY dependency", "", _or("(null)")),
    SlurmRow(_same("(null)"), "f FEATURES feature"),
    SlurmRow(_of(group_name), "g GROUP groupname", "Group 9"),
    SlurmRow(_of(group_id), "G GROUP groupid", "GID 6"),
    SlurmRow(_of(user_id), "U UID userid", "UID 6"),
    SlurmRow(_same("OK"), "h OVER_SUBSCRIBE oversubscribe"),
    SlurmRow(_same("*"), "H SOCKETS_PER_NODE sockets"),
    SlurmRow(_same("*"), "I CORES_PER_SOCKET cores"),
    SlurmRow(_same("*"), "J THREADS_PER_CORE threads"),
    SlurmRow(_same("*:*:*"), "z S:C:T sct"),
    SlurmRow("name", "j NAME name", "JobName 10"),
    SlurmRow("comment", "k COMMENT comment", "Comment 14", _or("(null)"), _text),
    SlurmRow(_limit_s, "l TIME_LIMIT timelimit", "Timelimit 10", _limited(_short), _limited(_days)),
    SlurmRow(_limit_s, "", "TimelimitRaw 10", _limited(lambda limit_s: str(int(limit_s // 60)))),
    SlurmRow(_left_s, "L TIME_LEFT timeleft", "", _limited(_short)),
    SlurmRow(
        "memory", "m MIN_MEMORY minmemory", "ReqMem 10", _or("0", _mebibytes), _or("", megabytes)
    ),
    SlurmRow(_run_s, "M TIME timeused", "ElapsedRaw 10", _short, _whole),
    SlurmRow("elapsed", "", "Elapsed 10", _days),
    SlurmRow(
        _nodes,
        "N NODELIST nodelist",
        "NodeList 15",
        compact,
        _or("None assigned", compact),
        _nodes_key,
    ),
    SlurmRow(_NONE, "n REQ_NODES reqnodes"),
    SlurmRow(_detail(lambda story: " ".join(story.arguments)), "o COMMAND command", story=True),
    SlurmRow(_same("0"), "O CONTIGUOUS contiguous"),
    SlurmRow("priority", "p PRIORITY priority", "", "{:.14f}".format),
    SlurmRow("priority", "Q PRIORITY prioritylong", "Priority 10", "{:.0f}".format),
    SlurmRow("queue", "P PARTITION partition", "Partition 10"),
    SlurmRow(_of(w.qos_of), "q QOS qos", "QOS 10"),
    SlurmRow(_of(w.reason_word), "r REASON reason", "Reason 22"),
    SlurmRow(_of(w.reason_of), "R NODELIST(REASON) reasonlist"),
    SlurmRow(_starts_s, "S START_TIME starttime", "", _time, key=_starts_key),
    SlurmRow("started", "", "Start 19", _unknown),
    SlurmRow(_of(lambda row: w.state_of(row)[1]), "t ST statecompact", "", key=_rank),
    SlurmRow(_of(lambda row: w.state_of(row)[0]), "T STATE state", "State 10", key=_rank),
    SlurmRow("user", "u USER username", "User 9"),
    SlurmRow("reservation", "v RESERVATION reservation", "Reservation 20", _or("(null)"), _text),
    SlurmRow("submitted", "V SUBMIT_TIME submittime", "Submit 19", _time, _unknown),
    SlurmRow("submitted", "", "Eligible 19", _time),
    SlurmRow(_same("(null)"), "w WCKEY wckey"),
    SlurmRow(_same("(null)"), "W LICENSES licenses"),
    SlurmRow(_NONE, "x EXC_NODES excnodes"),
    SlurmRow(_same("N/A"), "X CORE_SPEC corespec"),
    SlurmRow(_same("0"), "y NICE nice"),
    SlurmRow(_same("(null)"), "Y SCHEDNODES schednodes"),
    SlurmRow(_detail(lambda story: story.workdir), "Z WORK_DIR workdir", "WorkDir 20", story=True),
    SlurmRow(_detail(lambda story: w.output_path(story, "o")), "  stdout", "StdOut 20", story=True),
    SlurmRow(_detail(lambda story: w.output_path(story, "e")), "  stderr", "StdErr 20", story=True),
    SlurmRow(_alloc_tres, "  tres-alloc", "AllocTRES 10"),
    SlurmRow(_of(lambda row: _tres(row, row.places)), "", "ReqTRES 10"),
    SlurmRow(_cpu_each_s, "", "AveCPU 10", format_duration),
    SlurmRow(_mean_each, "", "AveRSS 10", _kib),
    SlurmRow(lambda _, listing: listing.server, "  cluster", "Cluster 10"),
    SlurmRow(_cpu_wall_s, "", "CPUTime 10", format_duration),
    SlurmRow(_cpu_wall_s, "", "CPUTimeRAW 10", lambda seconds: str(round(seconds))),
    SlurmRow(_same("0:0"), "", "DerivedExitCode 15"),
    SlurmRow(_of(w.exit_code), "", "ExitCode 8"),
    SlurmRow(_of(lambda row: row.memory_peak_bytes), "", "MaxRSS 10", _kib),
    SlurmRow(_of(lambda row: row.memory_peak_bytes), "", "MaxVMSize 10", _kib),
    SlurmRow(_waited_s, "", "Planned 10", format_duration),
    SlurmRow(_waited_s, "", "Reserved 10", format_duration),
    SlurmRow(_same("00:00:00"), "", "Suspended 10"),
    SlurmRow("cputime", "", "TotalCPU 10", format_duration),
)
#: Fields of sacct of Slurm 22.05 and later that have no value here, by the widths of their columns.
_EMPTY: Final[Mapping[int, str]] = {
    6: "QOSRAW",
    7: "AssocID",
    8: "MaxPages NTasks ReservationId",
    9: "Layout",
    10: "AveCPUFreq AvePages AveVMSize DBIndex MaxRSSNode MaxRSSTask MinCPU MinCPUNode MinCPUTask"
    " PlannedCPU PlannedCPURAW QOSREQ ReqCPUFreq Restarts ResvCPU ResvCPURAW SLUID SystemCPU"
    " UserCPU WCKey WCKeyID",
    12: "MaxDiskRead MaxDiskWrite MaxPagesNode McsLabel",
    13: "ReqCPUFreqGov ReqCPUFreqMax ReqCPUFreqMin",
    14: "AveDiskRead AveDiskWrite ConsumedEnergy MaxPagesTask MaxVMSizeNode MaxVMSizeTask"
    " TRESUsageInAve TRESUsageInMax TRESUsageInMin TRESUsageInTot",
    15: "AdminComment MaxDiskReadNode MaxDiskReadTask SystemComment TRESUsageOutAve"
    " TRESUsageOutMax TRESUsageOutMin TRESUsageOutTot",
    16: "BlockID MaxDiskWriteNode MaxDiskWriteTask",
    17: "ConsumedEnergyRaw",
    18: "TRESUsageInMaxNode TRESUsageInMaxTask TRESUsageInMinNode TRESUsageInMinTask",
    19: "Constraints Container Flags TRESUsageOutMaxNode TRESUsageOutMaxTask"
    " TRESUsageOutMinNode TRESUsageOutMinTask",
    20: "Extra FailedNode Licenses StdIn SubmitLine",
}


def _squeue() -> Iterator[tuple[str, str, SlurmField]]:
    """Yield letters, names of ``-O`` and fields of squeue; a field may lack either."""
    for row in _ROWS:
        letter, heading, name = row.squeue.split(" ") if row.squeue else ("", "", "")
        field = SlurmField(
            heading or name.upper(), row.value, row.write, key=row.key, story=row.story
        )
        yield letter, name, field


def _sacct() -> Iterator[SlurmField]:
    for row in _ROWS:
        if row.sacct:
            title, _, width = row.sacct.partition(" ")
            write = row.other or row.write
            yield SlurmField(title, row.value, write, width=int(width), story=row.story)
    for size, titles in _EMPTY.items():
        yield from (SlurmField(title, _NONE, _text, width=size) for title in titles.split())


#: Fields of squeue by letter (``-o``) and by name in lower case (``-O``).
SQUEUE: Final[Mapping[str, SlurmField]] = {
    letter: field for letter, _, field in _squeue() if letter
}
SQUEUE_NAMES: Final[Mapping[str, SlurmField]] = {
    name: field for _, name, field in _squeue() if name
}
#: Fields of sacct by name in lower case, in the order of their names.
SACCT: Final[Mapping[str, SlurmField]] = {
    field.title.lower(): field for field in sorted(_sacct(), key=lambda each: each.title.lower())
}


def _live_each(row: JobRow, _: Listing) -> int:
    return w.live_bytes(row) // max(1, len(row.nodes))


def _live_tres(row: JobRow, _: Listing) -> str:
    """Return what a job uses in Slurm's form: ``cpu=00:01:00,mem=10K,gres/gpuutil=85``."""
    words = [f"cpu={format_duration(row.cpu_s)}", f"mem={w.kib(w.live_bytes(row))}"]
    if row.live is not None and row.live.gpus_held:
        words.append(f"gres/gpumem={w.kib(row.live.gpu_memory_bytes)}")
        words.append(f"gres/gpuutil={100.0 * row.live.gpus:.0f}")
    return ",".join(words)


#: Fields of sstat by name in lower case. There is one step: the batch script.
SSTAT: Final[Mapping[str, SlurmField]] = {
    field.title.lower(): field
    for field in (
        SlurmField("JobID", lambda row, _: f"{row.id}.batch", _text, 10),
        SlurmField("NTasks", lambda row, _: max(1, len(row.nodes)), _text, 10),
        SlurmField("Nodelist", _nodes, compact, 10),
        SlurmField("AveCPU", _cpu_each_s, format_duration, 10),
        SlurmField("MinCPU", _cpu_each_s, format_duration, 10),
        SlurmField("AveRSS", _live_each, _kib, 10),
        SlurmField("AveVMSize", _live_each, _kib, 10),
        SlurmField("TRESUsageInTot", _live_tres, _text, 10),
        *(SACCT[name] for name in ("maxrss", "maxvmsize")),
    )
}


class FormatCell(NamedTuple):
    """A field in a format of squeue: the text before it, and its width; 0: as wide as its text."""

    before: str
    field: SlurmField
    width: int
    right: bool


def squeue_cells(form: str) -> list[FormatCell]:
    """Return the fields of a format of ``-o`` such as ``%.18i %.2t %R``; the last is of its end.

    Raises:
        SlurmError: an unknown letter.
    """
    cells: list[FormatCell] = []
    end = 0
    for match in w.SPEC.finditer(form):
        if match[3] not in SQUEUE:
            raise SlurmError(f"Invalid job format specification: {match[3]}")
        check_width(match[2], "-o")
        width, right = int(match[2] or 0), bool(match[1])
        cells.append(FormatCell(form[end : match.start()], SQUEUE[match[3]], width, right))
        end = match.end()
    return [*cells, FormatCell(form[end:], SlurmField("", _NONE, _text), 0, right=False)]


def long_cells(text: str) -> list[FormatCell]:
    """Return the fields that ``-O JobID:12,State`` means; 20 characters each.

    Raises:
        SlurmError: an unknown name.
    """
    cells = []
    for word in filter(None, text.split(",")):
        name, _, stated = word.partition(":")
        field = SQUEUE_NAMES.get(name.lower())
        if field is None:
            raise SlurmError(f"Invalid job format specification: {name}")
        check_width(stated, "-O")
        size = stated.strip(".-")
        width = int(size) if size.isdecimal() else LONG_WIDTH
        cells.append(FormatCell("", field, width, right=stated.startswith(".")))
    return cells


def squeue_lines(listing: Listing, cells: Sequence[FormatCell], *, header: bool) -> Iterator[str]:
    """Yield the lines of a list; ``header``: the titles come first."""

    def line(of: Callable[[SlurmField], str]) -> str:
        texts = (w.fitted(of(each.field), each.width, right=each.right) for each in cells)
        return "".join(each.before + text for each, text in zip(cells, texts, strict=True)) + "\n"

    if header:
        yield line(lambda field: field.title)
    for row in listing.jobs:
        yield line(lambda field, row=row: field.text(row, listing))  # type: ignore[misc]  # bound now


def with_stories(head: HeadClient, listing: Listing, fields: Iterable[SlurmField]) -> Listing:
    """Return a list with the details of its jobs, if one of the fields is read from them."""
    if not listing.jobs or not any(field.story for field in fields):
        return listing
    stories = head.stories([row.id for row in listing.jobs]).jobs
    return listing._replace(stories={story.row.id: story for story in stories})


#: Slurm sorts by these; all jobs here are alike in the former.
_ALIKE: Final = frozenset("cdfgGhHIJoOUvz")
_SORTABLE: Final = _ALIKE | frozenset("aAbBCDeEFijKlLmMnNpPqQrRStTuV")
_CLUSTER: Final = "cluster"  # there is one


def in_order(listing: Listing, text: str) -> tuple[JobRow, ...]:
    """Return the jobs of a list in the order of ``P,-t,i``: the first field counts most.

    As Slurm reads it, each letter is a field, with or without commas, and a ``-`` before it
    reverses its order. Jobs that are equal in all of them are in the order of their numbers.

    Raises:
        SlurmError: a letter is no field.
    """
    rows = submission_order(listing)
    for key, reverse in reversed(list(_keys("" if text == _CLUSTER else text))):
        keyed = [(_ordered(key(row, listing)), row) for row in rows]
        keyed.sort(key=lambda pair: pair[0], reverse=reverse)
        rows = [row for _, row in keyed]
    return tuple(rows)


def _ordered(value: object) -> tuple[bool, Any]:
    return value is not None, value  # what has no value is before the others


def _keys(text: str) -> Iterator[tuple[Read, bool]]:
    for at, letter in enumerate(text):
        if letter in ",+-":
            continue
        if letter not in _SORTABLE:
            raise SlurmError(f"Invalid sort specification: {letter}")
        if letter not in _ALIKE:
            field = SQUEUE[letter]
            yield field.key or field.read, text[at - 1 : at] == "-"


def submission_order(listing: Listing) -> list[JobRow]:
    """Return jobs in the order of their submission; elements that wait are behind the others."""
    return sorted(listing.jobs, key=lambda row: _place(row, listing))


def chosen(text: str, fields: Mapping[str, SlurmField]) -> list[tuple[SlurmField, int]]:
    """Return the fields of a list such as ``JobID,State%20``, with the widths of their columns.

    Raises:
        SlurmError: there is no such field.
    """
    found = []
    for word in filter(None, text.split(",")):
        name, _, stated = word.partition("%")
        field = fields.get(name.strip().lower())
        if field is None:
            raise SlurmError(f'Invalid field requested: "{name.strip()}"')
        check_width(stated, "--format")
        is_width = stated.lstrip("-").isdecimal() and int(stated) != 0
        found.append((field, int(stated) if is_width else field.width))
    return found


def print_fields(
    listing: Listing,
    fields: Sequence[tuple[SlurmField, int]],
    options: Mapping[str, str],
    *,
    dashes: bool,
) -> None:
    """Print jobs in columns, cut with a ``+``, or with bars between their fields (-p, -P).

    Args:
        listing: the jobs.
        fields: with the widths of their columns; below 0: to the left.
        options: of the command.
        dashes: columns have a line below their titles.
    """
    bare = bool({"parsable", "parsable2"} & set(options))
    lines = [[field.text(row, listing) for field, _ in fields] for row in listing.jobs]
    if "noheader" not in options:
        rule = [["-" * abs(width) for _, width in fields]] if dashes and not bare else []
        lines = [[field.title for field, _ in fields], *rule, *lines]
    for line in lines:
        if bare:
            bar = options.get("delimiter", "|")
            print(bar.join(line) + (bar if "parsable" in options else ""))
            continue
        cells = zip(line, (width for _, width in fields), strict=True)
        print("".join(w.fitted(text, abs(n), right=n > 0, mark="+") + " " for text, n in cells))
