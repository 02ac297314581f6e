"""Short numbers of the elements of arrays that Slurm's commands have submitted."""

from gsched.model.arrays import read_spans
from gsched.model.ids import element_number
from gschedd.core.requests import commands as c
from gschedd.core.state.elements import SHORT_NUMBERS_MOST, meant_number
from tests.support.invariants import content, replayed
from tests.support.world import ALICE, World, node

SLURM = {"SLURM_SUBMIT_DIR": "/here"}


def test_the_numbers_behind_an_array_of_slurm_are_those_of_its_elements() -> None:
    """Also of sparse indices; the next job has the number behind them."""
    world = World(node("n1", cpus=8))
    array = world.submit(array="3,10-14:2", runs_s=10, environment=SLURM)
    after = world.submit(runs_s=10)

    world.run_until(5)

    assert after == array + 5
    jobs = {index: world.job(element_number(array, index)) for index in (3, 10, 12, 14)}
    assert [job.short_number for job in jobs.values()] == [array + each for each in (1, 2, 3, 4)]
    for job in jobs.values():
        assert meant_number(world.head.state, job.short_number) == job.id
    assert meant_number(world.head.state, after) == after
    assert meant_number(world.head.state, after + 1) == after + 1


def test_elements_that_are_no_jobs_have_their_numbers_already() -> None:
    """They cost nothing: a large array has two records, as a small one."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-99999", runs_s=10, environment=SLURM)

    assert world.submit(runs_s=1) == array + 100_001
    assert meant_number(world.head.state, array + 100_000) == element_number(array, 99_999)


def test_arrays_of_others_reserve_no_numbers() -> None:
    world = World(node("n1", cpus=8))
    array = world.submit(array="0-9", runs_s=10)

    assert world.submit(runs_s=1) == array + 1
    world.run_until(5)
    assert world.job(element_number(array, 0)).short_number == 0


def test_numbers_that_no_32_bits_hold_are_not_reserved() -> None:
    world = World(node("n1", cpus=8))
    world.head.state.next_job = SHORT_NUMBERS_MOST - 9
    fits = world.submit(array="0-8", runs_s=10, environment=SLURM)
    beyond = world.submit(array="0-8", runs_s=10, environment=SLURM)

    assert beyond == fits + 10
    assert world.submit(runs_s=1) == beyond + 1
    assert meant_number(world.head.state, beyond + 1) == beyond + 1


def test_a_restarted_head_gives_no_number_twice() -> None:
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9", runs_s=10, environment=SLURM)
    world.run_until(5)

    assert content(replayed(world.facts, world.head.state)) == content(world.head.state)
    world.restart_head()

    assert world.submit(runs_s=1) == array + 11
    first = world.job(element_number(array, 0))
    assert first.short_number == array + 1


def test_elements_that_are_submitted_again_have_short_numbers_too() -> None:
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9", runs_s=10, environment=SLURM)
    plain = world.submit(array="0-9", runs_s=10)

    def again(original: int) -> int:
        asked = c.Resubmit(
            caller=ALICE,
            original=world.job(original),
            elements=read_spans("3,7"),
            key=str(original),
        )
        return world.do(asked).job

    second = again(array)
    assert second == plain + 1
    third = again(plain)
    assert third == second + 3, "two elements"
    assert again(array) == second, "it is the same submission"
    assert world.submit(runs_s=1) == third + 1
    assert meant_number(world.head.state, second + 2) == element_number(second, 7)
