"""`elastic.ready`: where a script waits, and where it does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gsched import elastic
from gsched.elastic import gate
from gsched.elastic.errors import BadEnvironmentError, ElasticError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate._Called, "value", False)


def test_outside_gsched_it_returns_at_once_and_guarantees_nothing() -> None:
    elastic.ready()

    assert not gate.is_called()
    assert not gate.is_waiting()


def test_in_a_cold_start_it_returns_at_once_and_says_that_the_next_may_be_warm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GSCHED_GATE", "open")

    elastic.ready()

    assert gate.is_called()
    assert "GSCHED_GATE" not in os.environ  # processes that it starts have no gate


def test_a_script_that_has_used_cuda_is_not_started_warm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GSCHED_GATE", "open")
    monkeypatch.setattr(gate, "_has_used_cuda", lambda: True)

    elastic.ready()

    assert not gate.is_called()
    assert "CUDA was used before elastic.ready()" in capsys.readouterr().err


def test_at_a_gate_such_a_script_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv("GSCHED_GATE", f"{reader}:{writer}")
    monkeypatch.setattr(gate, "_has_used_cuda", lambda: True)

    with pytest.raises(ElasticError, match="before anything that requests a GPU"):
        elastic.ready()


def test_it_waits_and_takes_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    told, said = os.pipe()
    monkeypatch.setenv("GSCHED_GATE", f"{reader}:{said}")
    monkeypatch.setenv("OLD", "1")
    monkeypatch.setenv("NEW", "0")
    assert gate.is_waiting()
    os.write(writer, json.dumps({"environment": {"NEW": "2"}, "removed": ["OLD"]}).encode() + b"\n")

    elastic.ready()

    assert os.read(told, 10) == b"."
    assert os.environ["NEW"] == "2"
    assert "OLD" not in os.environ
    assert gate.is_called()
    assert not gate.is_waiting()


def test_a_gate_that_is_shut_ends_the_process() -> None:
    code = (
        "import os; from gsched import elastic; r, w = os.pipe(); t, s = os.pipe(); os.close(w); "
        "os.environ['GSCHED_GATE'] = f'{r}:{s}'; elastic.ready(); print('went on')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout) == (1, "")


def test_a_gate_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_GATE", "a:b")

    with pytest.raises(BadEnvironmentError, match="should be two descriptors"):
        elastic.ready()
