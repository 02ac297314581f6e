"""The alerts and dashboards in etc, as promtool and Grafana read them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "etc" / "prometheus"
PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments", ["check rules gsched.rules.yml", "test rules gsched.rules.test.yml"]
)
def test_each_alert_fires_when_it_should_and_only_then(arguments: str) -> None:
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, *arguments.split()], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "etc" / "grafana").glob("*.json")), ids=str)
def test_a_dashboard_has_a_source_and_no_panels_on_others(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]

    assert board["uid"].startswith("gsched-")
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {"${datasource}"}
    assert len(places) == len(set(places))
