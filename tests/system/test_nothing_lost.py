"""Users submit while the head is killed again and again: nothing lost, nothing run twice.

``GSCHED_CHAOS_ROUNDS`` and ``GSCHED_CHAOS_SEED`` make it longer and other; a failure names both.
"""

import os

import pytest

from tests.support.builds import give_native_library
from tests.support.chaos import NODES, Chaos
from tests.support.cluster import Cluster

ROUNDS = int(os.environ.get("GSCHED_CHAOS_ROUNDS", "20"))
SEED = int(os.environ.get("GSCHED_CHAOS_SEED", "1"))


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_no_acknowledged_job_is_lost_or_run_twice_while_the_head_is_killed(
    cluster: Cluster, process_marker: str, native_library: str
) -> None:
    for name in NODES:
        give_native_library(native_library, cluster.node_dir(name))
    chaos = Chaos(cluster, process_marker, seed=SEED, faults=("head",))

    problems = chaos.run(ROUNDS)

    acknowledged = chaos.acknowledged()
    print(f"seed {SEED}: {ROUNDS} rounds, {len(acknowledged)} jobs, {chaos.lines()} lines")
    assert problems == [], f"GSCHED_CHAOS_SEED={SEED} GSCHED_CHAOS_ROUNDS={ROUNDS}"
    assert len(acknowledged) >= 4 * ROUNDS  # there was something to lose
