"""Adaptive training jobs on 1, 2 and 4 real ranks, against direct computations.

Gradient noise and efficiency; the learning rate of each step; the same bits after a restart and
with a profile; each sample used once, and the accuracy of a fixed run, while ranks and batches
change.
"""

import json
import pathlib
from collections import Counter

import pytest

from tests.support.elastic_runs import ROOT, run_ranks
from tests.support.forks import ForkServer

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("elastic")]

SCRIPT = ROOT / "tests" / "support" / "adaptive_ranks.py"
CHECKS = (
    "noise_of_the_steps",
    "noise_of_the_data",
    "learning_rate",
    "same_bits",
    "profiled",
    "told_batch",
    "changing_batches",
    "until_progress",
    "inference",
    "replicas",
)


def test_adaptive_training_computes_what_a_direct_computation_does(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    code, output = run_ranks(forks, tmp_path, str(SCRIPT), str(tmp_path), ranks=4)

    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(4)]
    assert code == 0, "\n".join([*told, output])
    for lines in told:
        assert lines.splitlines() == [f"{check}: ok" for check in CHECKS]
    for check, epochs in (("told_batch", 1), ("changing_batches", 6), ("inference", 1)):
        used: Counter[tuple[int, int]] = Counter()
        for path in (tmp_path / check).glob("used-*"):
            used.update((epoch, sample) for epoch, sample in json.loads(path.read_text()))
        assert used == {(epoch, sample): 1 for epoch in range(epochs) for sample in range(1000)}
