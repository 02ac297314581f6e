"""What the commands of Slurm share: their options, ids, states and fields. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gsched.errors import UsageError
from gsched.model.states import JobState, OutcomeKind
from gsched.model.units import format_duration
from gsched.protocol.api import JobList, JobRow

_OUTCOMES: Final[Mapping[str, tuple[str, str]]] = {
    OutcomeKind.CANCELLED: ("CANCELLED", "CA"),
    OutcomeKind.WALLTIME: ("TIMEOUT", "TO"),
    OutcomeKind.OOM: ("OUT_OF_MEMORY", "OOM"),
    OutcomeKind.NODE_LOST: ("NODE_FAIL", "NF"),
    OutcomeKind.SUPERVISOR_LOST: ("NODE_FAIL", "NF"),
}
_STATES: Final[Mapping[str, tuple[str, str]]] = {
    JobState.RUNNING: ("RUNNING", "R"),
    JobState.MIGRATING: ("RUNNING", "R"),
    JobState.EXITING: ("COMPLETING", "CG"),
}


class Parsed(NamedTuple):
    """A command line: options by long name (flags have an empty value), and operands."""

    options: dict[str, str]
    operands: tuple[str, ...]


def parse(
    words: Sequence[str],
    *,
    flags: Mapping[str, str],
    valued: Mapping[str, str],
    operands_end_options: bool = False,
) -> Parsed:
    """Return what a command line says.

    Args:
        words: without the command's name.
        flags: long names of options without a value, by each name; likewise ``valued``.
        operands_end_options: the first operand ends the options, as of sbatch and srun.

    Raises:
        UsageError: an option is unknown, or lacks its value.
    """
    options: dict[str, str] = {}
    operands: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            operands += rest
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
            if operands_end_options:
                operands += rest
                break
            continue
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            name, equals, value = word[:2], word[2:3], word[2:]
            if name in flags and value:  # -hn: flags in one word
                rest.insert(0, f"-{value}")
                equals = value = ""
        if name in flags:
            options[flags[name]] = value if equals else ""
        elif name in valued:
            if not equals and not rest:
                raise UsageError(f"option {name} needs a value")
            options[valued[name]] = value if equals else rest.pop(0)
        else:
            raise UsageError(f"unknown option {name!r}", hint="see gsched-slurm(7)")
    return Parsed(options, tuple(operands))


def job_ids(texts: Sequence[str]) -> list[str]:
    """Return ids of ``12,13``, of the element ``12_3`` of an array, and of ``12.batch``.

    gsched has no steps, so a job stands for them.
    """
    words = [word for text in texts for word in text.split(",") if word]
    return [re.sub(r"_([0-9]+)$", r"[\1]", word.partition(".")[0]) for word in words]


def state_of(row: JobRow) -> tuple[str, str]:
    """Return Slurm's state of a job, long and short."""
    if row.state != JobState.DONE:
        return _STATES.get(row.state, ("PENDING", "PD"))
    if row.outcome is None:
        return "FAILED", "F"
    if row.outcome.kind == OutcomeKind.EXITED and row.outcome.exit_code == 0:
        return "COMPLETED", "CD"
    return _OUTCOMES.get(row.outcome.kind, ("FAILED", "F"))


def reason_of(row: JobRow) -> str:
    """Return Slurm's one word of why a job waits, or its nodes."""
    if row.state == JobState.HELD:
        return "(Dependency)" if "dependenc" in row.reason else "(JobHeldUser)"
    if row.state == JobState.WAITING:
        return "(BeginTime)"
    return "(Resources)" if row.state == JobState.QUEUED else ",".join(row.nodes)


def elapsed_of(row: JobRow, now_s: float) -> str:
    """Return ``1-02:03:04``, ``02:03:04`` or ``3:04`` as squeue does."""
    if row.started_s is None:
        return "0:00"
    whole = int(row.wall_s or max(0.0, (row.ended_s or now_s) - row.started_s))
    return slurm_duration(whole)


def slurm_duration(whole: int) -> str:
    """Return a time in Slurm's shortest form."""
    days, rest = divmod(whole, 86400)
    hours, minutes, seconds = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


Field = Callable[[JobRow, JobList], str]


def limit_of(row: JobRow) -> str:
    """Return a job's time limit."""
    return slurm_duration(int(row.walltime_s)) if row.walltime_s else "UNLIMITED"


#: squeue -o: titles and values by letter.
SQUEUE: Final[Mapping[str, tuple[str, Field]]] = {
    "a": ("ACCOUNT", lambda row, _: row.account or "(null)"),
    "A": ("JOBID", lambda row, _: str(row.id)),
    "C": ("CPUS", lambda row, _: str(row.cpus)),
    "D": ("NODES", lambda row, _: str(len(row.nodes) or row.places)),
    "i": ("JOBID", lambda row, _: str(row.id)),
    "F": ("ARRAY_JOB_ID", lambda row, _: str(row.id)),
    "j": ("NAME", lambda row, _: row.name),
    "l": ("TIME_LIMIT", lambda row, _: limit_of(row)),
    "M": ("TIME", lambda row, reply: elapsed_of(row, reply.now_s)),
    "N": ("NODELIST", lambda row, _: ",".join(row.nodes)),
    "P": ("PARTITION", lambda row, _: row.queue),
    "Q": ("PRIORITY", lambda row, _: str(row.priority)),
    "r": ("REASON", lambda row, _: reason_of(row).strip("()") if not row.nodes else "None"),
    "R": ("NODELIST(REASON)", lambda row, _: reason_of(row)),
    "t": ("ST", lambda row, _: state_of(row)[1]),
    "T": ("STATE", lambda row, _: state_of(row)[0]),
    "u": ("USER", lambda row, _: row.user),
}
#: sacct -o: values by name in lower case.
SACCT: Final[Mapping[str, tuple[str, Field]]] = {
    "account": ("Account", lambda row, _: row.account),
    "avecpu": (
        "AveCPU",
        lambda row, _: format_duration(row.cpu_s / max(1, len(row.nodes))),
    ),
    "averss": (
        "AveRSS",
        lambda row, _: kib(row.memory_mean_bytes // max(1, len(row.nodes))),
    ),
    "cputimeraw": ("CPUTimeRAW", lambda row, reply: str(round(_held_cpu_s(row, reply)))),
    "cputime": ("CPUTime", lambda row, reply: format_duration(_held_cpu_s(row, reply))),
    "maxrss": ("MaxRSS", lambda row, _: kib(row.memory_peak_bytes)),
    "maxvmsize": ("MaxVMSize", lambda row, _: kib(row.memory_peak_bytes)),
    "ncpus": ("NCPUS", lambda row, _: str(row.cpus)),
    "reqmem": ("ReqMem", lambda row, _: kib(row.memory_bytes)),
    "totalcpu": ("TotalCPU", lambda row, _: format_duration(row.cpu_s)),
    "alloccpus": ("AllocCPUS", lambda row, _: str(row.cpus)),
    "elapsed": (
        "Elapsed",
        lambda row, reply: format_duration(
            row.wall_s
            or (0.0 if row.started_s is None else (row.ended_s or reply.now_s) - row.started_s)
        ),
    ),
    "exitcode": ("ExitCode", lambda row, _: _exit_code(row)),
    "jobid": ("JobID", lambda row, _: str(row.id)),
    "jobidraw": ("JobIDRaw", lambda row, _: str(row.id)),
    "jobname": ("JobName", lambda row, _: row.name),
    "nodelist": ("NodeList", lambda row, _: ",".join(row.nodes) or "None assigned"),
    "partition": ("Partition", lambda row, _: row.queue),
    "state": ("State", lambda row, _: state_of(row)[0]),
    "user": ("User", lambda row, _: row.user),
}


def kib(size_bytes: int) -> str:
    """Return a size as Slurm's accounting has it: ``1024K``; empty for none."""
    return f"{-(-size_bytes // 1024)}K" if size_bytes else ""


def live_bytes(row: JobRow) -> int:
    """Return the memory that a running job uses."""
    return row.live.memory_bytes if row.live is not None else row.memory_mean_bytes


def _held_cpu_s(row: JobRow, reply: JobList) -> float:
    """Return for how long a job has had its CPUs, times their number: Slurm's CPUTime."""
    wall_s = row.wall_s
    if not wall_s and row.started_s is not None:
        wall_s = (row.ended_s or reply.now_s) - row.started_s
    return row.cpus * wall_s


def print_table(
    lines: Iterable[Sequence[str]], widths: Sequence[int], options: Mapping[str, str]
) -> None:
    """Print lines in columns or, with -p or -P, with bars between their fields."""
    for line in lines:
        if "parsable2" in options or "parsable" in options:
            print("|".join(line) + ("|" if "parsable" in options else ""))
        else:
            cells = zip(line, widths, strict=True)
            print(" ".join(f"{text[:width]:>{width}}" for text, width in cells) + " ")


def _exit_code(row: JobRow) -> str:
    if row.outcome is None:
        return "0:0"
    return f"{row.outcome.exit_code or 0}:{row.outcome.signal or 0}"


_SPEC: Final = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


def squeue_lines(reply: JobList, form: str, *, header: bool) -> Iterator[str]:
    """Yield the lines of a list in a format such as ``%.18i %.2t %R``.

    Raises:
        UsageError: an unknown letter.
    """
    for match in _SPEC.finditer(form):
        if match[3] not in SQUEUE:
            raise UsageError(f"-o: unknown field %{match[3]}", hint=f"valid: {', '.join(SQUEUE)}")

    def line(of: Callable[[str], str]) -> str:
        return _SPEC.sub(lambda match: _fitted(of(match[3]), match[2], match[1]), form) + "\n"

    if header:
        yield line(lambda letter: SQUEUE[letter][0])
    for row in reply.jobs:
        yield line(lambda letter, row=row: SQUEUE[letter][1](row, reply))  # type: ignore[misc]  # bound now, not later


def _fitted(text: str, width: str, right: str) -> str:
    if not width:
        return text
    size = int(width)
    return f"{text[:size]:>{size}}" if right else f"{text[:size]:<{size}}"
