"""Where a request fits: against trying everything, and the choices among what fits."""

from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.model.resources import Chunk, Request, Share
from gsched.model.states import Placement
from gschedd.plan import fit
from gschedd.plan.fit import NoFit, place
from gschedd.plan.room import leftover, shortage
from gschedd.plan.snapshot import JobClass, Plan, Start
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.validate import covers, validate
from gschedd.plan.words import best_node, describe_chunk, explain
from tests.support.spaces import fits_by_trying, node_spaces, requests, space, spaces

CPUS = tuple(range(1, 5))
GB = 2**30


def nodes_of(found: object) -> list[str]:
    assert isinstance(found, tuple), found
    return [share.node for share in found]


@pytest.mark.parametrize("placement", list(Placement))
def test_a_place_is_found_if_and_only_if_there_is_one(placement: Placement) -> None:
    """Every request of up to three places of one to four CPUs, on every pair of such nodes."""
    for pair in combinations_with_replacement(CPUS, 2):
        nodes = spaces(space("n1", cpus=pair[0]), space("n2", cpus=pair[1]))
        for size in (1, 2, 3):
            for cpus in product(CPUS, repeat=size):
                chunks = tuple(Chunk(cpus=count) for count in cpus)
                request = Request(chunks=chunks, placement=placement)
                found = place(request, nodes)

                assert isinstance(found, tuple) == fits_by_trying(request, nodes), (pair, cpus)
                if isinstance(found, tuple):
                    assert covers(request, found, nodes) == ""


@given(request=requests(), first=node_spaces("n1"), second=node_spaces("n2"))
def test_a_place_is_found_if_and_only_if_there_is_one_of_all_kinds(
    request: Request, first: FreeNode, second: FreeNode
) -> None:
    """The same with GPUs of types, memory, features, counted resources, closed and busy nodes."""
    nodes = spaces(first, second)
    found = place(request, nodes)

    assert isinstance(found, tuple) == fits_by_trying(request, nodes), found
    if isinstance(found, tuple):
        assert covers(request, found, nodes) == ""


@given(
    request=requests(places=5),
    given_nodes=st.tuples(*(node_spaces(f"n{number}") for number in range(4))),
    order=st.permutations(range(4)),
)
def test_the_order_of_the_nodes_does_not_matter(
    request: Request, given_nodes: tuple[FreeNode, ...], order: list[int]
) -> None:
    """Scores with the name as the last word make equal spaces give equal allocations."""
    found = place(request, spaces(*given_nodes))
    again = place(request, spaces(*(given_nodes[index] for index in order)))

    assert again == found


def test_no_node_is_named_as_that() -> None:
    """Before the first node has registered nothing fits, and the reason says so."""
    assert place(Request(), spaces()) == NoFit(reason="no node has registered yet")


def test_the_fullest_node_that_fits_is_taken() -> None:
    """Best fit, then the lower name."""
    nodes = spaces(space("n3", cpus=4), space("n2", cpus=3), space("n1", cpus=4))

    assert nodes_of(place(Request(chunks=(Chunk(cpus=2),)), nodes)) == ["n2"]
    assert nodes_of(place(Request(chunks=(Chunk(cpus=4),)), nodes)) == ["n1"]


def test_a_gpu_node_is_left_alone_even_when_its_gpus_are_taken() -> None:
    """They may come back before the job ends; the plain node is worse by CPUs only."""
    busy = space("n1", cpus=2, total_gpus=2)
    plain = space("n2", cpus=8)

    assert nodes_of(place(Request(), spaces(busy, plain))) == ["n2"]
    assert leftover(Chunk(), plain) < leftover(Chunk(), busy), "what the order stands for"


def test_what_greedy_gives_to_the_wrong_place_is_exchanged() -> None:
    """The named feature prefers the plain node, which is the only one with three CPUs."""
    nodes = spaces(
        space("n1", cpus=3, features=["x"]),
        space("n2", cpus=2, features=["x"], gpu_types=("a",)),
    )
    chunks = (Chunk(features=("x",)), Chunk(cpus=3))

    assert nodes_of(place(Request(chunks=chunks), nodes)) == ["n2", "n1"]


def test_a_later_chunk_may_go_before_an_earlier_one() -> None:
    """In a search, each chunk may use every node: the big one lies on the last, the small before.

    Filling puts two of three CPUs on n3 and leaves no two nodes for the rest.
    """
    nodes = spaces(space("n1", cpus=4), space("n2", cpus=4), space("n3", cpus=3))
    chunks = (Chunk(count=3, cpus=3), Chunk(count=2, cpus=1))

    found = place(Request(chunks=chunks, placement=Placement.FREE), nodes)

    assert isinstance(found, tuple)
    assert sorted((share.node, share.cpus) for share in found) == [("n1", 4), ("n2", 4), ("n3", 3)]


def test_a_scattered_request_with_different_chunks_takes_the_only_node_that_fits_each() -> None:
    """Greedy gives the feature's node away first; the matching finds the way out."""
    nodes = spaces(space("n1", cpus=2, features=["red"]), space("n2", cpus=9, features=["red"]))
    chunks = (Chunk(cpus=3), Chunk(cpus=1, features=("red",)))
    nodes_blue = spaces(
        space("a", cpus=1, features=["x", "y"]),
        space("b", cpus=1, features=["x"], memory_bytes=1),
    )
    tricky = (Chunk(features=("x",)), Chunk(memory_bytes=1))

    assert nodes_of(place(Request(chunks=chunks), nodes)) == ["n2", "n1"]
    assert nodes_of(place(Request(chunks=tricky), nodes_blue)) == ["a", "b"]


def test_a_long_chain_of_exchanges_is_found() -> None:
    """Each chunk can use two neighbours, the last only one: all have to move up."""
    count = 6
    given_nodes = [
        space(f"n{i}", cpus=10 - i, features=[f"f{i}", f"f{i - 1}"]) for i in range(count)
    ]
    chunks = (
        *(Chunk(features=(f"f{i}",)) for i in range(count - 1)),
        Chunk(features=("n0",)),
    )
    found = place(Request(chunks=chunks), spaces(*given_nodes))

    assert nodes_of(found) == [f"n{i + 1}" for i in range(count - 1)] + ["n0"]


def test_rank_order_is_that_of_the_places() -> None:
    """The first chunk is rank 0 although the second is more demanding."""
    nodes = spaces(space("big", cpus=8), space("small", cpus=1))

    found = place(Request(chunks=(Chunk(cpus=1), Chunk(cpus=8))), nodes)

    assert nodes_of(found) == ["small", "big"]


def test_a_free_request_fills_a_node_before_it_opens_the_next() -> None:
    """Five places of one CPU on nodes of three: three and two."""
    nodes = spaces(space("n1", cpus=3), space("n2", cpus=3))
    request = Request(chunks=(Chunk(count=5),), placement=Placement.FREE)

    found = place(request, nodes)

    assert isinstance(found, tuple)
    assert [(share.node, share.cpus, share.slots) for share in found] == [
        ("n1", 3, 3),
        ("n2", 2, 2),
    ]


def test_a_free_request_of_different_chunks_is_squeezed_in() -> None:
    """Filling in order of size misses it; the search finds 4+3 and 3+2."""
    nodes = spaces(space("n1", cpus=7), space("n2", cpus=5))
    chunks = (Chunk(cpus=4), Chunk(count=2, cpus=3), Chunk(cpus=2))

    found = place(Request(chunks=chunks, placement=Placement.FREE), nodes)

    assert isinstance(found, tuple)
    assert sorted((share.node, share.cpus, share.slots) for share in found) == [
        ("n1", 7, 2),
        ("n2", 5, 2),
    ]


@pytest.mark.parametrize("left_out", ["", "MAX_SEARCH_STEPS", "MAX_SEARCH_LOOKS"])
def test_a_search_that_would_never_end_ends(monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    """Forty different places on forty nodes, one CPU too few: given up, not tried for ever.

    Each of its two bounds does that without the other.
    """
    if left_out:
        monkeypatch.setattr(fit, left_out, 10**12)
    nodes = spaces(*(space(f"n{i}", cpus=5) for i in range(40)))
    chunks = (Chunk(count=40, cpus=3), Chunk(count=40, cpus=2, memory_bytes=0), Chunk(cpus=4))

    found = place(Request(chunks=chunks, placement=Placement.FREE), nodes)

    assert isinstance(found, NoFit)
    assert found.text == "needs 81 chunks at the same time; free resources cannot hold all of them"


def test_what_takes_any_gpu_leaves_those_of_a_type_to_who_names_it() -> None:
    """Packed on one node: the a100 goes to the place that names it."""
    nodes = spaces(space(cpus=4, gpu_types=("a100", "v100")))
    chunks = (Chunk(gpus=1, features=("v100",)), Chunk(gpus=1, gpu_type="a100"))
    for placement in (Placement.PACK, Placement.FREE):
        found = place(Request(chunks=chunks, placement=placement), nodes)

        assert isinstance(found, tuple)
        assert found == (Share(node="n1", cpus=2, slots=2, gpu_indices=(0, 1)),)


def test_types_that_one_node_does_not_have_together_are_not_packed_there() -> None:
    """GPUs enough, and of each type enough, but not of both: the next node has them."""
    chunks = (Chunk(gpus=1, gpu_type="a"), Chunk(gpus=1, gpu_type="b"))
    request = Request(chunks=chunks, placement=Placement.PACK)
    nodes = spaces(space("n1", gpu_types=("a", "a")), space("n2", gpu_types=("b", "b", "a")))

    assert place(request, nodes) == (Share(node="n2", cpus=2, slots=2, gpu_indices=(0, 2)),)
    assert isinstance(place(request, spaces(space("n1", gpu_types=("a", "a")))), NoFit)


def test_no_matching_is_told_in_words() -> None:
    """Two places that both need the one node."""
    nodes = spaces(space("n1", cpus=2, features=["x"]), space("n2", cpus=1))

    found = place(Request(chunks=(Chunk(features=("x",)), Chunk(cpus=2))), nodes)

    assert found == NoFit(
        reason="needs 2 chunks at the same time; free resources cannot hold all of them"
    )


def test_exclusive_is_against_others_not_against_oneself() -> None:
    """Two free places of one exclusive job share a node; a node with an owner is not taken."""
    request = Request(chunks=(Chunk(count=2),), placement=Placement.FREE, exclusive=True)

    assert nodes_of(place(request, spaces(space(cpus=2)))) == ["n1"]
    assert isinstance(place(request, spaces(space(cpus=2, owners=1))), NoFit)


@pytest.mark.parametrize(
    ("chunk", "node", "why"),
    [
        (Chunk(), space(open=False), "closed"),
        (Chunk(), space(exclusive=True), "exclusive"),
        (Chunk(cpus=5), space(cpus=4), "cpus"),
        (Chunk(cpus=4), space(cpus=4), ""),
        (Chunk(memory_bytes=1), space(), "memory"),
        (Chunk(memory_bytes=1), space(memory_bytes=1), ""),
        (Chunk(gpus=2), space(gpu_types=("a",)), "gpus"),
        (Chunk(gpus=1), space(gpu_types=("a",)), ""),
        (Chunk(gpus=1, gpu_type="b"), space(gpu_types=("a",)), "gpus"),
        (Chunk(features=("red",)), space(), "features"),
        (Chunk(features=("n1",)), space(), ""),
        (Chunk(generic=(("licence", 2),)), space(generic={"licence": 1}), "licence"),
        (Chunk(generic=(("licence", 1),)), space(generic={"licence": 1}), ""),
        (Chunk(generic=(("licence", 1),)), space(), "licence"),
    ],
)
def test_the_term_that_is_short_is_named(chunk: Chunk, node: FreeNode, why: str) -> None:
    """Exactly enough is enough."""
    assert shortage(chunk, node) == why


def test_an_exclusive_place_needs_a_node_without_owners() -> None:
    """Free CPUs are not enough."""
    assert shortage(Chunk(), space(owners=1), exclusive=True) == "exclusive"
    assert shortage(Chunk(), space(owners=1)) == ""
    assert shortage(Chunk(), space(), exclusive=True) == ""


# --- words ---


def test_the_reason_counts_the_nodes_and_names_the_best() -> None:
    """Most frequent cause first."""
    nodes = spaces(
        space("n1", cpus=1),
        space("n2", cpus=3),
        space("n3", cpus=9, open=False),
    )

    text = explain(Request(chunks=(Chunk(cpus=4),)), nodes)

    assert text == (
        "needs 4 CPUs on one node; no node has enough free "
        "(2 nodes lack CPUs, 1 node is drained, down or full); "
        "most free: n2 with 3 CPUs"
    )


@pytest.mark.parametrize(
    ("feature", "most"),
    [("red", "most free: n1 with 1 CPU"), ("blue", "the feature or name)")],
)
def test_the_most_free_node_is_one_that_has_the_features(feature: str, most: str) -> None:
    nodes = spaces(space("n1", cpus=1, features=["red"]), space("n2", cpus=9))

    assert explain(Request(chunks=(Chunk(cpus=4, features=(feature,)),)), nodes).endswith(most)


def test_the_reason_of_a_scattered_request_counts_what_fits() -> None:
    """Two wanted, one has room; or simply too few nodes."""
    nodes = spaces(space("n1", cpus=1), space("n2", cpus=4))

    assert explain(Request(chunks=(Chunk(count=2, cpus=2),)), nodes).startswith(
        "needs 2 nodes with 2 CPUs; only 1 of 2 nodes has enough free"
    )
    text = explain(Request(chunks=(Chunk(count=3, cpus=1),)), nodes)
    assert text == "needs 3 nodes with 1 CPU, there are 2"


@pytest.mark.parametrize(
    ("chunk", "short"),
    [
        (Chunk(cpus=6), "2 CPUs short"),
        (Chunk(cpus=5, gpus=3), "1 GPU, 1 CPU short"),
        (Chunk(cpus=1, gpus=4), "2 GPUs short"),
        (Chunk(cpus=1, memory_bytes=72 * GB), "8gb memory short"),
        (Chunk(cpus=1, features=("ib",)), "lacks node features"),
        (Chunk(cpus=1, generic=(("licence", 1),)), "licence short"),
        (Chunk(cpus=2, count=4), "needs 4 nodes"),
    ],
)
def test_the_short_reason_is_what_the_closest_node_lacks(chunk: Chunk, short: str) -> None:
    """In a few words, for a line of a list."""
    nodes = spaces(
        space("n1", cpus=1, gpu_types=("", "")),
        space("n2", cpus=4, gpu_types=("", ""), memory_bytes=64 * GB),
        space("n3", cpus=9, open=False),
    )

    assert explain(Request(chunks=(chunk,)), nodes).short == short


def test_a_short_reason_without_a_node_that_has_room_at_all() -> None:
    """Drained nodes, and nodes whose CPUs are all in use."""
    closed, full = space("n1", open=False), space("n2", cpus=0)
    request = Request(chunks=(Chunk(cpus=2),))

    assert explain(request, spaces(closed)).short == "no open node"
    assert explain(request, spaces(closed, full)).short == "2 CPUs short"
    alone = Request(chunks=(Chunk(cpus=2),), exclusive=True)
    assert explain(alone, spaces(space(owners=1))).short == "needs an idle node"


def test_places_that_fit_one_by_one_only_are_named_as_that() -> None:
    """No single term is short."""
    nodes = spaces(space("n1", cpus=4), space("n2", cpus=1))

    text = explain(Request(chunks=(Chunk(cpus=4), Chunk(cpus=3))), nodes)

    assert text == "needs 2 chunks at the same time; free resources cannot hold all of them"


def test_chunks_and_best_nodes_are_told_in_full() -> None:
    """CPUs, GPUs with their type, memory, counted resources, features."""
    chunk = Chunk(
        cpus=1,
        gpus=2,
        gpu_type="a100",
        memory_bytes=1024**3,
        generic=(("licence", 1),),
        features=("red",),
    )
    nodes = [
        space("n2", cpus=8, gpu_types=("a100",), memory_bytes=1024**3),
        space("n1", cpus=8, gpu_types=("a100",), memory_bytes=1024**3),
        space("n0", cpus=8, memory_bytes=1024**3),
    ]

    assert describe_chunk(chunk) == "1 CPU, 2 GPUs (a100), 1gb memory, 1 licence, red"
    assert best_node(chunk, nodes) == "n1 with 8 CPUs, 1 GPU, 1gb memory, 0 licence"
    assert best_node(chunk, [space(open=False)]) == ""


# --- a plan is not believed ---

ASKED = Request(chunks=(Chunk(cpus=2, gpus=1, gpu_type="a", memory_bytes=4),))
GIVEN = Share(node="n1", cpus=2, gpu_indices=(0,), memory_bytes=4)


def mixed() -> Spaces:
    return spaces(
        space("n1", cpus=4, gpu_types=("a", "b", "a"), memory_bytes=8, generic={"licence": 2}),
        space("n2", cpus=4, gpu_types=("a",), memory_bytes=8),
    )


@pytest.mark.parametrize(
    ("share", "why"),
    [
        ({}, ""),
        ({"node": "n9"}, "node n9 is not known"),
        ({"cpus": 1}, "1 CPUs for 2 requested"),
        ({"cpus": 3}, "3 CPUs for 2 requested"),
        ({"memory_bytes": 3}, "3 bytes for 4 requested"),
        ({"gpu_indices": ()}, "0 GPUs for 1 requested"),
        ({"gpu_indices": (1,)}, "its chunks do not fit into its allocation on each node"),
        ({"gpu_indices": (7,)}, "n1: GPU 7 not free"),
        ({"slots": 2}, "2 places for 1 requested"),
        ({"exclusive": True}, "exclusive use differs from the request"),
        ({"generic": (("licence", 1),)}, "{'licence': 1} consumable resources for {} requested"),
    ],
)
def test_an_allocation_must_be_what_was_asked_for(share: dict[str, object], why: str) -> None:
    """Less, more, of another type or of what is not there."""
    fields = {name: getattr(GIVEN, name) for name in GIVEN.__struct_fields__}
    given_share = Share(**{**fields, **share})

    assert covers(ASKED, (given_share,), mixed()) == why


def test_shares_must_add_up_without_less_than_nothing() -> None:
    """Sums that are right may hide a negative share, a GPU or a node that stands twice."""
    two = Request(chunks=(Chunk(count=2, gpus=1),))
    one_each = (Share(node="n1", cpus=1, gpu_indices=(0,)),)

    def why(*shares: Share) -> str:
        return covers(two, shares, mixed())

    assert why(*one_each, Share(node="n2", cpus=1, gpu_indices=(0,))) == ""
    assert why(*one_each, *one_each) == "a node stands twice in the allocation"
    negative = Share(node="n2", cpus=-1), Share(node="n1", cpus=3, gpu_indices=(0, 1))
    assert why(*negative) == "n2: less than nothing is given"
    no_slot = (
        Share(node="n2", cpus=1, slots=0),
        Share(node="n1", cpus=1, slots=2, gpu_indices=(0, 1)),
    )
    assert why(*no_slot) == "n2: less than nothing is given"
    twice = Share(node="n2", cpus=2, slots=2, gpu_indices=(0, 0))
    assert why(twice) == "n2: a GPU is given twice"
    counted = Request(chunks=(Chunk(count=2, generic=(("licence", 1),)),))
    shares = (
        Share(node="n2", cpus=1, generic=(("licence", -1),)),
        Share(node="n1", cpus=1, generic=(("licence", 3),)),
    )
    assert "less than nothing" in covers(counted, shares, mixed())


def test_both_places_of_a_scattered_request_on_one_node_are_refused() -> None:
    """The sums are right, the layout is not."""
    request = Request(chunks=(Chunk(count=2),))
    together = (Share(node="n1", cpus=2, slots=2),)

    assert covers(request, together, mixed()) != ""
    free = Request(chunks=(Chunk(count=2),), placement=Placement.FREE)
    assert covers(free, together, mixed()) == ""


def test_a_plan_is_accepted_item_by_item() -> None:
    """Each accepted start takes what it takes from the next; the reasons name the job."""
    request = Request(chunks=(Chunk(cpus=3),))
    job_class = JobClass(queue="batch", request=request, walltime_s=None)
    share = (Share(node="n1", cpus=3),)

    def start(job: int) -> Start:
        return Start(job=job, job_class=job_class, allocation=share, why="")

    free = mixed()
    result = validate(
        Plan(starts=(start(1), start(1), start(2), start(9))),
        free,
        lambda job: job_class if job < 9 else None,
    )

    assert [accepted.job for accepted in result.accepted] == [1]
    assert [refusal.reason for refusal in result.refused] == [
        "job 1 is started twice in one plan",
        "job 2: n1: cpus not free",
        "job 9 is not waiting to start",
    ]
    assert free["n1"].cpus == 4, "the spaces that were handed in are not changed"


def test_a_closed_node_is_not_given() -> None:
    """Drained since the plan was made."""
    nodes = spaces(space("n1", cpus=4, open=False))

    assert covers(Request(), (Share(node="n1", cpus=1),), nodes) == "n1: closed not free"
