"""Free resources: what is taken and given back."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.model.resources import Chunk, Request, Share
from gschedd.plan.fit import NoFit, place
from gschedd.plan.space import FreeNode, Spaces, common, emptied, give, take
from tests.support.spaces import node_spaces, requests, space, spaces

SHARE = Share(
    node="n1", cpus=2, gpu_indices=(1,), memory_bytes=3, generic=(("licence", 1),), exclusive=True
)


def test_taking_leaves_the_rest() -> None:
    """Every kind of resource, the number of owners, and that somebody is alone."""
    before = space(cpus=4, memory_bytes=8, gpu_types=("a", "b"), generic={"licence": 2})

    after = take(before, SHARE)

    assert (after.cpus, after.memory_bytes) == (2, 5)
    assert [gpu.index for gpu in after.gpus] == [0]
    assert after.generic == (("licence", 1),)
    assert (after.owners, after.exclusive) == (1, True)
    assert (after.total_cpus, after.total_gpus) == (4, 2)


@given(before=node_spaces("n1", largest=6), asked=requests(places=2))
def test_what_is_given_back_is_what_was_taken(before: FreeNode, asked: Request) -> None:
    """For everything that fits; GPUs come back in their order."""
    before = structs.replace(before, open=True)
    found = place(asked, spaces(before))
    if isinstance(found, NoFit):
        return
    (share,) = found

    assert give(take(before, share), share) == before
    assert emptied(take(before, share)) == emptied(before)


def test_a_node_that_lost_a_gpu_does_not_get_it_back() -> None:
    """The inventory has changed meanwhile."""
    smaller = space(cpus=4, memory_bytes=8, gpu_types=("a",), generic={"licence": 1})

    assert [gpu.index for gpu in give(smaller, SHARE).gpus] == [0]


def test_emptied_is_idle_and_open() -> None:
    """Whatever the node is now."""
    now = space(cpus=1, total_cpus=9, open=False, exclusive=True, owners=3)

    idle = emptied(now)

    assert (idle.cpus, idle.open, idle.exclusive, idle.owners) == (9, True, False, 0)


def test_common_is_what_both_have() -> None:
    """The lesser of each, GPUs that are in both."""
    first = space(cpus=4, memory_bytes=1, gpu_types=("a", "a"), generic={"x": 2, "y": 1})
    second = space(cpus=2, memory_bytes=8, gpu_types=("a",), generic={"x": 3}, owners=2)

    both = common(first, structs.replace(second, exclusive=True))

    assert (both.cpus, both.memory_bytes, len(both.gpus)) == (2, 1, 1)
    assert both.generic == (("x", 2), ("y", 0))
    assert (both.owners, both.exclusive) == (2, True)


@given(steps=st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(1, 3)), max_size=6))
def test_an_overlay_changes_nothing_below(steps: list[tuple[str, int]]) -> None:
    """Copies go their own way; giving back everything gives the base."""
    base = {"n1": space("n1", cpus=9), "n2": space("n2", cpus=9)}
    overlay = Spaces(base)
    shares = [Share(node=node, cpus=cpus) for node, cpus in steps]
    for share in shares:
        before = overlay.copy()
        overlay.take([share])
        assert before[share.node].cpus == overlay[share.node].cpus + share.cpus

    assert overlay.changed.keys() == {share.node for share in shares}
    assert base["n1"].cpus == base["n2"].cpus == 9
    overlay.give(shares)
    assert list(overlay) == list(base.values())


def test_a_node_that_is_gone_is_passed_over() -> None:
    """Giving back to it does nothing; it is not there."""
    overlay = spaces(space("n1"))
    overlay.give([Share(node="n9", cpus=1)])

    assert "n9" not in overlay
    assert len(overlay) == 1


def test_two_overlays_on_one_base_have_in_common_what_both_left() -> None:
    """Changes of either side count."""
    base = {"n1": space("n1", cpus=4), "n2": space("n2", cpus=4)}
    now, later = Spaces(base), Spaces(base)
    now.take([Share(node="n1", cpus=1)])
    later.take([Share(node="n2", cpus=3)])

    both = now.common_with({"n2": later["n2"]})

    assert [each.cpus for each in both] == [3, 1]
    request = Request(chunks=(Chunk(cpus=3),))
    assert place(request, both) == (Share(node="n1", cpus=3),)
