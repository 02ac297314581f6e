"""DRS moves training jobs to make room: who is told what, and who may use the room meanwhile."""

from msgspec import structs

from gsched.model.resources import Chunk, Request
from gschedd.models.runtime import PaperSpeed
from gschedd.plan.elastic import allocate_on
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import Spaces
from gschedd.plan.training import gpus_by_node
from gschedd.policies.training import drs
from gschedd.policies.training.drs.options import form_of
from tests.support.training_jobs import NOW_S, elastic, gpu_nodes, profile, snapshot_of

#: One sample a second on each GPU, whatever lies between them.
LINEAR = PaperSpeed(parameters=0, batch=1, step_time_s=1.0)


def started(plan: Plan) -> dict[int, dict[str, int]]:
    return {start.job: gpus_by_node(start.allocation) for start in plan.starts}


def said_of(plan: Plan, job: int) -> Forecast:
    (found,) = [each for each in plan.verdicts if each.job == job]
    return found


def whole_node(gpus: int = 4) -> Request:
    """Return a request for GPUs of one node."""
    return Request(chunks=(Chunk(count=1, cpus=1, gpus=gpus),))


def crowd(*, leaving: bool, small_s: float, whole_s: float = 200.0) -> Snapshot:
    """Return three nodes with two of four GPUs in use; a small one waits, and one for a whole node.

    Or the first of those that run is leaving for the second node, and the third is full.
    """
    sizes = gpu_nodes(4, 4, 4)
    nodes = Spaces(sizes)
    running = []
    for job, name, gpus in ((1, "n1", 2), (2, "n2", 2), (3, "n3", 2 if not leaving else 4)):
        each = profile(
            job,
            work=10_000,
            speed=LINEAR,
            request=elastic(gpus, gpus),
            movable=True,
            move_s=10.0,
            deadline_s=1e6,
        )
        allocation = allocate_on(form_of(elastic()), nodes, {name: gpus})
        assert allocation is not None
        nodes.take(allocation)
        running.append((each, allocation))
    small = profile(8, work=50, speed=LINEAR, request=elastic(1, 1), deadline_s=small_s)
    whole = profile(9, work=400, speed=LINEAR, request=whole_node(), deadline_s=whole_s)
    seen = snapshot_of(sizes, [small, whole], running)
    if not leaving:
        return seen
    return structs.replace(
        seen,
        running=[structs.replace(each, leaving=each.job == 1) for each in seen.running],
        nodes={**seen.nodes, "n2": structs.replace(seen.nodes["n2"], gpus=())},  # kept for it
    )


def test_who_is_moved_for_is_said_to_be_in_time() -> None:
    """From the moment of the order on; so it is taken, too, where late ones are refused."""
    plan = drs.plan(crowd(leaving=False, small_s=1e5))

    said = said_of(plan, 9)
    assert [move.job for move in plan.moves] == [1]
    assert plan.moves[0].why == "from n1, to make room for job 9"
    assert (said.meets, said.gpus, said.firm) == (True, 4, False)
    assert said.end_s == NOW_S + 10 + 100
    assert "start 1970-01-12 13:46:50 UTC on 4 GPUs" in str(plan.waits[0].reason)


def test_who_is_to_leave_a_lost_node_holds_up_no_move() -> None:
    """Nobody knows when it will have left; on a node that is there it is waited for."""
    seen = crowd(leaving=False, small_s=1e5)
    leaving = [structs.replace(each, leaving=each.job == 3) for each in seen.running]
    whole = [group for group in seen.groups if group.job_class.training == 9]
    ends = structs.replace(seen, running=leaving, groups=whole)
    lost = {**seen.nodes, "n3": structs.replace(seen.nodes["n3"], open=False)}

    filling = {**seen.nodes, "n3": structs.replace(seen.nodes["n3"], gpus=())}
    assert drs.plan(structs.replace(ends, nodes=filling)).moves == ()
    assert [move.job for move in drs.plan(structs.replace(ends, nodes=lost)).moves] == [1]


def test_nobody_takes_what_is_being_vacated_for_another_one() -> None:
    """Neither in the same breath nor while they leave; there is room elsewhere, or they wait."""
    both = drs.plan(crowd(leaving=False, small_s=60.0))

    assert [move.job for move in both.moves] == [1]
    assert started(both) == {8: {"n3": 1}}
    assert said_of(both, 9).meets

    later = drs.plan(crowd(leaving=True, small_s=1e5))
    assert later.starts == ()
    assert said_of(later, 9).meets
    hopeless = drs.plan(crowd(leaving=True, small_s=1e5, whole_s=50.0))
    assert started(hopeless) == {8: {"n1": 1}}, "nobody is in time by waiting"
