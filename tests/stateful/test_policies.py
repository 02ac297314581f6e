"""What every policy guarantees, checked on random snapshots: one suite for all of the registry."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from baselines.kit.paper_model import PaperModel
from baselines.registry import POLICIES
from gsched.model.window import NodeWindow
from gschedd.models.predict import Model
from gschedd.models.robust import RobustModel
from gschedd.plan.fit import NoFit, place
from gschedd.plan.load import NodeLoad, NodeRates, Use
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.validate import validate
from gschedd.policies.queue import balance, fifo
from tests.support.detached import AlsoDetached
from tests.support.each_policy import with_each
from tests.support.runs import kind, run
from tests.support.spaces import node_spaces, requests

every_policy = with_each(POLICIES)

NOW_S = 1000.0

job_classes = st.builds(
    JobClass,
    queue=st.sampled_from(["batch", "fast"]),
    request=requests(),
    walltime_s=st.sampled_from([None, 1.0, 10.0, 100.0]),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Return a cluster of up to three nodes, some jobs on them, and some that wait."""
    count = draw(st.integers(1, 3))
    free = Spaces({f"n{i}": draw(node_spaces(f"n{i}", largest=6)) for i in range(count)})
    running = []
    for number in range(draw(st.integers(0, 3))):
        found = place(draw(requests(largest=2)), free)
        if not isinstance(found, NoFit):
            free.take(found)
            ends = st.one_of(st.none(), st.floats(NOW_S - 10, NOW_S + 100))
            running.append(
                RunningJob(job=number + 1, allocation=found, started_s=NOW_S - 10, end_s=draw(ends))
            )
    waiting = draw(st.lists(job_classes, max_size=4, unique=True))
    ids = iter(draw(st.permutations(range(100, 100 + 3 * len(waiting)))))
    groups = []
    for job_class in waiting:
        size = draw(st.integers(1, 3))
        priorities = draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size))
        order = sorted((-priority, next(ids)) for priority in priorities)
        groups.append(Group(job_class=job_class, order=order))
    nodes = {space.name: space for space in free}
    return Snapshot(now_s=NOW_S, nodes=nodes, groups=groups, running=running)


@st.composite
def informed(draw: st.DrawFn) -> Snapshot:
    """Return a snapshot with reports of some nodes, kinds of some jobs and a model of some runs."""
    seen = draw(snapshots())
    some = st.floats(0, 8)
    loads = {}
    for name in draw(st.sets(st.sampled_from(sorted(seen.nodes)))):
        rates = NodeRates(
            cores=draw(st.integers(1, 8)), memory_bytes=8, gpus=draw(st.integers(0, 2))
        )
        used = Use(cpu_cores=draw(some), memory_bytes=draw(some), gpus=draw(some))
        loads[name] = NodeLoad(
            name=name, rates=rates, used=used, reported_s=NOW_S - draw(st.sampled_from([0, 10, 99]))
        )
    makers: list[Callable[[], Model]] = [PaperModel, RobustModel]
    model = draw(st.sampled_from(makers))()
    for ended_s in range(draw(st.integers(0, 8))):
        model.learn(run("k", wall_s=draw(st.floats(0.5, 200)), ended_s=ended_s))
    jobs = [*(each.job for each in seen.running), *waiting_of(seen)]
    keys = st.sampled_from(["k", "new"])
    known = draw(st.lists(st.sampled_from(jobs), unique=True)) if jobs else []
    kinds = {job: kind(draw(keys)) for job in known}
    return structs.replace(seen, loads=loads, kinds=kinds, predictor=model)


def waiting_of(snapshot: Snapshot) -> dict[int, JobClass]:
    return {job: group.job_class for group in snapshot.groups for _, job in group.order}


@given(snapshot=snapshots() | informed())
@every_policy
def test_a_plan_never_overbooks(policy: Policy, snapshot: Snapshot) -> None:
    """Every start of it is accepted by the check that believes nothing."""
    plan = policy(snapshot)

    checked = validate(plan, Spaces(snapshot.nodes), waiting_of(snapshot).get)

    assert checked.refused == ()


@given(snapshot=snapshots() | informed())
@every_policy
def test_equal_snapshots_give_equal_plans(policy: Policy, snapshot: Snapshot) -> None:
    """And a policy changes nothing of what it sees."""
    before = structs.asdict(snapshot)

    plans = [policy(snapshot), policy(snapshot)]

    assert plans[0] == plans[1]
    assert structs.asdict(snapshot) == before


@given(snapshot=snapshots() | informed())
@every_policy
def test_a_detached_snapshot_gives_the_same_plan(policy: Policy, snapshot: Snapshot) -> None:
    """In another process, and from a file."""
    AlsoDetached(policy)(snapshot)


@given(snapshot=snapshots() | informed(), data=st.data())
@every_policy
def test_the_order_of_what_is_seen_changes_nothing(
    policy: Policy, snapshot: Snapshot, data: st.DataObject
) -> None:
    """Groups, running jobs and nodes are sets that happen to come in an order."""
    shuffled = structs.replace(
        snapshot,
        groups=data.draw(st.permutations(list(snapshot.groups))),
        running=data.draw(st.permutations(list(snapshot.running))),
        nodes=dict(data.draw(st.permutations(list(snapshot.nodes.items())))),
    )

    assert policy(shuffled).starts == policy(snapshot).starts
    assert set(policy(shuffled).waits) == set(policy(snapshot).waits)


@given(snapshot=snapshots())
@every_policy
def test_an_empty_queue_gives_an_empty_plan(policy: Policy, snapshot: Snapshot) -> None:
    """Nothing waits, nothing is said."""
    assert policy(structs.replace(snapshot, groups=())) == Plan()


@given(snapshot=snapshots() | informed())
@every_policy
def test_every_class_that_is_left_has_a_reason(policy: Policy, snapshot: Snapshot) -> None:
    """Either all jobs of a class start, or its next one is named with a reason (no silent wait)."""
    plan = policy(snapshot)

    started = {start.job for start in plan.starts}
    waits = {wait.job_class: wait for wait in plan.waits}
    assert len(waits) == len(plan.waits), "a job_class waits once"
    for group in snapshot.groups:
        left = [job for _, job in group.order if job not in started]
        if not left:
            assert group.job_class not in waits
            continue
        assert waits[group.job_class].reason
        assert waits[group.job_class].first == left[0], "jobs of a job_class start in order"


@given(snapshot=snapshots() | informed())
@every_policy
def test_what_fits_behind_the_plan_is_left_for_a_reason_only(
    policy: Policy, snapshot: Snapshot
) -> None:
    """If nothing is reserved, nothing that fits is left waiting: no idling without need."""
    plan = policy(snapshot)
    free = Spaces(snapshot.nodes)
    for start in plan.starts:
        free.take(start.allocation)

    for wait in plan.waits:
        if not any(other.reserved for other in plan.waits):
            assert isinstance(place(wait.job_class.request, free), NoFit)


def after(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return what is to be seen once a plan has been carried out."""
    started = {start.job for start in plan.starts}
    free = Spaces(snapshot.nodes)
    for start in plan.starts:
        free.take(start.allocation)
    groups = [
        Group(
            job_class=group.job_class, order=[key for key in group.order if key[1] not in started]
        )
        for group in snapshot.groups
    ]
    return structs.replace(
        snapshot,
        nodes={space.name: space for space in free},
        groups=[group for group in groups if group.order],
        running=[*snapshot.running, *(running(start, snapshot.now_s) for start in plan.starts)],
    )


def running(start: Start, now_s: float) -> RunningJob:
    walltime_s = start.job_class.walltime_s
    return RunningJob(
        job=start.job,
        allocation=start.allocation,
        started_s=now_s,
        end_s=None if walltime_s is None else now_s + walltime_s,
    )


def end_due(snapshot: Snapshot, now_s: float) -> Snapshot:
    """Return the snapshot at ``now_s``, where everything has ended whose time was over."""
    free = Spaces(snapshot.nodes)
    for job in snapshot.running:
        if job.end_s is not None and job.end_s <= now_s:
            free.give(job.allocation)
    left = [job for job in snapshot.running if job.end_s is None or job.end_s > now_s]
    return structs.replace(
        snapshot, now_s=now_s, nodes={space.name: space for space in free}, running=left
    )


def reserved(plan: Plan) -> Wait | None:
    return next((wait for wait in plan.waits if wait.reserved), None)


@given(snapshot=snapshots())
@every_policy
def test_a_second_plan_has_nothing_to_add(policy: Policy, snapshot: Snapshot) -> None:
    """Carried out, a plan leaves nothing that the same policy would start at the same moment."""
    plan = policy(snapshot)

    assert policy(after(snapshot, plan)).starts == ()


@given(snapshot=snapshots())
@every_policy
def test_a_predicted_start_is_kept(policy: Policy, snapshot: Snapshot) -> None:
    """Every job runs for its whole walltime, and still the reserved one starts when predicted."""
    plan = policy(snapshot)
    wait = reserved(plan)
    if wait is None or wait.predicted_start_s is None:
        return
    end_s = wait.predicted_start_s
    seen = after(snapshot, plan)
    moments = sorted({job.end_s for job in seen.running if job.end_s is not None})
    for now_s in [*(s for s in moments if NOW_S <= s < end_s), end_s]:
        seen = end_due(seen, now_s)
        plan = policy(seen)
        if wait.first in {start.job for start in plan.starts}:
            return
        seen = after(seen, plan)

    raise AssertionError(f"job {wait.first} did not start by {end_s}")


@st.composite
def windowed(draw: st.DrawFn) -> Snapshot:
    """Return a snapshot with maintenance of some nodes, now or to come."""
    seen = draw(snapshots() | informed())
    windows: dict[str, tuple[NodeWindow, ...]] = {}
    for name in draw(st.sets(st.sampled_from(sorted(seen.nodes)), min_size=1)):
        times_s = sorted(draw(st.sets(st.integers(-5, 120), min_size=2, max_size=4)))
        pairs = zip(times_s[::2], times_s[1::2], strict=False)
        windows[name] = tuple(
            NodeWindow(number=number, from_s=NOW_S + from_s, to_s=NOW_S + to_s)
            for number, (from_s, to_s) in enumerate(pairs, 1)
        )
    return structs.replace(seen, windows=windows)


@given(snapshot=windowed())
@pytest.mark.parametrize("policy", [fifo.plan, balance.plan], ids=["fifo", "balance"])
def test_no_job_starts_that_would_run_into_maintenance(policy: Policy, snapshot: Snapshot) -> None:
    """And each class of jobs has a start or a reason to wait, as without any."""
    plan = policy(snapshot)

    for start in plan.starts:
        for share in start.allocation:
            for window in snapshot.windows.get(share.node, ()):
                walltime_s = start.job_class.walltime_s
                ends_s = NOW_S + walltime_s if walltime_s is not None else math.inf
                assert ends_s <= window.from_s or window.to_s <= NOW_S
    told = {start.job_class for start in plan.starts} | {wait.job_class for wait in plan.waits}
    assert told == {group.job_class for group in snapshot.groups}
    for wait in plan.waits:
        assert wait.predicted_start_s is None or wait.predicted_start_s >= NOW_S
