"""Projects and shares: whose jobs start first, and what is predicted and shown of that."""

import pytest
from msgspec import structs

from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig, SharesConfig
from gsched.config.tables import QueueConfig
from gsched.errors import (
    BadStateError,
    GschedError,
    InvalidRequestError,
    NotPermittedError,
)
from gsched.model.states import HoldKind
from gsched.protocol import actions as a
from gschedd.core.cycle.epoch import recompute
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.question import at_once, questions_of
from gschedd.core.forecast.start import answer_to
from gschedd.core.requests import commands as c
from gschedd.core.requests.queues import reconfigure
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.views.ahead import jobs_ahead
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, World, node, settings

FAR_S = 86400.0
PROJECTS = {
    "ai": ProjectConfig(name="ai", shares=3, users=("alice",)),
    "bio": ProjectConfig(name="bio", shares=1, users=("bob",)),
}


def shared(*, projects: dict[str, ProjectConfig] = PROJECTS, **weights: float) -> Settings:
    """Return settings with projects and weights."""
    return settings(projects=projects, priority=PriorityConfig(**weights))


def orders(world: World, *jobs: int) -> list[int]:
    """Return jobs in the order in which they started."""
    return sorted(jobs, key=lambda job: world.started_s(job) or FAR_S)


def test_a_flood_of_one_user_does_not_delay_another() -> None:
    """Bob's jobs start as soon as one of Alice's has ended, not behind all that she queued."""
    world = World(node("n1", cpus=2), config=shared(recompute_s=5.0))
    flood = [world.submit(runs_s=20, account="ai") for _ in range(20)]
    world.run_until(10)
    bobs = [world.submit(runs_s=20, account="bio", by=BOB) for _ in range(2)]

    world.run_until(1000)

    assert [world.started_s(job) for job in bobs] == [20, 20]
    assert max(world.started_s(job) or 0 for job in flood) == 200


def test_the_usage_of_finished_jobs_counts() -> None:
    """Alice ran for long before, so Bob's next job goes first, also when the head has restarted."""
    world = World(node("n1", cpus=1), config=shared(recompute_s=5.0))
    world.submit(runs_s=1000, account="ai")
    world.run_until(1000)
    world.submit(runs_s=20, account="bio", by=BOB)
    alices = world.submit(runs_s=20, account="ai")
    bobs = world.submit(runs_s=20, account="bio", by=BOB)
    world.run_until(1010)
    world.restart_head()

    world.run_until(2000)

    assert (world.started_s(bobs), world.started_s(alices)) == (1020, 1040)


def test_without_shares_a_flood_delays_everybody() -> None:
    """The order is that of submission where nothing is configured."""
    world = World(node("n1", cpus=2))
    for _ in range(20):
        world.submit(runs_s=20, account="ai")
    world.run_until(10)
    bobs = world.submit(runs_s=20, account="bio", by=BOB)

    world.run_until(1000)

    assert world.started_s(bobs) == 200
    assert world.head.state.priorities is None


def test_jobs_of_one_user_keep_the_order_of_submission() -> None:
    """Also with different requests, which are different classes."""
    world = World(node("n1", cpus=2), config=shared(recompute_s=5.0))
    jobs = [world.submit(f"ncpus={1 + at % 2}", runs_s=20, account="ai") for at in range(6)]
    plain = World(node("n1", cpus=2))
    others = [plain.submit(f"ncpus={1 + at % 2}", runs_s=20, account="ai") for at in range(6)]

    world.run_until(1000)
    plain.run_until(1000)

    assert [world.started_s(job) for job in jobs] == [plain.started_s(job) for job in others]


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        ({"fair_share": 0.0, "age": 100.0, "max_age_s": 1000.0}, "old"),
        ({"fair_share": 0.0, "size": 10.0}, "large"),
        ({"fair_share": 0.0, "size": -10.0}, "old"),
        ({"fair_share": 0.0, "qos": 1.0}, "urgent"),
        ({"fair_share": 0.0, "own": 1.0}, "own"),
        ({"fair_share": 0.0, "queue": 1.0, "own": 0.0, "qos": 0.0}, "queue"),
    ],
)
def test_each_term_orders_jobs(weights: dict[str, float], first: str) -> None:
    """Of five jobs the one goes first whose term weighs most."""
    config = settings(
        projects=PROJECTS,
        qos={"urgent": QosConfig(name="urgent", priority=50 if weights.get("qos") else 0)},
        queues={
            "batch": QueueConfig(name="batch"),
            "fast": QueueConfig(name="fast", priority=60 if first == "queue" else 0),
        },
        priority=PriorityConfig(**weights, recompute_s=1.0),
    )
    world = World(node("n1", cpus=4), config=config)
    world.submit("ncpus=4", runs_s=50)
    jobs = {"old": world.submit("ncpus=1", runs_s=10, account="ai")}
    world.run_until(20)
    jobs["large"] = world.submit("ncpus=4", runs_s=10, account="ai")
    jobs["urgent"] = world.submit("ncpus=2", runs_s=10, account="ai", qos="urgent")
    jobs["own"] = world.submit("ncpus=3", runs_s=10, account="ai", priority=40 * (first == "own"))
    jobs["queue"] = world.submit("ncpus=2", runs_s=10, account="ai", queue="fast")

    world.run_until(50)

    assert first in {name for name, job in jobs.items() if world.started_s(job) == 50}


def test_predictions_and_positions_follow_the_order() -> None:
    """Starts are predicted, and jobs ahead are counted, in the order in which they start."""
    world = World(node("n1", cpus=2), config=shared(recompute_s=FAR_S))
    world.submit("ncpus=2,walltime=30", runs_s=30, account="ai")
    world.run_until(1)
    recompute(world.head.state, world.settings, world.now_s)
    world.settle()
    jobs = []
    for at in range(5):
        limit_s = 10 * (at + 2)
        jobs.append(world.submit(f"ncpus=2,walltime={limit_s}", runs_s=limit_s, account="ai"))
        bobs = f"ncpus=1,walltime={limit_s}"
        jobs.append(world.submit(bobs, runs_s=limit_s, account="bio", by=BOB))
    state = world.head.state
    seen = snapshot(state, world.settings, world.now_s)
    waiting = [state.jobs[job] for job in jobs]
    question, meant, _ = at_once(
        questions_of(waiting, state=state, settings=world.settings, seen=seen)
    )
    assert question is not None
    starts = answer_to(question, world.policy).starts
    predicted = {job: (starts[meant[job]].start_s or 0.0) - BEGIN_S for job in jobs}
    ahead = {job: jobs_ahead(state.jobs[job], state).jobs for job in jobs}

    world.run_until(1000)

    assert predicted == {job: world.started_s(job) for job in jobs}
    assert sorted(ahead.values()) == list(range(10))
    assert sorted(jobs, key=ahead.__getitem__) == [*jobs[1::2], *jobs[::2]]


def test_a_reload_brings_shares_into_force_and_takes_them_away() -> None:
    """Waiting jobs get other lanes, and nothing of the old ones is left."""
    world = World(node("n1", cpus=1))
    for by in (ALICE, BOB, ALICE):
        world.submit(runs_s=10, account="ai", by=by)
    state = world.head.state
    (group,) = state.groups.values()
    assert len(group.lanes) == 1

    for config, lanes in ((settings(priority=PriorityConfig(age=1.0)), 2), (settings(), 1)):
        reconfigure(state, config, world.head.settings)
        world.settings = world.head.settings = config
        recompute(state, config, world.now_s)
        (group,) = state.groups.values()
        assert len(group.lanes) == lanes
        assert state.dirty.any
        world.settle()
    world.run_until(100)
    assert len(world.done) == 3


def test_a_project_with_unfinished_jobs_cannot_go() -> None:
    """As a queue cannot."""
    world = World(node("n1", cpus=1), config=shared())
    world.submit(account="bio", by=BOB)
    fewer = shared(projects={"ai": PROJECTS["ai"]})

    with pytest.raises(InvalidRequestError, match="project bio has 1 unfinished job"):
        reconfigure(world.head.state, fewer, world.settings)


def test_a_qos_with_unfinished_jobs_cannot_go() -> None:
    """Its jobs would leave its limits; one without jobs can."""
    both = {"urgent": QosConfig(name="urgent"), "idle": QosConfig(name="idle")}
    world = World(node("n1", cpus=1), config=settings(qos=both))
    world.submit(qos="urgent")
    idle_gone, both_gone = settings(qos={"urgent": both["urgent"]}), settings()

    reconfigure(world.head.state, idle_gone, world.settings)
    with pytest.raises(InvalidRequestError, match="qos urgent has 1 unfinished job"):
        reconfigure(world.head.state, both_gone, world.settings)


@pytest.mark.parametrize(
    ("wanted", "user", "project"),
    [("", ALICE, "ai"), ("ai", ALICE, "ai"), ("lab", ALICE, "lab"), ("", BOB, "bio")],
)
def test_a_job_is_for_the_project_that_it_names_or_the_first_of_its_user(
    wanted: str, user: Caller, project: str
) -> None:
    """And its usage counts there."""
    lab = ProjectConfig(name="lab", users={"alice": 5})
    world = World(node("n1"), config=shared(projects=PROJECTS | {"lab": lab}))

    assert world.job(world.submit(account=wanted, by=user)).spec.account == project


@pytest.mark.parametrize(
    ("account", "qos", "message"),
    [
        ("bio", "", "alice is not in project bio"),
        ("ax", "", "unknown project 'ax'"),
        ("old", "", "project old does not accept jobs"),
        ("", "fast", "alice may not use QOS fast: it is for project bio"),
        ("", "x", "unknown QOS 'x'"),
    ],
)
def test_what_is_not_the_users_is_refused_with_what_is(
    account: str, qos: str, message: str
) -> None:
    """At submission and with galter; the hint names projects or QOS."""
    old = ProjectConfig(name="old", users=("alice",), enabled=False)
    fast = QosConfig(name="fast", allow_projects=("bio",))
    config = settings(projects=PROJECTS | {"old": old}, qos={"fast": fast})
    world = World(node("n1", cpus=1), config=config)
    world.submit(account="ai")
    waiting = world.submit(qos="normal")
    assert world.job(waiting).spec.qos == ""

    with pytest.raises(GschedError, match=message) as refused:
        world.submit(account=account, qos=qos)
    assert refused.value.hint in {"projects of alice: ai, old", "QOS that alice may use: none"}
    with pytest.raises(GschedError, match=message):
        world.alter(waiting, account=account or None, qos=qos or None)


def test_users_without_a_project_are_refused_where_the_site_wants_that() -> None:
    """Unless there is a default project."""
    none = {"bio": PROJECTS["bio"]}
    world = World(node("n1"), config=settings(projects=none, shares=SharesConfig(enforce=True)))
    with pytest.raises(NotPermittedError, match="alice is in no project"):
        world.submit()
    loose = World(node("n1"), config=settings(projects=none))
    assert loose.job(loose.submit()).spec.account == ""
    shares = SharesConfig(enforce=True, default_project="bio")
    default = World(node("n1"), config=settings(projects=none, shares=shares))
    assert default.job(default.submit()).spec.account == "bio"


def test_galter_gives_a_waiting_job_to_another_project_and_no_running_one() -> None:
    """The job gets another place in the order at once."""
    projects = {name: structs.replace(each, users=("alice",)) for name, each in PROJECTS.items()}
    world = World(node("n1", cpus=1), config=shared(projects=projects))
    runs, waits = world.submit(account="ai"), world.submit(account="ai")

    world.alter(waits, account="bio")
    (group,) = world.head.state.groups.values()
    assert list(group.lanes) == [("alice", "bio", "")]
    with pytest.raises(BadStateError, match="its project can no longer change"):
        world.alter(runs, account="bio")


def test_a_running_job_keeps_its_qos_unless_an_operator_changes_it() -> None:
    """Otherwise a user started jobs in a QOS one after the other, past its limit."""
    qos = {"urgent": QosConfig(name="urgent"), "idle": QosConfig(name="idle")}
    world = World(node("n1", cpus=1), config=settings(qos=qos))
    runs, waits = world.submit(qos="urgent"), world.submit(qos="urgent")

    world.alter(waits, qos="idle")
    assert world.job(waits).spec.qos == "idle"
    for other in ("idle", ""):
        with pytest.raises(BadStateError, match="its QOS can no longer change"):
            world.alter(runs, qos=other)
    world.alter(runs, qos="urgent")
    world.alter(runs, by=ADMIN, qos="idle")
    assert world.job(runs).spec.qos == "idle"


COORDINATED = {
    "lab": ProjectConfig(name="lab", users=("bob", "dora"), coordinators=("dora",)),
    "ai": ProjectConfig(name="ai", parent="lab", users=("alice",), coordinators=("bob",)),
    "bio": ProjectConfig(name="bio", users=("alice",)),
}
DORA = Caller(user="dora", uid=1005, gid=100)
CAROL = Caller(user="carol", uid=1006, gid=100)
ACTIONS: dict[str, a.AnyJobAction] = {
    "hold": a.HoldJob(holds=(HoldKind.USER,)),
    "release": a.ReleaseJob(holds=(HoldKind.USER,)),
    "delete": a.DeleteJob(),
    "alter": a.AlterJob(alteration=a.Alteration(name="other")),
    "move to a project": a.AlterJob(alteration=a.Alteration(account="ai")),
    "raise priority": a.AlterJob(alteration=a.Alteration(priority=5)),
    "rerun": a.RerunJob(),
    "signal": a.SignalJob(signal=10),
}
STOPS = {"hold", "release", "delete"}


@pytest.mark.parametrize("array", ["", "0-3"])
@pytest.mark.parametrize("verb", ACTIONS)
@pytest.mark.parametrize(
    ("who", "project", "coordinates"),
    [
        (BOB, "ai", True),  # of the project
        (DORA, "ai", True),  # of the one above
        (BOB, "bio", False),  # of another one
        (CAROL, "ai", False),  # of none
        (structs.replace(DORA, user="other"), "ai", False),  # the next user of the uid
    ],
)
def test_t22_what_coordinators_may_do_to_jobs_of_a_project(
    *, who: Caller, project: str, coordinates: bool, verb: str, array: str
) -> None:
    """They hold, release and delete them, also arrays; nothing else of them is theirs."""
    world = World(node("n1", cpus=1), config=settings(projects=COORDINATED))
    world.submit(account="bio")
    job = world.submit(account=project, array=array)
    if verb == "release":
        world.hold(job)
    command = c.ActOnJob(caller=who, job=job, action=ACTIONS[verb])

    if coordinates and verb in STOPS:
        world.do(command)
    else:
        assert isinstance(world.refusal(command), NotPermittedError)


def test_an_epoch_makes_all_groups_due() -> None:
    """What waits behind a reservation starts first when its user has become the fairer one."""
    world = World(node("n1", cpus=2), config=shared(recompute_s=10.0))
    world.submit("ncpus=2", runs_s=25, account="ai")
    first = world.submit("ncpus=2", runs_s=10, account="ai")
    later = world.submit("ncpus=2", runs_s=10, account="bio", by=BOB)

    assert jobs_ahead(world.job(later), world.head.state).jobs == 1
    world.run_until(11)
    assert jobs_ahead(world.job(later), world.head.state).jobs == 0
    world.run_until(100)

    assert orders(world, first, later) == [later, first]
