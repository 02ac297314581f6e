"""Shares of GPUs on nodes: what fits, what is left, and what a plan may not give."""

import random

import pytest
from msgspec import structs

from gsched.config.nodes import SharingRules
from gsched.model.resources import Chunk, Gpu, GpuShare, GpuShareRequest, Request, Share
from gsched.model.states import ShareClass
from gschedd.plan.fit import NoFit, may_help, place
from gschedd.plan.never import explain_never
from gschedd.plan.room import shortage
from gschedd.plan.space import FreeNode, Spaces, common, emptied, give, kept_back, take
from gschedd.plan.validate import covers
from gschedd.plan.words import explain
from tests.support.spaces import space, spaces

GIB = 2**30
HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
RULES = SharingRules(utilisation_assumed=0.0)


def node(
    name: str = "n1",
    gpus: int = 2,
    *,
    rules: SharingRules | None = RULES,
    largest: int | None = None,
) -> FreeNode:
    """Return an idle node with GPUs of 80 GiB that jobs can share; a share has GiB at most."""
    most = None if largest is None else largest * GIB
    cards = tuple(
        Gpu(index=index, memory_bytes=80 * GIB, share_bytes_max=most) for index in range(gpus)
    )
    return space(
        name,
        cpus=16,
        memory_bytes=64 * GIB,
        gpus=cards,
        all_gpus=cards,
        total_gpus=gpus,
        sharing=rules,
    )


def asked(percent: int, gib: int = 0, share_class: ShareClass = LOW, **chunk: object) -> Request:
    share = GpuShareRequest(percent=percent, memory_bytes=gib * GIB, share_class=share_class)
    return Request(chunks=(Chunk(gpu_share=share, **chunk),))  # type: ignore[arg-type] # as given


def placed(request: Request, nodes: Spaces) -> Share:
    found = place(request, nodes)
    assert isinstance(found, tuple), found
    assert covers(request, found, nodes) == ""
    nodes.take(found)
    return found[0]


def test_jobs_join_a_gpu_until_nothing_of_it_is_left() -> None:
    nodes = spaces(node())
    first = placed(asked(40, 16), nodes)
    second = placed(asked(60, 16, HIGH), nodes)
    third = placed(asked(10, 1), nodes)

    assert first.gpu_shares == (
        GpuShare(index=0, percent=40, memory_bytes=16 * GIB, share_class=LOW),
    )
    assert [share.gpu_shares[0].index for share in (first, second, third)] == [0, 0, 1]
    assert nodes["n1"].gpus == ()


def test_without_memory_a_share_has_as_much_of_the_memory_as_of_the_time() -> None:
    assert placed(asked(25), spaces(node())).gpu_shares[0].memory_bytes == 20 * GIB


def test_a_shared_gpu_is_not_free_for_whole_jobs_and_the_other_way_round() -> None:
    nodes = spaces(node(gpus=1))
    share = placed(asked(1, 1), nodes)
    whole = Request(chunks=(Chunk(gpus=1),))

    assert isinstance(place(whole, nodes), NoFit)
    nodes.give([share])
    owned = placed(whole, nodes)
    assert owned.gpu_indices == (0,)
    assert isinstance(place(asked(1, 1), nodes), NoFit)


def test_what_is_given_back_is_as_before() -> None:
    """In any order, 200 random sets of shares and whole GPUs on three cards."""
    chance = random.Random(5)
    for _ in range(200):
        before = node(gpus=3)
        nodes = Spaces({"n1": before})
        taken: list[Share] = []
        for _ in range(chance.randint(1, 8)):
            request = chance.choice(
                [
                    asked(
                        chance.randint(1, 100), chance.randint(0, 80), chance.choice([HIGH, LOW])
                    ),
                    Request(chunks=(Chunk(gpus=1),)),
                ]
            )
            found = place(request, nodes)
            if isinstance(found, tuple):
                assert covers(request, found, nodes) == ""
                nodes.take(found)
                taken.extend(found)
        for shared in nodes["n1"].shared:
            assert min(shared.percent, shared.memory_bytes) >= 0
            assert shared.high <= 1
            assert shared.high + shared.low > 0
        chance.shuffle(taken)
        nodes.give(taken)
        assert nodes["n1"] == before


def test_the_new_gpu_is_on_the_node_that_a_whole_job_would_get() -> None:
    """Best fit: the node with the fewest free GPUs; a shared GPU anywhere is joined before."""
    nodes = spaces(node("n1", 4), node("n2", 1), node("n3", 2))
    first = placed(asked(50, 1, HIGH), nodes)
    second = placed(asked(50, 1, HIGH), nodes)
    third = placed(asked(50, 1), nodes)

    assert [share.node for share in (first, second, third)] == ["n2", "n3", "n2"]


def test_only_cards_with_enough_memory_and_the_right_type_are_shared() -> None:
    cards = (
        Gpu(index=0, type="small", memory_bytes=16 * GIB),
        Gpu(index=1, type="large", memory_bytes=80 * GIB),
    )
    mixed = structs.replace(node(), gpus=cards, all_gpus=cards)

    assert placed(asked(10, 20), spaces(mixed)).gpu_shares[0].index == 1
    assert placed(asked(10, 1, gpu_type="large"), spaces(mixed)).gpu_shares[0].index == 1
    assert isinstance(place(asked(10, 20, gpu_type="small"), spaces(mixed)), NoFit)
    unknown = structs.replace(node(), gpus=(Gpu(index=0),), all_gpus=(Gpu(index=0),))
    assert isinstance(place(asked(10), spaces(unknown)), NoFit), "its memory is not known"


def test_a_node_without_a_runtime_shares_nothing() -> None:
    nodes = spaces(node(rules=None))

    assert shortage(asked(10).chunks[0], nodes["n1"]) == "sharing"
    assert "1 node does not share GPUs" in explain(asked(10), nodes)
    share = GpuShare(index=0, percent=10, memory_bytes=8 * GIB, share_class=LOW)
    given = (Share(node="n1", cpus=1, gpu_shares=(share,)),)
    assert "cannot be shared" in covers(asked(10), given, nodes)


def test_the_other_resources_of_a_node_count_too() -> None:
    nodes = spaces(node("n1"), node("n2"))
    placed(asked(10, 1, cpus=16), nodes)

    assert placed(asked(10, 1), nodes).node == "n2"
    assert isinstance(place(asked(10, 1, features=("red",)), nodes), NoFit)


def test_a_busy_gpu_gets_no_further_low_job_and_may_again_when_it_is_idle() -> None:
    """The utilisation is no matter of what is given twice: a plan that overtakes it is kept."""
    nodes = spaces(node(gpus=1))
    placed(asked(10, 1), nodes)
    (shared,) = nodes["n1"].shared
    busy = structs.replace(nodes["n1"], shared=(structs.replace(shared, utilisation=0.9),))
    found = place(asked(10, 1), nodes)

    assert isinstance(place(asked(10, 1), spaces(busy)), NoFit)
    assert isinstance(place(asked(10, 1, HIGH), spaces(busy)), tuple)
    assert isinstance(found, tuple)
    assert covers(asked(10, 1), found, spaces(busy)) == ""
    assert not may_help(asked(10, 1), busy)
    assert may_help(asked(10, 1), nodes["n1"])


def test_a_job_that_has_come_counts_as_busy_until_it_is_measured() -> None:
    rules = SharingRules(low_max=9, utilisation_max=0.8, utilisation_assumed=0.3)
    nodes = spaces(node(gpus=2, rules=rules))

    indices = [placed(asked(10, 1), nodes).gpu_shares[0].index for _ in range(4)]
    assert indices == [0, 0, 0, 1], "0.3, 0.6 and 0.9 of GPU 0"


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (GpuShare(index=0, percent=40, memory_bytes=16 * GIB, share_class=LOW), ""),
        (
            GpuShare(index=0, percent=41, memory_bytes=16 * GIB, share_class=LOW),
            "differs from the request",
        ),
        (
            GpuShare(index=0, percent=40, memory_bytes=17 * GIB, share_class=LOW),
            "differs from the request",
        ),
        (
            GpuShare(index=0, percent=40, memory_bytes=16 * GIB, share_class=HIGH),
            "differs from the request",
        ),
        (GpuShare(index=1, percent=40, memory_bytes=16 * GIB, share_class=LOW), "40 % of GPU 1"),
        (GpuShare(index=2, percent=40, memory_bytes=16 * GIB, share_class=LOW), "40 % of GPU 2"),
        (
            GpuShare(index=7, percent=40, memory_bytes=16 * GIB, share_class=LOW),
            "differs from the request",
        ),
    ],
)
def test_a_plan_gives_exactly_what_was_asked_for_of_a_gpu_that_has_it(
    share: GpuShare, why: str
) -> None:
    """Of GPU 1 only 30 % are left, and GPU 2 is a job's own."""
    nodes = spaces(node(gpus=3))
    taken = GpuShare(index=1, percent=70, memory_bytes=GIB, share_class=LOW)
    nodes.take([Share(node="n1", cpus=1, gpu_shares=(taken,), gpu_indices=(2,))])
    given = (Share(node="n1", cpus=1, gpu_shares=(share,)),)

    found = covers(asked(40, 16), given, nodes)
    assert found == "" if not why else why in found


@pytest.mark.parametrize(
    "wrong",
    [
        Share(node="n1", cpus=1),
        Share(node="n1", cpus=1, gpu_indices=(0,)),
        Share(
            node="n1",
            cpus=1,
            gpu_shares=tuple(
                GpuShare(index=index, percent=10, memory_bytes=8 * GIB, share_class=LOW)
                for index in range(2)
            ),
        ),
    ],
)
def test_a_plan_gives_one_share_and_no_whole_gpu(wrong: Share) -> None:
    assert covers(asked(10), (wrong,), spaces(node())) != ""


def test_nobody_gets_a_share_who_did_not_ask_for_one() -> None:
    share = GpuShare(index=0, percent=10, memory_bytes=8 * GIB, share_class=LOW)
    given = (Share(node="n1", cpus=1, gpu_shares=(share,)),)

    assert "differs from the request" in covers(Request(), given, spaces(node()))


def test_two_high_jobs_are_not_given_one_gpu() -> None:
    nodes = spaces(node())
    placed(asked(10, 1, HIGH), nodes)
    share = GpuShare(index=0, percent=10, memory_bytes=GIB, share_class=HIGH)

    reason = covers(asked(10, 1, HIGH), (Share(node="n1", cpus=1, gpu_shares=(share,)),), nodes)
    assert reason == "n1: 10 % of GPU 0 not free"


def test_what_is_free_now_and_later_is_the_less_of_both() -> None:
    one, other = Spaces({"n1": node(gpus=3)}), Spaces({"n1": node(gpus=3)})
    placed(asked(40, 10), one)  # GPU 0
    placed(asked(30, 20, HIGH), other)  # GPU 0, too
    other.take([Share(node="n1", cpus=1, gpu_indices=(1,))])
    both = common(one["n1"], other["n1"])

    assert [gpu.index for gpu in both.gpus] == [2]
    (shared,) = both.shared
    assert (shared.percent, shared.memory_bytes) == (60, 60 * GIB)
    assert (shared.high, shared.low) == (1, 1)
    assert common(one["n1"], one["n1"]) == one["n1"]
    assert emptied(one["n1"]).gpus == node(gpus=3).gpus


def test_a_gpu_that_is_kept_for_a_job_to_come_is_not_shared_further() -> None:
    shared = Spaces({"n1": node(gpus=1)})
    placed(asked(40, 10), shared)
    coming = Share(node="n1", cpus=1, gpu_indices=(0,))

    assert kept_back(shared["n1"], (), (coming,)).shared == ()


def test_a_gpu_that_the_node_has_lost_is_neither_given_nor_given_back() -> None:
    lost = Share(node="n1", cpus=1, gpu_shares=(GpuShare(index=9, percent=5, share_class=LOW),))

    assert give(take(node(), lost), lost) == node()


@pytest.mark.parametrize(
    ("request_", "rules", "message", "hint"),
    [
        (asked(10), None, "10 % of a GPU", "no node shares its GPUs here"),
        (
            asked(10, 81),
            RULES,
            "no node can provide that",
            "the largest GPU that is shared has 80gb",
        ),
    ],
)
def test_what_can_never_be_shared_is_said_with_what_to_do(
    request_: Request, rules: SharingRules | None, message: str, hint: str
) -> None:
    found = explain_never(request_, spaces(node(rules=rules)))

    assert message in found[0]
    assert hint in found[1]


@pytest.mark.parametrize(("largest", "hint"), [(40, "MIG instance here has 40gb"), (0, "has 0")])
def test_a_share_that_is_larger_than_each_instance_is_never_possible(
    largest: int, hint: str
) -> None:
    divided = node(largest=largest)
    found = explain_never(asked(10, 41), spaces(divided))

    assert found is not None
    assert "no node can provide that" in found[0]
    assert hint in found[1]
    assert placed(asked(10, 41), spaces(divided, node("n2"))).node == "n2", "a whole GPU is larger"
    assert placed(asked(10, 40), spaces(node(largest=40))).node == "n1"


def test_a_share_joins_a_gpu_whose_instances_are_large_enough() -> None:
    nodes = spaces(node("n1", 1, largest=10), node("n2", 1, largest=40))
    for _ in range(2):
        assert placed(asked(10, 20), nodes).node == "n2"
    assert isinstance(place(asked(10, 41), nodes), NoFit)
