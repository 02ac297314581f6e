"""What the commands of Slurm share: their options, ids, states and fields. Pure."""

import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gsched.cli.slurm.errors import SlurmError
from gsched.model.host_lists import compact
from gsched.model.ids import ELEMENT_BASE, array_of, index_of, job_file_suffix, short_job_id
from gsched.model.states import JobState, OutcomeKind
from gsched.protocol.job_rows import JobList, JobRow, JobStory

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


#: States that make squeue list jobs that have ended.
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


#: Slurm's reason of a job that waits, by how its short reason begins, in order.
_WAITS: Final = (
    ("held by user and ", "JobHeldAdmin"),
    ("held by user", "JobHeldUser"),
    ("held by ", "JobHeldAdmin"),
    ("held after ", "JobHoldMaxRequeue"),
    ("behind ", "Priority"),
    ("would delay ", "Priority"),
    ("limit ", "JobArrayTaskLimit"),
    ("queue stopped", "PartitionDown"),
)
#: Reasons for limits by what they count: of each user, and of all jobs of a queue or project.
_LIMITS: Final = (
    ("running jobs", ("QOSMaxJobsPerUserLimit", "QOSGrpJobsLimit")),
    ("CPUs", ("QOSMaxCpuPerUserLimit", "QOSGrpCpuLimit")),
    ("GPU-hours", ("AssocGrpGRESRunMinutes", "AssocGrpGRESRunMinutes")),
    ("GPUs", ("QOSMaxGRESPerUser", "QOSGrpGRES")),
    ("memory", ("QOSMaxMemoryPerUser", "QOSGrpMemLimit")),
)
_END_REASONS: Final[Mapping[str, str]] = {
    "FAILED": "NonZeroExitCode",
    "TIMEOUT": "TimeLimit",
    "OUT_OF_MEMORY": "OutOfMemory",
    "NODE_FAIL": "NodeDown",
}


#: A field of a format of squeue or sinfo: a point for the right side, the width, and the letter.
SPEC: Final = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


class ParsedCommand(NamedTuple):
    """A command line: options by long name (flags have an empty value), and operands."""

    options: dict[str, str]
    operands: tuple[str, ...]


def own_name() -> str:
    """Return the name of the user."""
    return pwd.getpwuid(os.getuid()).pw_name


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
        is_dependent = "dependenc" in row.reason
        return f"({'Dependency' if is_dependent else _wait_word(row, 'JobHeldUser')})"
    if row.state == JobState.WAITING:
        return "(BeginTime)" if row.next_try_s is None else "(JobLaunchFailure)"
    if row.state != JobState.QUEUED:
        return compact(row.nodes)
    return f"({_wait_word(row, 'Resources')})"


def _wait_word(row: JobRow, other: str) -> str:
    if row.short_reason.startswith("limit: "):
        words = next((words for noun, words in _LIMITS if noun in row.short_reason), ("", ""))
        of_each = "the limit of each user" in row.reason or "the limit of user " in row.reason
        return words[not of_each] or other
    return next((word for start, word in _WAITS if row.short_reason.startswith(start)), other)


def reason_word(row: JobRow) -> str:
    """Return the reason alone: why a job waits or has failed; ``None`` of others."""
    if row.state == JobState.DONE:
        return _END_REASONS.get(state_of(row)[0], "None")
    waits = not row.nodes
    return reason_of(row).strip("()") if waits else "None"


def elapsed_s(row: JobRow, now_s: float) -> float:
    """Return for how many seconds a job has run so far; 0: it waits."""
    if row.started_s is None:
        return 0.0
    return row.wall_s or max(0.0, (row.ended_s or now_s) - row.started_s)


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


def slurm_days(seconds: float) -> str:
    """Return ``[D-]HH:MM:SS``."""
    days, rest = divmod(int(seconds), 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def qos_of(row: JobRow) -> str:
    """Return the QOS of a job; one without any has Slurm's usual one."""
    return row.qos or "normal"


def fitted(text: str, width: int, *, right: bool = False, mark: str = "") -> str:
    """Return a text in a column: cut or filled up with blanks.

    Args:
        text: of the cell.
        width: of the column (characters); 0: as wide as the text.
        right: the text is aligned to the right.
        mark: the end of a text that is cut.
    """
    if not width:
        return text
    if len(text) > width:
        text = text[: width - len(mark)] + mark
    return f"{text:>{width}}" if right else f"{text:<{width}}"
