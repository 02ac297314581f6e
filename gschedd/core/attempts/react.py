"""Which effects a durable fact asks for."""

from collections.abc import Iterable, Iterator
from typing import Final, get_args

from gsched.model.ids import short_job_id
from gsched.model.states import PartState, PowerState, StopReason
from gsched.protocol import node as n
from gschedd.core.attempts.idle_gpus import idle_words
from gschedd.core.attempts.warm import discarded
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.ledger import owned_space
from gschedd.core.state.records import Attempt, Job, Node
from gschedd.core.state.state import State
from gschedd.core.state.transient import PreparedThere
from gschedd.core.state.walltime import walltime_left_s
from gschedd.core.training.world_size import ranks_on

#: What runs of a job that was given up, as its record is damaged, is killed after this, seconds.
DISCARD_GRACE_S: Final = 5.0

_OfAttempt = (
    f.MigrationRequested
    | f.BatchingChosen
    | f.MigrationPrepared
    | f.MigrationAbandoned
    | f.StopRequested
    | f.JobSignalled
    | f.JobAltered
    | f.TrainingResumed
    | f.PartStarted
    | f.GpusIdleWarned
)
#: Kinds of facts that cause effects.
_SENDING: Final = frozenset(
    {
        *get_args(_OfAttempt),
        f.AttemptAssigned,
        f.PartOpened,
        f.NodeProbeRequested,
        f.PartEnded,
        f.JobDiscarded,
    }
)


def react(state: State, fact: f.AnyFact) -> Iterable[e.AnyEffect]:
    """Return what is to be sent because of a fact that has been applied."""
    effects: Iterable[e.AnyEffect] = ()
    if type(fact) in _SENDING:
        effects = _because_of(state, fact)
    elif isinstance(fact, f.NodePowerChanged):
        effects = switches(state.nodes[fact.node])
    return [*effects, *discarded(state)] if state.volatile.prepared else effects


def _because_of(state: State, fact: f.AnyFact) -> Iterator[e.AnyEffect]:
    match fact:
        case f.AttemptAssigned():
            for node in fact.active:
                yield e.SendLaunch(node=node, job=fact.job, attempt=fact.attempt)
        case f.PartOpened():
            yield e.SendLaunch(node=fact.node, job=fact.job, attempt=fact.attempt)
        case f.NodeProbeRequested():
            yield e.Send(node=fact.node, message=n.Probe(request=fact.request))
        case f.PartEnded():
            job = state.jobs.get(fact.job)
            token = job.attempt.token if job is not None and job.attempt is not None else ""
            ack = n.ExitAck(job=fact.job, attempt=fact.attempt, token=token)
            yield e.Send(node=fact.node, message=ack)
        case f.JobDiscarded():
            for node, attempt in fact.attempts.items():
                order = n.StopAttempt(
                    job=fact.job,
                    attempt=attempt,
                    reason=StopReason.FENCED,
                    grace_s=DISCARD_GRACE_S,
                )
                yield e.Send(node=node, message=order)
        case _ if isinstance(fact, _OfAttempt):
            job = state.jobs.get(fact.job)
            if job is not None and job.attempt is not None:
                yield from _to_attempt(state, fact, job, job.attempt)
        case _:
            pass


def switches(node: Node) -> Iterator[e.SwitchPower]:
    """Yield that a node that is on its way down or up is to be switched."""
    if node.power.state in {PowerState.POWERING_DOWN, PowerState.POWERING_UP}:
        up = node.power.state is PowerState.POWERING_UP
        yield e.SwitchPower(node=node.name, up=up)


def _to_attempt(
    state: State, fact: _OfAttempt, job: Job, attempt: Attempt
) -> Iterator[e.AnyEffect]:
    match fact:
        case f.MigrationRequested() if fact.prepare:
            yield from prepare(state, job, fact)
        case f.MigrationPrepared() if attempt.stop is not None or is_saved(job):
            pass
        case f.MigrationRequested() | f.MigrationPrepared():
            yield from ask_checkpoint(job, attempt)
        case f.BatchingChosen():
            tune = n.TuneTraining(job=job.id, attempt=attempt.number, batching=fact.batching)
            yield e.Send(node=next(iter(attempt.parts)), message=tune)
        case f.MigrationAbandoned() if not job.spec.checkpoint_signal:
            # one that knows only its signal does not wait; should it end, its end will say why
            go_on = n.GoOn(job=job.id, attempt=attempt.number, request=job.moves_requested)
            yield e.Send(node=next(iter(attempt.parts)), message=go_on)
        case f.GpusIdleWarned() if job.spec.interactive is None:
            line = f"gsched: job {short_job_id(job.id)}: {idle_words(fact)}\n".encode()
            yield e.Send(
                node=next(iter(attempt.parts)),
                message=n.ReadOutput(
                    request=0,
                    job=job.id,
                    attempt=attempt.number,
                    stream="stderr",
                    offset=0,
                    max_bytes=0,
                    append=line,
                ),
            )
        case f.PartStarted() if attempt.stop is not None:
            yield stop(fact.node, fact.job, attempt)
        case f.StopRequested() | f.JobSignalled() | f.JobAltered() | f.TrainingResumed():
            yield from _to_parts(fact, job, attempt)
        case _:
            pass


def prepare(state: State, job: Job, fact: f.MigrationRequested) -> Iterator[e.SendPrepare]:
    """Yield the orders to prepare a job's next attempt, and note who has got them."""
    nodes = tuple(share.node for share in fact.allocation)
    state.volatile.prepared[job.id] = PreparedThere(
        attempt=fact.prepare, nodes=nodes, missing=set(nodes)
    )
    for share in fact.allocation:
        taken = owned_space(state, state.nodes[share.node]).cpus < share.cpus
        yield e.SendPrepare(node=share.node, job=job.id, attempt=fact.prepare, yields=taken)


def is_saved(job: Job) -> bool:
    """Return whether a moving job has saved its state for the move."""
    return job.migration is not None and job.migration.saved_s > 0


def ask_checkpoint(job: Job, attempt: Attempt) -> Iterator[e.Send]:
    """Yield the order to save its state: to rank 0's node, or its signal to all of its nodes."""
    signal = job.spec.checkpoint_signal
    ranks = ranks_on(job, job.move.allocation) if job.move is not None and not signal else 0
    order = n.TakeCheckpoint(
        job=job.id,
        attempt=attempt.number,
        request=job.moves_requested,
        signal=signal,
        world_size=ranks,
        prepared=job.move is not None and job.move.prepare > 0,
    )
    for node in checkpointing_nodes(job, attempt):
        yield e.Send(node=node, message=order)


def checkpointing_nodes(job: Job, attempt: Attempt) -> Iterator[str]:
    """Yield the nodes that hear of a move: ranks agree among themselves, processes do not."""
    if not job.spec.checkpoint_signal:
        yield next(iter(attempt.parts))
        return
    for node, part in attempt.parts.items():
        if part.state in {PartState.PENDING, PartState.RUNNING}:
            yield node


def _to_parts(
    fact: f.StopRequested | f.JobSignalled | f.JobAltered | f.TrainingResumed,
    job: Job,
    attempt: Attempt,
) -> Iterator[e.AnyEffect]:
    for node, part in attempt.parts.items():
        if part.state not in {PartState.PENDING, PartState.RUNNING}:
            continue
        match fact:
            case f.StopRequested():
                yield stop(node, fact.job, attempt)
            case f.JobSignalled():
                signal = n.Signal(job=fact.job, attempt=attempt.number, signal=fact.signal)
                yield e.Send(node=node, message=signal)
            case f.JobAltered() if "resources" in fact.changed:
                yield retime(node, job)
            case f.TrainingResumed() if job.spec.walltime_s is not None and fact.restore_s:
                yield retime(node, job)  # what reading its checkpoint took does not count
            case _:
                pass


def retime(node: str, job: Job) -> e.Send:
    """Return what a node is to know of a job's limit."""
    order = n.Retime(job=job.id, attempt=job.attempts, walltime_s=walltime_left_s(job))
    return e.Send(node=node, message=order)


def stop(node: str, job: int, attempt: Attempt) -> e.Send:
    """Return the stop of one part, for the reason that stands."""
    assert attempt.stop is not None, "a stop has a reason"
    order = n.StopAttempt(
        job=job,
        attempt=attempt.number,
        reason=attempt.stop,
        grace_s=attempt.stop_grace_s,
        token=attempt.token,
    )
    return e.Send(node=node, message=order)
