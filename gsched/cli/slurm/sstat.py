"""sstat: what running jobs use at the moment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gsched.cli.common import check_width
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.sacct import print_table
from gsched.client import Head
from gsched.model.host_lists import compact
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.protocol.api import JobRow

_DEFAULT: Final = "JobID,NTasks,AveCPU,AveRSS,MaxRSS,MaxVMSize"


def _tres(row: JobRow) -> str:
    """Return what a job uses in Slurm's form: ``cpu=00:01:00,mem=10K,gres/gpuutil=85``."""
    words = [f"cpu={format_duration(row.cpu_s)}", f"mem={w.kib(w.live_bytes(row))}"]
    if row.live is not None and row.live.gpus_held:
        words.append(f"gres/gpumem={w.kib(row.live.gpu_memory_bytes)}")
        words.append(f"gres/gpuutil={100.0 * row.live.gpus:.0f}")
    return ",".join(words)


#: Titles and values by name in lower case. There is one step: the batch script.
FIELDS: Final[Mapping[str, tuple[str, Callable[[JobRow], str]]]] = {
    "jobid": ("JobID", lambda row: f"{row.id}.batch"),
    "ntasks": ("NTasks", lambda row: str(max(1, len(row.nodes)))),
    "nodelist": ("Nodelist", lambda row: compact(row.nodes)),
    "avecpu": ("AveCPU", lambda row: format_duration(row.cpu_s / max(1, len(row.nodes)))),
    "mincpu": ("MinCPU", lambda row: format_duration(row.cpu_s / max(1, len(row.nodes)))),
    "averss": ("AveRSS", lambda row: w.kib(w.live_bytes(row) // max(1, len(row.nodes)))),
    "maxrss": ("MaxRSS", lambda row: w.kib(row.memory_peak_bytes)),
    "avevmsize": ("AveVMSize", lambda row: w.kib(w.live_bytes(row) // max(1, len(row.nodes)))),
    "maxvmsize": ("MaxVMSize", lambda row: w.kib(row.memory_peak_bytes)),
    "tresusageintot": ("TRESUsageInTot", _tres),
}


def sstat(words: Sequence[str]) -> int:
    """Print what running jobs use."""
    flags = {
        **dict.fromkeys(("-a", "--allsteps"), "allsteps"),
        **dict.fromkeys(("-n", "--noheader"), "noheader"),
        **dict.fromkeys(("-p", "--parsable"), "parsable"),
        **dict.fromkeys(("-P", "--parsable2"), "parsable2"),
    }
    valued = {
        **dict.fromkeys(("-j", "--jobs"), "jobs"),
        **dict.fromkeys(("-o", "--format", "--fields"), "format"),
    }
    options, operands = w.parse(words, flags=flags, valued=valued)
    named = [word.partition(".")[0] for each in [options.get("jobs", ""), *operands]
             for word in each.split(",") if word]  # fmt: skip
    if not named:
        raise SlurmError("You didn't give me any jobs to stat.")
    fields = [_field(name) for name in options.get("format", _DEFAULT).split(",") if name]
    reply = Head().jobs(w.job_ids(named))
    rows = [row for row in reply.jobs if row.started_s is not None and row.state != JobState.DONE]
    if not rows:
        raise SlurmError("\n".join(f"No steps running for job {each}" for each in named))
    lines = [] if "noheader" in options else [[title for title, _, _ in fields]]
    lines += [[read(row) for _, read, _ in fields] for row in rows]
    print_table(lines, [width for _, _, width in fields], options)
    return 0


def _field(text: str) -> tuple[str, Callable[[JobRow], str], int]:
    name, _, width = text.partition("%")
    field = FIELDS.get(name.lower())
    if field is None:
        raise SlurmError(f'Invalid field requested: "{name}"')
    check_width(width, "--format")
    size = width.strip("-")
    return (*field, int(size) if size.isdecimal() else 10)
