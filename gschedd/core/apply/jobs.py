"""`apply` is the only writer of the state, in life and in replay.

It changes the state from one fact and does nothing else: no decision, no effect, no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar, cast

from msgspec import structs

from gsched.model.ids import array_of, index_of
from gsched.model.job import Outcome
from gsched.model.resources import WHOLE_PERCENT, Load, Share, Usage, percent_held
from gsched.model.states import (
    AttemptState,
    JobState,
    OutcomeKind,
    PartState,
    StopReason,
)
from gschedd.core.apply import arrays as apply_arrays
from gschedd.core.apply import nodes as apply_nodes
from gschedd.core.apply import preemption as apply_preemption
from gschedd.core.apply import reservations
from gschedd.core.apply import training as apply_moves
from gschedd.core.state import facts as f
from gschedd.core.state.billing import accrue, bill
from gschedd.core.state.elements import next_number, short_number_of
from gschedd.core.state.indexing import (
    enter,
    forget_dependencies,
    give_up_move,
    leave,
    move,
    note_array,
    note_dependencies,
    resting_state,
    set_claim,
    touch,
    touch_attempt,
)
from gschedd.core.state.ledger import disown, keep_claim, own, refresh_space, reserve
from gschedd.core.state.limit_use import count_submitted, recount
from gschedd.core.state.records import Attempt, Elements, IdleWarning, Job, Part
from gschedd.core.state.state import State
from gschedd.core.state.transitions import next_attempt_state, next_job_state, next_part_state
from gschedd.core.state.walltime import spent_by
from gschedd.core.training.backoff import forget_refusals


def recovered(state: State, fact: f.AttemptRecovered) -> None:
    """A job has an attempt that only its nodes knew; an older one, if any, is over."""
    job = state.jobs[fact.job]
    if job.attempt is not None:
        older = touch_attempt(state, job)
        older.state = next_attempt_state(older.state, fact, AttemptState.ENDED)
        older.ended_s = min(fact.at_s, max(fact.assigned_s, older.started_s or older.assigned_s))
        older.outcome = Outcome(
            kind=OutcomeKind.RERUN, message=f"attempt {fact.attempt} took its place"
        )
        disown(state, job, older)
        bill(state, job, older.ended_s, fact.at_s)
        state.dirty.nodes.update(older.parts)
    if job.move is not None:
        give_up_move(state, job)
    move(state, job, fact, JobState.RUNNING)
    parts = {
        share.node: Part(
            share=share,
            state=PartState.RUNNING if share.node in fact.active else PartState.PASSIVE,
            started_s=fact.started_s.get(share.node),
        )
        for share in fact.allocation
    }
    started_s = min(fact.started_s.values(), default=None)
    attempt = Attempt(
        number=fact.attempt,
        state=AttemptState.RUNNING,
        assigned_s=fact.assigned_s,
        master_port=fact.master_port,
        parts=parts,
        token=fact.token,
        boot_ids=dict(fact.boot_ids),
        work_begun=job.work_done,
        started_s=started_s,
        stop=fact.stop,
    )
    if job.started_s is None:
        job.started_s = started_s
    job.attempt, job.attempts = attempt, fact.attempt
    own(state, job, attempt)
    accrue(state, job)
    touch_attempt(state, job)


_PLACED: Final = frozenset({JobState.RUNNING, JobState.MIGRATING, JobState.EXITING})

F = TypeVar("F", bound=f.Fact)
Applier = Callable[[State, f.AnyFact], None]


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
    job.recovered = fact.recovered
    job.short_number = fact.short_number or _short_number(state, fact.job)
    if spec.array is not None:
        job.elements = Elements(left=spec.array.spans)
    add_job(state, job)
    apply_arrays.note_recovered(state, job)
    if spec.client_key:
        state.keys.note(spec.owner.uid, spec.client_key, job.id)
    touch(state, job)


def _short_number(state: State, number: int) -> int:
    """Return the short number of an element that a node knew, of an array that is known."""
    index = state.arrays.get(array_of(number))
    return short_number_of(index.job, index_of(number)) if index is not None else 0


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
        if node in state.spaces and state.spaces[node].shared:
            refresh_space(state, known)
            state.dirty.mark_nodes((node,))  # jobs may wait until a GPU is less busy
    for job_id, number, usage in used:
        job = state.running.get(job_id)
        attempt = job.attempt if job is not None else None
        part = attempt.parts.get(node) if attempt is not None else None
        if attempt is not None and attempt.number == number and part is not None:
            part.usage = usage


def argument_bytes(arguments: Sequence[str]) -> int:
    """Return how much memory the arguments of a job take, about: each at least a hundred bytes."""
    return sum(len(each) + 100 for each in arguments)


def note_damaged(state: State, job: int, node: str, attempt: int) -> None:
    """Note that an attempt of a job with a damaged record runs on a node. This is no fact."""
    state.damaged[job][node] = attempt


def add_job(state: State, job: Job) -> None:
    """Put a job that is not done into the state and all its indices (submission and loading)."""
    spec, owner = job.spec, job.spec.owner
    state.jobs[job.id] = job
    own_jobs = state.jobs_of.get(owner.user)
    if own_jobs is None:
        own_jobs = state.jobs_of[owner.user] = {}
    own_jobs[job.id] = job
    note_array(state, job)
    state.next_job = max(state.next_job, next_number(job))
    state.jobs_by_user[owner.uid] = state.jobs_by_user.get(owner.uid, 0) + 1
    held_bytes = state.argument_bytes_by_user.get(owner.uid, 0)
    state.argument_bytes_by_user[owner.uid] = held_bytes + argument_bytes(spec.arguments)
    if spec.is_training:
        state.training_jobs[job.id] = job
    if spec.rerun_of and not array_of(job.id):
        state.reruns.setdefault(spec.rerun_of, set()).add(job.id)
    note_dependencies(state, job)
    count_submitted(state, job)
    enter(state, job)
    if job.attempt is not None:
        own(state, job, job.attempt)
        accrue(state, job)
    if job.sparse is None:
        return
    if job.move is not None:
        reserve(state, job)
    if job.claim is not None:
        keep_claim(state, job)


def _elements_made(state: State, fact: f.ElementsMade) -> None:
    for job in apply_arrays.elements_made(state, fact):
        add_job(state, job)
        touch(state, job)


def _held(state: State, fact: f.JobHeld) -> None:
    job = state.jobs[fact.job]
    wanted = job.state if job.state in _PLACED else JobState.HELD
    move(state, job, fact, wanted)
    job.holds = tuple(sorted({*job.holds, *fact.holds}))
    job.hold_reason = fact.reason or job.hold_reason


def _released(state: State, fact: f.JobReleased) -> None:
    job = state.jobs[fact.job]
    job.holds = tuple(hold for hold in job.holds if hold not in fact.holds)
    if not job.holds:
        job.hold_reason = ""
    wanted = job.state
    if job.state is JobState.HELD:
        _look_again(job)
        wanted = resting_state(job, fact.at_s)
        job.eligible_s = max(fact.at_s, job.start_after_s)
        job.faults, job.avoid, job.unknown_since_s = 0, (), 0.0
    move(state, job, fact, wanted)


def _due(state: State, fact: f.JobDue) -> None:
    move(state, state.jobs[fact.job], fact, JobState.QUEUED)


def _altered(state: State, fact: f.JobAltered) -> None:
    job = state.jobs[fact.job]
    next_job_state(job.state, fact, job.state)
    set_claim(state, job, None)
    leave(state, job)
    if not _keeps_guarantee(job, fact.spec.deadline_s):
        job.guaranteed = job.meets = job.expected_end_s = None
    _look_again(job)
    forget_dependencies(state, job)
    job.spec = fact.spec
    if job.attempt is not None and job.id in state.running:
        accrue(state, job)  # its project may be another one
    note_dependencies(state, job)
    if job.spec.is_training:
        state.training_jobs[job.id] = job
    else:
        state.training_jobs.pop(job.id, None)
    state.caches.sizes.pop(job.id, None)
    state.note_moved(job.id)
    if job.state in {JobState.QUEUED, JobState.WAITING}:
        job.state = next_job_state(job.state, fact, resting_state(job, fact.at_s))
    enter(state, job)
    count_submitted(state, job)
    recount(state, job)
    state.dirty.mark_all()
    touch(state, job)


def _look_again(job: Job) -> None:
    """Let a job that waits for a directory look for it at once: it, or its user, may have moved."""
    if job.missing_since_s:
        job.missing_since_s = job.not_before_s = 0.0


def _keeps_guarantee(job: Job, after_s: float) -> bool:
    """Return whether what was guaranteed of a job's deadline holds for another one, too.

    Whoever was to be in time is so for a later deadline as well; all others are judged anew, as if
    they had come just now. So a refused job gets another chance, and no guarantee can be stretched.
    """
    before_s = job.spec.deadline_s
    return after_s == before_s or (job.guaranteed is True and 0 < before_s < after_s)


def _signalled(state: State, fact: f.JobSignalled) -> None:
    job = state.jobs[fact.job]
    move(state, job, fact, job.state)


def _assigned(state: State, fact: f.AttemptAssigned) -> None:
    job = state.jobs[fact.job]
    move(state, job, fact, JobState.RUNNING)
    moving = job.move is not None
    warm = job.move is not None and job.move.prepare == fact.attempt
    if moving:
        give_up_move(state, job)
        apply_moves.note_arrival(state, job, fact.at_s, warm=warm)
    attempt = Attempt(
        number=fact.attempt,
        state=AttemptState.ASSIGNED,
        assigned_s=fact.at_s,
        master_port=fact.master_port,
        parts={share.node: _new_part(share, fact) for share in fact.allocation},
        boot_ids={node: state.nodes[node].boot_id for node in fact.active},
        work_begun=job.work_done,
        steps_s=fact.steps_s,
        token=fact.token,
        lease_s=fact.lease_s,
        lease_grace_s=fact.lease_grace_s,
        batching=fact.batching,
        profile_batches=fact.profile_batches,
        reservation=fact.reservation,
    )
    job.attempt, job.attempts = attempt, fact.attempt
    own(state, job, attempt)
    touch_attempt(state, job)


def _new_part(share: Share, fact: f.AttemptAssigned) -> Part:
    return Part(
        share=share,
        state=PartState.PENDING if share.node in fact.active else PartState.PASSIVE,
        prediction=fact.predictions.get(share.node),
    )


def _part_opened(state: State, fact: f.PartOpened) -> None:
    job = state.jobs[fact.job]
    attempt = touch_attempt(state, job)
    part = attempt.parts[fact.node]
    part.state = next_part_state(part.state, fact, PartState.PENDING)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.RUNNING)
    attempt.boot_ids[fact.node] = fact.boot_id
    move(state, job, fact, job.state)


def _part_started(state: State, fact: f.PartStarted) -> None:
    job = state.jobs[fact.job]
    attempt = touch_attempt(state, job)
    part = attempt.parts[fact.node]
    part.state = next_part_state(part.state, fact, PartState.RUNNING)
    part.pid, part.started_s = fact.pid, fact.started_s
    part.stdout_path, part.stderr_path = fact.stdout_path, fact.stderr_path
    if not fact.warm and job.migration is not None and job.migration.warm:
        cold = f"it was not prepared on {fact.node}"
        job.migration = structs.replace(job.migration, warm=False, cold=cold)
    _note_start(state, job, attempt, min(max(fact.started_s, attempt.assigned_s), fact.at_s))
    state.note_moved(job.id)
    waits = any(each.state is PartState.PENDING for each in attempt.parts.values())
    wanted = AttemptState.STARTING if waits else AttemptState.RUNNING
    if attempt.state in {AttemptState.RUNNING, AttemptState.EXITING}:
        wanted = attempt.state  # a step agent has started
    attempt.state = next_attempt_state(attempt.state, fact, wanted)
    move(state, job, fact, job.state)
    apply_arrays.note_started(state, job)


def _note_start(state: State, job: Job, attempt: Attempt, started_s: float) -> None:
    """Keep the first start of an attempt and of its job, bounded by what the head knows."""
    if attempt.started_s is None:
        attempt.started_s = started_s
        accrue(state, job)
    if job.started_s is None:
        job.started_s = started_s
    recount(state, job)


def _idle_warned(state: State, fact: f.GpusIdleWarned) -> None:
    job = state.jobs[fact.job]
    move(state, job, fact, job.state)
    job.idle = IdleWarning(
        attempt=fact.attempt,
        warned_s=fact.at_s,
        since_s=fact.since_s,
        gpus=fact.gpus,
        action=fact.action,
        acts_s=fact.acts_s,
    )


def _used_again(state: State, fact: f.IdleWarningEnded) -> None:
    job = state.jobs[fact.job]
    move(state, job, fact, job.state)
    job.idle = None


def _idle_reclaimed(state: State, fact: f.IdleGpusReclaimed) -> None:
    job = state.jobs[fact.job]
    move(state, job, fact, job.state)
    assert job.idle is not None, "its owner was warned"
    job.idle = structs.replace(
        job.idle,
        reclaimed=fact.action,
        reclaimed_gpus=fact.gpus,
        planned_end_s=fact.planned_end_s,
    )


def _idled(state: State, fact: f.GpusIdled) -> None:
    job = state.jobs[fact.job]
    job.idle = None
    job.idle_requeues += fact.action == "requeue"
    touch(state, job)


def _stop_requested(state: State, fact: f.StopRequested) -> None:
    job = state.jobs[fact.job]
    attempt = touch_attempt(state, job)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.EXITING)
    state.note_moved(job.id)
    # a delete wins over all else, and everything over a move
    if attempt.stop in {None, StopReason.MOVE} or fact.reason is StopReason.DELETE:
        attempt.stop, attempt.stop_message = fact.reason, fact.message
        attempt.stopped_by = fact.by
    attempt.stop_grace_s = fact.grace_s
    for node in attempt.parts.keys() & state.claims_on.keys() & state.nodes.keys():
        refresh_space(state, state.nodes[node])
    moves = attempt.stop is StopReason.MOVE
    move(state, job, fact, JobState.MIGRATING if moves else JobState.EXITING)
    if job.move is not None and not moves:
        give_up_move(state, job)


def _part_ended(state: State, fact: f.PartEnded) -> None:
    job = state.jobs[fact.job]
    attempt = touch_attempt(state, job)
    part = attempt.parts[fact.node]
    part.state = next_part_state(part.state, fact, PartState.ENDED)
    part.record, part.usage = fact.record, fact.usage
    if part.started_s is None and fact.record.started_s:
        part.started_s = fact.record.started_s
        _note_start(state, job, attempt, min(max(part.started_s, attempt.assigned_s), fact.at_s))
        state.note_moved(job.id)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.EXITING)
    move(state, job, fact, job.state)


def _attempt_ended(state: State, fact: f.AttemptEnded) -> None:
    job = state.jobs[fact.job]
    attempt = touch_attempt(state, job)
    attempt.state = next_attempt_state(attempt.state, fact, AttemptState.ENDED)
    attempt.outcome, attempt.usage, attempt.ended_s = fact.outcome, fact.usage, fact.ended_s
    disown(state, job, attempt)
    if attempt.reservation:
        reservations.left(state, attempt.reservation, fact.at_s)
    bill(state, job, fact.ended_s, fact.at_s)
    state.reached.pop(job.id, None)
    state.volatile.paces.pop(job.id, None)
    state.volatile.stuck.pop(job.id, None)
    state.volatile.unhandled.pop(job.id, None)
    _charge(job, attempt, fact.usage)
    job.spent_s = spent_by(job, attempt, fact.usage.wall_s, fact.ended_s)
    job.work_done = max(job.work_done, fact.work_done)
    moved = job.move is not None and fact.outcome.kind in {OutcomeKind.MOVED, OutcomeKind.RERUN}
    move(state, job, fact, JobState.MIGRATING if moved else JobState.EXITING)
    if moved:
        job.attempt = None  # it has none until its place is free
        recount(state, job)
        if job.migration is not None:
            lost = fact.outcome.message if fact.outcome.kind is OutcomeKind.RERUN else ""
            job.migration = structs.replace(job.migration, left_s=fact.at_s, lost=lost)
    elif job.move is not None:
        give_up_move(state, job)
    if not moved:
        forget_refusals(state, job.id)
    state.dirty.mark_nodes(attempt.parts)


def _charge(job: Job, attempt: Attempt, usage: Usage) -> None:
    job.cpu_s += usage.cpu_s
    job.wall_s += usage.wall_s
    job.gpu_s += usage.wall_s * (percent_held(attempt.allocation) / WHOLE_PERCENT)


def _requeued(state: State, fact: f.JobRequeued) -> None:
    job = state.jobs[fact.job]
    job.attempt = None
    job.faults, job.not_before_s = fact.faults, fact.not_before_s
    job.requeue_reason = fact.reason
    job.avoid, job.unknown_since_s = fact.avoid, fact.unknown_since_s
    job.missing_since_s = fact.missing_since_s
    job.requeues += 1
    if job.migration is not None and not job.migration.resumed_s:
        job.migration = None  # it has come to nothing: how long it waits now is no move's cost
    job.holds = tuple(sorted({*job.holds, *fact.holds}))
    if fact.holds:
        job.hold_reason = fact.reason
    wanted = resting_state(job, fact.at_s)
    move(state, job, fact, wanted)
    if job.move is not None:
        give_up_move(state, job)


def _discarded(state: State, fact: f.JobDiscarded) -> None:
    state.damaged.pop(fact.job, None)


def _ended(state: State, fact: f.JobEnded) -> None:
    job = state.jobs[fact.job]
    move(state, job, fact, JobState.DONE)
    count_submitted(state, job)
    job.outcome, job.ended_s = fact.outcome, fact.ended_s
    if job.move is not None:
        give_up_move(state, job)
    state.training_jobs.pop(job.id, None)
    state.caches.sizes.pop(job.id, None)
    forget_dependencies(state, job)
    forget_refusals(state, job.id)
    del state.jobs[job.id]
    of_user = state.jobs_of[job.spec.owner.user]
    del of_user[job.id]
    if not of_user:
        del state.jobs_of[job.spec.owner.user]
    apply_arrays.note_ended(state, job)
    state.unstored.finished[job.id] = job
    uid = job.spec.owner.uid
    state.jobs_by_user[uid] -= 1
    state.argument_bytes_by_user[uid] -= argument_bytes(job.spec.arguments)
    if not state.jobs_by_user[uid]:
        del state.jobs_by_user[uid]
        del state.argument_bytes_by_user[uid]
    reruns = state.reruns.get(job.spec.rerun_of, set())
    reruns.discard(job.id)
    if not reruns:
        state.reruns.pop(job.spec.rerun_of, None)
    if job.spec.client_key:
        state.keys.note_ended(uid, job.spec.client_key, job.id)


def _on(kind: type[F], applier: Callable[[State, F], None]) -> tuple[type[f.Fact], Applier]:
    """Return a row of the table; the types say that the applier takes facts of this kind."""
    return kind, cast("Applier", applier)


_APPLIERS: Final[Mapping[type[f.Fact], Applier]] = MappingProxyType(
    dict(
        (
            _on(f.JobSubmitted, _submitted),
            _on(f.JobDiscarded, _discarded),
            _on(f.ElementsMade, _elements_made),
            _on(f.ElementsDropped, apply_arrays.elements_dropped),
            _on(f.ElementsHeld, apply_arrays.elements_held),
            _on(f.ElementsReleased, apply_arrays.elements_released),
            _on(f.JobHeld, _held),
            _on(f.JobReleased, _released),
            _on(f.JobDue, _due),
            _on(f.JobAltered, _altered),
            _on(f.JobSignalled, _signalled),
            _on(f.AttemptAssigned, _assigned),
            _on(f.AttemptRecovered, recovered),
            _on(f.MigrationRequested, apply_moves.move_requested),
            _on(f.CheckpointTaken, apply_moves.checkpoint_taken),
            _on(f.BatchingChosen, apply_moves.batching_chosen),
            _on(f.MigrationPrepared, apply_moves.move_prepared),
            _on(f.MigrationAbandoned, apply_moves.move_abandoned),
            _on(f.TargetLost, apply_moves.place_lost),
            _on(f.TrainingResumed, apply_moves.training_resumed),
            _on(f.StartupMeasured, apply_moves.startup_measured),
            _on(f.StepsMeasured, apply_moves.steps_measured),
            _on(f.MigrationMeasured, apply_moves.move_measured),
            _on(f.DeadlineJudged, apply_moves.judged),
            _on(f.GpusIdleWarned, _idle_warned),
            _on(f.IdleWarningEnded, _used_again),
            _on(f.IdleGpusReclaimed, _idle_reclaimed),
            _on(f.GpusIdled, _idled),
            _on(f.JobPreempted, apply_preemption.preempted),
            _on(f.RoomClaimed, apply_preemption.room_claimed),
            _on(f.ClaimEnded, apply_preemption.claim_ended),
            _on(f.PartOpened, _part_opened),
            _on(f.PartStarted, _part_started),
            _on(f.StopRequested, _stop_requested),
            _on(f.PartEnded, _part_ended),
            _on(f.AttemptEnded, _attempt_ended),
            _on(f.JobRequeued, _requeued),
            _on(f.JobEnded, _ended),
            _on(f.NodeRegistered, apply_nodes.registered),
            _on(f.NodeDisconnected, apply_nodes.disconnected),
            _on(f.NodeProblemChanged, apply_nodes.problem_changed),
            _on(f.NodeDrained, apply_nodes.drained),
            _on(f.NodeWindowAdded, apply_nodes.window_added),
            _on(f.NodeWindowBegun, apply_nodes.window_begun),
            _on(f.NodeWindowEnded, apply_nodes.window_ended),
            _on(f.ReservationCreated, reservations.created),
            _on(f.ReservationChanged, reservations.changed),
            _on(f.ReservationBegun, reservations.begun),
            _on(f.ReservationEnded, reservations.ended),
            _on(f.NodePowerChanged, apply_nodes.power_changed),
            _on(f.NodeResumed, apply_nodes.resumed),
            _on(f.NodeFaulted, apply_nodes.faulted),
            _on(f.NodeProbeRequested, apply_nodes.probe_requested),
            _on(f.NodeProbed, apply_nodes.probed),
            _on(f.NodeRemoved, apply_nodes.removed),
            _on(f.NodeReplaced, apply_nodes.replaced),
        )
    )
)
