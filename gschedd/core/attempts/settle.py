"""What follows from the end of a part: the end of the attempt, its outcome, a requeue or the end.

Every attempt that started ends with exactly one outcome (I5); a system's fault is not the job's.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from msgspec import structs

from gsched.model.ids import short_job_id
from gsched.model.job import ExitRecord, Outcome
from gsched.model.resources import Usage
from gsched.model.states import (
    AttemptState,
    JobState,
    NodeState,
    OutcomeKind,
    PartState,
    StopReason,
)
from gsched.model.wording import OVER_WALLTIME, outcome_words
from gschedd.core.attempts.blame import suspect
from gschedd.core.attempts.give_way import GiveWay, stopped
from gschedd.core.attempts.idle_gpus import idle_time
from gschedd.core.attempts.leaving import (
    has_left,
    has_unhandled_signal,
    leaves_by_itself,
    lost_by,
    stop_to_move,
)
from gschedd.core.attempts.requeue import LOST, after_fault
from gschedd.core.attempts.steps import counts_for_outcome, is_script_over, part_opened
from gschedd.core.attempts.warm import lost_with_node
from gschedd.core.state import facts as f
from gschedd.core.state.elements import after_element
from gschedd.core.state.ledger import crowded_out
from gschedd.core.state.records import Attempt, Job
from gschedd.core.state.state import State
from gschedd.core.training.startups import startup_by_end

#: Grace for the other parts when one has failed, at most; seconds.
PEER_GRACE_S: Final = 10.0


_REQUESTED_STOPS: Final = frozenset(
    {StopReason.DELETE, StopReason.RERUN, StopReason.MOVE, StopReason.NODE_STOP}
)
#: What it means for the job that it was stopped as asked; for all other reasons: cancelled.
_STOPPED: Final = MappingProxyType(
    {StopReason.RERUN: OutcomeKind.RERUN, StopReason.MOVE: OutcomeKind.MOVED}
)
#: What a job does that was not stopped, but by its program or somebody else.
_DIED: Final = frozenset({OutcomeKind.EXITED, OutcomeKind.SIGNALLED, OutcomeKind.OOM})
_STOP_WORDS: Final = MappingProxyType(
    {
        StopReason.DELETE: "cancelled",
        StopReason.RERUN: "requeued",
        StopReason.MOVE: "migrated",
    }
)


def follow(state: State, fact: f.AnyFact) -> list[f.AnyFact]:  # noqa: PLR0911 # a line a fact
    """Return what follows from a fact that has just been applied."""
    match fact:
        case f.PartEnded():
            return _after_part(state, fact)
        case f.AttemptEnded():
            learned = (startup_by_end(state, fact), idle_time(state, fact))
            return [*(each for each in learned if each), *_after_attempt(state, fact)]
        case f.PartStarted():
            return _after_start(state, fact)
        case f.JobEnded() | f.ElementsDropped():
            return after_element(state, fact)
        case f.MigrationAbandoned():
            return _after_abandoned(state, fact)
        case f.TargetLost():
            job = state.jobs[fact.job]
            return [] if job.attempt is not None else _on_the_way(state, job, fact.at_s)
        case f.CheckpointTaken():
            return _after_checkpoint(state, fact)
        case f.NodeDisconnected() | f.NodeDrained() | f.NodeRegistered():
            return _without_place(state, fact)
        case _:
            return []


def _after_part(state: State, fact: f.PartEnded) -> list[f.AnyFact]:
    job = state.jobs[fact.job]
    attempt = job.current_attempt
    facts = suspect(state, fact)
    left = [p for p in attempt.parts.values() if p.state in {PartState.PENDING, PartState.RUNNING}]
    if not left:
        facts.append(attempt_ended(job, fact.at_s))
    elif attempt.stop is None and is_script_over(job, attempt):
        leaves = leaves_by_itself(job)
        facts.append(stop_to_move(job, fact.at_s) if leaves else _stop_agents(job, fact.at_s))
    elif attempt.stop is None and leaves_by_itself(job) and has_unhandled_signal(state, job):
        facts.append(stop_to_move(job, fact.at_s))
    elif not counts_for_outcome(job, attempt, fact.node):
        pass  # a step agent that could not be started: the program that wanted it is told
    elif _failed(fact.record) and attempt.stop is None and not leaves_by_itself(job):
        ending = outcome_words(fact.record.outcome())
        facts.append(
            f.StopRequested(
                at_s=fact.at_s,
                job=job.id,
                attempt=attempt.number,
                reason=StopReason.PEER_FAILED,
                grace_s=min(job.spec.grace_s, PEER_GRACE_S),
                by="gsched",
                message=f"the part on {fact.node} has ended: {ending}",
            )
        )
    return facts


def _stop_agents(job: Job, at_s: float) -> f.StopRequested:
    """Return the stop of what is left on other nodes of a job whose script has ended."""
    return f.StopRequested(
        at_s=at_s,
        job=job.id,
        attempt=job.attempts,
        reason=StopReason.PEER_FAILED,
        grace_s=min(job.spec.grace_s, PEER_GRACE_S),
        by="gsched",
        message="its script has ended",
    )


def attempt_ended(job: Job, at_s: float) -> f.AttemptEnded:
    """Return the end of a job's attempt whose parts have all ended."""
    attempt = job.current_attempt
    return f.AttemptEnded(
        at_s=at_s,
        job=job.id,
        attempt=attempt.number,
        outcome=_outcome(job, attempt),
        usage=total_usage(attempt),
        ended_s=ended_s(attempt, at_s),
        work_done=_work_done(attempt),
    )


def _outcome(job: Job, attempt: Attempt) -> Outcome:
    """Return the outcome of an attempt that is over, where it may have been asked to leave.

    What ends within the grace of its checkpoint signal has left for its move, also if that was
    given up meanwhile: with its state saved, or killed and restarted. A job that had ended before
    the signal reached it has just ended.
    """
    if attempt.stop in {None, StopReason.MOVE} and has_left(job, attempt):
        lost = lost_by(job, _without_agents(job, attempt))
        if lost:
            return Outcome(kind=OutcomeKind.RERUN, message=lost)
        why = f": {job.move.why}" if job.move is not None and job.move.why else ""
        return Outcome(
            kind=OutcomeKind.MOVED,
            message=f"migrated, after it ended at its checkpoint signal{why}",
        )
    outcome = attempt_outcome(_without_agents(job, attempt))
    if outcome.kind in _DIED and not outcome.succeeded and _has_saved_to_move(job, attempt):
        return Outcome(kind=OutcomeKind.MOVED, message="exited after its migration checkpoint")
    return outcome


def _has_saved_to_move(job: Job, attempt: Attempt) -> bool:
    """Return whether all is saved that an attempt has done: it waited to be stopped."""
    return (
        attempt.stop is StopReason.MOVE and job.migration is not None and job.migration.saved_s > 0
    )


def _failed(record: ExitRecord) -> bool:
    return record.kind is not OutcomeKind.EXITED or record.exit_code != 0


def _without_agents(job: Job, attempt: Attempt) -> Attempt:
    """Return an attempt without the parts that say nothing of how it has ended."""
    parts = {
        node: part for node, part in attempt.parts.items() if counts_for_outcome(job, attempt, node)
    }
    return attempt if len(parts) == len(attempt.parts) else structs.replace(attempt, parts=parts)


def attempt_outcome(attempt: Attempt) -> Outcome:
    """Return the one outcome of an attempt all of whose parts have ended.

    Its message also tells where output is that could not return to the host of submission.
    """
    outcome = _outcome_of_parts(attempt)
    records = [part.record for part in attempt.parts.values() if part.record is not None]
    undelivered = [record.undelivered for record in records if record.undelivered]
    if not undelivered:
        return outcome
    return structs.replace(
        outcome, message="; ".join(filter(None, (outcome.message, *undelivered)))
    )


def _outcome_of_parts(attempt: Attempt) -> Outcome:
    records = [(node, p.record) for node, p in attempt.parts.items() if p.record is not None]
    stopped = [record for _, record in records if record.stop_reason is not None]
    lost = [record for _, record in records if record.kind in LOST]
    if (stopped or lost) and attempt.stop in _REQUESTED_STOPS:
        return _stopped_outcome(attempt, [*stopped, *lost])  # it has ended, as was requested
    for node, record in records:
        if record.stop_reason is StopReason.WALLTIME:
            return Outcome(
                kind=OutcomeKind.WALLTIME,
                signal=record.signal,
                node=node,
                message=record.message or OVER_WALLTIME,
            )
        if record.stop_reason is StopReason.NODE_STOP:
            return _stopped_outcome(attempt, stopped)
    failures = [
        (record.failed_s or record.ended_s, node, record)
        for node, record in records
        if _failed(record) and record.stop_reason in {None, StopReason.LEASE}
    ]
    if failures:
        _, node, record = min(failures, key=lambda item: item[:2])
        return record.outcome(node)
    if stopped:  # every part was stopped as a peer: the part that failed first was stopped, too
        return _stopped_outcome(attempt, stopped)
    return Outcome(kind=OutcomeKind.EXITED, exit_code=0)


def _stopped_outcome(attempt: Attempt, stopped: list[ExitRecord]) -> Outcome:
    killed = any(record.signal == 9 or record.kind in LOST for record in stopped)
    reason = attempt.stop
    kind = _STOPPED.get(reason, OutcomeKind.CANCELLED) if reason else OutcomeKind.CANCELLED
    by = f" by {attempt.stopped_by}" if attempt.stopped_by else ""
    word = _STOP_WORDS.get(reason, "stopped") if reason else "stopped"
    why = f": {attempt.stop_message}" if attempt.stop_message else ""
    if reason is StopReason.MOVE and attempt.stop_message:
        why = f" ({attempt.stop_message})"
    message = f"{word}{by}{why}"
    return Outcome(kind=kind, signal=9 if killed else 15, message=message)


def ended_s(attempt: Attempt, at_s: float) -> float:
    """Return when the last part ended, as its node said, within what is possible."""
    ends = [part.record.ended_s for part in attempt.parts.values() if part.record is not None]
    return min(max([*ends, attempt.started_s or attempt.assigned_s]), at_s)


def total_usage(attempt: Attempt) -> Usage:
    """Return the use of all parts: the longest time, the mean utilisation, sums of the rest.

    The sum of peaks is what the parts could need at once, though they need not have.
    """
    used = [part.usage for part in attempt.parts.values() if part.usage is not None]
    if len(used) == 1:
        return used[0]
    samples = sum(usage.samples for usage in used)
    weight = max(samples, 1)
    return Usage(
        wall_s=max((usage.wall_s for usage in used), default=0.0),
        cpu_s=sum(usage.cpu_s for usage in used),
        cpu_peak_cores=sum(usage.cpu_peak_cores for usage in used),
        memory_peak_bytes=sum(usage.memory_peak_bytes for usage in used),
        memory_mean_bytes=sum(usage.memory_mean_bytes for usage in used),
        gpu_util_mean_percent=sum(u.gpu_util_mean_percent * u.samples for u in used) / weight,
        gpu_memory_peak_bytes=sum(usage.gpu_memory_peak_bytes for usage in used),
        gpu_memory_mean_bytes=sum(usage.gpu_memory_mean_bytes for usage in used),
        read_bytes=sum(usage.read_bytes for usage in used),
        write_bytes=sum(usage.write_bytes for usage in used),
        samples=samples,
        gpu_idle_s=sum(usage.gpu_idle_s for usage in used),
    )


def _after_attempt(state: State, fact: f.AttemptEnded) -> list[f.AnyFact]:
    job = state.jobs[fact.job]
    outcome = fact.outcome
    if job.recovered:
        return [_end_recovered(job, fact)]
    if job.move is not None:
        return _on_the_way(state, job, fact.at_s)
    if outcome.kind is OutcomeKind.RERUN:
        return [f.JobRequeued(at_s=fact.at_s, job=job.id, reason=outcome.message, faults=0)]
    if outcome.kind is OutcomeKind.MOVED:  # for a move that was given up meanwhile
        return [f.JobRequeued(at_s=fact.at_s, job=job.id, reason=outcome.message, faults=0)]
    deleted = job.attempt is not None and job.attempt.stop is StopReason.DELETE
    follows = None if deleted else after_fault(job, outcome, fact.at_s)
    if follows is not None:
        return [follows]
    return [f.JobEnded(at_s=fact.at_s, job=job.id, outcome=outcome, ended_s=fact.ended_s)]


def _end_recovered(job: Job, fact: f.AttemptEnded) -> f.JobEnded:
    """Return the end of a job that cannot be started again: only its attempt was recovered."""
    outcome = fact.outcome
    if outcome.kind in {OutcomeKind.RERUN, OutcomeKind.MOVED}:
        outcome = structs.replace(
            outcome,
            kind=OutcomeKind.CANCELLED,
            message=f"{outcome.message}; its script was lost with the database: submit it again",
        )
    return f.JobEnded(at_s=fact.at_s, job=job.id, outcome=outcome, ended_s=fact.ended_s)


def _after_checkpoint(state: State, fact: f.CheckpointTaken) -> list[f.AnyFact]:
    """Return the stop of a moving training that has saved its state, and waits."""
    job = state.jobs[fact.job]
    move, attempt = job.move, job.attempt
    if move is None or attempt is None or attempt.stop is not None or fact.request != move.request:
        return []
    return [stop_to_move(job, fact.at_s)]


def _after_start(state: State, fact: f.PartStarted) -> list[f.AnyFact]:
    """Return that the move of a job which knows only its signal is over: it tells no steps."""
    job = state.jobs[fact.job]
    migration = job.migration
    if (
        not job.spec.checkpoint_signal
        or migration is None
        or not migration.placed_s
        or migration.resumed_s
    ):
        return []
    if job.attempt is None or job.attempt.state is not AttemptState.RUNNING:
        return []  # others of its parts have not started
    lost = bool(migration.lost)
    return [f.TrainingResumed(at_s=fact.at_s, job=job.id, attempt=fact.attempt, step=0, lost=lost)]


def _after_abandoned(state: State, fact: f.MigrationAbandoned) -> list[f.AnyFact]:
    """Return what becomes of those that were to go where this job stays after all."""
    stays = state.jobs[fact.job]
    facts: list[f.AnyFact] = list(_still_preempted(state, stays, fact))
    for job in crowded_out(state, stays.current_attempt.parts):
        reason = f"job {short_job_id(stays.id)} stays where it was to go"
        if job.attempt is not None and job.attempt.stop is None:
            number = job.attempt.number
            facts.append(
                f.MigrationAbandoned(at_s=fact.at_s, job=job.id, attempt=number, reason=reason)
            )
        else:
            facts.append(f.TargetLost(at_s=fact.at_s, job=job.id, reason=reason))
    return facts


def _still_preempted(
    state: State, job: Job, fact: f.MigrationAbandoned
) -> Iterator[f.JobPreempted | f.StopRequested | f.ClaimEnded]:
    """Yield that a job which was to give way is requeued, as it did not save its state in time.

    One that must not be stays, and the job that was to have its resources waits again.
    """
    preempted = job.preempted
    if preempted is None or preempted.attempt != fact.attempt:
        return
    waiting = state.claims.get(preempted.job_for)
    if waiting is None or waiting.claim is None or job.id not in waiting.claim.jobs:
        return
    if preempted.or_requeue:
        why = f"{preempted.why}; {fact.reason}"
        order = GiveWay(way="requeue", why=why, job_for=waiting.id, behind=preempted.behind)
        yield from stopped(job, order, fact.at_s)
        return
    reason = f"job {short_job_id(job.id)} stays: {fact.reason}"
    yield f.ClaimEnded(at_s=fact.at_s, job=waiting.id, reason=reason)


def _on_the_way(state: State, job: Job, at_s: float) -> list[f.AnyFact]:
    """Return what becomes of a moving job that has left its old place."""
    if not job.target.allocation:
        return [f.JobRequeued(at_s=at_s, job=job.id, reason=job.target.why, faults=0)]
    if job.holds:
        reason = "held while it moved"
        return [f.JobRequeued(at_s=at_s, job=job.id, reason=reason, faults=0)]
    closed = [share.node for share in job.target.allocation if not _is_open(state, share.node)]
    if closed:
        reason = f"the target of its migration is gone: {closed[0]} takes no work"
        return [f.JobRequeued(at_s=at_s, job=job.id, reason=reason, faults=0)]
    return []  # a cycle gives it its place as soon as all of that is free


def _is_open(state: State, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.state is NodeState.UP and not (node.drained or node.problem)


def _without_place(
    state: State, fact: f.NodeDisconnected | f.NodeDrained | f.NodeRegistered
) -> list[f.AnyFact]:
    """Return that jobs on their way to a node that takes no work any more go to their queues.

    What is prepared there ends with the connection.
    """
    facts: list[f.AnyFact] = []
    if not isinstance(fact, f.NodeDrained):
        facts.extend(lost_with_node(state, fact.node, fact.at_s))
    if isinstance(fact, f.NodeRegistered):
        return facts
    for job in state.targets_on.get(fact.node, {}).values():
        if job.attempt is None:
            facts.extend(_on_the_way(state, job, fact.at_s))
    if isinstance(fact, f.NodeDrained):  # a node that is away may be back before a claim is over
        reason = f"{fact.node} takes no work"
        claims = state.claims_on.get(fact.node, ())
        facts += [f.ClaimEnded(at_s=fact.at_s, job=job, reason=reason) for job in claims]
    return facts


def _work_done(attempt: Attempt) -> float:
    """Return how far the last checkpoint of an attempt has it: what all parts have come to."""
    records = [part.record for part in attempt.parts.values() if part.record is not None]
    done = [record.work_done for record in records if record.work_done is not None]
    return min(done, default=0.0)


_GOES_ON = frozenset({JobState.MIGRATING, JobState.EXITING})
_MAY_BE_MOOT: Final = frozenset(
    {
        f.MigrationAbandoned,
        f.MigrationPrepared,
        f.PartOpened,
        f.TargetLost,
        f.ClaimEnded,
        f.JobRequeued,
    }
)


def is_overtaken(state: State, fact: f.AnyFact) -> bool:
    """Return whether a fact about a migration has become true or moot before its turn.

    Of what is decided at one moment, one fact may bring about another one that was decided, too:
    two jobs that wanted each other's places and are given up both, or a job whose target was on
    two nodes that are both gone. It happens once.
    """
    if type(fact) not in _MAY_BE_MOOT:
        return False
    match fact:
        case f.MigrationAbandoned():
            job = state.jobs.get(fact.job)
            return job is None or not _is_requested(job, fact.attempt)
        case f.MigrationPrepared():
            job = state.jobs.get(fact.job)
            return job is None or job.move is None or not job.move.prepare
        case f.PartOpened():
            return not part_opened(state, fact)
        case f.TargetLost():
            job = state.jobs.get(fact.job)
            return job is None or job.move is None or not job.move.allocation
        case f.ClaimEnded():
            job = state.jobs.get(fact.job)
            return job is None or job.claim is None
        case f.JobRequeued():
            job = state.jobs.get(fact.job)
            return job is None or job.state not in _GOES_ON
        case _:
            return False


def _is_requested(job: Job, attempt: int) -> bool:
    """Return whether a job is asked to move, and has not begun to stop for it."""
    here = job.attempt
    return (
        job.move is not None and here is not None and here.number == attempt and here.stop is None
    )
