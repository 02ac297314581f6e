"""What users are billed: each attempt what it held, for as long as it held it."""

import pytest
from msgspec import structs

from gsched.config.shares import SharesConfig
from gschedd.core.state.settings import Settings
from gschedd.shares.ledger import LedgerRow
from tests.support.machines import GIB
from tests.support.moves import Story, gpus
from tests.support.world import Program, World, inventory, node, settings

LONG = Program(runs_s=1000.0)


def weighing(**changes: object) -> Settings:
    """Return settings with other weights."""
    base = settings()
    shares = SharesConfig(half_life_s=0.0, **changes)  # type: ignore[arg-type] # passed on
    return structs.replace(base, config=structs.replace(base.config, shares=shares))


def row(world: World, project: str = "", user: str = "alice") -> LedgerRow:
    return world.head.state.usage.rows[project, user]


def test_a_job_is_billed_the_largest_of_what_it_held_for_as_long_as_it_ran() -> None:
    world = World(node("n1", cpus=8, gpus=2), config=weighing(cpu=1.0, memory_gb=0.5, gpu=10.0))
    world.submit("nodes=1:ppn=4:gpus=1,mem=16gb", program=Program(runs_s=50.0), account="lab")
    world.run_for(20.0)
    accrued = world.head.state.usage.usage_of(("lab", "alice"), world.now_s)
    world.run_for(100.0)

    billed = row(world, "lab")
    wall_s = billed.cpu_s / 4
    assert wall_s == pytest.approx(50.0, abs=0.5)
    assert accrued == pytest.approx(10.0 * 20.0, abs=5.0)
    assert billed.gpu_s == {"": wall_s}
    assert billed.memory_gb_s == pytest.approx(16 * wall_s)
    assert billed.billed == billed.usage == pytest.approx(10.0 * wall_s)
    world.check_history()


def test_a_head_that_starts_again_bills_what_ran_meanwhile() -> None:
    world = World(node("n1", cpus=4))
    world.submit("nodes=1", program=Program(runs_s=100.0))
    world.run_for(30.0)
    before = world.head.state.usage.running
    world.restart_head()

    assert world.head.state.usage.running == before
    world.run_for(200.0)
    assert row(world).cpu_s == pytest.approx(100.0, abs=0.5)
    world.check_history()


def test_a_part_of_a_gpu_is_billed_as_that_part() -> None:
    machine = node("n1", cpus=8, gpus=1, gpu_memory_bytes=16 * GIB)
    machine.sharing = "colocate"
    world = World(machine)
    world.submit("gpu_share=40%:4gb", program=Program(runs_s=100.0))
    world.run_for(200.0)

    assert row(world).gpu_s[""] == pytest.approx(0.4 * row(world).cpu_s)
    world.check_history()


def test_a_job_whose_node_loses_a_gpu_is_billed_by_the_type_that_it_had() -> None:
    machine = node("n1", cpus=8, gpu_types=("a",))
    world = World(machine)
    world.submit("nodes=1:gpus=1", program=Program(runs_s=100.0))
    world.run_for(30.0)
    machine.has = inventory(cpus=8)
    world.disconnect("n1")
    world.connect("n1")
    world.restart_head()
    world.run_for(200.0)

    assert row(world).gpu_s == {"a": pytest.approx(100.0, abs=5.0)}
    world.check_history()


def test_a_requeued_job_is_billed_for_both_attempts() -> None:
    world = World(node("n1", cpus=4))
    job = world.submit("nodes=1", program=LONG)
    world.run_for(40.0)
    world.rerun(job)
    world.run_for(5000.0)

    assert row(world).attempts == 2
    assert row(world).cpu_s == pytest.approx(1040.0, abs=2.0)
    world.check_history()


def test_a_job_of_a_lost_node_is_billed_until_its_end_is_known() -> None:
    world = World(node("n1", cpus=4))
    world.submit("nodes=1", program=LONG)
    world.run_for(40.0)
    world.lose_power("n1")
    world.run_for(60.0)
    world.reboot("n1")
    world.run_for(5000.0)

    assert row(world).attempts == 2
    world.check_history()


def test_a_training_job_is_billed_by_the_gpus_of_each_of_its_allocations() -> None:
    story = Story()
    job = story.training(2, most=4)
    story.run_for(100.0)
    story.move((job, gpus("b", 0, 1, 2)))
    story.run_for(1e5)

    assert row(story).attempts == 2
    assert row(story).gpu_s[""] == row(story).cpu_s > 2000.0
    story.check_history()


def test_a_job_whose_account_is_changed_is_billed_to_the_new_one() -> None:
    world = World(node("n1", cpus=4))
    job = world.submit("nodes=1", program=LONG, account="old")
    world.run_for(40.0)
    world.alter(job, account="new")
    world.run_for(2000.0)

    assert set(world.head.state.usage.rows) == {("new", "alice")}
    world.check_history()


def test_a_job_that_never_starts_is_billed_nothing() -> None:
    world = World(node("n1", cpus=1))
    world.submit("nodes=1", program=LONG)
    waiting = world.submit("nodes=1", program=LONG)
    world.delete(waiting)
    world.run_for(2000.0)

    assert row(world).attempts == 1
    world.check_history()
