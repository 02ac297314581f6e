"""Who starts when: priorities, reservation and backfill, packing, placement."""

import pytest

from gsched.config.tables import QueueConfig
from gsched.errors import RequestTooLargeError
from gsched.model.ids import element_number
from gsched.protocol import actions as a
from tests.support.world import ADMIN, BOB, GIB, World, node, settings


def test_jobs_start_in_order_of_submission() -> None:
    """One CPU, three jobs: each starts when the one before it has ended."""
    world = World(node("n1", cpus=1))
    jobs = [world.submit(runs_s=10) for _ in range(3)]

    world.run_until(100)

    assert [world.started_s(job) for job in jobs] == [0, 10, 20]
    assert {world.state(job) for job in jobs} == {"done"}


def test_a_higher_priority_goes_first() -> None:
    """The later job with the higher priority overtakes, equal ones keep their order."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=10)
    low = world.submit(runs_s=10, priority=-5)
    plain = world.submit(runs_s=10)
    high = world.submit(runs_s=10, priority=7)

    world.run_until(100)

    assert [world.started_s(job) for job in (high, plain, low)] == [10, 20, 30]


def test_a_queue_lends_its_priority_to_its_jobs() -> None:
    """A job of the urgent queue starts before an older one of the plain queue."""
    queues = {
        "batch": QueueConfig(name="batch"),
        "urgent": QueueConfig(name="urgent", priority=100),
    }
    world = World(node("n1", cpus=1), config=settings(queues=queues))
    world.submit(runs_s=10)
    plain = world.submit(runs_s=10, priority=99)
    urgent = world.submit(runs_s=10, queue="urgent")

    world.run_until(100)

    assert (world.started_s(urgent), world.started_s(plain)) == (10, 20)


def test_jobs_of_a_stopped_queue_wait_and_say_so() -> None:
    """A stopped queue takes jobs, starts none and blocks nobody."""
    queues = {
        "batch": QueueConfig(name="batch"),
        "night": QueueConfig(name="night", started=False, priority=5),
    }
    world = World(node("n1", cpus=1), config=settings(queues=queues))
    stopped = world.submit(queue="night")
    other = world.submit()

    world.run_until(1)

    assert world.state(other) == "running"
    assert world.why(stopped) == "queue night is stopped"


def test_a_short_job_passes_a_blocked_one_and_a_long_one_does_not() -> None:
    """EASY: the blocked job gets the time at which it is sure to fit; nobody delays it."""
    world = World(node("n1", cpus=4))
    first = world.submit("nodes=1:ppn=3,walltime=100", runs_s=100)
    blocked = world.submit("nodes=1:ppn=4,walltime=100", runs_s=100)
    long = world.submit("nodes=1:ppn=1,walltime=101", runs_s=101)
    short = world.submit("nodes=1:ppn=1,walltime=100", runs_s=100)

    assert world.wait_of(blocked).predicted_start_s == world.now_s + 100
    assert world.wait_of(blocked).reserved
    assert "would delay job 2" in world.why(long)
    world.run_until(500)

    assert world.started_s(first) == 0
    assert world.started_s(short) == 0
    assert world.started_s(blocked) == 100
    assert world.started_s(long) == 200


def test_a_long_job_may_use_what_the_reservation_leaves_over() -> None:
    """The reservation is on one node; a job without a walltime fills another."""
    world = World(node("n1", cpus=4), node("n2", cpus=2))
    world.submit("nodes=1:ppn=3,walltime=100", runs_s=100)
    blocked = world.submit("nodes=1:ppn=4,walltime=100", runs_s=100)
    beside = world.submit("nodes=1:ppn=2", runs_s=1000)

    world.run_until(2000)

    assert world.started_s(beside) == 0
    assert world.started_s(blocked) == 100


def test_the_blocked_job_starts_no_later_than_predicted_whatever_comes_behind_it() -> None:
    """A stream of small jobs behind it uses the gaps and never moves the reservation back."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    world.submit("nodes=1:ppn=4,walltime=300", runs_s=200)
    world.submit("nodes=1:ppn=4,walltime=600", runs_s=600)
    blocked = world.submit("nodes=2:ppn=3,walltime=60", runs_s=60)
    predicted_s = world.wait_of(blocked).predicted_start_s
    assert predicted_s is not None
    small = []
    for minute in range(10):
        world.run_until(minute * 60)
        small += [world.submit(f"nodes=1:ppn=1,walltime={30 * (1 + minute)}", by=BOB, runs_s=500)]

    world.run_until(5000)

    started_s = world.started_s(blocked)
    assert started_s is not None
    assert started_s <= predicted_s - (world.now_s - world.elapsed_s)
    assert all(world.state(job) == "done" for job in small)


def test_a_job_without_walltime_does_not_make_the_blocked_one_wait_for_ever() -> None:
    """Behind an unlimited job nothing is predicted, but the blocked job goes next."""
    world = World(node("n1", cpus=2))
    world.submit("nodes=1:ppn=2", runs_s=50)
    blocked = world.submit("nodes=1:ppn=2", runs_s=10)
    later = world.submit("nodes=1:ppn=1", runs_s=10)

    assert world.wait_of(blocked).predicted_start_s is None
    world.run_until(200)

    assert (world.started_s(blocked), world.started_s(later)) == (50, 60)


def test_jobs_of_one_class_share_a_reason_and_know_their_place() -> None:
    """The second of two equal jobs says how many are before it."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=10)
    first = world.submit(runs_s=10)
    second = world.submit(runs_s=10)

    assert world.why(first).startswith("needs 1 CPU on one node; no node has enough free")
    assert world.why(second).startswith(
        f"1 job with the same request ahead in the queue (next: job {first}); needs 1 CPU"
    )


def test_elements_of_arrays_that_are_no_jobs_yet_are_counted_ahead() -> None:
    """Those of the same class and before the job; not 256 of 2,000, and not those behind it."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-1999", runs_s=10)
    other = world.submit("nodes=1,walltime=60", array="0-999", runs_s=10)
    job = world.submit(by=BOB, runs_s=10)
    world.submit(array="0-999", runs_s=10)
    last = world.submit(by=BOB, runs_s=10)

    state = world.head.state
    for number in (array, other):
        element = state.jobs[element_number(number, 255)]
        assert state.class_of(state.jobs[number]) == state.class_of(element)
    next_job = f"ahead in the queue (next: job {array}[1]); needs 1 CPU"
    assert world.why(job).startswith(f"1999 jobs with the same request {next_job}")
    assert world.why(last).startswith(f"3000 jobs with the same request {next_job}")
    inside = element_number(array, 200)
    assert world.why(inside).startswith(f"199 jobs with the same request {next_job}")


def test_an_array_at_its_limit_is_ahead_with_all_its_elements() -> None:
    """None of them waits as a job; the next one is named all the same."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9%1", runs_s=10)
    job = world.submit(by=BOB, runs_s=10)

    assert world.why(job).startswith(
        f"9 jobs with the same request ahead in the queue (next: job {array}[1]);"
    )


def test_small_jobs_are_packed_so_that_a_whole_node_stays_free() -> None:
    """Two half-node jobs share a node; the whole-node job starts at once on the other."""
    world = World(node("n1", cpus=4, gpus=2), node("n2", cpus=4, gpus=2))
    small = [world.submit("nodes=1:ppn=2:gpus=1") for _ in range(2)]
    whole = world.submit("nodes=1:ppn=4:gpus=2")

    assert world.machine_of(small[0]) == world.machine_of(small[1])
    assert world.state(whole) == "running"


def test_jobs_without_gpus_stay_off_gpu_nodes_while_others_have_room() -> None:
    """The GPU node is taken only when the plain one is full."""
    world = World(node("gpu", cpus=8, gpus=2), node("plain", cpus=2))
    jobs = [world.submit() for _ in range(3)]

    assert [world.machine_of(job) for job in jobs] == [("plain",), ("plain",), ("gpu",)]


def test_a_gpu_type_is_given_as_named() -> None:
    """The named type is found on a mixed node, and what no node has is refused."""
    world = World(node("n1", gpu_types=("v100", "a100", "a100")))
    job = world.submit("nodes=1:gpus=2:gpu_type=a100")

    attempt = world.job(job).attempt
    assert attempt is not None
    assert attempt.allocation[0].gpu_indices == (1, 2)
    with pytest.raises(RequestTooLargeError, match="no node can provide that"):
        world.submit("nodes=1:gpus=3:gpu_type=a100")


def test_counted_resources_run_out_and_come_back() -> None:
    """One licence: the second job waits for the first one's, and names what it lacks."""
    world = World(node("n1", cpus=8, generic={"licence": 1}))
    first = world.submit("nodes=1,licence=1", runs_s=10)
    second = world.submit("nodes=1,licence=1", runs_s=10)

    assert world.state(first) == "running"
    assert "lacks licence" in world.why(second)
    world.run_until(100)

    assert world.started_s(second) == 10


def test_memory_is_given_away_only_once() -> None:
    """Two jobs of 10 GiB do not share 16 GiB."""
    world = World(node("n1", memory_bytes=16 * GIB))
    world.submit("nodes=1,mem=10gb", runs_s=10)
    second = world.submit("nodes=1,mem=10gb", runs_s=10)

    assert "lacks memory" in world.why(second)
    world.run_until(100)

    assert world.started_s(second) == 10


def test_an_exclusive_job_is_alone_on_its_node() -> None:
    """It waits for an empty node, and nobody joins it there."""
    world = World(node("n1", cpus=8))
    first = world.submit(runs_s=10)
    alone = world.submit(runs_s=10, exclusive=True)
    third = world.submit(runs_s=10)

    world.run_until(1)
    assert (world.state(first), world.state(alone)) == ("running", "queued")
    world.run_until(100)

    assert world.started_s(alone) == 10
    assert world.started_s(third) == 20


@pytest.mark.parametrize(
    ("resources", "nodes"),
    [
        ("nodes=2:ppn=2", ("n1", "n2")),
        ("select=2:ncpus=2", ("n1",)),
        ("select=3:ncpus=2", ("n1", "n2")),
        ("select=2:ncpus=2,place=scatter", ("n1", "n2")),
        ("select=2:ncpus=2,place=pack", ("n1",)),
    ],
)
def test_placement_is_as_asked(resources: str, nodes: tuple[str, ...]) -> None:
    """nodes= spreads, select= may share, place= says which."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    job = world.submit(resources)

    assert world.machine_of(job) == nodes


def test_a_packed_job_waits_for_one_node_although_two_halves_are_free() -> None:
    """place=pack never spreads."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    world.submit("nodes=2:ppn=2", runs_s=10)
    packed = world.submit("select=3:ncpus=1,place=pack", runs_s=10)
    free = world.submit("select=3:ncpus=1", runs_s=10)

    assert world.state(packed) == "queued"
    assert world.state(free) == "running"


def test_a_named_host_is_waited_for() -> None:
    """nodes=NAME means that node, even if others are idle."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    world.submit("nodes=n2", runs_s=10)
    second = world.submit("nodes=n2", runs_s=10)

    world.run_until(100)

    assert world.started_s(second) == 10


def test_a_drained_node_takes_nothing_new_and_keeps_what_runs() -> None:
    """Drain: the running job ends as it would, the next waits; resume: it starts."""
    from gschedd.core.requests import commands as c

    world = World(node("n1", cpus=2))
    first = world.submit(runs_s=50)
    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="new kernel")))
    second = world.submit(runs_s=50)

    world.run_until(60)
    assert world.state(first) == "done"
    assert "drained, down or full" in world.why(second)
    assert world.seen_node("n1").reason == "new kernel"
    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.ResumeNode()))
    world.run_until(200)

    assert world.started_s(second) == 60
