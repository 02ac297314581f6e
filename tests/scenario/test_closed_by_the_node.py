"""A node that takes no new jobs by its own word: what runs goes on, others get what waits."""

from gschedd.core.state import facts as f
from gschedd.core.views.nodes import node_row
from tests.support.world import BEGIN_S, World, node

FULL = "its spool /var/lib/gnode has less than 32mb left"


def has_problem(world: World, name: str, problem: str) -> None:
    """A node says that it takes no new jobs, or that it does again."""
    world._take(world.head.has_problem(name, problem, world.now_s))
    world.settle()


def test_nothing_starts_on_a_closed_node_and_what_runs_there_goes_on() -> None:
    world = World(node("n1", cpus=2))
    running = world.submit("nodes=1:ppn=1")
    world.run_until(1)

    has_problem(world, "n1", FULL)
    waiting = world.submit("nodes=1:ppn=1")
    world.run_until(5)

    assert (world.state(running), world.state(waiting)) == ("running", "queued")
    assert "drained, down or full" in world.why(waiting)
    assert world.seen_node("n1").problem == FULL
    row = node_row(world.seen_node("n1"), world.head.state, world.now_s)
    assert row.reason_s == BEGIN_S + 1
    has_problem(world, "n1", "")
    world.run_until(6)
    assert world.state(waiting) == "running"
    assert not world.seen_node("n1").drained


def test_jobs_go_to_the_other_node() -> None:
    world = World(node("n1"), node("n2"))
    has_problem(world, "n1", FULL)

    job = world.submit()
    world.run_until(5)

    assert world.machine_of(job) == ("n2",)


def test_a_repeated_word_is_no_new_fact() -> None:
    world = World(node("n1"))
    for _ in range(3):
        has_problem(world, "n1", FULL)

    told = [fact for fact in world.facts if isinstance(fact, f.NodeProblemChanged)]
    assert [fact.problem for fact in told] == [FULL]
