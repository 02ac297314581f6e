"""What the commands of Slurm share: their options, ids, states and fields. Pure."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from gsched.cli.common import check_width
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.submit.slurm_options import NONE, REQUIRED, Option
from gsched.cli.submit.slurm_options import parse as getopt
from gsched.model.host_lists import compact
from gsched.model.ids import ELEMENT_BASE, array_of, index_of, job_file_suffix, short_job_id
from gsched.model.states import JobState, OutcomeKind
from gsched.protocol.api import JobList, JobRow, JobStory

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


#: States by which squeue is asked for jobs that have ended.
FINISHED_STATES: Final = frozenset(
    {
        "ALL",
        "COMPLETED",
        "CD",
        "FAILED",
        "F",
        *(each for pair in _OUTCOMES.values() for each in pair),
    }
)


_END_REASONS: Final[Mapping[str, str]] = {
    "FAILED": "NonZeroExitCode",
    "TIMEOUT": "TimeLimit",
    "OUT_OF_MEMORY": "OutOfMemory",
    "NODE_FAIL": "NodeDown",
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
        OptionError: an option is unknown, or lacks its value.
    """
    table = {name: Option(name, NONE) for name in flags}
    table |= {name: Option(name, REQUIRED) for name in valued}
    read = getopt(words, table, ends=operands_end_options)
    names = {**flags, **valued}
    return Parsed({names[name]: value for name, value in read.options}, read.operands)


def job_ids(texts: Sequence[str]) -> list[str]:
    """Return ids of ``12,13``, of the element ``12_3`` of an array, and of ``12.batch``.

    gsched has no steps, so a job stands for them. An element has a number of its own, too, which is
    its ``SLURM_JOB_ID``; ``12_[3-5]`` names several.
    """
    words = [word for text in texts for word in re.split(r",(?![^\[]*\])", text) if word]
    return [_job_id(word.partition(".")[0]) for word in words]


def _job_id(word: str) -> str:
    if word.isdecimal() and int(word) >= ELEMENT_BASE:
        return short_job_id(int(word))
    return re.sub(r"_(?:([0-9]+)|(\[[-0-9,:]+\]))$", lambda m: m[2] or f"[{m[1]}]", word)


def is_job_id(text: str) -> bool:
    """Return whether a text of `job_ids` has the form of a job's number."""
    return re.fullmatch(r"[0-9]{1,18}(\[[-0-9,:]*\])?", text) is not None


def slurm_name(text: str) -> str:
    """Return an id of `job_ids` as Slurm writes it: ``12_3`` for ``12[3]``."""
    return re.sub(r"\[([0-9]+)\]", r"_\1", text.partition(".")[0])


def slurm_id(row: JobRow) -> str:
    """Return ``12``, ``12_3``: an element, ``12_[4-9]``: those that wait or never started."""
    if row.array is not None and (row.state != JobState.DONE or row.array.unstarted):
        return f"{row.id}_[{row.array.left or row.array.indices}]"
    array = array_of(row.id)
    return f"{array}_{index_of(row.id)}" if array else str(row.id)


def number_of(row: JobRow) -> int:
    """Return the number that a job has in Slurm's commands, its ``SLURM_JOB_ID``."""
    return row.short_number or row.id


def array_id(row: JobRow) -> str:
    """Return the number of the array of an element, else of the job itself."""
    return str(array_of(row.id) or row.id)


def task_id(row: JobRow) -> str:
    """Return the index of an element, those of the waiting elements of an array, or ``N/A``."""
    if row.array is not None:
        return row.array.left or row.array.indices
    return str(index_of(row.id)) if array_of(row.id) else "N/A"


#: All states, as an error lists them.
ALL_STATES: Final = (
    "PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,"
    "DEADLINE,OUT_OF_MEMORY,COMPLETING,CONFIGURING,RESIZING,RESV_DEL_HOLD,REQUEUED,REQUEUE_FED,"
    "REQUEUE_HOLD,REVOKED,SIGNALING,SPECIAL_EXIT,STAGE_OUT,STOPPED"
)
_SHORT_STATES: Final = (
    *("PD", "R", "S", "CD", "CA", "F", "TO", "NF", "PR", "BF", "DL", "OOM", "CG", "CF", "RS"),
    *("RD", "RQ", "RF", "RH", "RV", "SI", "SE", "SO", "ST"),
)
_KNOWN_STATES: Final = frozenset({"ALL", *ALL_STATES.split(","), *_SHORT_STATES})


def read_states(text: str) -> frozenset[str]:
    """Return the states that a list names, in capitals; empty: all.

    Raises:
        SlurmError: Slurm has no such state.
    """
    names = [each.strip().upper() for each in text.split(",") if each.strip()]
    for name, stated in zip(names, filter(str.strip, text.split(",")), strict=True):
        if name not in _KNOWN_STATES:
            raise SlurmError(
                f"Invalid job state specified: {stated.strip()}\n"
                f"Valid job states include: {ALL_STATES}"
            )
    return frozenset(names) - {"ALL"}


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
        return "(BeginTime)" if row.next_try_s is None else "(JobLaunchFailure)"
    return "(Resources)" if row.state == JobState.QUEUED else compact(row.nodes)


def reason_word(row: JobRow) -> str:
    """Return the reason alone: why a job waits or has failed; ``None`` of others."""
    if row.state == JobState.DONE:
        return _END_REASONS.get(state_of(row)[0], "None")
    waits = not row.nodes
    return reason_of(row).strip("()") if waits else "None"


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


def slurm_time(at_s: float | None, *, none: str = "N/A") -> str:
    """Return ``2026-11-23T14:20:00`` in local time."""
    return none if at_s is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _end_time(row: JobRow) -> str:
    started_s = row.started_s
    return slurm_time(started_s + row.walltime_s if started_s and row.walltime_s else None)


def elapsed_s(row: JobRow, now_s: float) -> float:
    """Return for how many seconds a job has run so far."""
    if row.started_s is None:
        return 0.0
    return row.wall_s or max(0.0, (row.ended_s or now_s) - row.started_s)


def _left_of(row: JobRow, now_s: float) -> str:
    if not row.walltime_s:
        return "UNLIMITED"
    return slurm_duration(int(max(0.0, row.walltime_s - elapsed_s(row, now_s))))


def _dependency(row: JobRow) -> str:
    waits = "waits for its dependencies: "
    return row.reason.removeprefix(waits) if row.reason.startswith(waits) else "(null)"


Field = Callable[[JobRow, JobList], str]


def limit_of(row: JobRow) -> str:
    """Return a job's time limit."""
    return slurm_duration(int(row.walltime_s)) if row.walltime_s else "UNLIMITED"


#: squeue -o: titles and values by letter.
SQUEUE: Final[Mapping[str, tuple[str, Field]]] = {
    "a": ("ACCOUNT", lambda row, _: row.account or "(null)"),
    "A": ("JOBID", lambda row, _: str(number_of(row))),
    "C": ("CPUS", lambda row, _: str(row.cpus)),
    "D": ("NODES", lambda row, _: str(len(row.nodes) or row.places)),
    "b": ("TRES_PER_NODE", lambda row, _: f"gres/gpu:{row.gpus}" if row.gpus else "N/A"),
    "e": ("END_TIME", lambda row, _: _end_time(row)),
    "E": ("DEPENDENCY", lambda row, _: _dependency(row)),
    "F": ("ARRAY_JOB_ID", lambda row, _: array_id(row)),
    "i": ("JOBID", lambda row, _: slurm_id(row)),
    "K": ("ARRAY_TASK_ID", lambda row, _: task_id(row)),
    "L": ("TIME_LEFT", lambda row, reply: _left_of(row, reply.now_s)),
    "m": ("MIN_MEMORY", lambda row, _: f"{row.memory_bytes >> 20}M" if row.memory_bytes else "0"),
    "n": ("REQ_NODES", lambda _row, _: ""),
    "q": ("QOS", lambda _row, _: "normal"),
    "S": ("START_TIME", lambda row, _: slurm_time(row.started_s or row.predicted_start_s)),
    "B": ("EXEC_HOST", lambda row, _: row.nodes[0] if row.nodes else "n/a"),
    "Y": ("SCHEDNODES", lambda _row, _: "(null)"),
    "V": ("SUBMIT_TIME", lambda row, _: slurm_time(row.submitted_s)),
    "j": ("NAME", lambda row, _: row.name),
    "l": ("TIME_LIMIT", lambda row, _: limit_of(row)),
    "M": ("TIME", lambda row, reply: elapsed_of(row, reply.now_s)),
    "N": ("NODELIST", lambda row, _: compact(row.nodes)),
    "P": ("PARTITION", lambda row, _: row.queue),
    "Q": ("PRIORITY", lambda row, _: str(row.priority)),
    "r": ("REASON", lambda row, _: reason_word(row)),
    "R": ("NODELIST(REASON)", lambda row, _: reason_of(row)),
    "t": ("ST", lambda row, _: state_of(row)[1]),
    "T": ("STATE", lambda row, _: state_of(row)[0]),
    "u": ("USER", lambda row, _: row.user),
}


def kib(size_bytes: int) -> str:
    """Return a size as Slurm's accounting has it: ``1024K``; empty for none."""
    return f"{-(-size_bytes // 1024)}K" if size_bytes else ""


def live_bytes(row: JobRow) -> int:
    """Return the memory that a running job uses."""
    return row.live.memory_bytes if row.live is not None else row.memory_mean_bytes


def exit_code(row: JobRow) -> str:
    """Return ``CODE:SIGNAL``; ``0:125`` of a job that was killed for memory, as Slurm has it."""
    if row.outcome is None:
        return "0:0"
    if row.outcome.kind == OutcomeKind.OOM:
        return "0:125"
    return f"{row.outcome.exit_code or 0}:{row.outcome.signal or 0}"


_NONE: Final[Mapping[int, str]] = {}
SPEC: Final = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


def squeue_lines(
    reply: JobList, form: str, *, header: bool, directories: Mapping[int, str] = _NONE
) -> Iterator[str]:
    """Yield the lines of a list in a format such as ``%.18i %.2t %R``.

    Args:
        reply: the jobs.
        form: the format.
        header: whether the titles come first.
        directories: where jobs start, by number, for ``%Z``.

    Raises:
        SlurmError: an unknown letter.
    """
    for match in SPEC.finditer(form):
        if match[3] not in SQUEUE and match[3] != "Z":
            raise SlurmError(f"Invalid job format specification: {match[3]}")

    def line(of: Callable[[str], str]) -> str:
        return SPEC.sub(lambda match: fitted(of(match[3]), match[2], match[1]), form) + "\n"

    if header:
        yield line(lambda letter: SQUEUE[letter][0] if letter != "Z" else "WORK_DIR")
    for row in reply.jobs:
        yield line(partial(_value, row=row, reply=reply, place=directories.get(row.id, "")))


def _value(letter: str, *, row: JobRow, reply: JobList, place: str) -> str:
    return SQUEUE[letter][1](row, reply) if letter != "Z" else place


def asks_for_directories(form: str) -> bool:
    """Return whether a format of squeue has ``%Z``, which the list of jobs does not tell."""
    return any(match[3] == "Z" for match in SPEC.finditer(form))


#: Names of squeue -O and their letters.
LONG_NAMES: Final[Mapping[str, str]] = {
    "account": "a",
    "arrayjobid": "F",
    "arraytaskid": "K",
    "dependency": "E",
    "endtime": "e",
    "jobarrayid": "i",
    "jobid": "A",
    "minmemory": "m",
    "name": "j",
    "nodelist": "N",
    "numcpus": "C",
    "numnodes": "D",
    "partition": "P",
    "prioritylong": "Q",
    "qos": "q",
    "reason": "r",
    "reasonlist": "R",
    "starttime": "S",
    "state": "T",
    "statecompact": "t",
    "submittime": "V",
    "timeleft": "L",
    "timelimit": "l",
    "timeused": "M",
    "username": "u",
}


def long_form(text: str) -> str:
    """Return the format of ``-o`` that ``-O JobID:12,State`` means; 20 characters each.

    Raises:
        SlurmError: an unknown name.
    """
    parts = []
    for word in filter(None, text.split(",")):
        name, _, width = word.partition(":")
        letter = LONG_NAMES.get(name.lower())
        if letter is None:
            raise SlurmError(f"Invalid job format specification: {name}")
        check_width(width, "-O")
        size = width.strip(".-")
        right = "." if width.startswith(".") else ""
        parts.append(f"%{right}{size if size.isdecimal() else 20}{letter}")
    return "".join(parts)


def squeue_json(reply: JobList) -> dict[str, object]:
    """Return the document of ``squeue --json``, in the names of Slurm."""
    return {
        "jobs": [
            {
                "job_id": number_of(row),
                "array_job_id": _number(array_of(row.id) or (row.id if row.array else 0)),
                "array_task_id": _number(index_of(row.id) if array_of(row.id) else None),
                "array_task_string": task_id(row) if row.array is not None else "",
                "name": row.name,
                "user_name": row.user,
                "account": row.account,
                "partition": row.queue,
                "job_state": [state_of(row)[0]],
                "state_reason": reason_word(row),
                "nodes": compact(row.nodes),
                "cpus": _number(row.cpus),
                "node_count": _number(len(row.nodes) or row.places),
                "priority": _number(row.priority),
                "submit_time": _number(int(row.submitted_s)),
                "start_time": _number(int(row.started_s or row.predicted_start_s or 0)),
                "end_time": _number(int(row.ended_s or 0)),
                "time_limit": _number(int(row.walltime_s // 60) if row.walltime_s else None),
            }
            for row in reply.jobs
        ],
        "last_update": _number(int(reply.now_s)),
        "errors": [],
        "warnings": [],
    }


def _number(value: int | None) -> dict[str, object]:
    """Return a number as Slurm's JSON has it."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def output_path(story: JobStory, stream: str) -> str:
    """Return the file of a job's stdout (``o``) or stderr (``e``), as its node names it."""
    row = story.row
    joined = story.join == ("oe" if stream == "e" else "eo")
    use_out = (stream == "o") != joined
    path = story.stdout_path if use_out else story.stderr_path
    name = row.name.replace("/", "_")
    if not path or path.endswith("/"):
        base = path or f"{story.workdir.rstrip('/')}/"
        return f"{base}{name}.{'o' if use_out else 'e'}{job_file_suffix(row.id)}"
    index = str(index_of(row.id)) if array_of(row.id) else "0"
    values = {
        "GSCHED_JOB_NUMBER": str(row.short_number or job_file_suffix(row.id)),
        "GSCHED_ARRAY_NUMBER": array_id(row),
        "GSCHED_ARRAY_INDEX": index,
        "PBS_JOBNAME": name,
        "USER": row.user,
    }
    for variable, value in values.items():
        path = path.replace(f"${{{variable}}}", value).replace(f"${variable}", value)
    return path


def table_lines(
    rows: Iterable[Mapping[str, str]], form: str, titles: Mapping[str, str], *, header: bool
) -> Iterator[str]:
    """Yield lines in a format such as ``%9P %.5a %N``, whose letters are all known."""
    for row in ([titles] if header else []) + list(rows):
        yield SPEC.sub(lambda m, row=row: fitted(row[m[3]], m[2], m[1]), form)  # type: ignore[misc]  # bound now


def slurm_days(seconds: float) -> str:
    """Return ``[D-]HH:MM:SS``."""
    days, rest = divmod(int(seconds), 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def fitted(text: str, width: str, right: str) -> str:
    """Return a text in the columns of a format's field; ``.`` puts it to the right."""
    if not width:
        return text
    check_width(width, "-o")
    size = int(width)
    return f"{text[:size]:>{size}}" if right else f"{text[:size]:<{size}}"
