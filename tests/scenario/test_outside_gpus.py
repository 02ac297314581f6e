"""No job is started on a GPU that a process of no job uses, until the process has gone."""

from gsched.model.gpu_outside import GpuUse, OutsideUse
from gschedd.core.nodes.live import note_gpu_use
from tests.support.world import World, node

GPUS = 2


def use(*indices: int, avoid: bool = True) -> GpuUse:
    rows = (OutsideUse(index=index, pid=40 + index, user="eve", program="x") for index in indices)
    return GpuUse(outside=tuple(rows), avoid=avoid)


def tell(world: World, *indices: int, avoid: bool = True) -> None:
    """Let the node tell on which GPUs processes of no job are."""
    note_gpu_use(world.head.state, "n1", use(*indices, avoid=avoid))
    world.settle()


def gpus_of(world: World, job: int) -> tuple[int, ...]:
    attempt = world.job(job).attempt
    assert attempt is not None
    return attempt.parts["n1"].share.gpu_indices


def test_a_job_gets_the_other_gpu_and_the_next_one_waits_with_the_reason() -> None:
    world = World(node("n1", gpus=GPUS))
    tell(world, 0)
    first, second = (world.submit("nodes=1:gpus=1", runs_s=3600) for _ in "12")
    world.run_for(5)

    assert world.state(first) == "running"
    assert gpus_of(world, first) == (1,)
    assert world.state(second) == "queued"
    assert "GPU 0 of n1 is used by x of eve (pid 40) outside of all jobs" in world.why(second)

    tell(world)
    world.run_for(5)
    assert gpus_of(world, second) == (0,)


def test_a_gpu_that_is_given_back_stays_avoided() -> None:
    """The process came while a job had the GPU, which keeps it."""
    world = World(node("n1", gpus=GPUS))
    first = world.submit("nodes=1:gpus=2", runs_s=60)
    world.run_for(5)
    tell(world, 0)
    assert world.state(first) == "running"

    second = world.submit("nodes=1:gpus=2", runs_s=3600)
    third = world.submit("nodes=1", runs_s=3600)
    world.run_for(600)
    assert world.state(first) == "done"
    assert world.state(second) == "queued"
    assert world.state(third) == "running", "a job without GPUs does not mind"

    tell(world, 0, avoid=False)
    world.run_for(5)
    assert gpus_of(world, second) == (0, 1)


def test_a_job_that_needs_all_gpus_is_taken_and_waits() -> None:
    world = World(node("n1", gpus=GPUS))
    tell(world, 0, 1)
    job = world.submit("nodes=1:gpus=2")
    world.run_for(5)

    assert world.state(job) == "queued"
    assert "(and 1 more)" in world.why(job)
