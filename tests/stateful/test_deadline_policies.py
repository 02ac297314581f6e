"""What every deadline policy guarantees, on random snapshots: one suite for all of them."""

from collections.abc import Mapping
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from baselines import edf, fifowhole, themis
from baselines.registry import DRS_STILL, TRAININGS
from gsched.config.policies import DeadlineConfig, DrsConfig, ElasticflowConfig
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.training import deadline, drs, elasticflow
from tests.support.detached import AlsoDetached
from tests.support.each_policy import with_each
from tests.support.training_jobs import World, check, scattered_snapshots, training_snapshots

#: Each policy that plans training jobs by their deadlines, and each of its variants, stands here.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "deadline": deadline.plan,
        "deadline-firm": deadline.deadline(DeadlineConfig(guarantee_below=float("inf"))),
        "drs": drs.plan,
        "drs-impatient": drs.drs(DrsConfig(patience_s=0.0)),
        "drs-still": drs.drs(DrsConfig(moves_max=0)),
        "drs-paper": TRAININGS["drs-paper"],
        "drs-norm": DRS_STILL,
        "edf": edf.plan,
        "edf-scaled": edf.plan_scaled,
        "elasticflow": elasticflow.plan,
        "elasticflow-hasty": elasticflow.elasticflow(ElasticflowConfig(slot_s=0.0)),
        "fifowhole": fifowhole.plan,
        "themis": themis.plan,
        "themis-hasty": themis.themis(themis.Settings(lease_s=0.0)),
    }
)

every_policy = with_each(POLICIES)

#: Rounds for each training until all must have ended: a start, its end, and some for moves.
ROUNDS_EACH = 20


@given(snapshot=training_snapshots() | scattered_snapshots())
@every_policy
def test_a_plan_keeps_to_what_is_free_and_allowed(policy: Policy, snapshot: Snapshot) -> None:
    """Nothing is overbooked, counts are allowed, moves fit, every wait has a reason."""
    check(policy(snapshot), snapshot)


@given(snapshot=training_snapshots())
@every_policy
def test_equal_snapshots_give_equal_plans(policy: Policy, snapshot: Snapshot) -> None:
    """And a policy changes nothing of what it sees."""
    before = structs.asdict(snapshot)

    plans = [policy(snapshot), policy(snapshot)]

    assert plans[0] == plans[1]
    assert structs.asdict(snapshot) == before


@given(snapshot=training_snapshots() | scattered_snapshots())
@every_policy
def test_a_detached_snapshot_gives_the_same_plan(policy: Policy, snapshot: Snapshot) -> None:
    """In another process, and from a file."""
    AlsoDetached(policy)(snapshot)


@given(snapshot=training_snapshots(), data=st.data())
@every_policy
def test_the_order_of_what_is_seen_changes_nothing(
    policy: Policy, snapshot: Snapshot, data: st.DataObject
) -> None:
    """Groups, running jobs, nodes and profiles are sets that happen to come in an order."""
    shuffled = structs.replace(
        snapshot,
        groups=data.draw(st.permutations(list(snapshot.groups))),
        running=data.draw(st.permutations(list(snapshot.running))),
        nodes=dict(data.draw(st.permutations(list(snapshot.nodes.items())))),
        profiles=dict(data.draw(st.permutations(list(snapshot.profiles.items())))),
    )

    plan, other = policy(snapshot), policy(shuffled)

    assert other.starts == plan.starts
    assert set(other.moves) == set(plan.moves)
    assert set(other.waits) == set(plan.waits)
    assert set(other.verdicts) == set(plan.verdicts)


@given(snapshot=training_snapshots())
@every_policy
def test_an_empty_queue_gives_an_empty_plan(policy: Policy, snapshot: Snapshot) -> None:
    """Nothing starts and nothing waits; without training jobs at all nothing is said."""
    plan = policy(structs.replace(snapshot, groups=()))

    assert (plan.starts, plan.waits) == ((), ())
    assert policy(structs.replace(snapshot, groups=(), profiles={})) == Plan()


@given(snapshot=training_snapshots())
@every_policy
def test_jobs_that_are_no_training_jobs_are_left_alone(policy: Policy, snapshot: Snapshot) -> None:
    """Others plan for them: whether they wait changes nothing."""
    training_jobs = [group for group in snapshot.groups if group.job_class.training]

    assert policy(structs.replace(snapshot, groups=training_jobs)) == policy(snapshot)


@given(snapshot=training_snapshots(can_end=True) | scattered_snapshots())
@every_policy
def test_everything_ends_within_a_bound(policy: Policy, snapshot: Snapshot) -> None:
    """Carried out from end to end, with every plan checked: nothing waits or moves for ever."""
    world = World.at(snapshot)
    jobs = len(world.waiting) + len(world.running)

    for _ in range(ROUNDS_EACH * jobs):
        if world.act(policy).moves:
            continue  # what they vacated is decided about at the same moment
        if not (world.waiting or world.running):
            break
        world.turn_to(world.next_end_s())

    assert not world.waiting
    assert not world.running
    assert len(world.ended) == jobs


@given(snapshot=training_snapshots(can_end=True))
@every_policy
def test_a_second_plan_has_nothing_to_start(policy: Policy, snapshot: Snapshot) -> None:
    """Carried out, a plan without moves leaves nothing that would be started at the same moment.

    `deadline` counts the GPUs that are left over for late jobs and for those without deadlines
    before it places the others. If there is no room for all GPUs of these, the rest goes to such
    jobs with the next plan.
    """
    if policy is edf.plan_scaled:
        return  # to compare with: it counts GPUs and not places, and looks again
    world = World.at(snapshot)
    if world.act(policy).moves:
        return

    seen = world.snapshot()
    plan = policy(seen)
    started = {start.job for start in plan.starts}

    if policy in (POLICIES["deadline"], POLICIES["deadline-firm"]):
        in_time = {verdict.job for verdict in plan.verdicts if verdict.meets}
        started &= {job for job in in_time if seen.profiles[job].deadline_s is not None}
    assert started == set()
