"""One table for jobs, one for attempts, one for parts, one for nodes: what is not listed cannot be.

`docs/states.md` is drawn from these tables.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from gsched.errors import InvalidTransitionError
from gsched.model.ids import short_job_id
from gsched.model.states import AttemptState as A
from gsched.model.states import JobState as J
from gsched.model.states import NodeState as N
from gsched.model.states import PartState as P
from gschedd.core.state import facts as f

S = TypeVar("S", J, A, P, N)

#: The states that may follow; where there is more than one, the fact itself says which
#: (a job released from a hold may still have to wait for its time).
JOB_MOVES: Final[Mapping[tuple[J, type[f.Fact]], frozenset[J]]] = MappingProxyType(
    {
        (J.QUEUED, f.JobHeld): frozenset({J.HELD}),
        (J.QUEUED, f.JobAltered): frozenset({J.QUEUED, J.WAITING}),
        (J.QUEUED, f.AttemptAssigned): frozenset({J.RUNNING}),
        (J.QUEUED, f.ElementsMade): frozenset({J.QUEUED}),
        (J.QUEUED, f.ElementsDropped): frozenset({J.QUEUED}),
        (J.QUEUED, f.ElementsHeld): frozenset({J.QUEUED}),
        (J.QUEUED, f.ElementsReleased): frozenset({J.QUEUED}),
        (J.QUEUED, f.AttemptRecovered): frozenset({J.RUNNING}),
        (J.QUEUED, f.RoomClaimed): frozenset({J.QUEUED}),
        (J.QUEUED, f.ClaimEnded): frozenset({J.QUEUED}),
        (J.QUEUED, f.JobEnded): frozenset({J.DONE}),
        (J.WAITING, f.JobDue): frozenset({J.QUEUED}),
        (J.WAITING, f.JobHeld): frozenset({J.HELD}),
        (J.WAITING, f.JobAltered): frozenset({J.QUEUED, J.WAITING}),
        (J.WAITING, f.ElementsMade): frozenset({J.WAITING}),
        (J.WAITING, f.ElementsDropped): frozenset({J.WAITING}),
        (J.WAITING, f.ElementsHeld): frozenset({J.WAITING}),
        (J.WAITING, f.ElementsReleased): frozenset({J.WAITING}),
        (J.WAITING, f.AttemptRecovered): frozenset({J.RUNNING}),
        (J.WAITING, f.JobEnded): frozenset({J.DONE}),
        (J.HELD, f.JobHeld): frozenset({J.HELD}),
        (J.HELD, f.JobReleased): frozenset({J.HELD, J.QUEUED, J.WAITING}),
        (J.HELD, f.JobAltered): frozenset({J.HELD}),
        (J.HELD, f.ElementsMade): frozenset({J.HELD}),
        (J.HELD, f.ElementsDropped): frozenset({J.HELD}),
        (J.HELD, f.ElementsHeld): frozenset({J.HELD}),
        (J.HELD, f.ElementsReleased): frozenset({J.HELD}),
        (J.HELD, f.AttemptRecovered): frozenset({J.RUNNING}),
        (J.HELD, f.JobEnded): frozenset({J.DONE}),
        (J.RUNNING, f.JobHeld): frozenset({J.RUNNING}),  # takes effect if the job is requeued
        (J.RUNNING, f.JobReleased): frozenset({J.RUNNING}),
        (J.RUNNING, f.JobAltered): frozenset({J.RUNNING}),
        (J.RUNNING, f.JobSignalled): frozenset({J.RUNNING}),
        (J.RUNNING, f.PartOpened): frozenset({J.RUNNING}),
        (J.RUNNING, f.PartStarted): frozenset({J.RUNNING}),
        (J.RUNNING, f.PartEnded): frozenset({J.RUNNING}),
        (J.RUNNING, f.MigrationRequested): frozenset({J.MIGRATING}),
        (J.RUNNING, f.CheckpointTaken): frozenset({J.RUNNING}),
        (J.RUNNING, f.BatchingChosen): frozenset({J.RUNNING}),
        (J.RUNNING, f.GpusIdleWarned): frozenset({J.RUNNING}),
        (J.RUNNING, f.IdleWarningEnded): frozenset({J.RUNNING}),
        (J.RUNNING, f.IdleGpusReclaimed): frozenset({J.RUNNING}),
        (J.RUNNING, f.JobPreempted): frozenset({J.RUNNING}),
        (J.RUNNING, f.TrainingResumed): frozenset({J.RUNNING}),
        (J.RUNNING, f.StopRequested): frozenset({J.EXITING}),
        (J.RUNNING, f.AttemptEnded): frozenset({J.EXITING}),
        (J.RUNNING, f.AttemptRecovered): frozenset({J.RUNNING}),  # of a later attempt
        (J.MIGRATING, f.JobHeld): frozenset({J.MIGRATING}),  # then it goes to its queue instead
        (J.MIGRATING, f.JobReleased): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.JobAltered): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.JobSignalled): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.CheckpointTaken): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.TrainingResumed): frozenset({J.MIGRATING}),  # it moves on at once
        (J.MIGRATING, f.MigrationPrepared): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.MigrationAbandoned): frozenset({J.RUNNING}),
        (J.MIGRATING, f.TargetLost): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.PartStarted): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.PartEnded): frozenset({J.MIGRATING}),
        (J.MIGRATING, f.StopRequested): frozenset({J.MIGRATING, J.EXITING}),  # a delete wins
        (J.MIGRATING, f.AttemptEnded): frozenset({J.MIGRATING, J.EXITING}),  # it may just be done
        (J.MIGRATING, f.AttemptAssigned): frozenset({J.RUNNING}),
        (J.MIGRATING, f.AttemptRecovered): frozenset({J.RUNNING}),
        (J.MIGRATING, f.JobRequeued): frozenset({J.QUEUED, J.WAITING, J.HELD}),
        (J.MIGRATING, f.JobEnded): frozenset({J.DONE}),
        (J.EXITING, f.JobHeld): frozenset({J.EXITING}),
        (J.EXITING, f.JobReleased): frozenset({J.EXITING}),
        (J.EXITING, f.JobAltered): frozenset({J.EXITING}),  # it may be requeued
        (J.EXITING, f.JobSignalled): frozenset({J.EXITING}),
        (J.EXITING, f.CheckpointTaken): frozenset({J.EXITING}),
        (J.EXITING, f.TrainingResumed): frozenset({J.EXITING}),  # a report that was under way
        (J.EXITING, f.PartStarted): frozenset({J.EXITING}),
        (J.EXITING, f.PartEnded): frozenset({J.EXITING}),
        (J.EXITING, f.StopRequested): frozenset({J.EXITING}),
        (J.EXITING, f.AttemptEnded): frozenset({J.EXITING}),
        (J.EXITING, f.AttemptRecovered): frozenset({J.RUNNING}),
        (J.EXITING, f.JobRequeued): frozenset({J.QUEUED, J.WAITING, J.HELD}),
        (J.EXITING, f.JobEnded): frozenset({J.DONE}),
    }
)

ATTEMPT_MOVES: Final[Mapping[tuple[A, type[f.Fact]], frozenset[A]]] = MappingProxyType(
    {
        (A.ASSIGNED, f.PartStarted): frozenset({A.STARTING, A.RUNNING}),
        (A.ASSIGNED, f.PartEnded): frozenset({A.EXITING}),
        (A.ASSIGNED, f.StopRequested): frozenset({A.EXITING}),
        (A.ASSIGNED, f.AttemptRecovered): frozenset({A.ENDED}),  # a later one took its place
        (A.STARTING, f.PartStarted): frozenset({A.STARTING, A.RUNNING}),
        (A.STARTING, f.PartEnded): frozenset({A.EXITING}),
        (A.STARTING, f.StopRequested): frozenset({A.EXITING}),
        (A.STARTING, f.AttemptRecovered): frozenset({A.ENDED}),
        (A.RUNNING, f.PartOpened): frozenset({A.RUNNING}),
        (A.RUNNING, f.PartStarted): frozenset({A.RUNNING}),  # of a step agent
        (A.RUNNING, f.PartEnded): frozenset({A.EXITING}),
        (A.RUNNING, f.StopRequested): frozenset({A.EXITING}),
        (A.RUNNING, f.AttemptRecovered): frozenset({A.ENDED}),
        (A.EXITING, f.PartStarted): frozenset({A.EXITING}),  # a report that was under way
        (A.EXITING, f.PartEnded): frozenset({A.EXITING}),
        (A.EXITING, f.StopRequested): frozenset({A.EXITING}),
        (A.EXITING, f.AttemptEnded): frozenset({A.ENDED}),
        (A.EXITING, f.AttemptRecovered): frozenset({A.ENDED}),
    }
)

PART_MOVES: Final[Mapping[tuple[P, type[f.Fact]], frozenset[P]]] = MappingProxyType(
    {
        (P.PASSIVE, f.PartOpened): frozenset({P.PENDING}),
        (P.PENDING, f.PartStarted): frozenset({P.RUNNING}),
        (P.PENDING, f.PartEnded): frozenset({P.ENDED}),
        (P.RUNNING, f.PartEnded): frozenset({P.ENDED}),
    }
)

NODE_MOVES: Final[Mapping[tuple[N, type[f.Fact]], frozenset[N]]] = MappingProxyType(
    {
        (N.UP, f.NodeRegistered): frozenset({N.UP}),
        (N.UP, f.NodeProblemChanged): frozenset({N.UP}),
        (N.UP, f.NodeDisconnected): frozenset({N.UNREACHABLE}),
        (N.UP, f.NodeDrained): frozenset({N.UP}),
        (N.UP, f.NodeResumed): frozenset({N.UP}),
        (N.UP, f.NodeWindowAdded): frozenset({N.UP}),
        (N.UP, f.NodeWindowBegun): frozenset({N.UP}),
        (N.UP, f.NodeWindowEnded): frozenset({N.UP}),
        (N.UP, f.NodePowerChanged): frozenset({N.UP}),
        (N.UP, f.NodeFaulted): frozenset({N.UP}),
        (N.UP, f.NodeProbeRequested): frozenset({N.UP}),
        (N.UP, f.NodeProbed): frozenset({N.UP}),
        (N.UNREACHABLE, f.NodeRegistered): frozenset({N.UP}),
        (N.UNREACHABLE, f.NodeDrained): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeResumed): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeWindowAdded): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeWindowBegun): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeWindowEnded): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodePowerChanged): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeFaulted): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeProbed): frozenset({N.UNREACHABLE}),
        (N.UNREACHABLE, f.NodeRemoved): frozenset({N.UNREACHABLE}),  # there is none any more
        (N.UNREACHABLE, f.NodeReplaced): frozenset({N.UNREACHABLE}),
    }
)


def next_job_state(state: J, fact: f.JobFact, wanted: J) -> J:
    """Return ``wanted`` if a job in ``state`` may go there by ``fact``, else raise.

    Raises:
        InvalidTransitionError: the table does not list it.
    """
    if wanted in JOB_MOVES.get((state, type(fact)), ()):
        return wanted
    raise _impossible(f"job {short_job_id(fact.job)}", state, fact, wanted)


def next_attempt_state(state: A, fact: f.AttemptFact, wanted: A) -> A:
    """Return ``wanted`` if an attempt in ``state`` may go there by ``fact``, else raise.

    Raises:
        InvalidTransitionError: the table does not list it.
    """
    if wanted in ATTEMPT_MOVES.get((state, type(fact)), ()):
        return wanted
    raise _impossible(f"attempt {short_job_id(fact.job)}.{fact.attempt}", state, fact, wanted)


def next_part_state(state: P, fact: f.PartOpened | f.PartStarted | f.PartEnded, wanted: P) -> P:
    """Return ``wanted`` if a part in ``state`` may go there by ``fact``, else raise.

    Raises:
        InvalidTransitionError: the table does not list it.
    """
    if wanted in PART_MOVES.get((state, type(fact)), ()):
        return wanted
    subject = f"attempt {short_job_id(fact.job)}.{fact.attempt} on {fact.node}"
    raise _impossible(subject, state, fact, wanted)


def next_node_state(state: N, fact: f.NodeFact, wanted: N) -> N:
    """Return ``wanted`` if a node in ``state`` may go there by ``fact``, else raise.

    Raises:
        InvalidTransitionError: the table does not list it.
    """
    if wanted in NODE_MOVES.get((state, type(fact)), ()):
        return wanted
    raise _impossible(f"node {fact.node}", state, fact, wanted)


def _impossible(subject: str, state: str, fact: f.Fact, wanted: str) -> InvalidTransitionError:
    return InvalidTransitionError(
        subject=subject, state=state, fact=f"{type(fact).__name__} to {wanted}"
    )
