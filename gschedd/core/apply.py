"""`apply` is the only writer of the state, in life and in replay.

It changes the state from one fact and does nothing else: no decision, no effect, no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar, cast

from msgspec import structs

from gsched.model.resources import Load, Share, Usage
from gsched.model.states import (
    AttemptState,
    JobState,
    NodeState,
    OutcomeKind,
    PartState,
    StopReason,
)
from gschedd.core import facts as f
from gschedd.core.owning import disown, own, refresh_space, release, reserve
from gschedd.core.state import (
    Attempt,
    Job,
    Node,
    Part,
    Reached,
    Relocation,
    Saved,
    State,
    Trip,
    WaitingGroup,
    client_key,
)
from gschedd.core.transitions import (
    next_attempt_state,
    next_job_state,
    next_node_state,
    next_part_state,
)

_PLACED: Final = frozenset({JobState.RUNNING, JobState.MIGRATING, JobState.EXITING})

F = TypeVar("F", bound=f.Fact)
Applier = Callable[[State, f.AnyFact], None]

#: How far job ids jump when the database is found to be an old copy: no id is given out twice.
SAFE_ID_JUMP: Final = 1000
#: Ended submissions whose client keys are remembered in memory; older ones are in the database.
MAX_ENDED_KEYS: Final = 100_000


def apply(state: State, fact: f.AnyFact) -> None:
    """Change ``state`` by what has happened.

    Raises:
        InvalidTransitionError: the fact cannot follow the state: a fault of ours.
    """
    _APPLIERS[type(fact)](state, fact)


def _submitted(state: State, fact: f.JobSubmitted) -> None:
    spec = fact.spec
    job = Job(
        id=fact.job,
        spec=spec,
        state=fact.state,
        submitted_s=fact.at_s,
        eligible_s=max(fact.at_s, spec.start_after_s),
        holds=spec.holds,
    )
    add_job(state, job)
    if spec.client_key:
        state.keys[client_key(spec.owner.uid, spec.client_key)] = job.id
    _touch(state, job)


def note_heartbeat(
    state: State,
    node: str,
    load: Load,
    used: Sequence[tuple[int, int, Usage]],
    now_s: float,
) -> None:
    """Note how busy a node is and what its attempts have used so far.

    This is no fact: it is not durable, and the next heartbeat replaces it.
    """
    known = state.nodes.get(node)
    if known is not None:
        known.load, known.heartbeat_s = load, now_s
        state.spaces.touch(node)
    for job_id, number, usage in used:
        job = state.running.get(job_id)
        attempt = job.attempt if job is not None else None
        part = attempt.parts.get(node) if attempt is not None else None
        if attempt is not None and attempt.number == number and part is not None:
            part.usage = usage


def add_job(state: State, job: Job) -> None:
    """Put a job that is not done into the state and all its indices (submission and loading)."""
    state.jobs[job.id] = job
    state.next_job = max(state.next_job, job.id + 1)
    uid = job.spec.owner.uid
    state.jobs_by_user[uid] = state.jobs_by_user.get(uid, 0) + 1
    if job.spec.is_training:
        state.trainings[job.id] = job
    _enter(state, job)
    if job.attempt is not None:
        own(state, job, job.attempt)
    if job.move is not None:
        reserve(state, job)


def _enter(state: State, job: Job) -> None:
    """Index a job by the state it is in."""
    if job.state is JobState.QUEUED:
        shape = state.shape_of(job)
        group = state.groups.get(shape)
        if group is None:
            group = state.groups[shape] = WaitingGroup(shape)
            state.shapes_of.setdefault(shape.request, {})[shape] = None
        group.add(state.order_key(job))
        state.fresh.add(shape)
        state.stale = True
    elif job.state is JobState.WAITING:
        insort(state.delayed, (job.start_after_s, job.id))


def _leave(state: State, job: Job) -> None:
    """Take a job out of the index of the state it is in."""
    if job.state is JobState.QUEUED:
        shape = state.shape_of(job)
        group = state.groups[shape]
        group.remove(state.order_key(job))
        if not group.order:
            del state.groups[shape]
            alike = state.shapes_of[shape.request]
            del alike[shape]
            if not alike:
                del state.shapes_of[shape.request]
    elif job.state is JobState.WAITING:
        entry = (job.start_after_s, job.id)
        index = bisect_left(state.delayed, entry)
        assert state.delayed[index] == entry, f"job {job.id} is not among the delayed"
        del state.delayed[index]


def _move(state: State, job: Job, fact: f.JobFact, wanted: JobState) -> None:
    following = next_job_state(job.state, fact, wanted)
    if job.state is JobState.QUEUED and following not in {JobState.QUEUED, JobState.RUNNING}:
        state.look_anew()  # others may have waited for its sake
    _leave(state, job)
    job.state = following
    _enter(state, job)
    _touch(state, job)


def _touch(state: State, job: Job) -> None:
    state.touched_jobs[job.id] = job


def _touch_attempt(state: State, job: Job) -> Attempt:
    attempt = job.attempt
    assert attempt is not None, f"job {job.id} has no attempt"
    state.touched_attempts[job.id, attempt.number] = attempt
    return attempt


def resting_state(job: Job, at_s: float) -> JobState:
    """Return where a job that is neither running nor done belongs at ``at_s``."""
    if job.holds:
        return JobState.HELD
    return JobState.WAITING if job.start_after_s > at_s else JobState.QUEUED


def _held(state: State, fact: f.JobHeld) -> None:
    job = state.jobs[fact.job]
    wanted = job.state if job.state in _PLACED else JobState.HELD
    _move(state, job, fact, wanted)
    job.holds = tuple(sorted({*job.holds, *fact.holds}))
    job.hold_reason = fact.reason or job.hold_reason


def _released(state: State, fact: f.JobReleased) -> None:
    job = state.jobs[fact.job]
    job.holds = tuple(hold for hold in job.holds if hold not in fact.holds)
    if not job.holds:
        job.hold_reason = ""
    wanted = job.state
    if job.state is JobState.HELD:
        wanted = resting_state(job, fact.at_s)
        job.eligible_s = max(fact.at_s, job.start_after_s)
        job.faults = 0
    _move(state, job, fact, wanted)


def _due(state: State, fact: f.JobDue) -> None:
    _move(state, state.jobs[fact.job], fact, JobState.QUEUED)


def _altered(state: State, fact: f.JobAltered) -> None:
    job = state.jobs[fact.job]
    next_job_state(job.state, fact, job.state)
    _leave(state, job)
    if not _keeps_promise(job, fact.spec.deadline_s):
        job.promised = job.meets = job.expected_end_s = None
    job.spec = fact.spec
    if job.spec.is_training:
        state.trainings[job.id] = job
    else:
        state.trainings.pop(job.id, None)
    state.sizes.pop(job.id, None)
    state.note_moved(job.id)
    if job.state in {JobState.QUEUED, JobState.WAITING}:
        job.state = next_job_state(job.state, fact, resting_state(job, fact.at_s))
    _enter(state, job)
    state.look_anew()
    _touch(state, job)


def _keeps_promise(job: Job, after_s: float) -> bool:
    """Return whether what was promised of a job's deadline holds for another one, too.

    Whoever was to be in time is so for a later deadline as well; all others are judged anew, as if
    they had come just now. So a refused job gets another chance, and a promise cannot be stretched.
    """
    before_s = job.spec.deadline_s
    return after_s == before_s or (job.promised is True and 0 < before_s < after_s)


def _signalled(state: State, fact: f.JobSignalled) -> None:
    job = state.jobs[fact.job]
    _move(state, job, fact, job.state)


def _assigned(state: State, fact: f.AttemptAssigned) -> None:
    job = state.jobs[fact.job]
    _move(state, job, fact, JobState.RUNNING)
    moving = job.move is not None
    if moving:
        _give_up_move(state, job)
        job.moves += 1
    attempt = Attempt(
        number=fact.attempt,
        state=AttemptState.ASSIGNED,
        assigned_s=fact.at_s,
        master_port=fact.master_port,
        parts={share.node: _new_part(share, fact) for share in fact.allocation},
        boot_ids={node: state.nodes[node].boot_id for node in fact.active},
        work_begun=job.work_done,
    )
    if moving and job.trip is not None:
        job.trip = structs.replace(job.trip, placed_s=fact.at_s)
    job.attempt, job.attempts = attempt, fact.attempt
    own(state, job, attempt)
    _touch_attempt(state, job)


def _new_part(share: Share, fact: f.AttemptAssigned) -> Part:
    return Part(
        share=share,
        state=PartState.PENDING if share.node in fact.active else PartState.PASSIVE,
        prediction=fact.predictions.get(share.node),
    )


def _part_started(state: State, fact: f.PartStarted) -> None:
    job = state.jobs[fact.job]
    attempt = _touch_attempt(state, job)
    part = attempt.parts[fact.node]
    part.state = next_part_state(part.state, fact, PartState.RUNNING)
    part.pid, part.started_s = fact.pid, fact.started_s
    part.stdout_path, part.stderr_path = fact.stdout_path, fact.stderr_path
    _note_start(job, attempt, min(max(fact.started_s, attempt.assigned_s), fact.at_s))
    state.note_moved(job.id)
    waits = any(each.state is PartState.PENDING for each in attempt.parts.values())
    wanted = AttemptState.STARTING if waits else AttemptState.RUNNING
    if attempt.state is AttemptState.EXITING:
        wanted = AttemptState.EXITING
    attempt.state = next_attempt_state(attempt.state, fact, wanted)
    _move(state, job, fact, job.state)


def _note_start(job: Job, attempt: Attempt, started_s: float) -> None:
    """Keep the first start of an attempt and of its job, bounded by what the head knows."""
    if attempt.started_s is None:
        attempt.started_s = started_s
    if job.started_s is None:
        job.started_s = started_s


def _stop_requested(state: State, fact: f.StopRequested) -> None:
    job = state.jobs[fact.job]
    attempt = _touch_attempt(state, job)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.EXITING)
    state.note_moved(job.id)
    # a delete wins over all else, and everything over a move
    if attempt.stop in {None, StopReason.MOVE} or fact.reason is StopReason.DELETE:
        attempt.stop, attempt.stop_message = fact.reason, fact.message
        attempt.stopped_by = fact.by
    attempt.stop_grace_s = fact.grace_s
    moves = attempt.stop is StopReason.MOVE
    _move(state, job, fact, JobState.MIGRATING if moves else JobState.EXITING)
    if job.move is not None and not moves:
        _give_up_move(state, job)


def _move_requested(state: State, fact: f.MoveRequested) -> None:
    job = state.jobs[fact.job]
    _move(state, job, fact, JobState.MIGRATING)
    state.note_moved(job.id)
    job.moves_asked = max(job.moves_asked, fact.request)
    job.trip = Trip(asked_s=fact.at_s)
    job.move = Relocation(
        allocation=fact.allocation,
        why=fact.why,
        by=fact.by,
        asked_s=fact.at_s,
        request=fact.request,
    )
    reserve(state, job)


def _checkpoint_taken(state: State, fact: f.CheckpointTaken) -> None:
    job = state.jobs[fact.job]
    _move(state, job, fact, job.state)
    job.saved = Saved(
        at_s=fact.at_s,
        step=fact.step,
        path=fact.path,
        size_bytes=fact.size_bytes,
        wall_s=fact.wall_s,
    )
    job.work_done = max(job.work_done, fact.work_done)
    if job.move is not None and job.trip is not None and fact.request == job.move.request:
        job.trip = structs.replace(
            job.trip, saved_s=fact.at_s, save_s=fact.wall_s, size_bytes=fact.size_bytes
        )


def _move_abandoned(state: State, fact: f.MoveAbandoned) -> None:
    job = state.jobs[fact.job]
    state.note_moved(job.id)
    _move(state, job, fact, JobState.RUNNING)
    job.trip = None
    _give_up_move(state, job)


def _place_lost(state: State, fact: f.PlaceLost) -> None:
    job = state.jobs[fact.job]
    assert job.move is not None, "only what moves goes somewhere"
    _move(state, job, fact, JobState.MIGRATING)
    release(state, job)
    job.move = structs.replace(job.move, allocation=(), why=fact.reason)
    reserve(state, job)


def _training_resumed(state: State, fact: f.TrainingResumed) -> None:
    job = state.jobs[fact.job]
    _move(state, job, fact, job.state)
    if job.trip is not None:
        job.trip = structs.replace(job.trip, resumed_s=fact.at_s, restore_s=fact.restore_s)


def note_progress(state: State, job: int, reached: Reached) -> None:
    """Note how far a training is. This is no fact: it is not durable, and it says so again."""
    if job in state.running:
        state.reached[job] = reached


def _give_up_move(state: State, job: Job) -> None:
    """Forget where a job was to go on: it is there, or will not go."""
    release(state, job)
    job.move = None


def _judged(state: State, fact: f.DeadlineJudged) -> None:
    job = state.jobs[fact.job]
    if job.promised is None:
        job.promised = fact.meets
    job.meets, job.expected_end_s = fact.meets, fact.end_s
    _touch(state, job)


def _part_ended(state: State, fact: f.PartEnded) -> None:
    job = state.jobs[fact.job]
    attempt = _touch_attempt(state, job)
    part = attempt.parts[fact.node]
    part.state = next_part_state(part.state, fact, PartState.ENDED)
    part.record, part.usage = fact.record, fact.usage
    if part.started_s is None and fact.record.started_s:
        part.started_s = fact.record.started_s
        _note_start(job, attempt, min(max(part.started_s, attempt.assigned_s), fact.at_s))
        state.note_moved(job.id)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.EXITING)
    _move(state, job, fact, job.state)


def _attempt_ended(state: State, fact: f.AttemptEnded) -> None:
    job = state.jobs[fact.job]
    attempt = _touch_attempt(state, job)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.ENDED)
    attempt.outcome, attempt.usage, attempt.ended_s = fact.outcome, fact.usage, fact.ended_s
    disown(state, job, attempt)
    state.reached.pop(job.id, None)
    _charge(job, attempt, fact.usage)
    job.work_done = max(job.work_done, fact.work_done)
    moved = fact.outcome.kind is OutcomeKind.MOVED and job.move is not None
    _move(state, job, fact, JobState.MIGRATING if moved else JobState.EXITING)
    if moved:
        job.attempt = None  # it has none until its place is free
        if job.trip is not None:
            job.trip = structs.replace(job.trip, left_s=fact.at_s)
    elif job.move is not None:
        _give_up_move(state, job)
    state.freed.update(attempt.parts)
    state.stale = True


def _charge(job: Job, attempt: Attempt, usage: Usage) -> None:
    job.cpu_s += usage.cpu_s
    job.wall_s += usage.wall_s
    job.gpu_s += usage.wall_s * sum(len(share.gpu_indices) for share in attempt.allocation)


def _requeued(state: State, fact: f.JobRequeued) -> None:
    job = state.jobs[fact.job]
    job.attempt = None
    job.faults, job.not_before_s = fact.faults, fact.not_before_s
    job.requeue_reason = fact.reason
    job.requeues += 1
    job.holds = tuple(sorted({*job.holds, *fact.holds}))
    if fact.holds:
        job.hold_reason = fact.reason
    wanted = resting_state(job, fact.at_s)
    _move(state, job, fact, wanted)
    if job.move is not None:
        _give_up_move(state, job)


def _ended(state: State, fact: f.JobEnded) -> None:
    job = state.jobs[fact.job]
    _move(state, job, fact, JobState.DONE)
    job.outcome, job.ended_s = fact.outcome, fact.ended_s
    if job.move is not None:
        _give_up_move(state, job)
    state.trainings.pop(job.id, None)
    state.sizes.pop(job.id, None)
    del state.jobs[job.id]
    state.finished[job.id] = job
    uid = job.spec.owner.uid
    state.jobs_by_user[uid] -= 1
    if not state.jobs_by_user[uid]:
        del state.jobs_by_user[uid]
    while len(state.keys) > len(state.jobs) + MAX_ENDED_KEYS:
        _forget_oldest_key(state)


def _forget_oldest_key(state: State) -> None:
    for key, job in state.keys.items():
        if job not in state.jobs:
            del state.keys[key]
            return


def _registered(state: State, fact: f.NodeRegistered) -> None:
    node = state.nodes.get(fact.node)
    changed = node is None or node.inventory != fact.inventory
    if node is None:
        node = Node(name=fact.node, state=NodeState.UP, inventory=fact.inventory)
        state.nodes[node.name] = node
    else:
        node.state = next_node_state(node.state, fact, NodeState.UP)
    if changed:
        state.forget_hardware()
    node.inventory, node.boot_id, node.incarnation = fact.inventory, fact.boot_id, fact.incarnation
    node.address, node.version, node.since_s = fact.address, fact.version, fact.at_s
    node.load, node.heartbeat_s, node.faults = fact.load, fact.at_s, 0
    if fact.highest_job >= state.next_job:  # the database is an old copy: no number comes again
        state.next_job = fact.highest_job + SAFE_ID_JUMP
    refresh_space(state, node)
    state.look_anew()
    state.touched_nodes[node.name] = node


def _disconnected(state: State, fact: f.NodeDisconnected) -> None:
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, NodeState.UNREACHABLE)
    node.since_s = fact.at_s
    refresh_space(state, node)
    state.look_anew()
    state.touched_nodes[node.name] = node


def _drained(state: State, fact: f.NodeDrained) -> None:
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    node.drained, node.reason = True, fact.reason
    refresh_space(state, node)
    state.look_anew()
    state.touched_nodes[node.name] = node


def _resumed(state: State, fact: f.NodeResumed) -> None:
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    node.drained, node.reason, node.faults = False, "", 0
    refresh_space(state, node)
    state.look_anew()
    state.touched_nodes[node.name] = node


def _faulted(state: State, fact: f.NodeFaulted) -> None:
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    node.faults = fact.faults
    state.touched_nodes[node.name] = node


def _on(kind: type[F], applier: Callable[[State, F], None]) -> tuple[type[f.Fact], Applier]:
    """Return a row of the table; the types say that the applier takes facts of this kind."""
    return kind, cast("Applier", applier)


_APPLIERS: Final[Mapping[type[f.Fact], Applier]] = MappingProxyType(
    dict(
        (
            _on(f.JobSubmitted, _submitted),
            _on(f.JobHeld, _held),
            _on(f.JobReleased, _released),
            _on(f.JobDue, _due),
            _on(f.JobAltered, _altered),
            _on(f.JobSignalled, _signalled),
            _on(f.AttemptAssigned, _assigned),
            _on(f.MoveRequested, _move_requested),
            _on(f.CheckpointTaken, _checkpoint_taken),
            _on(f.MoveAbandoned, _move_abandoned),
            _on(f.PlaceLost, _place_lost),
            _on(f.TrainingResumed, _training_resumed),
            _on(f.DeadlineJudged, _judged),
            _on(f.PartStarted, _part_started),
            _on(f.StopRequested, _stop_requested),
            _on(f.PartEnded, _part_ended),
            _on(f.AttemptEnded, _attempt_ended),
            _on(f.JobRequeued, _requeued),
            _on(f.JobEnded, _ended),
            _on(f.NodeRegistered, _registered),
            _on(f.NodeDisconnected, _disconnected),
            _on(f.NodeDrained, _drained),
            _on(f.NodeResumed, _resumed),
            _on(f.NodeFaulted, _faulted),
        )
    )
)
