"""One scheduling cycle: a snapshot, a policy's plan, and what of it is accepted."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gsched.model.states import JobState, LaunchKind
from gschedd.core import facts as f
from gschedd.core.due import Running
from gschedd.core.learning import Kinds, Loads, foretell
from gschedd.core.settings import Settings
from gschedd.core.state import Job, State, WaitingGroup
from gschedd.plan.load import Predictor
from gschedd.plan.snapshot import Group, Plan, Policy, Shape, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.validate import Refusal, validate


class Cycle(Struct, frozen=True, kw_only=True):
    """What a cycle came to.

    Attributes:
        facts: the accepted starts.
        waits: why each shape that is left waits.
        refused: starts that were proposed and could not be accepted: a policy's fault.
    """

    facts: tuple[f.AnyFact, ...]
    waits: Mapping[Shape, Wait]
    refused: tuple[Refusal, ...]


def snapshot(
    state: State,
    settings: Settings,
    now_s: float,
    predictor: Predictor | None = None,
    *,
    due: Iterable[WaitingGroup] | None = None,
) -> Snapshot:
    """Return what a policy may see now; jobs of stopped queues are not in it.

    Args:
        due: the groups to show; None for all.
    """
    groups = [
        Group(shape=group.shape, order=group.order)
        for group in (state.groups.values() if due is None else due)
        if _started(settings, group.shape.queue)
    ]
    return Snapshot(
        now_s=now_s,
        nodes=state.spaces,
        groups=groups,
        running=Running(state, settings, now_s),
        loads=Loads(state),
        kinds=Kinds(state),
        predictor=predictor,
        default_walltime_s=settings.default_walltime_s or None,
        predicted_times=settings.predicted_times,
    )


def _started(settings: Settings, queue: str) -> bool:
    config = settings.queues.get(queue)
    return config is not None and config.started


def run_cycle(
    state: State,
    settings: Settings,
    policy: Policy,
    now_s: float,
    predictor: Predictor | None = None,
    *,
    due: Iterable[WaitingGroup] | None = None,
) -> Cycle:
    """Ask the policy, check its plan against the state, and return what is to become true.

    Args:
        due: the groups to decide about; None for all.
    """
    seen = snapshot(state, settings, now_s, predictor, due=due)
    plan = policy(seen) if seen.groups else Plan()
    checked = validate(plan, Spaces(state.spaces), lambda job: _shape_if_waiting(state, job))
    ports = set(state.ports)
    facts = [
        _assignment(state, settings, start, ports, now_s, predictor) for start in checked.accepted
    ]
    waits = {wait.shape: wait for wait in plan.waits}
    for refusal in checked.refused:
        shape, job = _shape_if_waiting(state, refusal.start.job), refusal.start.job
        if shape is not None:
            waits.setdefault(shape, Wait(shape=shape, first=job, reason=refusal.reason))
    return Cycle(facts=tuple(facts), waits=waits, refused=checked.refused)


def _shape_if_waiting(state: State, job_id: int) -> Shape | None:
    job = state.jobs.get(job_id)
    if job is None or job.state is not JobState.QUEUED:
        return None
    return state.shape_of(job)


def _assignment(
    state: State,
    settings: Settings,
    start: Start,
    ports: set[int],
    now_s: float,
    predictor: Predictor | None,
) -> f.AttemptAssigned:
    job = state.jobs[start.job]
    everywhere = job.spec.launch is LaunchKind.TORCHRUN or job.spec.every_node
    nodes = tuple(share.node for share in start.allocation)
    port = 0
    if everywhere or len(nodes) > 1:
        port = _free_port(job, settings, ports)
        ports.add(port)
    active = nodes if everywhere else nodes[:1]
    return f.AttemptAssigned(
        at_s=now_s,
        job=job.id,
        attempt=job.attempts + 1,
        allocation=start.allocation,
        active=active,
        master_port=port,
        why=start.why,
        predictions={} if predictor is None else foretell(predictor, state, job, active, now_s),
    )


def _free_port(job: Job, settings: Settings, ports: set[int]) -> int:
    """Return a rendezvous port that no other attempt has; a new attempt begins elsewhere."""
    first, last = settings.master_port_first, settings.master_port_last
    count = last - first + 1
    begin = (job.id * 13 + job.attempts * 101) % count
    for step in range(count):
        port = first + (begin + step) % count
        if port not in ports:
            return port
    return first + begin  # more distributed jobs than ports: some will find theirs taken
