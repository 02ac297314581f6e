"""What attempts are billed for: project and user, and what they hold for how long."""

from gsched.model.resources import WHOLE_PERCENT
from gschedd.core.state.records import Attempt, Job
from gschedd.core.state.state import State, party_of
from gschedd.shares.ledger import Held, place_of


def project_of(job: Job) -> str:
    """Return the project that a job is billed to; empty: none."""
    return job.spec.account


def accrue(state: State, job: Job) -> None:
    """Let the attempt of a job accrue usage from its start on; until then nothing is billed."""
    attempt = job.current_attempt
    if attempt.started_s is None:
        return
    percents = [held.percent for share in attempt.allocation for held in share.gpus_held]
    if len(attempt.gpu_types) != len(percents):
        attempt.gpu_types = _gpu_types(state, attempt)
    whose = (project_of(job), job.spec.owner.user)
    place = place_of(job.spec.queue, job.spec.qos)
    state.usage.hold(job.id, whose, _held_by(attempt, percents), attempt.started_s, place)


def bill(state: State, job: Job, end_s: float, now_s: float) -> None:
    """Bill the attempt of a job that has ended."""
    days = state.usage.days_of(job.id, end_s)
    row = state.usage.bill(job.id, end_s, now_s)
    if row is not None:
        state.unstored.usage[row.project, row.user] = row
        state.limits.spend(party_of(job.spec), days)


def _gpu_types(state: State, attempt: Attempt) -> tuple[str, ...]:
    found: list[str] = []
    for share in attempt.allocation:
        types = {gpu.index: gpu.type for gpu in state.gpus_of(share.node)}
        found.extend(types.get(held.index, "") for held in share.gpus_held)
    return tuple(found)


def _held_by(attempt: Attempt, percents: list[int]) -> Held:
    """Return what an attempt holds on all its nodes, with these parts of its GPUs."""
    allocation = attempt.allocation
    gpus: dict[str, int] = {}
    for name, percent in zip(attempt.gpu_types, percents, strict=True):
        gpus[name] = gpus.get(name, 0) + percent
    return Held(
        cpus=sum(share.cpus for share in allocation),
        memory_bytes=sum(share.memory_bytes for share in allocation),
        gpus={name: count / WHOLE_PERCENT for name, count in gpus.items()},
    )
