"""The scripts for GPU sharing on a real GPU, as far as they run without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gnode.hw.nvml import Nvml
from tests.support.torch_python import torch_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(bool(Nvml().gpus()), reason="there is a GPU: the scripts would use it")
@pytest.mark.parametrize("script", ["correctness", "performance"])
def test_without_a_gpu_the_scripts_say_so_and_end_well(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, "scripts/gpu/sharing.py", script],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stdout) == (0, "no GPU that NVML sees: nothing is measured\n")


def test_a_training_measures_its_iterations() -> None:
    """On a CPU, with the smallest network."""
    ran = subprocess.run(
        [
            *(torch_python(), "scripts/gpu/sharing_train.py", "squeezenet", "--device", "cpu"),
            *("--batch", "2", "--iterations", "2", "--warm-up", "1"),
        ],
        cwd=ROOT,
        input="\n",
        capture_output=True,
        text=True,
        check=True,
    )
    ready, spans = map(json.loads, ran.stdout.splitlines())

    assert ready == "ready"
    assert [end > begun for begun, end in spans] == [True, True]
