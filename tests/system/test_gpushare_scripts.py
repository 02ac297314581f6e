"""The scripts for GPU sharing on a real GPU, rehearsed on a driver without one."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE
from gnode.hw.nvml import Nvml
from scripts.gpu.sharing import PARTS, lacking, main
from scripts.gpu.sharing_answers import Answer, Question, Record, answer_to, ask_all, table
from scripts.gpu.sharing_cases import CASES
from scripts.gpu.sharing_node import SOURCES, Node, OutOfTimeError, common
from scripts.gpu.sharing_programs import PROGRAMS, Program
from scripts.gpu.sharing_questions import QUESTIONS
from tests.support.gpu_fixtures import NO_COMPILER, fake_driver, library_cache, needs_compiler
from tests.support.torch_python import torch_python

__all__ = ["fake_driver", "library_cache"]
CUDA_H = os.environ.get("GSCHED_TEST_CUDA_INCLUDE", "")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.timeout(300)]
SHAPES = """
import sys, torch
sys.path.insert(0, "scripts/gpu")
from sharing_models import MODELS
images = torch.zeros(2, 3, 32, 32)
print([tuple(MODELS[name]()(images).shape) == (2, 10) for name in sorted(MODELS)])
"""


NO_GPU = "no GPU that NVML sees: nothing is measured\n"
without_gpu = pytest.mark.skipif(
    bool(Nvml().gpus()), reason="there is a GPU: the scripts would use it"
)


@pytest.fixture(scope="module", autouse=True)
def _one_build(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let each rehearsal have the libraries that other tests have built."""
    if find_compiler() is None:
        yield
        return
    library_cache: Path = request.getfixturevalue("library_cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GSCHED_TEST_GPU_BUILDS", str(library_cache.parent))
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return the node of a rehearsal."""
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    made = Node(tmp_path_factory.mktemp("gpu"), budget_s=1000, rehearse=True)
    assert lacking(made) is None
    yield made
    made.close()


@without_gpu
@pytest.mark.parametrize("parts", [*PARTS, "all", "questions,cases"])
def test_without_a_gpu_the_scripts_say_so_and_end_well(
    parts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([parts]) == 0
    assert capsys.readouterr().out == NO_GPU


@without_gpu
def test_without_a_gpu_that_must_be_there_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"

    assert main(["questions", "--require-gpu", "--json", str(record)]) == 3
    assert capsys.readouterr().out == NO_GPU
    assert rows(record) == [{"part": "end", "question": "missing", "said": "no GPU that NVML sees"}]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["weather"], "weather"),
        (["questions,nothing"], "nothing"),
        (["questions", "--questions", "start,weather"], "weather"),
        (["cases", "--cases", "rain"], "rain"),
        (["performance", "--models", "vgg1"], "vgg1"),
    ],
)
def test_what_does_not_exist_is_refused(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"no {word!r}" in capsys.readouterr().err


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the answers of a record."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@needs_compiler
def test_all_parts_are_rehearsed_on_a_driver_without_a_gpu(tmp_path: Path) -> None:
    """With one case, one figure and one network; the record has a line for each answer.

    Two training jobs of 50 iterations run for 0.7 s, and so at the same time if one begins late.
    """
    path = tmp_path / "record.json"
    ran = subprocess.run(
        [
            *("scripts/gpu/sharing", "all", "--rehearse", "--cases", "drained_context"),
            *("--figures", "bursts", "--models", "squeezenet", "--iterations", "50"),
            *("--json", str(path)),
        ],
        cwd=ROOT,
        env={**os.environ, "GSCHED_TEST_TORCH_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows(path):
        found.setdefault(row["part"], {})[row["question"]] = row
    assert list(found["questions"]) == list(QUESTIONS)
    assert found["questions"]["lookups"]["asked"] > 100
    assert found["questions"]["watchdog"]["exit"] == -9
    assert all(found["correctness"][program.name]["ok"] for program in PROGRAMS)
    assert found["performance"]["bursts"]["turns"]["preemptions"] > 0
    assert found["networks"]["squeezenet"]["low"] > 0
    assert (found["end"]["end"]["left_out"], found["end"]["end"]["failed"]) == ([], 0)
    assert len(ran.stdout.splitlines()) >= len(rows(path)) - 2


@needs_compiler
def test_what_there_is_no_time_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--rehearse", "--budget", "0", "--questions", "start"]) == 0
    out = capsys.readouterr().out
    assert all(f"no time is left for the rest of {part}" in out for part in PARTS)


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_rehearsed(name: str, node: Node) -> None:
    answer = answer_to(node, CASES[name])

    assert answer.get("ok", "skipped" in answer), answer


def test_a_question_that_hangs_is_killed_and_the_next_one_is_asked(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[int] = []

    def hangs(node: Node) -> Answer:
        process = node.start(node.plain(), ["sh", "-c", 'sleep 100 & echo "$!"; wait'])
        started.append(process.read())
        return {"ok": True, "read": process.read()}

    def raises(node: Node) -> Answer:
        raise ValueError("no such thing")

    def answers(node: Node) -> Answer:
        return {"ok": True, "figure": 1.5}

    record = Record(tmp_path / "record.json")
    questions = table(Question(hangs, 0.5), raises, answers)

    ask_all(node, "cases", questions, list(questions), record)
    assert record.failed == 2
    first, second, third = rows(tmp_path / "record.json")
    assert (first["ok"], first["said"]) == (False, "not done in 0.5 s")
    assert first["took_s"] < 20
    assert (second["ok"], second["said"]) == (False, "ValueError: no such thing")
    assert (third["ok"], third["figure"]) == (True, 1.5)
    assert "FAIL  hangs: said not done in 0.5 s" in capsys.readouterr().out
    with suppress(psutil.NoSuchProcess):  # whoever adopts it may not have taken its status
        assert psutil.Process(started[0]).status() == psutil.STATUS_ZOMBIE


@needs_compiler
def test_what_the_end_of_all_time_has_cut_off_is_left_out_and_what_failed_before_counts(
    tmp_path: Path,
) -> None:
    def fails(node: Node) -> Answer:
        return {"ok": False}

    def hangs(node: Node) -> Answer:
        return {"ok": node.start(node.plain(), ["sleep", "100"]).read()}

    node = Node(tmp_path, budget_s=1.0, rehearse=True)
    record = Record()
    questions = table(fails, Question(hangs, 60))

    with pytest.raises(OutOfTimeError):
        ask_all(node, "cases", questions, list(questions), record)
    assert record.failed == 1
    node.close()


def test_a_job_keeps_its_own_search_paths(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As gnode does it: the driver may find more of itself by them."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver/lib64")
    monkeypatch.setenv("LD_PRELOAD", "/opt/own.so")
    with node.site() as site:
        environment = site.shared(ShareClass.LOW)

    assert environment["LD_LIBRARY_PATH"].endswith(":/opt/driver/lib64")
    assert environment["LD_PRELOAD"].endswith(":/opt/own.so")
    assert environment["LD_PRELOAD"].startswith(f"{node.folder}/")


def test_wheels_are_taken_beside_what_the_interpreter_has(tmp_path: Path) -> None:
    """A wheel that has nothing to do with it is installed; the packages of the Python stay."""
    with zipfile.ZipFile(tmp_path / "own_thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("own_thing.py", "")
        wheel.writestr(
            "own_thing-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: own-thing\nVersion: 1.0",
        )
        wheel.writestr(
            "own_thing-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any",
        )
        wheel.writestr("own_thing-1.0.dist-info/RECORD", "")
    ran = subprocess.run(
        ["scripts/gpu/sharing", "--wheels", str(tmp_path), "--help"],
        cwd=ROOT,
        env={**os.environ, "GSCHED_TEST_TORCH_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    none = subprocess.run(
        ["scripts/gpu/sharing", "--wheels", str(tmp_path / "none"), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--require-gpu" in ran.stdout
    assert (none.returncode, none.stderr) == (2, f"sharing: no wheels in {tmp_path}/none\n")


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas of CUDA")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_kernels_of_jobs_are_assembled(architecture: str, tmp_path: Path) -> None:
    source = (SOURCES / "gpu.c").read_text()
    text = source.partition('ptx[] = "\\\n')[2].partition('";\n')[0]
    (tmp_path / "kernels.ptx").write_text(text.replace("\\n\\\n", "\n").replace("\\n", "\n"))
    ran = subprocess.run(
        [
            *("ptxas", f"-arch={architecture}", str(tmp_path / "kernels.ptx")),
            *("-o", str(tmp_path / "kernels.cubin")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc of CUDA")
def test_the_program_of_the_runtime_is_compiled(tmp_path: Path) -> None:
    command = ["nvcc", "-arch=sm_90", "-default-stream", "per-thread", "-c", "-o", "runtime.o"]
    ran = subprocess.run(
        [*command, str(SOURCES / "runtime.cu")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[:2000]


@pytest.mark.skipif(not CUDA_H, reason="no cuda.h of CUDA 13.0: GSCHED_TEST_CUDA_INCLUDE=DIR")
def test_prototypes_of_the_program_of_jobs_are_nvidias() -> None:
    for source in sorted(SOURCES.glob("*.c")):
        command = [str(find_compiler()), "-std=gnu11", "-fsyntax-only", "-DGS_HAVE_CUDA_H", "-w"]
        command += [f"-I{CUDA_H}", f"-I{NATIVE}", f"-I{SOURCES}", str(source)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[:2000]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_all_programs_can_be_read_by_python(program: Program) -> None:
    compile(program.code, program.name, "exec")
    assert program.stand_in or not program.needs


def test_only_iterations_while_all_training_jobs_ran_count() -> None:
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
