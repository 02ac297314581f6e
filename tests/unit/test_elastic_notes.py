"""gsub --elastic with a program that cannot be elastic."""

from pathlib import Path

import pytest

from gsched.cli.submit.submission import elastic_notes
from gsched.protocol.api import SubmitJob


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
