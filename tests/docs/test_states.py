"""docs/states.md says what the tables say."""

import re
import subprocess
import sys
from pathlib import Path

from gsched.model.states import AttemptState, JobState, NodeState, PartState

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_tables_say() -> None:
    """The generator itself is the judge."""
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_states.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr


def test_every_state_is_on_the_page() -> None:
    """Whatever the generator may forget."""
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")

    for kind in (JobState, AttemptState, PartState, NodeState):
        for state in kind:
            assert f" {state.value}\n" in text or f"{state.value} -->" in text, state


def test_every_state_has_a_sentence() -> None:
    """A table above each diagram."""
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")

    for kind in (JobState, AttemptState, PartState, NodeState):
        for state in kind:
            assert re.search(rf"^\| `{state.value}` \| [A-Z].+\. \|$", text, re.MULTILINE), state
