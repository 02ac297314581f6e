"""What a job requested beside what it used, and what to request next time. Pure.

The advice rests on the job and on past runs of the same user and name that succeeded: the largest
use of any of them, with some reserve. The reserves are rules of thumb: a peak that is a fifth
higher, a run that takes a quarter longer.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from gsched.cli.times import format_time
from gsched.model.resources import MEASURED_LEAST_S
from gsched.model.states import JobState, OutcomeKind
from gsched.model.units import exact_size, format_duration, format_gpu_hours, format_size
from gsched.model.wording import counted, outcome_words
from gsched.protocol.job_rows import JobRow, JobStory, ShareRow

MEMORY_RESERVE: Final = 1.2
WALLTIME_RESERVE: Final = 1.25
AFTER_LIMIT: Final = 1.5  # of a limit that the job has hit
_MB: Final = 1024**2
_IDLE_PERCENT: Final = 5.0  # below it a GPU did nothing but hold memory


class MeasuredUse(Struct, frozen=True, kw_only=True):
    """What one job used: means over its run, and peaks; 0 where nothing was measured.

    Attributes:
        cpu_cores: busy on average.
        cpu_peak_cores: busy at most.
        gpu_percent: mean utilisation of its GPUs.
        gpu_idle_s: for how long they were idle, added up, in GPU-seconds.
        wall_s: for how long it ran; of an array the mean of its elements.
        wall_max_s: of an array the longest of its elements.
        elements: of an array that have run.
    """

    wall_s: float = 0.0
    wall_max_s: float = 0.0
    elements: int = 0
    cpu_s: float = 0.0
    cpu_cores: float = 0.0
    cpu_peak_cores: float = 0.0
    memory_peak_bytes: int = 0
    gpu_percent: float = 0.0
    gpu_idle_s: float = 0.0
    gpu_memory_peak_bytes: int = 0
    sampled: bool = False


class Advice(Struct, frozen=True, kw_only=True):
    """What to request next time; None or 0: nothing can be said.

    Attributes:
        runs: on how many past runs it rests, the job included.
        remarks: sentences for people.
    """

    cpus: int = 0
    memory_bytes: int = 0
    walltime_s: float | None = None
    runs: int = 0
    remarks: tuple[str, ...] = ()


class Efficiency(Struct, frozen=True, kw_only=True):
    """One job: requested, used, their ratios (0 to 1, None where there is none), and advice.

    ``gpu`` is the ratio to the share of a job that shares a GPU.
    """

    id: str
    name: str
    state: str
    outcome: str
    cpus: int
    gpus: int
    gpu_share: ShareRow | None
    memory_bytes: int
    walltime_s: float | None
    used: MeasuredUse
    cpu: float | None
    memory: float | None
    gpu: float | None
    walltime: float | None
    next: Advice


def use_of(story: JobStory, elements: Sequence[JobRow] = ()) -> MeasuredUse:
    """Return what the last attempt of a job used, over all of its nodes.

    Args:
        story: of the job.
        elements: of an array, its elements.
    """
    row = story.row
    if row.array is not None:
        return _use_of_elements([each for each in elements if each.wall_s])
    usage = next((each.usage for each in reversed(story.attempts) if each.usage is not None), None)
    if usage is None:
        wall_s = row.wall_s
        cores = row.cpu_s / wall_s if wall_s else 0.0
        return MeasuredUse(wall_s=wall_s, cpu_s=row.cpu_s, cpu_cores=cores, cpu_peak_cores=cores)
    wall_s = usage.wall_s
    cores = usage.cpu_s / wall_s if wall_s > 0 else 0.0
    return MeasuredUse(
        wall_s=wall_s,
        cpu_s=usage.cpu_s,
        cpu_cores=cores,
        cpu_peak_cores=max(cores, usage.cpu_peak_cores),
        memory_peak_bytes=usage.memory_peak_bytes,
        gpu_percent=usage.gpu_util_mean_percent,
        gpu_idle_s=usage.gpu_idle_s,
        gpu_memory_peak_bytes=usage.gpu_memory_peak_bytes,
        sampled=usage.samples > 0,
    )


def _use_of_elements(rows: Sequence[JobRow]) -> MeasuredUse:
    """Return what the elements of an array used: each of them on average."""
    wall_s = sum(each.wall_s for each in rows)
    cores = sum(each.cpu_s for each in rows) / wall_s if wall_s else 0.0
    return MeasuredUse(
        wall_s=wall_s / len(rows) if rows else 0.0,
        wall_max_s=max((each.wall_s for each in rows), default=0.0),
        elements=len(rows),
        cpu_s=sum(each.cpu_s for each in rows),
        cpu_cores=cores,
        cpu_peak_cores=cores,
        memory_peak_bytes=max((each.memory_peak_bytes for each in rows), default=0),
    )


def efficiency_of(
    story: JobStory, past: Sequence[JobStory], elements: Sequence[JobRow] = ()
) -> Efficiency:
    """Return a job's efficiency.

    Args:
        story: of the job.
        past: finished jobs of its user and name.
        elements: of an array, its elements.
    """
    row, used = story.row, use_of(story, elements)
    outcome = ""
    if row.outcome is not None:
        outcome = outcome_words(row.outcome, walltime_s=row.walltime_s, grace_s=story.grace_s)
    return Efficiency(
        id=row.shown_id(story.server),
        name=row.name,
        state=row.state,
        outcome=outcome,
        cpus=row.cpus,
        gpus=row.gpus,
        gpu_share=row.gpu_share,
        memory_bytes=row.memory_bytes,
        walltime_s=row.walltime_s,
        used=used,
        cpu=used.cpu_cores / row.cpus if row.cpus and used.wall_s >= MEASURED_LEAST_S else None,
        memory=_ratio(used.memory_peak_bytes, row.memory_bytes),
        gpu=_gpu_ratio(row, used),
        walltime=max(used.wall_s, used.wall_max_s) / row.walltime_s if row.walltime_s else None,
        next=_advice(story, used, past),
    )


def _ratio(used_bytes: int, requested_bytes: int) -> float | None:
    return used_bytes / requested_bytes if used_bytes and requested_bytes else None


def _gpu_ratio(row: JobRow, used: MeasuredUse) -> float | None:
    if not (row.gpus or row.gpu_share) or not _is_measured(used):
        return None
    return used.gpu_percent / (100 if row.gpu_share is None else row.gpu_share.percent)


def _is_measured(used: MeasuredUse) -> bool:
    """Return whether any use of its GPUs was seen: on a declared one none can be."""
    return used.sampled and (used.gpu_percent > 0 or used.gpu_memory_peak_bytes > 0)


def _advice(story: JobStory, used: MeasuredUse, past: Sequence[JobStory]) -> Advice:
    row = story.row
    if row.state != JobState.DONE or row.outcome is None:
        remarks = ["it has not finished: what it will use is not known yet"]
        if row.live is not None and row.live.gpus_idle:
            gpus = f"{row.live.gpus_idle} of {counted(row.live.gpus_held, 'GPU')}"
            remarks.append(f"{gpus} idle since {format_time(row.live.idle_since_s)}")
        return Advice(remarks=tuple(remarks))
    like = [
        use_of(each)
        for each in past
        if each.row.id != row.id
        and each.kind == story.kind
        and each.row.outcome is not None
        and each.row.outcome.exit_status == 0
    ]
    ran = [*like, *([used] if row.outcome.exit_status == 0 else [])]
    remarks = list(_remarks(story, used))
    if row.outcome.kind == OutcomeKind.OOM:
        memory_bytes = _whole_memory(row.memory_bytes * AFTER_LIMIT)
    else:
        memory_bytes = _whole_memory(max((u.memory_peak_bytes for u in ran), default=0)
                                     * MEMORY_RESERVE)  # fmt: skip
    walltime_s = None
    if row.outcome.kind == OutcomeKind.WALLTIME and row.walltime_s:
        walltime_s = _whole_minutes(row.walltime_s * AFTER_LIMIT)
    elif ran:
        longest_s = max(max(use.wall_s, use.wall_max_s) for use in ran)
        walltime_s = _whole_minutes(longest_s * WALLTIME_RESERVE)
    peak = max((use.cpu_peak_cores for use in ran), default=0.0)
    cpus = min(row.cpus, max(1, math.ceil(peak - 0.1))) if ran else 0
    return Advice(
        cpus=cpus,
        memory_bytes=memory_bytes,
        walltime_s=walltime_s,
        runs=len(ran),
        remarks=tuple(remarks),
    )


def _remarks(story: JobStory, used: MeasuredUse) -> Iterator[str]:
    row = story.row
    assert row.outcome is not None
    if row.outcome.kind == OutcomeKind.OOM:
        yield "it was killed for memory: the request is raised by half"
    if row.outcome.kind == OutcomeKind.WALLTIME:
        yield "it exceeded its walltime: the request is raised by half"
    has_gpus = row.gpus or row.gpu_share is not None
    if has_gpus and row.array is None and not _is_measured(used):
        yield "no use of its GPUs was measured: they are only declared, or nothing ran on them"
    elif used.gpu_idle_s:
        hours = format_gpu_hours(used.gpu_idle_s)
        yield f"its GPUs were idle for {hours}: request fewer, or end the job when its work is done"
    elif has_gpus and used.sampled and used.gpu_percent < _IDLE_PERCENT:
        yield "its GPUs were idle: check that the program uses them, or request none"


def _whole_memory(size: float) -> int:
    """Return a size rounded up: to 64 MB, above 4 GB to half a GB."""
    step = 64 * _MB if size < 4096 * _MB else 512 * _MB
    return math.ceil(size / step) * step


def _whole_minutes(seconds: float) -> float:
    """Return a time rounded up: to a minute, above an hour to ten."""
    step = 60 if seconds < 3600 else 600
    return float(math.ceil(max(seconds, 1.0) / step) * step)


def lines_of(one: Efficiency) -> Iterator[str]:
    """Yield what ``gseff`` prints of a job."""
    used = one.used
    yield f"{one.id} ({one.name}): {one.outcome or one.state}"
    rows = [("", "requested", "used", "efficiency")]
    cores = "--" if one.cpu is None else f"{used.cpu_cores:.1f}"
    rows.append(("CPUs", str(one.cpus), f"{cores} busy", _percent(one.cpu)))
    peak = format_size(used.memory_peak_bytes) if used.memory_peak_bytes else "--"
    requested = format_size(one.memory_bytes) if one.memory_bytes else "--"
    rows.append(("Memory", requested, f"{peak} peak", _percent(one.memory)))
    rows += _gpu_lines(one)
    limit = format_duration(one.walltime_s) if one.walltime_s else "--"
    if used.elements:
        longest = f"{format_duration(used.wall_max_s)} max"
        rows.append(("Walltime", limit, longest, _percent(one.walltime)))
        mean = f"{format_duration(used.wall_s)} mean"
        rows.append(("", "", mean, f"of {used.elements}"))
    else:
        rows.append(("Walltime", limit, format_duration(used.wall_s), _percent(one.walltime)))
    for title, requested, use, ratio in rows:
        yield f"    {title:<12}{requested:>12}{use:>16}{ratio:>13}".rstrip()
    words = next_words(one.next)
    if words:
        runs = f" (from {counted(one.next.runs, 'run')} of this name)" if one.next.runs else ""
        yield f"    next time: {words}{runs}"
    for remark in one.next.remarks:
        yield f"    {remark}"


def _gpu_lines(one: Efficiency) -> Iterator[tuple[str, str, str, str]]:
    """Yield the use of a job's GPUs, or of its share of one."""
    share, used = one.gpu_share, one.used
    busy = f"{used.gpu_percent / 100 * (one.gpus or 1):.1f} busy"
    busy = "not measured" if one.gpu is None else busy
    if share is not None:
        yield "GPU share", f"{share.percent} %", busy, _percent(one.gpu)
    elif one.gpus:
        yield "GPUs", str(one.gpus), busy, _percent(one.gpu)
    limit_bytes, peak_bytes = share.memory_bytes if share else 0, used.gpu_memory_peak_bytes
    if peak_bytes and (share or one.gpus):
        requested = format_size(limit_bytes) if limit_bytes else "--"
        ratio = _percent(peak_bytes / limit_bytes) if limit_bytes else ""
        yield "GPU memory", requested, f"{format_size(peak_bytes)} peak", ratio


def _percent(ratio: float | None) -> str:
    return "--" if ratio is None else f"{100 * ratio:.0f} %"


def next_words(advice: Advice) -> str:
    """Return the advice as options of gsub."""
    words = [f"--cpus {advice.cpus}"] if advice.cpus else []
    words += [f"--mem {exact_size(advice.memory_bytes)}"] if advice.memory_bytes else []
    if advice.walltime_s:
        words.append(f"--walltime {format_duration(advice.walltime_s)}")
    return " ".join(words)
