"""Users attack the token daemon while others train: see ``scripts/share-hostile``."""

from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler
from tests.support.share_hostile import ShareHostile

__all__ = ["fake_driver", "library_cache"]
pytestmark = [needs_compiler, pytest.mark.xdist_group("gpushare")]


@pytest.mark.timeout(420)
def test_attacks_on_the_token_daemon_leave_it_the_node_and_honest_jobs_whole(
    cluster: Cluster, fake_driver: Path, library_cache: Path
) -> None:
    run = ShareHostile(cluster, fake_driver, library_cache, seed=1)

    problems = run.run(20.0)

    print(f"{dict(run.attacks)}, {len(run.jobs)} jobs, {run.exits} exits")
    assert problems == []
    assert set(run.jobs.values()) == {"high", "low", "exits", "hostile"}
    assert len(run.attacks) >= 10
    assert run.exits
