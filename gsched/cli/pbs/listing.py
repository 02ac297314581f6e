"""The lists of jobs that ``qstat`` prints, as the C sources of Torque and OpenPBS print them. Pure.

Torque: ``src/cmds/qstat.c``, ``display_statjob`` and ``altdsp_statjob``; OpenPBS: the functions of
the same names. ``%-16.16s`` in C is ``f"{text[:16]:<16}"`` here.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gsched.cli.pbs.attributes import LINE_SIZE
from gsched.cli.pbs.personality import state_letter
from gsched.cli.show.jobfields import cpu_time
from gsched.model.units import exact_size, format_duration
from gsched.protocol.api import JobRow

BLANK: Final = " -- "
NAME_LENGTH: Final = 16
_TORQUE_TITLES: Final = (
    "Job ID                    Name             User            Time Use S Queue\n"
    "------------------------- ---------------- --------------- -------- - -----\n"
)
_OPENPBS_TITLES: Final = (
    "Job id            Name             User              Time Use S Queue\n"
    "----------------  ---------------- ----------------  -------- - -----\n"
)
_OPENPBS_PERCENT_TITLES: Final = (
    "Job id            Name             User               % done  S Queue\n"
    "----------------  ---------------- ----------------  -------- - -----\n"
)
_TORQUE_LONG_TITLES: Final = (
    "\n"
    "                                                                                  "
    "Req'd       Req'd       Elap\n"
    "Job ID                  Username    Queue    Jobname          SessID  NDS   TSK   "
    "Memory      Time    S   Time\n"
    "----------------------- ----------- -------- ---------------- ------ ----- ------ "
    "--------- --------- - ---------\n"
)
_TORQUE_SPACE_TITLES: Final = (  # qstat -R
    "\n"
    "                                                          Req'd     Req'd       Elap\n"
    "Job ID                  Username    Queue    NDS   TSK    Memory    Time      S Time"
    "       BIG  FAST   PFS\n"
    "----   ---------------- ----------- -------- ----- ------ --------- --------- - ---------"
    " ----- ----- -----\n"
)
_OPENPBS_LONG_TITLES: Final = (
    "\n"
    "                                                            Req'd  Req'd   Elap\n"
    "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
    "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"
)
_OPENPBS_START_TITLES: Final = (  # qstat -T
    "\n"
    "                                                                           Est\n"
    "                                                            Req'd  Req'd   Start\n"
    "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
    "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"
)
_WIDE: Final = (30, 15, 15, 15, 8, 4, 5)  # id, user, queue, name, session, nodes, tasks
_GB: Final = 1024**3
_MW: Final = 1024**2 * 8  # a PBS word has 8 bytes


class Long(NamedTuple):
    """What ``qstat -a`` and its kin are asked for.

    Attributes:
        nodes: print the allocation of each job (``-n``).
        comment: print its comment (``-s``).
        one_line: do not break the line before either (``-1``).
        unit: of memory: empty, ``gb`` (``-G``) or ``mw`` (``-M``).
        space: Torque's columns of scratch space (``-R``).
        start: the estimated start time instead of the elapsed one (``-T``).
        wide: OpenPBS's wide columns (``-w``).
    """

    nodes: bool = False
    comment: bool = False
    one_line: bool = False
    unit: str = ""
    space: bool = False
    start: bool = False
    wide: bool = False


class JobLine(NamedTuple):
    """A job with what is not in its row."""

    row: JobRow
    job_id: str
    elapsed: str
    exec_host: str = ""
    session: str = ""
    comment: str = ""
    start: str = ""


def short_list(lines: Iterable[JobLine], *, openpbs: bool, percent: bool = False) -> Iterator[str]:
    """Yield the list of a plain ``qstat``, titles first; nothing for no jobs."""
    first = True
    for line in lines:
        if first:
            first = False
            if openpbs:
                yield _OPENPBS_PERCENT_TITLES if percent else _OPENPBS_TITLES
            else:
                yield _TORQUE_TITLES
        yield _openpbs_short(line, percent=percent) if openpbs else _torque_short(line)


def _torque_short(line: JobLine) -> str:
    row = line.row
    job_id = line.job_id[:28] if len(line.job_id) > 22 else line.job_id
    return (
        f"{job_id:<25} {_torque_name(row.name):<16} {row.user[:15]:<15} {cpu_time(row)[:8]:>8} "
        f"{row.letter:>1} {row.queue[:15]:<15}\n"
    )


def _torque_name(name: str) -> str:
    """Return the end of a long name, behind a slash if there is one, as Torque cuts it."""
    if len(name) <= NAME_LENGTH:
        return name
    cut = len(name) - NAME_LENGTH + 3
    slash = name.find("/", cut)
    return "..." + name[slash if slash >= 0 else cut :][: NAME_LENGTH - 3]


def _openpbs_short(line: JobLine, *, percent: bool) -> str:
    row = line.row
    number, _, server = line.job_id.partition(".")
    job_id = f"{number}.{server.partition('.')[0]}"
    used = _percent(row) if percent else cpu_time(row)
    return (
        f"{job_id[:17]:<17} {row.name[:15]:<16} {row.user[:16]:<16}  {used[:8]:>8} "
        f"{state_letter(row.letter, finished_as_f=True)} {row.queue[:16]:<16}\n"
    )


def _percent(row: JobRow) -> str:
    """Return how much of its walltime a job has used, in percent."""
    if row.letter in "QWT" or not row.walltime_s or row.started_s is None:
        return "-- "
    return f"{int(100 * row.wall_s // row.walltime_s):3d} "


def long_list(
    lines: Sequence[JobLine], *, server: str, columns: Long, openpbs: bool
) -> Iterator[str]:
    """Yield the list of ``qstat -a``, ``-i``, ``-r``, ``-n``, ``-s``, ``-u`` and the like."""
    if not lines:
        return
    yield f"\n{server}: " + _long_titles(columns, openpbs=openpbs)
    for line in lines:
        shown = _openpbs_long(line, columns) if openpbs else _torque_long(line, columns)
        yield shown + (" " if columns.one_line and openpbs else "" if columns.one_line else "\n")
        if columns.nodes:
            yield from _hosts(line.exec_host or BLANK, 0 if columns.one_line else LINE_SIZE)
        if columns.comment:
            yield f"   {line.comment or BLANK}\n"
        if columns.one_line and not columns.nodes and not columns.comment:
            yield "\n"


def _long_titles(columns: Long, *, openpbs: bool) -> str:
    if not openpbs:
        return _TORQUE_SPACE_TITLES if columns.space else _TORQUE_LONG_TITLES
    if columns.wide:
        blank = " ".join(" " * width for width in _WIDE) + " "
        names = ("Job ID", "Username", "Queue", "Jobname", "SessID", "NDS", "TSK")
        titles = " ".join(f"{name:<{width}}" for name, width in zip(names, _WIDE, strict=True))
        dashes = " ".join("-" * width for width in _WIDE)
        above = f"{blank}               Est\n" if columns.start else ""
        last = "Start" if columns.start else "Elap"
        return (
            f"\n{above}{blank}Req'd  Req'd   {last}\n{titles} Memory Time  S Time\n"
            f"{dashes} ------ ----- - -----\n"
        )
    return _OPENPBS_START_TITLES if columns.start else _OPENPBS_LONG_TITLES


def _torque_long(line: JobLine, columns: Long) -> str:
    row = line.row
    walltime = format_duration(row.walltime_s) if row.walltime_s else BLANK
    runs = row.letter not in "QCH"
    elapsed = line.elapsed if runs and line.elapsed else BLANK
    head = f"{line.job_id[:22]:<23} {row.user[:11]:<11} {row.queue[:8]:<8} "
    nodes, tasks, memory = str(row.places)[:5], str(row.cpus)[:6], _memory(row, columns.unit)[:9]
    if columns.space:
        blanks = " ".join(f"{BLANK:>5}" for _ in range(3))
        return (
            f"{head}{nodes:>5} {tasks:>6} {memory:>9} {walltime[:9]:>9} {row.letter} "
            f"{elapsed[:9]:>9} {blanks}"
        )
    session = line.session[:6] or BLANK
    return (
        f"{head}{row.name[:16]:<16} {session:>6} {nodes:>5} {tasks:>6} {memory:>9} "
        f"{walltime[:9]:>9} {row.letter} {elapsed[:9]:>9}"
    )


def _openpbs_long(line: JobLine, columns: Long) -> str:
    row = line.row
    letter = state_letter(row.letter, finished_as_f=True)
    walltime = format_duration(row.walltime_s) if row.walltime_s else BLANK
    used = line.start if columns.start else line.elapsed
    used, memory = used or BLANK, _openpbs_memory(row, columns.unit)
    if columns.wide:
        widths = iter(_WIDE)
        texts = (line.job_id, row.user, row.queue, row.name)
        left = " ".join(f"{text[:width]:<{width}}" for text, width in zip(texts, widths))  # noqa: B905 - the other widths are of numbers
        numbers = (line.session or BLANK, str(row.places), str(row.cpus))
        right = " ".join(
            f"{text[:width]:>{width}}" for text, width in zip(numbers, _WIDE[4:], strict=True)
        )
        return f"{left} {right} {memory[:6]:>6} {walltime[:5]:>5} {letter} {used}"
    session = line.session[:6] or BLANK
    return (
        f"{line.job_id[:15]:<15} {row.user[:8]:<8} {row.queue[:8]:<8} {row.name[:10]:<10} "
        f"{session:>6} {str(row.places)[:3]:>3} {str(row.cpus)[:3]:>3} {memory[:6]:>6} "
        f"{walltime[:5]:>5} {letter} {used[:5]:>5}"
    )


def _memory(row: JobRow, unit: str) -> str:
    if not row.memory_bytes:
        return BLANK
    if unit == "gb":
        return f"{-(-row.memory_bytes // _GB)}gb"
    if unit == "mw":
        return f"{-(-row.memory_bytes // _MW)}mw"
    return exact_size(row.memory_bytes)


def _openpbs_memory(row: JobRow, unit: str) -> str:
    """Return a size of at most four digits, as ``cnv_size`` of OpenPBS rounds it."""
    if not row.memory_bytes:
        return BLANK
    if unit:
        return _memory(row, unit)
    number, letters = row.memory_bytes, "bkmgtp"
    for letter in letters:
        if number <= 9999:
            return f"{number}{letter}b" if letter != "b" else f"{number}b"
        number = (number + 1023) >> 10
    return f"{number}pb"


def _hosts(nodes: str, line_size: int) -> Iterator[str]:
    """Yield an allocation broken at +, domain names cut off, as ``prt_nodes`` does."""
    line = ""
    for index, word in enumerate(nodes.split("+")):
        host, slash, slot = word.partition("/")
        text = ("+" if index else "") + host.partition(".")[0] + slash + slot
        if line_size and len(line) + len(text) >= line_size:
            yield f"   {line}\n"
            line = ""
        line += text
    if line:
        yield f"   {line}\n"
