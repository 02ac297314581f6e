"""The tests and cases that docs/gpu-sharing-tests.md names exist."""

import re
from pathlib import Path

from scripts.gpu.sharing_cases import CASES

ROOT = Path(__file__).resolve().parents[2]


def test_each_failure_and_each_mistake_has_a_test_or_a_reason() -> None:
    text = (ROOT / "docs" / "gpu-sharing-tests.md").read_text()
    text, _, of_cases = text.partition("## Cases for a real GPU")
    sources = "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    defined = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))

    assert len(rows(text)) > 40
    for row in rows(text):
        named = re.findall(r"`(test_\w+)`", row)
        assert named or "no test: " in row or "scripts/" in row, row
        assert set(named) <= defined, row
    assert set(re.findall(r"`(test_\w+)`", of_cases)) <= defined
    named = [name for row in rows(of_cases) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(CASES)


def rows(text: str) -> list[str]:
    """Return the rows of all tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return [line for line in lines if not line.startswith(("| failure |", "| mistake |"))]
