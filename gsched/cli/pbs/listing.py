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
from gsched.protocol.job_rows import JobRow

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
#: The lines of jobs; a number behind a point is that of the characters at which a text is cut.
_TORQUE: Final = "{id:<25.28} {name:<16} {user:<15.15} {used:>8.8} {letter} {queue:<15.15}\n"
_OPENPBS: Final = "{id:<17.17} {name:<16.15} {user:<16.16}  {used:>8.8} {letter} {queue:<16.16}\n"
_TORQUE_LONG: Final = (
    "{id:<23.22} {user:<11.11} {queue:<8.8} {name:<16.16} {session:>6.6} {nodes:>5.5} "
    "{tasks:>6.6} {memory:>9.9} {walltime:>9.9} {letter} {elapsed:>9.9}"
)
_TORQUE_SPACE: Final = (
    "{id:<23.22} {user:<11.11} {queue:<8.8} {nodes:>5.5} {tasks:>6.6} {memory:>9.9} "
    "{walltime:>9.9} {letter} {elapsed:>9.9}   --    --    -- "
)
_OPENPBS_LONG: Final = (
    "{id:<15.15} {user:<8.8} {queue:<8.8} {name:<10.10} {session:>6.6} {nodes:>3.3} "
    "{tasks:>3.3} {memory:>6.6} {walltime:>5.5} {letter} {elapsed:>5.5}"
)
_OPENPBS_WIDE: Final = (
    "{id:<30.30} {user:<15.15} {queue:<15.15} {name:<15.15} {session:>8.8} {nodes:>4.4} "
    "{tasks:>5.5} {memory:>6.6} {walltime:>5.5} {letter} {elapsed}"
)
_GB: Final = 1024**3
_MW: Final = 1024**2 * 8  # a PBS word has 8 bytes


class Long(NamedTuple):
    """What ``qstat -a`` and its kin are requested.

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
    titles, form = _TORQUE_TITLES, _TORQUE
    if openpbs:
        titles, form = _OPENPBS_PERCENT_TITLES if percent else _OPENPBS_TITLES, _OPENPBS
    for number, line in enumerate(lines):
        if not number:
            yield titles
        row = line.row
        if openpbs:
            server_number, _, server = line.job_id.partition(".")
            job_id, name = f"{server_number}.{server.partition('.')[0]}", row.name
        else:
            job_id, name = line.job_id, _torque_name(row.name)
        yield form.format(
            id=job_id,
            name=name,
            user=row.user,
            used=_percent(row) if percent else cpu_time(row),
            letter=state_letter(row.letter, finished_as_f=openpbs),
            queue=row.queue,
        )


def _torque_name(name: str) -> str:
    """Return the end of a long name, behind a slash if there is one, as Torque cuts it."""
    if len(name) <= NAME_LENGTH:
        return name
    cut = len(name) - NAME_LENGTH + 3
    slash = name.find("/", cut)
    return "..." + name[slash if slash >= 0 else cut :][: NAME_LENGTH - 3]


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
        shown = _long_line(line, columns, openpbs=openpbs)
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


def _long_line(line: JobLine, columns: Long, *, openpbs: bool) -> str:
    row = line.row
    if openpbs:
        form = _OPENPBS_WIDE if columns.wide else _OPENPBS_LONG
        elapsed = line.start if columns.start else line.elapsed
        memory = _openpbs_memory(row, columns.unit)
    else:
        form = _TORQUE_SPACE if columns.space else _TORQUE_LONG
        elapsed = "" if row.letter in "QCH" else line.elapsed
        memory = _memory(row, columns.unit)
    return form.format(
        id=line.job_id,
        user=row.user,
        queue=row.queue,
        name=row.name,
        session=line.session or BLANK,
        nodes=str(row.places),
        tasks=str(row.cpus),
        memory=memory,
        walltime=format_duration(row.walltime_s) if row.walltime_s else BLANK,
        letter=state_letter(row.letter, finished_as_f=openpbs),
        elapsed=elapsed or BLANK,
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
