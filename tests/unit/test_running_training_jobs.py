"""Which training jobs of a snapshot may be migrated: one rule for all policies."""

import pytest
from msgspec import structs

from gschedd.allocation.running import TrainingJobs, open_gpus_of
from gschedd.plan.elastic import allocate
from gschedd.plan.space import Spaces
from tests.support.training_jobs import elastic, gpu_nodes, profile, snapshot_of

NODES = gpu_nodes(2, 2)
ONE = elastic(1, 1)
PLACE = allocate(ONE, Spaces(NODES), 1)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"leaving": True}, False),
        ({"starting": True}, False),
    ],
)
def test_what_starts_or_leaves_is_not_migrated(changes: dict[str, bool], *, may: bool) -> None:
    """Neither by drs nor by a policy that resizes."""
    assert PLACE is not None
    seen = snapshot_of(NODES, [], [(profile(1, request=ONE, movable=True, work=1e5), PLACE)])
    running = [structs.replace(each, **changes) for each in seen.running]
    seen = structs.replace(seen, running=running)
    training_jobs = TrainingJobs.of(seen)

    assert (list(training_jobs.movable), list(training_jobs.fixed)) == (
        ([1], []) if may else ([], [1])
    )


def test_gpus_on_closed_nodes_do_not_come_back() -> None:
    """And what runs there is not migrated by policies."""
    assert PLACE is not None
    seen = snapshot_of(NODES, [], [(profile(1, request=ONE, movable=True, work=1e5), PLACE)])
    closed = {name: structs.replace(each, open=False) for name, each in seen.nodes.items()}
    shut = structs.replace(seen, nodes=closed)

    assert [open_gpus_of(each, PLACE) for each in (seen, shut)] == [1, 0]
    assert list(TrainingJobs.of(shut).fixed) == [1]
