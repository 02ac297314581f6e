"""The tables of states: closed, without traps, and obeyed."""

from collections.abc import Mapping
from enum import StrEnum

import pytest

from gsched.errors import InvalidTransitionError
from gsched.model.job import ExitRecord
from gsched.model.resources import Usage
from gsched.model.states import AttemptState, JobState, NodeState, OutcomeKind, PartState
from gschedd.core.state import facts as f
from gschedd.core.state.transitions import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    NODE_MOVES,
    PART_MOVES,
    next_attempt_state,
    next_job_state,
    next_node_state,
    next_part_state,
)

Moves = Mapping[tuple[StrEnum, type[f.Fact]], frozenset[StrEnum]]

TABLES = pytest.mark.parametrize(
    ("moves", "begins", "ends"),
    [
        (JOB_MOVES, {JobState.QUEUED, JobState.HELD, JobState.WAITING}, {JobState.DONE}),
        (ATTEMPT_MOVES, {AttemptState.ASSIGNED}, {AttemptState.ENDED}),
        (PART_MOVES, {PartState.PENDING, PartState.PASSIVE}, {PartState.ENDED}),
        (NODE_MOVES, {NodeState.UP}, set()),
    ],
    ids=["job", "attempt", "part", "node"],
)
KINDS = [
    kind
    for name, kind in vars(f).items()
    if isinstance(kind, type) and kind.__doc__ and name[0] != "_"
]
JOB_FACTS = [kind for kind in KINDS if issubclass(kind, f.JobFact)]
NODE_FACTS = [kind for kind in KINDS if issubclass(kind, f.NodeFact)]
RECORD = ExitRecord(job=1, attempt=1, kind=OutcomeKind.EXITED, exit_code=0)


def reachable(moves: Moves, begins: set[StrEnum]) -> set[StrEnum]:
    """Return every state that can be reached."""
    found = set(begins)
    while (
        more := {
            following
            for (state, _), wanted in moves.items()
            if state in found
            for following in wanted
        }
        - found
    ):
        found |= more
    return found


@TABLES
def test_every_state_can_be_reached(moves: Moves, begins: set[StrEnum], ends: set[StrEnum]) -> None:
    """A state that nobody enters is a mistake in the table."""
    kind = type(next(iter(begins)))

    assert reachable(moves, begins) == set(kind)


@TABLES
def test_no_state_is_a_trap(moves: Moves, begins: set[StrEnum], ends: set[StrEnum]) -> None:
    """From every state there is a way to an end; an end has no way out (I9)."""
    for state in reachable(moves, begins):
        out = [wanted for (before, _), wanted in moves.items() if before is state]
        if state in ends:
            assert not out, f"{state} is final"
        elif ends:
            assert reachable(moves, {state}) & ends, f"{state} is a trap"


def blank(kind: type[f.Fact]) -> f.Fact:
    """Return a fact of a kind of which only the kind matters here."""
    fields: dict[str, object] = {"at_s": 0.0, "job": 1, "attempt": 1, "node": "n1"}
    known = {name: fields.get(name) for name in kind.__struct_fields__}
    return kind(**known)  # type: ignore[arg-type] # what is not known is None


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("kind", JOB_FACTS)
def test_a_job_moves_only_as_listed(state: JobState, kind: type[f.JobFact]) -> None:
    """All pairs of state and fact, towards all states."""
    fact = blank(kind)
    assert isinstance(fact, f.JobFact)
    for wanted in JobState:
        if wanted in JOB_MOVES.get((state, kind), ()):
            assert next_job_state(state, fact, wanted) is wanted
        else:
            with pytest.raises(InvalidTransitionError) as refused:
                next_job_state(state, fact, wanted)
            assert str(refused.value) == (
                f"job 1 is {state}: {kind.__name__} to {wanted} cannot follow that state"
            )


@pytest.mark.parametrize("state", list(AttemptState))
@pytest.mark.parametrize("kind", [kind for kind in JOB_FACTS if issubclass(kind, f.AttemptFact)])
def test_an_attempt_moves_only_as_listed(state: AttemptState, kind: type[f.AttemptFact]) -> None:
    """The same for attempts."""
    fact = blank(kind)
    assert isinstance(fact, f.AttemptFact)
    for wanted in AttemptState:
        if wanted in ATTEMPT_MOVES.get((state, kind), ()):
            assert next_attempt_state(state, fact, wanted) is wanted
        else:
            with pytest.raises(InvalidTransitionError, match=r"attempt 1\.1 is"):
                next_attempt_state(state, fact, wanted)


@pytest.mark.parametrize("state", list(PartState))
@pytest.mark.parametrize(
    "fact",
    [
        f.PartStarted(at_s=0, job=1, attempt=1, node="n1", pid=1, started_s=0),
        f.PartEnded(at_s=0, job=1, attempt=1, node="n1", record=RECORD, usage=Usage()),
    ],
    ids=["started", "ended"],
)
def test_a_part_moves_only_as_listed(state: PartState, fact: f.PartStarted | f.PartEnded) -> None:
    """The same for parts: what ended does not start, what is passive does neither."""
    for wanted in PartState:
        if wanted in PART_MOVES.get((state, type(fact)), ()):
            assert next_part_state(state, fact, wanted) is wanted
        else:
            with pytest.raises(InvalidTransitionError, match=r"attempt 1\.1 on n1 is"):
                next_part_state(state, fact, wanted)


@pytest.mark.parametrize("state", list(NodeState))
@pytest.mark.parametrize("kind", NODE_FACTS)
def test_a_node_moves_only_as_listed(state: NodeState, kind: type[f.NodeFact]) -> None:
    """The same for nodes."""
    fact = blank(kind)
    assert isinstance(fact, f.NodeFact)
    for wanted in NodeState:
        if wanted in NODE_MOVES.get((state, kind), ()):
            assert next_node_state(state, fact, wanted) is wanted
        else:
            with pytest.raises(InvalidTransitionError, match="node n1 is"):
                next_node_state(state, fact, wanted)


#: The guarantees behind the tables, said once more and independently of them.
NEVER = [
    (JOB_MOVES, JobState.DONE, None),
    (JOB_MOVES, JobState.HELD, f.AttemptAssigned),
    (JOB_MOVES, JobState.WAITING, f.AttemptAssigned),
    (JOB_MOVES, JobState.RUNNING, f.AttemptAssigned),
    (JOB_MOVES, JobState.EXITING, f.AttemptAssigned),
    (JOB_MOVES, JobState.RUNNING, f.JobEnded),
    (JOB_MOVES, JobState.RUNNING, f.JobRequeued),
    (JOB_MOVES, JobState.QUEUED, f.PartStarted),
    (JOB_MOVES, JobState.QUEUED, f.JobRequeued),
    (ATTEMPT_MOVES, AttemptState.ENDED, None),
    (ATTEMPT_MOVES, AttemptState.RUNNING, f.AttemptEnded),
    (PART_MOVES, PartState.ENDED, None),
    (PART_MOVES, PartState.PASSIVE, f.PartStarted),
    (PART_MOVES, PartState.PASSIVE, f.PartEnded),
    (PART_MOVES, PartState.RUNNING, f.PartStarted),
]


@pytest.mark.parametrize(("moves", "state", "kind"), NEVER)
def test_what_must_never_be_is_in_no_table(
    moves: Moves, state: StrEnum, kind: type[f.Fact] | None
) -> None:
    """A held job never starts, what runs is never assigned again, what is done stays done."""
    listed = [fact for before, fact in moves if before is state]

    assert listed == [] if kind is None else kind not in listed


def test_the_only_way_to_running_is_an_assignment() -> None:
    """From its queue, or from one place to the next; or it never left the one that it has.

    What an old database does not know is taken back from the nodes: from any state but the end.
    """
    ways = {
        (before, kind)
        for (before, kind), wanted in JOB_MOVES.items()
        if JobState.RUNNING in wanted and before is not JobState.RUNNING
    }

    recovered = {
        (before, f.AttemptRecovered) for before, kind in ways if kind is f.AttemptRecovered
    }
    assert recovered == {
        (state, f.AttemptRecovered) for state in set(JobState) - {JobState.RUNNING, JobState.DONE}
    }
    assert ways - recovered == {
        (JobState.QUEUED, f.AttemptAssigned),
        (JobState.MIGRATING, f.AttemptAssigned),
        (JobState.MIGRATING, f.MigrationAbandoned),
    }


def test_a_stopping_attempt_never_runs_again() -> None:
    """Exiting leads to exiting or ended only."""
    after = [
        wanted for (before, _), wanted in ATTEMPT_MOVES.items() if before is AttemptState.EXITING
    ]

    assert frozenset().union(*after) == {AttemptState.EXITING, AttemptState.ENDED}
