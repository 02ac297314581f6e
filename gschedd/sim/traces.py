"""Reading traces: the Standard Workload Format, gsched's own CSV and JSONL, and the Philly log.

A line that cannot be read is reported with file and line and counted, and reading goes on.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct, field, structs

from gsched.errors import UsageError
from gschedd.sim.workload import TraceJob

MAX_SHOWN: Final = 20  # malformed lines that are kept in words; all are counted
SWF_FIELDS: Final = 18
SWF_CANCELLED: Final = 5  # status of a job that was cancelled; before its start if it never ran
KIB: Final = 1024
#: No trace is about more: beyond, a number is a mistake, and time would pass for ever.
MAX_S: Final = 1e10
MAX_COUNT: Final = 10**6
MAX_BYTES: Final = 2**60

Lines = Iterable[tuple[int, str]]


class Fault(Struct, frozen=True, kw_only=True):
    """A line that cannot be read."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Trace(Struct, kw_only=True):
    """What a file holds.

    Attributes:
        jobs: in order of submission; the first is submitted at 0.
        faults: the first malformed lines.
        malformed: how many there are.
        skipped: jobs left out on purpose, by reason.
    """

    path: str
    form: str
    jobs: list[TraceJob] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    malformed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def complain(self, line: int, message: str) -> None:
        """Note a malformed line."""
        self.malformed += 1
        if len(self.faults) < MAX_SHOWN:
            self.faults.append(Fault(path=self.path, line=line, message=message))

    def skip(self, reason: str, jobs: int = 1) -> None:
        """Note jobs that are left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + jobs


def read_trace(path: str, *, form: str = "", limit: int | None = None) -> Trace:
    """Read a trace.

    Args:
        path: of the file; ``.gz`` is unpacked.
        form: one of `FORMS`; empty: by the file's suffix and its first line.
        limit: keep only the first jobs.

    Raises:
        UsageError: the file cannot be read, its form is not known, or no line of it holds a job.
    """
    text = _text(path)
    form = form or _form_of(path, text)
    if form not in FORMS:
        raise UsageError(
            f"trace format {form!r} is not known", hint=f"known are: {', '.join(FORMS)}"
        )
    trace = Trace(path=path, form=form)
    FORMS[form](trace, enumerate(io.StringIO(text, newline=None), 1))
    if not trace.jobs:
        about = f": {trace.faults[0]}" if trace.faults else ""
        raise UsageError(
            f"trace {path} holds no job that could be replayed{about}",
            hint=f"it was read as {form}; say --format for another: {', '.join(FORMS)}",
        )
    trace.jobs.sort(key=lambda job: job.submit_s)
    if limit is not None:
        del trace.jobs[limit:]
    begin_s = trace.jobs[0].submit_s
    if begin_s:
        trace.jobs = [structs.replace(job, submit_s=job.submit_s - begin_s) for job in trace.jobs]
    return trace


def _text(path: str) -> str:
    try:
        data = Path(path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise UsageError(f"trace {path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(
            f"trace {path} cannot be unpacked: {error}", hint="its name ends in .gz: is it gzip?"
        ) from error
    except OSError as error:
        raise UsageError(f"trace {path} cannot be read: {error.strerror}") from error
    return data.decode("utf-8", "replace")


def _form_of(path: str, text: str) -> str:
    name = path.removesuffix(".gz")
    first = text.partition("\n")[0]
    if name.endswith(".swf") or first.startswith(";"):
        return "swf"
    if name.endswith((".jsonl", ".ndjson")) or first.startswith("{"):
        return "jsonl"
    return "philly" if "gpu_time" in first else "csv"


# --- the Standard Workload Format ---


def _read_swf(trace: Trace, lines: Lines) -> None:
    """Read the archive's format.

    Source:
        Chapin et al., Benchmarks and standards for the evaluation of parallel job schedulers,
        JSSPP 1999; fields as at the Parallel Workloads Archive, version 2.2.
    """
    for number, line in lines:
        words = line.split()
        if not words or words[0].startswith(";"):
            continue
        if len(words) != SWF_FIELDS:
            trace.complain(number, f"{len(words)} fields instead of {SWF_FIELDS}")
            continue
        try:
            values = [float(word) for word in words]
        except ValueError as error:
            trace.complain(number, f"{error}")
            continue
        if not all(map(math.isfinite, values)):
            trace.complain(number, "a field is not a finite number")
            continue
        _swf_job(trace, number, values)


def _swf_job(trace: Trace, number: int, values: list[float]) -> None:
    submit_s, run_s = values[1], values[3]
    used, requested = int(values[4]), int(values[7])
    processors = requested if requested > 0 else used
    if run_s < 0 or (run_s == 0 and int(values[10]) == SWF_CANCELLED):
        trace.skip("cancelled before it ran, or its run time is not known")
    elif processors <= 0:
        trace.skip("its processors are not known")
    else:
        memory_kib = max(values[9], 0.0)
        used_kib = values[6] if values[6] > 0 else memory_kib
        cpu_s = values[5]
        job = TraceJob(
            submit_s=submit_s,
            duration_s=run_s,
            user=f"user{int(values[11])}",
            kind=f"application{int(values[13])}" if values[13] > 0 else "",
            cpus=processors,
            walltime_s=values[8] if values[8] > 0 else None,
            memory_bytes=int(memory_kib * KIB) * processors,
            memory_used_bytes=int(used_kib * KIB) * processors,
            cpus_used=processors * min(1.0, cpu_s / run_s) if cpu_s > 0 and run_s else None,
        )
        _keep(trace, number, job)


# --- gsched's own ---


def _read_jsonl(trace: Trace, lines: Lines) -> None:
    decoder = msgspec.json.Decoder(TraceJob)
    for number, line in lines:
        if not line.strip():
            continue
        try:
            _keep(trace, number, decoder.decode(line))
        except msgspec.DecodeError as error:
            trace.complain(number, f"{error}")


def _read_csv(trace: Trace, lines: Lines) -> None:
    for number, row in _rows(trace, lines):
        try:
            values = {name: _value(name, value) for name, value in row.items() if value != ""}
            _keep(trace, number, msgspec.convert(values, TraceJob, strict=False))
        except msgspec.ValidationError as error:
            trace.complain(number, f"{error}")


def _value(name: str, text: str) -> object:
    """Return a field of a line; ``0:0.9 3600:0`` of ``gpu_uses`` are pairs."""
    return [pair.split(":") for pair in text.split()] if name == "gpu_uses" else text


def _keep(trace: Trace, number: int, job: TraceJob) -> None:
    fault = _fault_of(job)
    if fault:
        trace.complain(number, fault)
    else:
        trace.jobs.append(job)


def _fault_of(job: TraceJob) -> str:
    """Return what cannot be about a job, or the empty string."""
    limits: tuple[tuple[str, float | None, float, float], ...] = (
        ("submit_s", job.submit_s, 0, MAX_S),
        ("duration_s", job.duration_s, 0, MAX_S),
        ("cpus", job.cpus, 1, MAX_COUNT),
        ("gpus", job.gpus, 0, MAX_COUNT),
        ("nodes", job.nodes, 0, MAX_COUNT),
        ("memory_bytes", job.memory_bytes, 0, MAX_BYTES),
        ("cpus_used", job.cpus_used, 0, MAX_COUNT),
        ("memory_used_bytes", job.memory_used_bytes, 0, MAX_BYTES),
        ("deadline_s", job.deadline_s, 0, MAX_S),
        ("exit_code", job.exit_code, 0, 255),
    )
    for name, value, least, most in limits:
        if value is not None and not least <= value <= most:
            return f"{name} is {value}: it can be {least} to {most:g}"
    if job.walltime_s is not None and not 0 < job.walltime_s <= MAX_S:
        return f"walltime_s is {job.walltime_s}: above 0, to {MAX_S:g}"
    if any(not 0 <= at_s <= MAX_S or not 0 <= use <= 1 for at_s, use in job.gpu_uses):
        return "gpu_uses has pairs of a second, from 0 on, and a part of the time, 0 to 1"
    if [at_s for at_s, _ in job.gpu_uses] != sorted({at_s for at_s, _ in job.gpu_uses}):
        return "the seconds of gpu_uses do not grow"
    return _behaviour_fault(job)


def _behaviour_fault(job: TraceJob) -> str:
    """Return what cannot be about an adaptive training job, or the empty string."""
    behaviour = job.behaviour
    if (job.adaptive is None) != (behaviour is None):
        return (
            "adaptive and behaviour go together: the former is what the user requests, the latter "
            "how fast the job is on its GPUs"
        )
    if behaviour is None:
        return ""
    ends = [end for end, _ in behaviour.noise_scales]
    if not behaviour.models:
        return 'behaviour has no models: name one for each GPU type, or one for all as ""'
    if not 0 < behaviour.work <= MAX_S or not 1 <= behaviour.batch <= MAX_COUNT:
        return f"behaviour: work must be above 0, to {MAX_S:g}, and batch from 1 to {MAX_COUNT}"
    if not ends or ends[0] <= 0 or any(b <= a for a, b in pairwise(ends)):
        return "behaviour.noise_scales must be pairs whose first numbers ascend from above 0"
    return ""


def _rows(trace: Trace, lines: Lines) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file by the names of its first line; blank lines are passed over."""
    header: list[str] = []
    for number, line in lines:
        if not line.strip():
            continue
        try:
            values = next(csv.reader([line]))
        except csv.Error as error:
            trace.complain(number, f"{error}")
            continue
        if not header:
            header = [value.strip() for value in values]
        elif len(values) != len(header):
            trace.complain(number, f"{len(values)} fields instead of {len(header)}")
        else:
            yield number, dict(zip(header, (value.strip() for value in values), strict=True))


# --- others ---


def _read_philly(trace: Trace, lines: Lines) -> None:
    """Read the log of Microsoft's Philly clusters as published with Sia: GPU jobs without limits.

    Its virtual clusters stand for the users.

    Source:
        Jeon et al., Analysis of large-scale multi-tenant GPU clusters for DNN training workloads,
        USENIX ATC 2019.
    """
    for number, row in _rows(trace, lines):
        try:
            submitted = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
            gpus = int(row["num_gpus"])
            duration_s = float(row["duration"])
        except (KeyError, ValueError) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else str(error)
            trace.complain(number, what)
            continue
        job = TraceJob(
            submit_s=submitted.timestamp(),
            duration_s=duration_s,
            user=row.get("cluster", "") or "user",
            cpus=gpus,
            gpus=gpus,
        )
        _keep(trace, number, job)


FORMS: Final[Mapping[str, Callable[[Trace, Lines], None]]] = MappingProxyType(
    {"swf": _read_swf, "csv": _read_csv, "jsonl": _read_jsonl, "philly": _read_philly}
)
