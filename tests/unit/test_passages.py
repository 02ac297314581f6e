"""What is told of files that pass the head: how far they are, and what they wait for."""

from gnode.daemon.owner_tree import pack
from gsched.model.passages import Passage
from gsched.protocol.deliveries import TREE_END
from gschedd.core.nodes.passing import FAILED_S, FRESH_S, note_passage, passage_of
from gschedd.core.views.jobs import JobViews
from tests.support.world import World, node


def started() -> tuple[World, int]:
    """Return a world with a running job, and its number."""
    world = World(node("n1"))
    job = world.submit(runs_s=600.0)
    world.run_until(5)
    return world, job


def passed(world: World, job: int, at_s: float, **fields: object) -> str:
    """Note a piece that passes now, and return what a user reads ``at_s`` later."""
    piece = {"attempt": 1, "node": "n1", "host": "l1", "returns": False, **fields}
    note_passage(world.head.state, job, Passage(at_s=world.now_s, **piece))  # type: ignore[arg-type]  # as the tests state them
    views = JobViews(world.head, now_s=world.now_s + at_s)
    return views.row(world.job(job)).reason


def test_pieces_add_up_and_are_shown_as_the_reason() -> None:
    world, job = started()

    passed(world, job, 0, size_bytes=1024**2)
    words = passed(world, job, FRESH_S - 1, size_bytes=1024**2)
    waits = passed(world, job, FAILED_S - 1, error="l1 is not connected")

    assert words == "files are staged in from l1 to n1: 2mb so far"
    assert waits == f"{words}; waits: l1 is not connected"
    assert passed(world, job, 0, returns=True) == (
        "output and files return from n1 to l1: 0b so far"
    )


def test_what_is_staged_in_is_not_shown_once_all_has_been_read() -> None:
    """Pieces that were requested before the last one may be answered after it."""
    world, job = started()

    assert pack({"end": True}) == TREE_END
    assert passed(world, job, 0, size_bytes=5) != ""
    assert passed(world, job, 0, size_bytes=5, is_over=True) == ""
    assert passed(world, job, 0, size_bytes=5) == ""
    assert passed(world, job, 0, error="l1 is not connected") != ""
    assert passed(world, job, 0, returns=True) != ""


def test_what_is_over_is_not_shown() -> None:
    """Of what returns the last piece does not say that it is the last."""
    world, job = started()

    assert passed(world, job, FRESH_S + 1, size_bytes=5) == ""
    assert passed(world, job, FAILED_S + 1, error="no") == ""
    assert passed(world, job, 0, attempt=2) == ""
    world.delete(job)
    world.run_for(60)
    note_passage(world.head.state, job, Passage(attempt=1, node="n1", host="l1", returns=True))
    assert passage_of(world.done[job], world.head.state, 0.0) is None
    assert world.head.state.volatile.passages == {}
