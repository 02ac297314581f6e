"""The tests that docs/gpu-sharing-tests.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_failure_and_each_mistake_has_a_test_or_a_reason() -> None:
    text = (ROOT / "docs" / "gpu-sharing-tests.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    sources = "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    defined = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))

    assert len(rows) > 40
    for row in rows:
        if row.startswith(("| failure |", "| mistake |")):
            continue
        named = re.findall(r"`(test_\w+)`", row)
        assert named or "no test: " in row or "scripts/" in row, row
        assert set(named) <= defined, row
