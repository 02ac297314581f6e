"""What an interactive job can be, and who may enter a job: rules without a cluster."""

import msgspec
import pytest

from gsched.config.tables import QueueConfig
from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.job import Interactive, JobSpec, Owner
from gsched.model.resources import Chunk, Request
from gsched.model.states import JobState
from gsched.protocol import actions as a
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests import commands as c
from gschedd.core.requests.interactive import may_enter, with_terminal
from gschedd.core.requests.resources import checked_walltime, with_memory
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from tests.support import world as worlds
from tests.support.site import PLAIN, changed
from tests.support.world import ALICE, BEGIN_S, World, submission

SETTINGS = changed(
    PLAIN,
    server="test",
    queues={
        "batch": QueueConfig(name="batch"),
        "short": QueueConfig(name="short", detach_timeout_s=60.0),
    },
    detach_timeout_s=600.0,
)


def asked(**more: object) -> SubmitJob:
    stated = {"key": "k", "name": "i", "workdir": "/", "launch": "command", "interactive": {}}
    return msgspec.convert(stated | more, SubmitJob)


@pytest.mark.parametrize(
    ("more", "timeout_s"),
    [
        ({}, 600.0),
        ({"queue": "short"}, 60.0),
        ({"interactive": {"detach_timeout_s": 0.0}}, 0.0),
        ({"queue": "short", "interactive": {"detach_timeout_s": 5.0}}, 5.0),
    ],
)
def test_the_detach_timeout_is_the_jobs_its_queues_or_the_heads(
    more: dict[str, object], timeout_s: float
) -> None:
    made = with_terminal(asked(**more), SETTINGS)

    assert made.interactive == Interactive(detach_timeout_s=timeout_s)
    assert not made.rerunnable


def test_a_batch_job_stays_as_it_is() -> None:
    job = asked(interactive=None)

    assert with_terminal(job, SETTINGS) is job


@pytest.mark.parametrize(
    "more",
    [
        {"array": "0-9"},
        {"launch": "torchrun"},
        {"places_max": 4},
        {"movable": True},
        {"checkpoint_signal": 10},
        {"deadline_after_s": 60.0},
        {"urgency": "urgent"},
        {"every_node": True},
        {"requeue_on": "node-failure"},
        {"lease_s": 60.0},
        {"interactive": {"detach_timeout_s": -1.0}},
        {"interactive": {"detach_timeout_s": 1e9}},
    ],
)
def test_what_an_interactive_job_cannot_be_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        with_terminal(asked(**more), SETTINGS)


def caller(user: str, uid: int, *, operator: bool = False) -> Caller:
    return Caller(user=user, uid=uid, gid=uid, operator=operator)


@pytest.mark.parametrize(
    ("who", "owner_uid", "allowed_by_default", "allowed_by_the_site"),
    [
        (caller("alice", 1000), 1000, True, True),
        (caller("mallory", 1000), 1000, False, False),  # who has the uid of a deleted alice
        (caller("bob", 1001), 1000, False, False),
        (caller("olga", 1002, operator=True), 1000, False, True),
        (caller("root", 0, operator=True), 1000, True, True),
        (caller("olga", 1002, operator=True), 0, False, False),
        (caller("alice", 1000), 0, False, False),
    ],
)
def test_who_may_enter_a_job(
    who: Caller, owner_uid: int, *, allowed_by_default: bool, allowed_by_the_site: bool
) -> None:
    owner = Owner(user="alice" if owner_uid else "root", uid=owner_uid, gid=owner_uid)
    spec = JobSpec(owner=owner, name="i", queue="batch", request=Request(), workdir="/")
    job = Job(id=7, spec=spec, state=JobState.RUNNING, submitted_s=0.0, eligible_s=0.0)
    for settings, allowed in (
        (SETTINGS, allowed_by_default),
        (changed(SETTINGS, operators_enter_jobs=True), allowed_by_the_site),
    ):
        if allowed:
            may_enter(who, job, settings)
        else:
            with pytest.raises(NotPermittedError):
                may_enter(who, job, settings)


@pytest.mark.parametrize(
    ("more", "timeout_s"),
    [
        ({}, 300.0),
        ({"queue": "short"}, 60.0),
        ({"queue": "never"}, 300.0),
        ({"interactive": {"detach_timeout_s": 300.0}}, 300.0),
    ],
)
def test_a_site_limits_the_detach_timeout(more: dict[str, object], timeout_s: float) -> None:
    never = {"never": QueueConfig(name="never", detach_timeout_s=0.0)}
    site = changed(SETTINGS, queues=dict(SETTINGS.queues) | never, max_detach_timeout_s=300.0)

    assert with_terminal(asked(**more), site).interactive == Interactive(detach_timeout_s=timeout_s)
    for stated_s in (0.0, 301.0):
        with pytest.raises(InvalidRequestError, match="over the limit here, 00:05:00"):
            with_terminal(asked(interactive={"detach_timeout_s": stated_s}), site)


@pytest.mark.parametrize(
    ("stated_s", "queue", "walltime_s"),
    [(None, "batch", 600.0), (60.0, "batch", 60.0), (None, "short", 120.0), (None, "most", 500.0)],
)
def test_interactive_jobs_have_a_walltime_of_their_own(
    stated_s: float | None, queue: str, walltime_s: float
) -> None:
    queues = {
        "batch": QueueConfig(name="batch"),
        "short": QueueConfig(name="short", default_walltime_s=120.0),
        "most": QueueConfig(name="most", max_walltime_s=500.0),
    }
    site = changed(SETTINGS, queues=queues, max_interactive_walltime_s=600.0)

    assert checked_walltime(stated_s, queue, site, is_interactive=True) == walltime_s
    assert checked_walltime(900.0, "batch", site, is_interactive=False) == 900.0
    with pytest.raises(InvalidRequestError, match="over the limit of interactive jobs"):
        checked_walltime(900.0, "batch", site, is_interactive=True)


GIB = 2**30


@pytest.mark.parametrize(
    ("request_", "memory_bytes"),
    [
        (Request(), 2 * GIB),
        (Request(chunks=(Chunk(count=2, cpus=3),)), 12 * GIB),
        (Request(chunks=(Chunk(cpus=3, gpus=2),)), 20 * GIB),
        (Request(chunks=(Chunk(memory_bytes=5),)), 5),
        (Request(chunks=(Chunk(memory_bytes=5), Chunk())), 2 * GIB + 5),
        (Request(exclusive=True), 0),
    ],
)
def test_a_job_that_states_no_memory_gets_the_sites(request_: Request, memory_bytes: int) -> None:
    site = changed(
        SETTINGS, default_memory_per_cpu_bytes=2 * GIB, default_memory_per_gpu_bytes=10 * GIB
    )

    assert with_memory(request_, site.limits_of("batch")).memory_bytes == memory_bytes
    assert with_memory(request_, SETTINGS.limits_of("batch")) is request_


def test_a_submission_gets_the_default_memory_and_an_alteration_too() -> None:
    world = World(config=worlds.settings(default_memory_per_cpu_bytes=2 * GIB))
    step = world.head.command(
        c.Submit(caller=ALICE, submitted=submission(), digests=("", "")), BEGIN_S
    )
    assert step.error is None
    assert world.head.state.jobs[1].spec.request.memory_bytes == 2 * GIB
    change = a.AlterJob(alteration=a.Alteration(resources=("nodes=1:ppn=2",)))
    step = world.head.command(c.ActOnJob(caller=ALICE, job=1, action=change), BEGIN_S)
    assert step.error is None
    assert world.head.state.jobs[1].spec.request.memory_bytes == 4 * GIB


OWN = {
    "batch": QueueConfig(name="batch"),
    "debug": QueueConfig(
        name="debug",
        max_interactive_walltime_s=300.0,
        max_detach_timeout_s=60.0,
        default_memory_per_cpu_bytes=GIB,
        default_memory_per_gpu_bytes=0,
    ),
    "free": QueueConfig(
        name="free",
        max_interactive_walltime_s=0.0,
        max_detach_timeout_s=0.0,
        default_memory_per_cpu_bytes=0,
        default_memory_per_gpu_bytes=0,
    ),
}
LIMITED = changed(
    SETTINGS,
    queues=OWN,
    max_interactive_walltime_s=600.0,
    max_detach_timeout_s=120.0,
    default_memory_per_cpu_bytes=2 * GIB,
    default_memory_per_gpu_bytes=10 * GIB,
)


@pytest.mark.parametrize(
    ("queue", "walltime_s", "timeout_s", "memory_bytes"),
    [("batch", 600.0, 120.0, 20 * GIB), ("debug", 300.0, 60.0, 3 * GIB), ("free", None, 600.0, 0)],
)
def test_a_queue_has_limits_and_defaults_of_its_own_or_the_sites(
    queue: str, walltime_s: float | None, timeout_s: float, memory_bytes: int
) -> None:
    made = with_terminal(asked(queue=queue), LIMITED)
    request = Request(chunks=(Chunk(cpus=3, gpus=2),))

    assert made.interactive == Interactive(detach_timeout_s=timeout_s)
    assert checked_walltime(None, queue, LIMITED, is_interactive=True) == walltime_s
    assert with_memory(request, LIMITED.limits_of(queue)).memory_bytes == memory_bytes


@pytest.mark.parametrize(("queue", "where"), [("batch", "here"), ("debug", "in queue debug")])
def test_a_refusal_tells_whose_limit_it_is(queue: str, where: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"of interactive jobs {where}, 00:"):
        checked_walltime(900.0, queue, LIMITED, is_interactive=True)
    with pytest.raises(InvalidRequestError, match=f"none is over the limit {where}, 00:"):
        with_terminal(asked(queue=queue, interactive={"detach_timeout_s": 0.0}), LIMITED)


def test_a_job_that_is_moved_gets_the_limits_and_defaults_of_the_queue() -> None:
    """And is refused where it exceeds them; a running one keeps what it has."""
    world = World(config=worlds.settings(queues=OWN))

    def submit(**more: object) -> None:
        made = asked(**more) if more else submission()
        step = world.head.command(c.Submit(caller=ALICE, submitted=made, digests=("", "")), BEGIN_S)
        assert step.error is None

    def move(job: int) -> str:
        change = a.AlterJob(alteration=a.Alteration(queue="debug"))
        step = world.head.command(c.ActOnJob(caller=ALICE, job=job, action=change), BEGIN_S)
        return "" if step.error is None else step.error.message

    submit()
    submit(key="i", interactive={"detach_timeout_s": 30.0})
    submit(key="j", interactive={"detach_timeout_s": 90.0})
    assert [move(job) for job in (1, 2)] == ["", ""]
    jobs = world.head.state.jobs
    assert [jobs[job].spec.request.memory_bytes for job in (1, 2)] == [GIB, GIB]
    assert [jobs[job].spec.walltime_s for job in (1, 2)] == [None, 300.0]
    assert "a detach timeout of 00:01:30 is over the limit in queue debug, 00:01:00" in move(3)
