"""Limits of what users and queues may have: who starts, who waits, why, and what is refused."""

from collections.abc import Mapping

import pytest
from msgspec import convert, structs

from gsched.config.shares import ProjectConfig, QosConfig
from gsched.config.tables import LimitsConfig, QueueConfig
from gsched.errors import InvalidRequestError, TryAgainError
from gschedd.core.requests.queues import reconfigure
from gschedd.plan.limits import AtLimit
from tests.support.machines import Machine
from tests.support.world import BOB, GIB, World, node, settings

Keys = Mapping[str, object]


def world(
    *machines: Machine,
    queues: Mapping[str, Keys] | None = None,
    projects: Mapping[str, Keys] | None = None,
    qos: Mapping[str, Keys] | None = None,
    **tables: object,
) -> World:
    """Return a cluster with limits."""
    known_projects = convert(_named(projects or {}), dict[str, ProjectConfig])
    known_qos = convert(_named(qos or {}), dict[str, QosConfig])
    stated = queues or {"batch": {}}
    known = {name: convert({"name": name, **keys}, QueueConfig) for name, keys in stated.items()}
    table = convert(tables, LimitsConfig)
    config = settings(queues=known, limits=table, projects=known_projects, qos=known_qos)
    return World(*(machines or (node("n1", cpus=16, gpus=8),)), config=config)


def _named(tables: Mapping[str, Keys]) -> Mapping[str, Keys]:
    return {name: {"name": name, **keys} for name, keys in tables.items()}


def limits(**keys: object) -> Keys:
    """Return a table of limits."""
    return keys


def running(here: World) -> set[int]:
    """Return the jobs that run."""
    return set(here.head.state.running)


def test_a_user_at_a_limit_waits_and_others_start() -> None:
    """Alice has her 2 GPUs; her next job holds no reservation, and Bob's starts."""
    here = world(each_user=limits(max_gpus=2))
    first = here.submit("nodes=1:ppn=1:gpus=2")
    waits = here.submit("nodes=1:ppn=1:gpus=1")
    bob = here.submit("nodes=1:ppn=1:gpus=2", by=BOB)

    assert running(here) == {first, bob}
    assert here.why(waits) == f"alice uses 2 of 2 GPUs, the limit of each user: job {first}"
    assert not here.wait_of(waits).reserved
    reason = here.wait_of(waits).reason
    assert isinstance(reason, AtLimit)
    assert reason.short == "limit: 2 GPUs"

    here.run_until(100)
    assert here.started_s(waits) == 10


def test_jobs_of_one_class_of_different_users_are_decided_one_by_one() -> None:
    """Equal requests: three of Alice's wait, and Bob's, the last of all, starts."""
    here = world(each_user=limits(max_running=1))
    jobs = [here.submit() for _ in range(4)]
    bob = here.submit(by=BOB)

    assert running(here) == {jobs[0], bob}
    here.run_until(100)
    assert [here.started_s(job) for job in jobs] == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("keys", "first", "second", "words"),
    [
        ({"max_running": 1}, "", "", "alice has 1 of 1 running jobs"),
        ({"max_cpus": 4}, "nodes=1:ppn=3", "nodes=1:ppn=2", "alice uses 3 of 4 CPUs"),
        (
            {"max_memory_bytes": 2 * GIB},
            "nodes=1:ppn=1,mem=1gb",
            "nodes=1:ppn=1,mem=2gb",
            "alice uses 1gb of 2gb memory",
        ),
        (
            {"max_gpus_of": {"v100": 2}},
            "nodes=1:ppn=1:gpus=2:v100",
            "nodes=1:ppn=1:gpus=1:v100",
            "alice uses 2 of 2 v100 GPUs",
        ),
        (
            {"max_running_gpu_hours": 10},
            "nodes=1:ppn=1:gpus=2,walltime=04:00:00",
            "nodes=1:ppn=1:gpus=1,walltime=03:00:00",
            "alice uses 8 of 10 GPU-hours in running jobs",
        ),
    ],
)
def test_each_kind_of_limit_counts(
    keys: dict[str, object], first: str, second: str, words: str
) -> None:
    """The second job waits for its limit, in the words of that limit, and one of Bob starts."""
    here = world(node("n1", cpus=16, gpu_types=("v100",) * 8), each_user=limits(**keys))
    one = here.submit(first, runs_s=50.0)
    two = here.submit(second)
    assert running(here) == {one}
    assert here.why(two).startswith(f"{words}, the limit of each user"), here.why(two)
    bob = here.submit(second, by=BOB)
    assert bob in running(here)
    here.run_until(1000)
    assert here.started_s(two) == 50


def test_a_job_uses_gpus_of_another_type_when_those_of_one_are_at_the_limit() -> None:
    """Two nodes; the second job of any type starts on the other one, the third waits."""
    here = world(
        node("a", cpus=4, gpu_types=("a100",)),
        node("h", cpus=4, gpu_types=("h100",) * 2),
        each_user=limits(max_gpus_of={"a100": 0, "h100": 1}),
    )
    first = here.submit("nodes=1:ppn=1:gpus=1")
    second = here.submit("nodes=1:ppn=1:gpus=1")

    assert here.machine_of(first) == ("h",)
    assert running(here) == {first}
    assert "GPUs, the limit of each user" in here.why(second)


def test_running_gpu_hours_count_down_as_jobs_run() -> None:
    """Two GPUs for 4 of 10 hours; another for 3 starts when 7 are left, with no event between."""
    here = world(each_user=limits(max_running_gpu_hours=10))
    here.submit("nodes=1:ppn=1:gpus=2,walltime=04:00:00", runs_s=4 * 3600.0)
    waits = here.submit("nodes=1:ppn=1:gpus=1,walltime=03:00:00")

    here.run_until(3600)

    started_s = here.started_s(waits)
    assert started_s is not None
    assert 1800 <= started_s <= 1802


def test_a_queue_limits_all_its_jobs_and_those_of_each_user() -> None:
    """Each scope counts by itself; a table of a user counts instead of that of each user."""
    queues = {
        "gpu": {
            "total": limits(max_gpus=6),
            "each_user": limits(max_gpus=3, max_running=9),
            "user": {"bob": limits(max_gpus=4)},
        },
        "batch": {},
    }
    here = world(queues=queues)
    alice = here.submit("nodes=1:ppn=1:gpus=3", queue="gpu")
    over = here.submit("nodes=1:ppn=1:gpus=1", queue="gpu")
    free = here.submit("nodes=1:ppn=1:gpus=1", queue="batch")
    bob = here.submit("nodes=1:ppn=1:gpus=4", queue="gpu", by=BOB)

    assert running(here) == {alice, free}
    assert here.why(over).startswith("alice uses 3 of 3 GPUs, the limit of each user in queue gpu")
    assert here.why(bob) == (
        f"queue gpu uses 3 of 6 GPUs, the limit of queue gpu; this job needs 4: job {alice}"
    )


def test_a_submission_over_a_limit_is_refused() -> None:
    """A job that alone exceeds a limit, one more than allowed, and one that is too long."""
    here = world(
        each_user=limits(max_gpus=2, max_queued=2, max_walltime_s=3600, max_running_gpu_hours=4)
    )
    with pytest.raises(
        InvalidRequestError, match=r"the job requests 3 GPUs; the limit of each user is 2"
    ):
        here.submit("nodes=1:ppn=1:gpus=3")
    with pytest.raises(
        InvalidRequestError, match="walltime 02:00:00 is over the limit of each user, 01"
    ):
        here.submit("walltime=02:00:00")
    first = here.submit("nodes=1:ppn=1:gpus=2")
    assert here.job(first).spec.walltime_s == 3600
    here.submit()
    with pytest.raises(
        TryAgainError, match=r"alice has 2 of 2 unfinished jobs, the limit of each user"
    ):
        here.submit()
    here.submit(by=BOB)
    with pytest.raises(TryAgainError, match="this array has 2 elements"):
        here.submit(by=BOB, array="1-2")
    here.run_until(20)
    here.submit(array="1-2")


def test_a_lowered_limit_stops_nothing_and_counts_what_runs() -> None:
    """Three jobs run; with a limit of two the next one waits until two have ended."""
    here = world()
    jobs = [here.submit(runs_s=10.0 * (1 + number)) for number in range(3)]
    lower(here, max_running=2)
    waits = here.submit()
    assert running(here) == set(jobs)
    assert "alice has 3 of 2 running jobs" in here.why(waits)
    here.run_until(100)
    assert here.started_s(waits) == 20


def lower(here: World, **keys: object) -> None:
    """Give each user of a running head other limits."""
    config = structs.replace(
        here.settings.config, limits=convert({"each_user": keys}, LimitsConfig)
    )
    before = here.settings
    here.settings = here.head.settings = structs.replace(before, config=config)
    reconfigure(here.head.state, here.settings, before=before)
    here.settle()


def test_what_runs_counts_at_once_after_a_restart() -> None:
    """A new head starts nothing beyond the limit before its nodes are back, and after."""
    here = world(each_user=limits(max_running=2))
    jobs = [here.submit(runs_s=100.0) for _ in range(4)]
    assert running(here) == set(jobs[:2])
    here.disconnect("n1")
    here.restart_head()
    assert here.head.state.limits.used(("user", "alice"), "running", here.now_s) == 2
    here.connect("n1")
    here.run_until(50)
    assert running(here) == set(jobs[:2])
    here.run_until(150)
    assert running(here) == set(jobs[2:])


def test_an_element_of_an_array_counts_as_a_job() -> None:
    """An array of five with a limit of two: two at a time."""
    here = world(each_user=limits(max_running=2))
    array = here.submit(array="1-5", runs_s=10.0)
    for at_s in range(0, 40, 5):
        here.run_until(at_s)
        assert len(running(here)) <= 2
    here.run_until(100)
    assert here.state(array) == "done"


def test_a_longer_walltime_of_a_running_job_counts() -> None:
    """Its GPU-hours may not grow beyond the limit; another queue is checked as a submission."""
    here = world(
        queues={"batch": {}, "small": {"each_user": limits(max_gpus=1)}},
        each_user=limits(max_running_gpu_hours=8),
    )
    job = here.submit("nodes=1:ppn=1:gpus=2,walltime=03:00:00", runs_s=5000.0)
    with pytest.raises(
        InvalidRequestError, match="cannot be extended by 02:00:00: alice uses 6 of 8"
    ):
        here.alter(job, resources=("walltime=05:00:00",))
    here.alter(job, resources=("walltime=04:00:00",))
    waits = here.submit("nodes=1:ppn=1:gpus=2,walltime=01:00:00")
    with pytest.raises(
        InvalidRequestError, match="requests 2 GPUs; the limit of each user in queue small"
    ):
        here.alter(waits, queue="small")


def test_projects_and_qos_limit_their_jobs_and_those_of_projects_below() -> None:
    """A project counts what is below it; a key of a project counts instead of that of each one."""
    projects: dict[str, Keys] = {
        "lab": {"total": limits(max_gpus=4)},
        "vision": {"parent": "lab", "users": ("alice", "bob"), "each_user": limits(max_gpus=2)},
        "speech": {"parent": "lab", "users": ("bob",)},
    }
    here = world(
        each_project=limits(max_gpus=3),
        projects=projects,
        qos={"high": {"total": limits(max_running=1)}},
    )
    first = here.submit("nodes=1:ppn=1:gpus=2", account="vision")
    over = here.submit("nodes=1:ppn=1:gpus=1", account="vision")
    second = here.submit("nodes=1:ppn=1:gpus=2", account="speech", by=BOB)
    above = here.submit("nodes=1:ppn=1:gpus=1", account="speech", by=BOB)
    assert running(here) == {first, second}
    assert here.why(over).startswith(
        "alice uses 2 of 2 GPUs, the limit of each user in project vision: "
    )
    assert here.why(above).startswith("project lab uses 4 of 4 GPUs, the limit of project lab: job")
    urgent = here.submit(qos="high", account="vision")
    waits = here.submit(qos="high", account="vision", by=BOB)
    assert urgent in running(here)
    assert here.why(waits).startswith("qos high has 1 of 1 running jobs, the limit of qos high")
    with pytest.raises(
        InvalidRequestError, match="requests 4 GPUs; the limit of each project is 3"
    ):
        here.submit("nodes=1:ppn=1:gpus=4", account="speech", by=BOB)
    here.alter(over, account="vision", resources=("walltime=100",))


def test_a_job_without_walltime_gets_the_most_of_its_project_and_qos() -> None:
    """As of its queue; also where it gets another QOS, and one that states more is refused."""
    here = world(
        projects={"ai": {"users": ["alice"], "each_user": limits(max_walltime_s=7200)}},
        qos={
            "short": {"total": limits(max_walltime_s=3600)},
            "none": {"total": limits(max_running=0)},
        },
    )

    usual, short = here.submit("nodes=1:ppn=16"), here.submit("nodes=1:ppn=16", qos="short")
    assert here.job(usual).spec.walltime_s == 7200
    assert here.job(short).spec.walltime_s == 3600
    with pytest.raises(InvalidRequestError, match="over the limit of qos short, 01:00:00"):
        here.submit("walltime=01:30:00", qos="short")
    waits = here.submit("nodes=1:ppn=16,walltime=01:30:00")
    with pytest.raises(InvalidRequestError, match="over the limit of qos short, 01:00:00"):
        here.alter(waits, qos="short")
    with pytest.raises(InvalidRequestError, match="cannot run: the limit of qos none is 0 running"):
        here.submit(qos="none")
