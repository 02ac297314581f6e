"""Jobs that share GPUs while everything that serves them is killed: see ``scripts/share-faults``.

``GSCHED_SHARE_FAULTS_SEED`` chooses another run.
"""

import os
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler
from tests.support.share_faults import ShareFaults

__all__ = ["fake_driver", "library_cache"]
pytestmark = [needs_compiler, pytest.mark.xdist_group("gpushare")]

SEED = int(os.environ.get("GSCHED_SHARE_FAULTS_SEED", "1"))


@pytest.mark.parametrize(
    "seconds", [10, pytest.param(45, marks=[pytest.mark.sweep, pytest.mark.timeout(600)])]
)
@pytest.mark.timeout(420)
def test_no_share_is_given_twice_and_no_job_waits_for_a_dead_one(
    cluster: Cluster, fake_driver: Path, library_cache: Path, seconds: int
) -> None:
    """The time until a waiter launches depends on the load, so it is not judged here."""
    run = ShareFaults(cluster, fake_driver, library_cache, SEED, slack_s=60.0)

    problems = run.run(seconds)

    print(f"seed {SEED}: {dict(run.kills)}, {len(run.acknowledged)} jobs, {run.watch.looks} looks")
    assert problems == [], f"GSCHED_SHARE_FAULTS_SEED={SEED}"
    assert len(run.acknowledged) >= seconds / 2
    assert run.watch.sharers_max >= 2
