"""``gsched config show`` beside a running head: its own values, and what the file states else."""

import json
from pathlib import Path

import msgspec
import pytest

from gsched.cli.local.config_show import with_running
from gsched.config.keys import settings_of
from gsched.config.load import parse_config
from gsched.protocol.api import ErrorBody, ErrorReply
from gsched.protocol.queues import QueueChange
from gsched.protocol.running import RunningSetting
from tests.support.canned_head import canned_head
from tests.support.cluster import Cluster
from tests.support.commands import Ran, run_command

SECRET = "https://hooks.example.com/services/SECRET"
QUEUES = f"""
[[queue]]
name = "batch"
max_walltime_s = "2h"
[[queue]]
name = "old"
[notify]
url = "{SECRET}"
"""


@pytest.fixture
def running(cluster: Cluster) -> Cluster:
    cluster.queues = QUEUES
    cluster.start_head()
    return cluster


def show(cluster: Cluster, *words: str) -> Ran:
    config = str(cluster.directory / "head.toml")
    return run_command("gsched", "config", "show", *words, env={"GSCHED_CONFIG": config})


def test_the_values_of_the_running_head_are_shown_and_what_the_file_changes(
    running: Cluster,
) -> None:
    """Also of queues that operators have changed; never a secret."""
    file = running.directory / "head.toml"
    same = show(running)
    assert "restart the head" not in same.stdout + same.stderr
    assert same.stdout.startswith("# running head ")
    assert f"node_port = {running.node_port}  # " in same.stdout, "it took a free one"

    running.head.change_queues(
        [QueueChange(verb="set", queue="batch", attribute="started", value=False)]
    )
    text = file.read_text().replace('"2h"', '"3h"').replace('name = "old"', 'name = "new"')
    file.write_text(text + "retry_s = 20\n")
    ran = show(running, "--diff")

    lines = ran.stdout.splitlines()
    line = _line(text, '"3h"')
    what = f"line {line} of the file has 10800.0: gsched reload uses it"
    assert f"max_walltime_s = 7200.0  # running head; {what}" in lines
    assert "started = false  # changed on the running head: gmgr unset takes it back" in lines
    assert any(line.startswith('name = "old"  # not in the file: gsched reload') for line in lines)
    assert any("not in the running head: gsched reload" in line for line in lines if "new" in line)
    assert "SECRET" not in ran.stdout + ran.stderr
    assert "differ from the running head" in ran.stderr
    assert "by gsched reload, 0 by a restart of the head" in ran.stderr
    document = json.loads(show(running, "--json").stdout)
    assert "SECRET" not in str(document)
    rows = {(row["table"], row["key"]): row for row in document["settings"]}
    assert rows["notify", "retry_s"] == {
        **rows["notify", "retry_s"], "value": 10.0, "pending": 20.0, "running": True,
    }  # fmt: skip
    assert rows["queue[0]", "started"]["changed"] is True
    assert rows["node", "cpus"]["running"] is False, "gnode reads it"
    assert document["running"]["server"] == running.head.status().server


def test_a_file_that_is_named_is_shown_as_it_is(running: Cluster) -> None:
    file = running.directory / "head.toml"
    file.write_text(file.read_text().replace('"2h"', '"3h"'))

    assert "max_walltime_s = 10800.0  # line" in show(running, str(file)).stdout


def test_without_a_head_the_file_is_shown(running: Cluster) -> None:
    running.kill_head()

    ran = show(running)
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout.startswith("# /")
    assert "max_walltime_s = 7200.0  # line" in ran.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("not_permitted", "the head shows its own only to operators"),
        ("internal", "the running head shows none: no route"),
    ],
)
def test_who_is_no_operator_and_an_older_head_are_shown_the_file(
    tmp_path: Path, code: str, words: str
) -> None:
    file = tmp_path / "f.toml"
    file.write_text(f'[head]\nsocket = "{tmp_path / "s"}"\nlease_s = 60\n')
    with canned_head(tmp_path / "s") as head:
        body = ErrorBody(code=code, message="no route")
        head.answers["GET /v1/config"] = ErrorReply(error=body)
        env = {"GSCHED_CONFIG": str(file)}
        ran = run_command("gsched", "config", "show", "--diff", env=env)

    assert ran.status == 0
    assert "lease_s = 60.0  # line 3; default 0.0" in ran.stdout
    assert f"note: these are the values of the file: {words}" in ran.stderr


def test_queues_are_the_same_by_their_names() -> None:
    """Their order in the file may have changed; nothing of it waits for a restart then."""

    def rows(*names: str) -> str:
        return "".join(f'[[queue]]\nname = "{name}"\npriority = {len(name)}\n' for name in names)

    text = rows("long", "a")
    before = parse_config(rows("a", "long"), where="x")
    rows_of_head = [
        RunningSetting(table=row.table, key=row.key, value=row.value)
        for row in settings_of(before, "")
    ]
    head = msgspec.json.decode(msgspec.json.encode(rows_of_head), type=list[RunningSetting])
    shown = list(with_running(list(settings_of(parse_config(text, where="x"), text)), head))
    assert not [row for row in shown if row.waits]


def _line(text: str, word: str) -> int:
    return next(at for at, line in enumerate(text.splitlines(), 1) if word in line)
