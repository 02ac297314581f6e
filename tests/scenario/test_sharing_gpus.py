"""Jobs share GPUs: the head's books over the life of jobs, nodes and heads."""

import pytest
from msgspec import structs

from gsched.config.nodes import SharingRules
from gsched.errors import GschedError
from gsched.model.resources import GpuShare, Load, Share
from gsched.model.states import ShareClass
from gschedd.core.recovery.adopt import cases_of
from gschedd.core.requests import commands as c
from gschedd.policies.queue import balance
from tests.scenario.test_recovery import accept, known, old_copy, survey_of
from tests.support.invariants import content, replayed
from tests.support.machines import GIB, Machine
from tests.support.world import ALICE, Program, World, node, submission

LONG = Program(runs_s=1000.0)


def sharing_node(name: str, gpus: int = 1, *, runtime: str = "colocate") -> Machine:
    """Return a machine with GPUs of 16 GiB that jobs can share."""
    machine = node(name, cpus=16, gpus=gpus, gpu_memory_bytes=16 * GIB)
    machine.sharing = runtime
    return machine


def shares_of(world: World, job: int) -> list[tuple[str, int, int]]:
    """Return (node, GPU, percent) of what a job has; nothing while it waits."""
    attempt = world.head.state.jobs[job].attempt
    if attempt is None:
        return []
    return [
        (share.node, part.index, part.percent)
        for share in attempt.allocation
        for part in share.gpu_shares
    ]


def run(world: World, resources: str) -> int:
    """Submit a job that runs for long."""
    return world.submit(resources, program=LONG)


def refusal(world: World, resources: str, **options: object) -> GschedError:
    """Return why a submission is refused."""
    asked = submission(resources=(resources,), **options)
    return world.refusal(c.Submit(caller=ALICE, submitted=asked, digests=("", "")))


def test_jobs_share_a_gpu_and_a_whole_job_waits_for_the_last_of_them() -> None:
    world = World(sharing_node("n1"))
    first, second = run(world, "gpu_share=40%:4gb"), run(world, "gpu_share=60%:4gb:high")
    third, whole = run(world, "gpu_share=1%:1gb"), run(world, "gpus=1")

    assert shares_of(world, first) == [("n1", 0, 40)]
    assert shares_of(world, second) == [("n1", 0, 60)]
    assert world.head.state.jobs[whole].attempt is None
    assert shares_of(world, third) == []
    world.delete(first)
    world.run_for(1.0)
    assert shares_of(world, third) == [("n1", 0, 1)]
    world.delete(second)
    world.run_for(1.0)
    assert world.head.state.jobs[whole].attempt is None
    world.delete(third)
    world.run_for(1.0)
    attempt = world.head.state.jobs[whole].attempt
    assert attempt is not None
    assert attempt.allocation[0].gpu_indices == (0,)


def test_a_job_that_shares_cannot_jump_the_queue() -> None:
    """What comes first, and waits for a whole GPU, has the reservation of the one that is freed."""
    world = World(sharing_node("n1", 2), policy=balance.plan)
    run(world, "gpus=2,walltime=1000")
    whole = run(world, "gpus=2,walltime=1000")
    shared = run(world, "gpu_share=50%:1gb,walltime=2000")

    assert shares_of(world, shared) == []
    world.run_until(1000.5)
    assert world.head.state.jobs[whole].attempt is not None
    assert shares_of(world, shared) == []


def test_a_busy_gpu_gets_a_further_low_job_when_it_is_idle_again() -> None:
    """The node's report lets the head look again, although nothing has ended."""
    world = World(sharing_node("n1"))
    run(world, "gpu_share=10%:1gb")
    report(world, 95.0)
    waiting, high = run(world, "gpu_share=10%:1gb"), run(world, "gpu_share=10%:1gb:high")
    assert shares_of(world, waiting) == []
    assert shares_of(world, high) == [("n1", 0, 10)]

    report(world, 20.0)

    assert shares_of(world, waiting) == [("n1", 0, 10)]


def report(world: World, percent: float) -> None:
    """Let n1 tell, two minutes later, how busy its GPU was in the last minute."""
    world.run_for(120.0)
    load = Load(gpu_minute_percent=(percent,))
    world.head.note_load("n1", load, world.now_s)
    world.settle()


def test_jobs_that_come_together_are_assumed_to_keep_a_gpu_busy() -> None:
    """0.3 each: after three of them another GPU is shared, if the site allows more on one."""
    world = World(sharing_node("n1", 2))
    world.head.state.sharing = SharingRules(low_max=9)
    world.connect("n1")

    jobs = [run(world, "gpu_share=5%:1gb") for _ in range(5)]

    assert [shares_of(world, job) for job in jobs] == [
        *[[("n1", 0, 5)]] * 3,
        *[[("n1", 1, 5)]] * 2,
    ]


def test_an_old_node_gets_no_job_that_shares() -> None:
    """It does not announce a runtime; a new one comes later."""
    world = World(sharing_node("n1", runtime=""))
    error = refusal(world, "gpu_share=10%:1gb")
    assert "no node shares its GPUs here" in error.hint

    world.machines["n1"].sharing = "mps"
    world.disconnect("n1")
    world.connect("n1")
    job = run(world, "gpu_share=10%:1gb")

    assert shares_of(world, job) == [("n1", 0, 10)]
    world.machines["n1"].sharing = ""
    world.disconnect("n1")
    world.connect("n1")
    assert "no node shares" in refusal(world, "gpu_share=10%:1gb").hint
    assert shares_of(world, job) == [("n1", 0, 10)], "what runs goes on"


@pytest.mark.parametrize(
    ("resources", "options", "message", "hint"),
    [
        ("gpu_share=101%", {}, "a GPU has 100 %", "gpus=N"),
        ("gpu_share=10%:17gb", {}, "no node can provide that", "has 16gb"),
        ("gpus=2,gpu_share=10%", {}, "not of 2", "omit gpus="),
        ("nodes=2,gpu_share=10%", {}, "is for one chunk", "one job for each share"),
        ("gpu_share=10%,place=excl", {}, "its node for itself", "whole GPUs"),
        ("gpu_share=10%", {"exclusive": True}, "its node for itself", "-n"),
        ("gpu_share=10%", {"launch": "torchrun"}, "torchrun", "python"),
        ("gpu_share=10%", {"movable": True}, "cannot migrate", "--elastic"),
        ("gpu_share=10%", {"deadline_after_s": 3600.0}, "whole GPUs", "omit the share"),
    ],
)
def test_what_cannot_be_shared_is_refused_at_submission(
    resources: str, options: dict[str, object], message: str, hint: str
) -> None:
    world = World(sharing_node("n1"))
    error = refusal(world, resources, **options)

    assert message in error.message
    assert hint in error.hint


def test_a_waiting_job_gets_another_share_and_a_running_one_does_not() -> None:
    world = World(sharing_node("n1"))
    runs, waits = run(world, "gpu_share=100%"), run(world, "gpu_share=50%:8gb:high")

    world.alter(waits, resources=("gpu_share=60%:4gb",))
    asked = world.head.state.jobs[waits].spec.request.gpu_share
    assert asked is not None
    assert (asked.percent, asked.memory_bytes, asked.share_class) == (60, 4 * GIB, ShareClass.LOW)
    world.alter(waits, resources=("mem=1gb",))
    assert world.head.state.jobs[waits].spec.request.gpu_share == asked
    world.alter(waits, resources=("nodes=1:gpus=1",))
    assert world.head.state.jobs[waits].spec.request.gpu_share is None
    with pytest.raises(GschedError, match="only walltime can change"):
        world.alter(runs, resources=("gpu_share=50%",))


def test_a_restarted_head_has_the_same_books() -> None:
    world = World(sharing_node("n1", 2))
    run(world, "gpu_share=40%:4gb")
    run(world, "gpu_share=60%:4gb:high")
    run(world, "gpus=1")
    before = content(world.head.state)

    assert content(replayed(world.facts, world.head.state)) == before
    world.restart_head()
    assert content(world.head.state)["spaces"] == before["spaces"]


def test_a_share_counts_as_a_part_of_a_gpu_in_the_account() -> None:
    world = World(sharing_node("n1"))
    job = world.submit("gpu_share=25%:1gb", runs_s=100.0)

    world.run_until(200.0)

    assert world.done[job].gpu_s == pytest.approx(25.0, rel=0.02)


# --- a database that is an old copy ---


def adopted(**owned: object) -> tuple[bool, str]:
    """Return whether a job with this on GPU 0 is taken back, and the contradiction if any.

    It is beside a job of the class high that has 60 % and 8 GiB.
    """
    world = World(sharing_node("n1"))
    world.head.state.epoch_id = "aa"
    run(world, "gpu_share=60%:8gb:high")
    before = len(world.facts)
    job = run(world, "gpu_share=10%:1gb")
    said = known(world.job(job), "n1")
    assert said.origin is not None
    share = structs.replace(Share(node="n1", cpus=1), **owned)
    said = structs.replace(said, origin=structs.replace(said.origin, allocation=(share,)))
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [known(world.job(1), "n1"), said]}, head.state.next_job)
    cases = {case.job: case for case in cases_of(head.state, survey)}
    accept(head, survey)
    return job in head.state.jobs, cases[job].why


def part(percent: int, gib: int, share_class: ShareClass = ShareClass.LOW) -> dict[str, object]:
    """Return what is owned of GPU 0."""
    memory_bytes = gib * GIB
    share = GpuShare(index=0, percent=percent, memory_bytes=memory_bytes, share_class=share_class)
    return {"gpu_shares": (share,)}


@pytest.mark.parametrize(
    ("owned", "taken_back"),
    [
        (part(40, 8), True),
        (part(41, 8), False),
        (part(40, 9), False),
        (part(10, 1, ShareClass.HIGH), False),
        ({"gpu_indices": (0,)}, False),
    ],
)
def test_a_job_is_taken_back_only_if_its_gpu_has_room(
    owned: dict[str, object], *, taken_back: bool
) -> None:
    assert adopted(**owned) == (taken_back, "")


@pytest.mark.parametrize(
    "owned",
    [
        part(10, -1),
        {**part(10, 1), "gpu_indices": (0,)},
        {"gpu_shares": (GpuShare(index=-1, percent=10),)},
        {"gpu_shares": (GpuShare(index=0, percent=10), GpuShare(index=0, percent=10))},
    ],
)
def test_impossible_shares_are_a_conflict(owned: dict[str, object]) -> None:
    assert adopted(**owned) == (False, "its allocation, as its node tells it, cannot be true")


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"movable": True}, {"resources": ("gpu_share=50%",)}),
        ({"resources": "gpu_share=50%"}, {"deadline_after_s": 3600.0}),
        ({"launch": "torchrun"}, {"resources": ("gpu_share=50%",)}),
    ],
)
def test_an_alteration_makes_no_job_that_could_not_be_submitted(
    options: dict[str, object], changes: dict[str, object]
) -> None:
    world = World(sharing_node("n1"))
    run(world, "gpus=1")
    job = world.submit(str(options.pop("resources", "gpus=1")), program=LONG, **options)  # type: ignore[arg-type] # as given

    with pytest.raises(GschedError, match=r"shares a GPU|whole GPUs|torchrun"):
        world.alter(job, **changes)  # type: ignore[arg-type] # as given
