"""gstat -f: all that is known of one job, in the words of qstat -f and then as a story."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from msgspec import structs

from gsched.cli.common import printable
from gsched.cli.show.jobfields import FIELDS, array_summary, slack_words
from gsched.cli.show.render import print_fields
from gsched.cli.times import basis_words, format_clock, format_time, local_times
from gsched.model.container import Container
from gsched.model.gpu_tokens import TokenUse
from gsched.model.job import CodeSnapshot
from gsched.model.reports import Checkpoint, Progress
from gsched.model.resources import Usage
from gsched.model.signals import describe_signal
from gsched.model.states import JobState, OutcomeKind, PartState
from gsched.model.training import Adaptive, Scaling, Training
from gsched.model.units import format_duration, format_gpu_hours, format_size
from gsched.model.wording import batching_words, counted, outcome_words, share_words
from gsched.protocol.job_rows import (
    ArrayRow,
    AttemptRow,
    JobRow,
    JobStory,
    MoveRow,
    OutcomeRow,
    PartRow,
)
from gsched.protocol.uses import LiveRow

#: Characters from which on a cause is told once.
_LONG_CAUSE: Final = 40


def print_story(story: JobStory) -> None:
    """Print the job's attributes, its attempts and its events, then a blank line."""
    print(f"Job Id: {story.row.shown_id(story.server)}")
    print_fields(attribute_words(story))
    for alike in _alike(story.attempts):
        _print_attempts(alike, story)
    if story.events:
        print("    Events:")
        for moment, text in event_words(story):
            print(f"        {moment}  {text}")
    print()


def _alike(attempts: Sequence[AttemptRow]) -> Iterator[list[AttemptRow]]:
    """Yield the attempts, those together that failed to start in a row for the same reason."""
    for _, alike in groupby(attempts, key=_failure):
        group = list(alike)
        yield from [group] if _failure(group[0]) else ([each] for each in group)


def _failure(attempt: AttemptRow) -> str:
    """Return why an attempt could not be started; empty: it could."""
    outcome = attempt.outcome
    if outcome is None or outcome.kind != OutcomeKind.LAUNCH_FAILED:
        return ""
    return outcome.message


def event_words(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield the moments of events and their texts.

    The end of a part, of its attempt, and what follows from it often have the same long cause,
    also at the next attempts: it is told once.
    """
    shown: set[str] = set()
    for event in story.events:
        text = printable(local_times(event.text or event.kind))
        what, _, cause = text.partition(": ")
        if len(cause) >= _LONG_CAUSE and cause in shown:
            text = f"{what}: as above"
        shown.add(cause)
        yield format_clock(event.at_s, now_s=story.now_s), text


def _terms(row: JobRow) -> str:
    """Return the sum of the terms of a priority, and those that are not 0."""
    if row.terms is None:
        return ""
    terms = {name: getattr(row.terms, name) for name in structs.asdict(row.terms)}
    priority = terms.pop("priority")
    terms.pop("factor")
    stated = [f"{name} {value:.2f}" for name, value in terms.items() if value]
    return f"{priority:.2f} = {' + '.join(stated) or '0'}"


def _array_fields(array: ArrayRow | None) -> Iterator[tuple[str, str]]:
    """Yield what is told of an array: its indices, its limit, and the states of its elements."""
    if array is None:
        return
    yield "array_indices", array.indices
    yield "array_slot_limit", str(array.at_once) if array.at_once else ""
    yield "array_elements", f"{array.elements}: {array_summary(array)}"
    for name, spans in (("left", array.left), ("held", array.held), ("cancelled", array.cancelled)):
        yield f"array_indices_{name}", spans


def attribute_words(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield names and texts of what a job was submitted with and has reached, as qstat -f does."""
    row = story.row
    owner = f"{row.user}@{story.submit_host}" if story.submit_host else row.user
    fields = [
        ("Job_Name", row.name),
        ("Job_Owner", owner),
        ("resources_used.cput", format_duration(row.cpu_s) if row.started_s else ""),
        ("resources_used.walltime", str(FIELDS["elapsed"].shown(row, story))),
        ("job_state", row.letter),
        ("live_use", "" if row.live is None else live_words(row.live, row, story.now_s)),
        *_array_fields(row.array),
        ("queue", row.queue),
        ("server", story.server),
        ("Account_Name", story.account),
        ("qos", story.qos),
        ("qtime", format_time(row.submitted_s)),
        ("Execution_Time", format_time(story.start_after_s) if story.start_after_s else ""),
        ("start_time", format_time(row.started_s) if row.started_s else ""),
        ("comp_time", format_time(row.ended_s) if row.ended_s else ""),
        ("exec_host", "+".join(row.nodes)),
        *_resource_list(story),
        ("Priority", str(row.priority)),
        ("priority_terms", _terms(row)),
        ("Hold_Types", ", ".join(story.holds)),
        ("depend", story.depends),
        ("rerun_of", story.rerun_of),
        ("Join_Path", story.join),
        ("Output_Path", story.stdout_path),
        ("Error_Path", story.stderr_path),
        ("Rerunable", str(story.rerunnable)),
        ("init_work_dir", story.workdir),
        ("launch", story.launch),
        ("container", "" if story.container is None else _container(story.container)),
        ("arguments", " ".join(story.arguments)),
        ("Shell_Path_List", story.shell),
        ("grace", format_duration(story.grace_s)),
        ("lease", format_duration(story.lease_s) if story.lease_s else ""),
        ("comment", local_times(row.reason)),
        ("user_comment", story.comment),
        ("reservation", story.reservation),
        ("snapshot", _snapshot(story.snapshot)),
        ("jobs_ahead", "" if story.ahead is None else str(story.ahead)),
        ("remedy", "" if story.remedy in row.reason else story.remedy),
        *_predicted(story),
        *_profile(story),
        *_course(story),
        ("exit_status", "" if row.outcome is None else str(row.outcome.exit_status)),
        ("outcome", "" if row.outcome is None else _outcome(story, row.outcome)),
    ]
    return ((name, value) for name, value in fields if value)


def _resource_list(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield a line for each term, as qstat -f does; together they are what -l would take."""
    row = story.row
    yield "Resource_List.nodect", str(row.places)
    yield "Resource_List.ncpus", str(row.cpus)
    if row.gpus:
        yield "Resource_List.ngpus", str(row.gpus)
    for term in story.resources.split(","):
        name, _, value = term.partition("=")
        yield f"Resource_List.{name}", value


def _container(container: Container) -> str:
    """Return ``IMAGE, /data:/data:ro, in /work, by podman``."""
    words = [container.image, *container.mounts]
    if container.workdir:
        words.append(f"in {container.workdir}")
    if container.runtime:
        words.append(f"by {container.runtime}")
    return printable(", ".join(words))


def _predicted(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield the predicted start, between what it lies in four of five cases, or why not."""
    row, start = story.row, story.row.start
    yield (
        "predicted_start",
        "" if row.predicted_start_s is None else format_time(row.predicted_start_s),
    )
    if start is None:
        return
    if start.early_s is not None:
        late = "unknown" if start.late_s is None else format_time(start.late_s)
        yield "predicted_start_between", f"{format_time(start.early_s)} and {late}"
    if start.expected_s is None and start.not_before_s is not None:
        yield "predicted_start_not_before", format_time(start.not_before_s)
    yield "predicted_start_unknown", local_times(start.unknown)
    yield "predicted_start_basis", basis_words(start)


def _profile(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield what was said of a training and its deadline, and what is expected of it."""
    row = story.row
    if row.gpus_most:
        yield "gpus_most", str(row.gpus_most)
    yield "movable", "True" if story.movable else ""
    if story.training is not None:
        yield "training", _training(story.training)
    if story.adaptive is not None:
        yield "adaptive", _adaptive(story.adaptive)
    yield "advice", printable(story.advice)
    if row.deadline_s is not None:
        urgency = f" ({story.urgency})" if story.urgency else ""
        yield "deadline", format_time(row.deadline_s) + urgency
    if story.startup_s:
        yield "predicted_startup", f"{story.startup_s:.1f} s from start to first step"
    if row.predicted_end_s is not None:
        yield "predicted_end", format_time(row.predicted_end_s)
    yield "deadline_slack", slack_words(row.slack_s)
    if row.meets_deadline is not None:
        yield "deadline_met", _met(story)
    if story.guaranteed is not None:
        yield "deadline_guaranteed", str(story.guaranteed)


def _course(story: JobStory) -> Iterator[tuple[str, str]]:
    """Yield a job's checkpoints, moves and what they cost; values may be empty."""
    if story.restarts_max:
        yield (
            "requeue_on",
            f"node-failure, {story.restarts} of {story.restarts_max} restarts in a row",
        )
    if story.row.preemptions:
        yield "preempted", str(FIELDS["preempted"].shown(story.row, story))
    if not story.movable:
        return
    signal = story.checkpoint_signal
    yield "checkpoint_signal", describe_signal(signal) if signal else ""
    yield "checkpoint_dir", story.checkpoint_dir
    if story.checkpoint is not None:
        yield "checkpoint", _checkpoint(story.checkpoint)
    if story.progress is not None:
        yield "progress", _progress(story.progress)
    yield "moves", _moves(story.row)
    if story.move is not None:
        under_way = story.row.state == JobState.MIGRATING
        yield (
            "move" if under_way else "last_move",
            _move(story.move, by_signal=story.checkpoint_signal > 0),
        )


def _moves(row: JobRow) -> str:
    """Return ``2, 37.0 s without progress``; a move that is under way does not count yet."""
    cost = f", {_seconds(row.moves_cost_s)} without progress" if row.moves_cost_s else ""
    lost = f", {counted(row.moves_lost, 'restart')} instead" if row.moves_lost else ""
    return f"{row.moves}{cost}{lost}"


def _seconds(time_s: float) -> str:
    """Return ``0.03 s`` or ``12.3 s``."""
    return f"{time_s:.2f} s" if time_s < 1 else f"{time_s:.1f} s"


def _checkpoint(saved: Checkpoint) -> str:
    size = f", {format_size(saved.size_bytes)}" if saved.size_bytes else ""
    wall = f", written in {_seconds(saved.wall_s)}" if saved.wall_s else ""
    where = f", {saved.path}" if saved.path else ""
    return f"step {saved.step}, {format_time(saved.at_s)}{size}{wall}{where}"


def _snapshot(snapshot: CodeSnapshot | None) -> str:
    """Return ``commit 1a2b3c4 with changes, 34 files, 1.2mb of /home/alice/train``."""
    if snapshot is None:
        return ""
    words = []
    if snapshot.commit:
        changed = " with changes" if snapshot.dirty else ""
        words.append(f"commit {snapshot.commit}{changed}")
    words += [counted(snapshot.files, "file"), format_size(snapshot.size_bytes)]
    return f"{', '.join(words)} of {printable(snapshot.root)}"


def _progress(reached: Progress) -> str:
    words = [f"step {reached.step}"]
    if reached.work_total > 0:
        words.append(f"{100.0 * min(1.0, reached.work_done / reached.work_total):.1f} %")
    if reached.step_s > 0:
        words.append(f"{1000.0 * reached.step_s:.1f} ms per step")
    if reached.communication_s > 0:
        words.append(f"{1000.0 * reached.communication_s:.1f} ms of communication")
    if reached.batch_per_gpu:
        words.append(batching_words(reached.batch_per_gpu, reached.accumulation))
    if reached.gpus:
        words.append(counted(reached.gpus, "rank"))
    return ", ".join(words)


def _move(move: MoveRow, *, by_signal: bool) -> str:
    """Return ``done, 5.2 s without progress (saved in 0.3 s, read in 0.4 s), 12.0 s in all``.

    Of a job that was asked by its signal it is not known when it works again.
    """
    to = f" to {', '.join(move.to)}" if move.to else ""
    lost = f": {printable(move.lost)}" if move.lost else ""
    start = f"; start {printable(move.start)}" if move.start else ""
    if move.resumed_s is None or move.cost_s is None:
        return f"{move.phase}{to}{lost}{start}"
    if lost:
        return f"failed, restarted after {_seconds(move.resumed_s - move.requested_s)}{lost}"
    if by_signal:
        return f"{move.phase}, restarted after {_seconds(move.resumed_s - move.requested_s)}"
    parts = []
    if move.save_s:
        parts.append(f"saved in {_seconds(move.save_s)}")
    if move.restore_s:
        parts.append(f"read in {_seconds(move.restore_s)}")
    inside = f" ({', '.join(parts)})" if parts else ""
    whole = f"{_seconds(move.resumed_s - move.requested_s)} in total"
    return f"{move.phase}, {_seconds(move.cost_s)} without progress{inside}, {whole}{start}"


def _met(story: JobStory) -> str:
    met = story.row.meets_deadline
    if story.row.state == JobState.DONE:
        return "True" if met else "False"
    because = f": {local_times(story.late_reason)}" if story.late_reason else ""
    return "True (predicted)" if met else f"False (predicted){because}"


def _adaptive(adaptive: Adaptive) -> str:
    """Return ``batch 128 to 4096, at most 64 per GPU, on a100 or t4``."""
    words = [f"batch {adaptive.batch}"]
    if adaptive.batch_max > adaptive.batch:
        words[0] += f" to {adaptive.batch_max}"
    if adaptive.batch_per_gpu_max:
        words.append(f"at most {adaptive.batch_per_gpu_max} per GPU")
    if adaptive.scaling is not Scaling.ADAPTIVE:
        words.append(f"{adaptive.scaling} scaling")
    words.extend(f"{gpus} {name} GPUs per replica" for name, gpus in adaptive.replica_gpus)
    if adaptive.inference is not None:
        words.append("inference")
        if adaptive.inference.latency_s:
            words.append(f"at most {1000.0 * adaptive.inference.latency_s:g} ms for a batch")
        if adaptive.inference.requests_per_s:
            words.append(f"{adaptive.inference.requests_per_s:g} samples a second")
    if not adaptive.preemptible:
        words.append("non-preemptible")
    if adaptive.gpu_types:
        words.append(f"on {' or '.join(adaptive.gpu_types)}")
    return ", ".join(words)


def _training(training: Training) -> str:
    """Return ``parameters=138000000,samples=50000``: what was said."""
    terms = [
        f"{name}={value:.12g}"
        for name in training.__struct_fields__
        if isinstance(value := getattr(training, name), float) and value
    ]
    rates = [f"{gpus}:{rate:g}" for gpus, rate in training.rates]
    return ",".join([*terms, *(["rates=" + "/".join(rates)] if rates else [])])


def _print_attempts(alike: Sequence[AttemptRow], story: JobStory) -> None:
    """Print an attempt, or several that failed to start for the same reason."""
    if len(alike) == 1:
        _print_attempt(alike[0], story)
        return
    first, last = alike[0], alike[-1]
    span = _span(first.started_s or first.assigned_s, last.ended_s, story.now_s)
    print(f"    Attempts {first.attempt} to {last.attempt}: {last.state}{span}")
    nodes = dict.fromkeys(printable(part.node) for each in alike for part in each.parts)
    print(f"        on {', '.join(nodes)}")
    used = [each.usage for each in alike if each.usage is not None]
    wall_s, cpu_s = sum(each.wall_s for each in used), sum(each.cpu_s for each in used)
    if wall_s:
        print(f"        used: {usage_words(Usage(wall_s=wall_s, cpu_s=cpu_s))}")
    assert last.outcome is not None, "it has failed to start"
    print(f"        outcome, {len(alike)} times: {_outcome(story, last.outcome)}")


def _print_attempt(attempt: AttemptRow, story: JobStory) -> None:
    span = _span(attempt.started_s, attempt.ended_s, story.now_s)
    print(f"    Attempt {attempt.attempt}: {attempt.state}{span}")
    for part in attempt.parts:
        print(f"        {part_words(part, story, attempt.outcome)}")
    if attempt.startup_s is not None:
        print(f"        {attempt.startup_s:.1f} s from start to first step")
    if attempt.usage is not None:
        print(f"        used: {usage_words(attempt.usage)}")
    if attempt.outcome is not None:
        print(f"        outcome: {_outcome(story, attempt.outcome)}")


def _span(started_s: float | None, ended_s: float | None, now_s: float) -> str:
    if started_s is None:
        return ""
    text = f", {format_clock(started_s, now_s=now_s)}"
    if ended_s is not None:
        text += f" to {format_clock(ended_s, now_s=now_s)}"
    return text


def part_words(part: PartRow, story: JobStory, outcome: OutcomeRow | None) -> str:
    """Return how an attempt is on one node; its outcome there, unless that is the attempt's."""
    words = [counted(part.cpus, "CPU")]
    if part.gpu_indices:
        indices = ",".join(str(index) for index in part.gpu_indices)
        words.append("GPU" + "s" * (len(part.gpu_indices) != 1) + f" {indices}")
    words.extend(share_words(share, share.index) for share in part.gpu_shares)
    if part.memory_bytes:
        words.append(format_size(part.memory_bytes))
    # On a node that the job only owns nothing is started: its program runs on the first one.
    state = "the program runs on the first node" if part.state == PartState.PASSIVE else part.state
    text = f"on {printable(part.node)}: {', '.join(words)}; {state}"
    if part.usage is not None:
        text += f"; used {usage_words(part.usage)}"
    if part.live is not None and len(story.row.nodes) > 1:
        text += f"; uses {live_words(part.live, part, story.now_s)}"
    if part.gpu_tokens is not None:
        text += f"; {_turns(part.gpu_tokens)}"
    if part.outcome is not None:
        ending = _outcome(story, part.outcome)
        if outcome is None or _outcome(story, outcome) != ending or len(ending) < _LONG_CAUSE:
            text += f"; {ending}"
    return text


def live_words(live: LiveRow, of: JobRow | PartRow, now_s: float) -> str:
    """Return ``1.9 of 2 cores, 512mb, GPUs 85 %, GPU memory 12gb (3 s ago)``."""
    words = [f"{live.cpu_cores:.1f} of {counted(of.cpus, 'core')}", format_size(live.memory_bytes)]
    gpus = f"GPU{'s' * (live.gpus_held != 1)}"
    if live.gpus > 0 or live.gpu_memory_bytes:
        words.append(f"{gpus} {live.gpu_percent:.0f} %")
    elif live.gpus_held:  # declared ones are not measured, nor is an idle one told from them
        words.append(f"no use of {gpus} measured")
    if live.gpu_memory_bytes:  # of a shared GPU NVML may not tell whose memory it is
        words.append(f"GPU memory {format_size(live.gpu_memory_bytes)}")
    if live.gpus_idle:
        since = format_time(live.idle_since_s)
        words.append(f"{live.gpus_idle} of {counted(live.gpus_held, 'GPU')} idle since {since}")
    return f"{', '.join(words)} ({max(0.0, now_s - live.at_s):.0f} s ago)"


def _turns(use: TokenUse) -> str:
    """Return how a job takes turns on the GPU that it shares."""
    words = [
        f"held the GPU's token for {use.held_s:.1f} s",
        counted(use.launches, "launch", "launches"),
        f"{format_size(use.memory_bytes)} of GPU memory",
    ]
    if use.refused:
        words.append(f"{counted(use.refused, 'allocation')} beyond its share refused")
    if use.overlaps:
        words.append(f"{counted(use.overlaps, 'overlap')} with the next job")
    if use.demoted:
        words.append("demoted: it did not leave the GPU to others in time again and again")
    return ", ".join(words)


def usage_words(usage: Usage) -> str:
    """Return ``wall 00:10:00, CPU 00:09:12, peak memory 1gb``."""
    words = [f"wall {format_duration(usage.wall_s)}", f"CPU {format_duration(usage.cpu_s)}"]
    if usage.memory_peak_bytes:
        words.append(f"peak memory {format_size(usage.memory_peak_bytes)}")
    if usage.gpu_memory_peak_bytes or usage.gpu_util_mean_percent:
        words.append(f"GPU {usage.gpu_util_mean_percent:.0f} %")
        words.append(f"peak GPU memory {format_size(usage.gpu_memory_peak_bytes)}")
    if usage.gpu_idle_s:
        words.append(f"{format_gpu_hours(usage.gpu_idle_s)} idle")
    return ", ".join(words)


def _outcome(story: JobStory, outcome: OutcomeRow) -> str:
    limit_s, grace_s = story.row.walltime_s, story.grace_s
    return printable(outcome_words(outcome, walltime_s=limit_s, grace_s=grace_s))
