"""The ends of tasks that their node cannot report any more."""

from gsched.model.job import ExitRecord
from gsched.model.resources import Usage
from gsched.model.states import OutcomeKind, PartState
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.state import State


def lost_parts(state: State, node: str, *, now_s: float, message: str) -> list[f.AnyFact]:
    """Return the end of all parts on a node that are proven to be gone."""
    facts: list[f.AnyFact] = []
    for job in state.by_node.get(node, {}).values():
        attempt = job.current_attempt
        if attempt.parts[node].state in {PartState.PENDING, PartState.RUNNING}:
            facts.append(lost_part(job, node, now_s=now_s, message=message))
    return facts


def lost_part(job: Job, node: str, *, now_s: float, message: str) -> f.PartEnded:
    """Return the end of one part that nobody can report any more."""
    started_s = job.current_attempt.parts[node].started_s or 0.0
    record = ExitRecord(
        job=job.id,
        attempt=job.current_attempt.number,
        kind=OutcomeKind.NODE_LOST,
        message=message,
        started_s=started_s,
        ended_s=now_s,
    )
    return f.PartEnded(
        at_s=now_s,
        job=job.id,
        attempt=job.current_attempt.number,
        node=node,
        record=record,
        usage=Usage(wall_s=max(0.0, now_s - started_s) if started_s else 0.0),
    )
