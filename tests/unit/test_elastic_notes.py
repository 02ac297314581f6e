"""gsub --elastic with a program that cannot be elastic."""

import sys
from pathlib import Path

import pytest

from gsched.cli.submit.elastic_program import elastic_notes
from gsched.protocol.submissions import SubmitJob


def notes(folder: Path, text: str | None, **changes: object) -> list[str]:
    """Return the warnings for a program with this text; None: it is not on this machine."""
    if text is not None:
        (folder / "train.py").write_text(text)
    fields = {
        "launch": "torchrun",
        "arguments": ("--nproc-per-node=2", "train.py", "--lr", "0.1"),
        "movable": True,
        **changes,
    }
    return elastic_notes(SubmitJob(key="", name="j", workdir=str(folder), **fields))  # type: ignore[arg-type] # its fields


def test_a_program_without_the_library_is_named(tmp_path: Path) -> None:
    """It may be imported by another module, so it is a warning."""
    (note,) = notes(tmp_path, "import torch\n")

    assert note.startswith("--elastic is given, but train.py does not import gsched.elastic")
    assert "cannot be migrated" in note


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("from gsched import elastic\n", {}),
        ("import gsched.elastic as e\n", {}),
        (None, {}),
        ("import torch\n", {"movable": False}),
        ("import torch\n", {"checkpoint_signal": 10}),
        ("import torch\n", {"launch": "command"}),
        ("import torch\n", {"arguments": ("-m", "package.train")}),
    ],
)
def test_nothing_is_said_of_what_is_right_or_not_known(
    tmp_path: Path, text: str | None, changes: dict[str, object]
) -> None:
    """Also where the program is on the nodes only."""
    assert notes(tmp_path, text, **changes) == []


@pytest.mark.parametrize("number", [1, 2, 3, 15])
def test_a_signal_that_launchers_handle_is_warned_of(tmp_path: Path, number: int) -> None:
    """They have a handler, so the signal is sent; it ends the program."""
    (note,) = notes(tmp_path, "import torch\n", movable=False, checkpoint_signal=number)

    assert "killed and restarted instead of migrated" in note


ROOT = Path(__file__).resolve().parents[2]
IMPORTS = "from gsched import elastic\n"


def make_program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python without site-packages, so with neither gsched nor torch."""
    return make_program(tmp_path / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')


def test_a_python_without_the_library_is_named_with_what_to_do(tmp_path: Path, bare: str) -> None:
    """Before the job has waited for its GPUs."""
    (note,) = notes(tmp_path, IMPORTS, python=bare)

    assert f"{bare} has no gsched.elastic and no torch, so the job will fail" in note
    assert f"'{bare} -m pip install ./packages/gsched-elastic'" in note
    assert note.endswith("or name the training's Python with --python")


def test_of_a_module_on_the_nodes_the_python_is_looked_at(tmp_path: Path, bare: str) -> None:
    """There is no text to look at."""
    arguments = ("-m", "package.train")

    assert len(notes(tmp_path, None, python=bare, arguments=arguments)) == 1


def test_a_program_that_does_not_import_it_gets_one_warning(tmp_path: Path, bare: str) -> None:
    """Its Python need not have what it does not import."""
    (note,) = notes(tmp_path, "import torch\n", python=bare)

    assert "does not import" in note


def test_a_python_with_the_library_is_fine(tmp_path: Path, bare: str) -> None:
    """Installed, in the job's PYTHONPATH, or beside the program."""
    assert notes(tmp_path, IMPORTS, python=sys.executable) == []
    assert notes(tmp_path, IMPORTS, python=bare, environment={"PYTHONPATH": str(ROOT)}) == []
    (tmp_path / "gsched").symlink_to(ROOT / "gsched")
    assert notes(tmp_path, IMPORTS, python=bare) == []


def test_a_variable_that_the_job_does_not_get_does_not_count(
    tmp_path: Path, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH of the submitting shell stays there without -V or -v."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    assert len(notes(tmp_path, IMPORTS, python=bare)) == 1


@pytest.mark.parametrize("first_line", ["#!{python}", "#!/usr/bin/env python", "#!{python} -u"])
def test_a_command_of_pythons_is_looked_at_too(tmp_path: Path, bare: str, first_line: str) -> None:
    """Python itself, and scripts that pip has installed, as torchrun."""
    folder = Path(bare).parent
    make_program(folder / "torchrun", first_line.format(python=bare) + "\nimport torch\n")
    make_program(folder / "shell", "#!/bin/sh\n")
    found = {
        program: notes(
            tmp_path,
            IMPORTS,
            launch="command",
            arguments=(program, "train.py"),
            environment={"PATH": f"{folder}:/usr/bin:/bin"},
        )
        for program in ("python", "torchrun", bare, "shell", "sleep", "nowhere")
    }

    assert {program for program, each in found.items() if each} == {"python", "torchrun", bare}
    assert all(
        each[0].endswith("or start the program with the training's Python")
        for each in found.values()
        if each
    )


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/nowhere/python\n", None])
def test_a_python_that_does_not_work_here_says_nothing(tmp_path: Path, text: str | None) -> None:
    """It may work on the nodes."""
    python = str(tmp_path / "python")
    if text is not None:
        make_program(Path(python), text)

    assert notes(tmp_path, IMPORTS, python=python) == []
