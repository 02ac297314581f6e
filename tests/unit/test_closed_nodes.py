"""Training jobs that stay where they are: on nodes that accept no jobs, or without any progress."""

import pytest
from msgspec import structs

from baselines import themis
from gschedd.models.runtime import PaperSpeed
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.elastic import allocate_on
from gschedd.plan.snapshot import Policy, Snapshot
from gschedd.plan.space import Spaces
from gschedd.plan.training import gpus_by_node
from gschedd.policies.training import deadline, drs, elasticflow
from gschedd.policies.training.drs.options import form_of
from tests.support.training_jobs import check, elastic, gpu_nodes, profile, snapshot_of

#: It can run on four GPUs and not on two.
FOUR = TableSpeed(rates=((1, 0.0), (2, 0.0), (4, 1.0)))
LINEAR = PaperSpeed(parameters=0, batch=1, step_time_s=1.0)
POLICIES = {
    "deadline": deadline.plan,
    "drs": drs.plan,
    "elasticflow": elasticflow.plan,
    "themis": themis.plan,
}


def drained(*, movable: bool) -> Snapshot:
    """Return an idle node, a closed one that a training fills, and a training that waits."""
    sizes = gpu_nodes(4, 4)
    nodes = Spaces(sizes)
    stays = profile(
        1, work=4000, speed=LINEAR, request=elastic(4, 4), movable=movable, deadline_s=1e5
    )
    allocation = allocate_on(form_of(elastic()), nodes, {"n2": 4})
    assert allocation is not None
    waits = profile(9, work=400, speed=LINEAR, request=elastic(4, 4), deadline_s=200)
    seen = snapshot_of(sizes, [waits], [(stays, allocation)])
    closed = structs.replace(seen.nodes["n2"], open=False)
    return structs.replace(seen, nodes={**seen.nodes, "n2": closed})


@pytest.mark.parametrize("movable", [True, False])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_what_runs_on_a_drained_node_keeps_nobody_from_other_nodes(
    policy: Policy, *, movable: bool
) -> None:
    """Nor is it stopped for one that could not have its GPUs."""
    seen = drained(movable=movable)
    plan = policy(seen)

    check(plan, seen)
    assert {start.job: gpus_by_node(start.allocation) for start in plan.starts} == {9: {"n1": 4}}
    assert plan.moves == ()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_nothing_is_said_of_the_end_of_what_makes_no_progress(policy: Policy) -> None:
    """It was given two GPUs and needs four, which are not there: it is late, for ever."""
    sizes = gpu_nodes(2)
    nodes = Spaces(sizes)
    stuck = profile(1, speed=FOUR, request=elastic(1, 4), movable=True, deadline_s=100)
    allocation = allocate_on(form_of(elastic()), nodes, {"n1": 2})
    assert allocation is not None
    (said,) = policy(snapshot_of(sizes, [], [(stuck, allocation)])).verdicts

    assert (said.meets, said.end_s) == (False, None)
