"""``gsched config show``: each key with its value, and where it comes from."""

import json
from pathlib import Path

import pytest

from gsched.cli.local.config_show import found_file
from gsched.config.keys import settings_of
from gsched.config.load import parse_config
from tests.support.commands import Ran, run_command

TEXT = """
[head]
lease_s = "20m"
min_uid = 0
[[queue]]
name = "a"
[[queue]]
name = "b"
max_walltime_s = "1d"
[notify]
url = "https://hooks.example.com/services/SECRET"
[node]
resources = { licence = 3 }
[training]
policy = "drs"
"""


def test_each_key_has_its_value_and_its_source() -> None:
    rows = {(row.table, row.key): row for row in settings_of(parse_config(TEXT, where="x"), TEXT)}

    def of(table: str, key: str) -> "tuple[object, int, bool]":
        row = rows[table, key]
        return row.value, row.line, row.differs

    assert of("head", "lease_s") == (1200.0, 3, True)
    assert of("head", "min_uid") == (0, 4, False)
    assert of("head", "node_port") == (15010, 0, False)
    assert of("queue[1]", "max_walltime_s") == (86400.0, 9, True)
    assert of("queue[0]", "policy") == ("balance", 0, False)
    assert of("notify", "url") == ("https://hooks.example.com/...", 11, True)
    assert of("node", "resources") == ({"licence": 3}, 13, True)
    assert of("training", "policy") == ("drs", 15, True)
    assert of("training.goodput", "round_s") == (60.0, 0, False)
    assert "SECRET" not in str(rows)


def test_what_is_printed_is_toml_of_the_file_s_values(tmp_path: Path) -> None:
    def show(*words: str) -> Ran:
        return run_command("gsched", "config", "show", *words)

    path = tmp_path / "gsched.toml"
    path.write_text(TEXT)
    ran = show(str(path), "--diff")

    lines = ran.stdout.splitlines()
    assert (ran.status, lines[0]) == (0, f"# {path}")
    assert "lease_s = 1200.0  # line 3; default 0.0" in lines
    assert 'url = "https://hooks.example.com/..."  # line 11; default ""' in lines
    assert not any(line.startswith("node_port") for line in lines)
    whole = parse_config(show(str(path)).stdout, where="shown")
    assert whole.notify.url == "https://hooks.example.com/..."
    assert whole.queue == parse_config(TEXT, where="x").queue
    document = json.loads(show(str(path), "--json").stdout)
    assert (document["schema"], document["file"], document["exists"]) == (1, str(path), True)
    assert {"table", "key", "value"} <= document["settings"][0].keys()
    missing = show(str(tmp_path / "none"))
    assert (missing.status, "no such file" in missing.stderr) == (78, True)


def test_the_file_of_a_cluster_is_found_by_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GSCHED_CONFIG", raising=False)
    monkeypatch.setenv("GSCHED_HEAD", str(tmp_path / "head.sock"))
    assert found_file(None) == "/etc/gsched/gsched.toml"
    (tmp_path / "gsched.toml").write_text("")
    assert found_file(None) == str(tmp_path / "gsched.toml")
    assert found_file("other") == "other"
