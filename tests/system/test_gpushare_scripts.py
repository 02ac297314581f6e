"""The scripts for GPU sharing on a real GPU, rehearsed on a driver without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnode.hw.nvml import Nvml
from scripts.gpu.sharing import main
from scripts.gpu.sharing_cases import CASES, Case
from scripts.gpu.sharing_node import common
from tests.support.gpu_fixtures import needs_compiler
from tests.support.torch_python import torch_python

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.xdist_group("gpushare"), pytest.mark.timeout(300)]
SHAPES = """
import sys, torch
sys.path.insert(0, "scripts/gpu")
from sharing_models import MODELS
images = torch.zeros(2, 3, 32, 32)
print([tuple(MODELS[name]()(images).shape) == (2, 10) for name in sorted(MODELS)])
"""


@pytest.mark.skipif(bool(Nvml().gpus()), reason="there is a GPU: the scripts would use it")
@pytest.mark.parametrize("script", ["questions", "correctness", "performance", "all"])
def test_without_a_gpu_the_scripts_say_so_and_end_well(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([script]) == 0
    assert capsys.readouterr().out == "no GPU that NVML sees: nothing is measured\n"


def test_a_question_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", "--questions", "start,weather"]) == 2
    assert "no 'weather'" in capsys.readouterr().err


@needs_compiler
def test_all_of_it_is_rehearsed_on_a_driver_without_a_gpu(tmp_path: Path) -> None:
    """With some of the questions and one network; the record has an answer to each."""
    asked = "inventory,start,lookups,libraries,membarrier,footprint,captures,watchdog"
    path = tmp_path / "record.json"
    ran = subprocess.run(
        [
            *("scripts/gpu/sharing", "all", "--rehearse", "--questions", asked),
            *("--models", "squeezenet", "--iterations", "5", "--json", str(path)),
        ],
        cwd=ROOT,
        env={**os.environ, "GSCHED_TEST_TORCH_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

    record = json.loads(path.read_text())
    assert list(record["questions"]) == asked.split(",")
    assert record["questions"]["lookups"]["asked"] > 100
    assert record["questions"]["watchdog"]["exit"] == -9
    assert record["correctness"] == {case.name: "ok" for case in CASES}
    assert record["performance"]["squeezenet"]["low"] > 0
    assert record["left_out"] == []
    assert next(iter(record["metrics"].values()))["preemptions"] > 0


@needs_compiler
def test_what_there_is_no_time_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--rehearse", "--budget", "0", "--questions", "start"]) == 0
    out = capsys.readouterr().out
    assert all(f"no time is left for the rest of {part}" in out for part in ("questions", "perf"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_programs_of_all_cases_can_be_read_by_python(case: Case) -> None:
    compile(case.code, case.name, "exec")
    assert case.stand_in or not case.needs


def test_only_iterations_while_all_trainings_ran_count() -> None:
    first = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    second = [(0.5, 1.5), (1.5, 2.5)]

    assert common([first, second]) == [[(1.0, 2.0)], [(0.5, 1.5), (1.5, 2.5)]]


def test_the_networks_return_ten_classes() -> None:
    ran = subprocess.run(
        [torch_python(), "-c", SHAPES], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert json.loads(ran.stdout.lower()) == [True] * 5


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
