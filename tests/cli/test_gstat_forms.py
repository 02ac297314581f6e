"""gstat: lists in a form of one's own, sorted, and the queues."""

import io
import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from gsched.cli.commands.gstat import FIRST_PAGE
from gsched.cli.show.joblist import TABLES, table_of
from gsched.cli.show.pager import page, pager_command
from gsched.cli.show.terminal import print_rich_table
from gsched.protocol import api, job_rows
from gsched.protocol.uses import LiveRow
from tests.support.cluster import wait_until
from tests.support.commands import run_at_terminal
from tests.support.fake_api import NOW_S, FakeApi, make_row, serve
from tests.support.in_process import run_here
from tests.support.processes import PATIENCE_S

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    fake = FakeApi(tmp_path)
    fake.queues["long"] = api.QueueRow(
        name="long", started=False, enabled=False, priority=5, max_walltime_s=7200.0
    )
    fake.add(make_row(1, name="b", gpus=2, user=ME))
    fake.add(
        make_row(
            2, name="a", state="running", letter="R", reason="", gpus=10, nodes=("n1", "n2"),
            started_s=NOW_S - 61, walltime_s=3600.0, memory_bytes=2**30,
        )
    )  # fmt: skip
    fake.add(make_row(3, name="c\x1b", queue="long", state="held", letter="H"))
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[Path]:
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


@pytest.mark.parametrize(
    ("arguments", "stdout"),
    [
        (["--format", "{number} {gpus:>3}|{name:<2}|"], "1   2|b |\n2  10|a |\n3   0|c\\x1b|\n"),
        (["--format", "ids"], "1.fake\n2.fake\n3.fake\n"),
        (["--format", "{number}\\t{state}", "-r"], "2\trunning\n"),
        (["--format", "{elapsed} {limit} {nodes} {memory}", "2"],
         "00:01:01 01:00:00 n1+n2 1gb\n"),
        (["--me", "--format", "ids"], "1.fake\n"),
        (["--sort", "-gpus", "--format", "{number}"], "2\n1\n3\n"),
        (["--sort", "letter,-name", "--format", "{number}"], "3\n1\n2\n"),
        (["--sort", "queue,elapsed", "--format", "{number}"], "1\n2\n3\n"),
    ],
)  # fmt: skip
def test_a_list_has_the_form_and_the_order_that_is_asked_for(
    head: Path, arguments: list[str], stdout: str
) -> None:
    ran = run_here("gstat", *arguments, head=head)

    assert (ran.stdout, ran.status, ran.stderr) == (stdout, 0, "")


def test_what_jobs_use_is_a_table_with_titles_that_fits(fake: FakeApi, head: Path) -> None:
    """In a pipe by TABs; on a terminal of 80 columns no line is longer or broken."""
    live = LiveRow(
        at_s=NOW_S - 5, cpu_cores=0.2, memory_bytes=430_767_309, gpus_held=10, gpus=0.7, gpus_idle=9
    )
    fake.add(structs.replace(fake.stories[2].row, name="train_resnet50_imagenet", live=live))
    lines = run_here("gstat", "--format", "usage", "2", head=head).stdout.splitlines()
    titles, row = (line.split("\t") for line in lines)

    assert dict(zip(titles, row, strict=True)) == {
        "Job ID": "2.fake",
        "Name": "train_resnet50_imagenet",
        "User": "alice",
        "S": "R",
        "Elapsed": "00:01:01",
        "CPUs": "1",
        "CPU use": "0.2",
        "Memory": "1gb",
        "Mem use": "410.8mb",
        "GPUs": "10",
        "GPU use": "7%",
        "GPU mem": "0b",
        "Idle": "9",
        "Age": "5s",
    }
    changed = structs.replace(fake.stories[2].row, cpus=128, memory_bytes=10**12)
    reply = job_rows.JobList(server="fake", now_s=NOW_S, jobs=(fake.stories[1].row, changed))
    out = io.StringIO()
    table = table_of(TABLES["usage"], reply, terminal=True)
    print_rich_table(*table, colored=False, out=out, width=80)
    shown = out.getvalue().splitlines()
    assert len(shown) == 3
    assert max(map(len, shown)) <= 80
    assert shown[0].split()[:2] == ["Job", "ID"]
    assert "CPU use" in shown[0]
    assert "train_resnet50_imagenet" not in shown[2]


@pytest.mark.parametrize(
    ("name", "titles", "row"),
    [
        ("short", "Job ID|S|Name", "2.fake|R|a"),
        (
            "long",
            "Job ID|Name|User|S|Queue|CPUs|GPUs|Elapsed|Limit|Nodes|Reason",
            "2.fake|a|alice|R|batch|1|10|00:01:01|01:00:00|n1+n2|-",
        ),
        ("start", "Job ID|Name|S|Expected start|Reason", "2.fake|a|R|-|-"),
    ],
)
def test_each_column_of_a_named_format_has_a_title(
    fake: FakeApi, head: Path, name: str, titles: str, row: str
) -> None:
    """In a pipe by TABs; on a terminal that is wide enough those that have a value."""
    piped = run_here("gstat", "--format", name, "2", head=head).stdout
    assert piped == f"{titles}\n{row}\n".replace("|", "\t")

    reply = job_rows.JobList(server="fake", now_s=NOW_S, jobs=(fake.stories[2].row,))
    table = table_of(TABLES[name], reply, terminal=True)
    out = io.StringIO()
    print_rich_table(*table, colored=False, out=out, width=80)
    first, *lines = out.getvalue().splitlines()
    assert first.split()[:2] == ["Job", "ID"]
    both = zip(titles.split("|"), row.split("|"), strict=True)
    assert [title for title, value in both if value != "-" and title not in first] == []
    assert all(len(line) <= 80 for line in (first, *lines))


def test_a_format_may_stand_in_the_environment(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSTAT_FORMAT", "{number}:{letter}")

    assert run_here("gstat", head=head).stdout == "1:Q\n2:R\n3:H\n"
    assert run_here("gstat", "--format", "{number}", head=head).stdout == "1\n2\n3\n"
    assert json.loads(run_here("gstat", "--json", head=head).stdout)["schema"] == 1
    monkeypatch.setenv("GSTAT_FORMAT", "{nam}")
    ran = run_here("gstat", head=head)
    assert ran.status == 2
    assert "$GSTAT_FORMAT: unknown field 'nam'" in ran.stderr
    assert "did you mean 'name'?" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "{nam}"], "unknown field 'nam'"),
        (["--format", "{id.__class__}"], "unknown field 'id.__class__'"),
        (["--format", "{id:{name}}"], "a width cannot be a field"),
        (["--format", "{id"], "--format: expected '}'"),
        (["--format", "{name:>d}"], "--format: "),
        (["--format", "{name:>999999999}"], "--format: a width of 999999999 characters; the limit"),
        (["--json", "--template", "{name:>10001}"], "--template: a width of 10001 characters"),
        (["--format", "shrot"], "did you mean 'short'?"),
        (["--sort", "size"], "--sort: unknown field 'size'"),
        (["-r", "-s", "Q"], "-s Q leaves no state for -r"),
        (["--format", "ids", "--json"], "--format is for the list of jobs only"),
    ],
)
def test_what_is_refused(head: Path, arguments: list[str], words: str) -> None:
    ran = run_here("gstat", *arguments, head=head)

    assert ran.status == 2
    assert words in ran.stderr


def test_queues_are_listed_with_their_limits_and_jobs(head: Path) -> None:
    lines = run_here("gstat", "-Q", head=head).stdout.splitlines()
    titles, *rows = [line.split("\t") for line in lines]

    assert titles[:3] == ["Queue", "Accepts", "Starts"]
    assert rows == [
        ["batch", "yes", "yes", "0", "-", "-", "1", "1", "0", "0", "2", "-"],
        ["long", "no", "no", "5", "02:00:00", "-", "0", "0", "1", "0", "1", "-"],
    ]
    one = run_here("gstat", "-q", "long", "nope", "--json", head=head)
    assert [row["name"] for row in json.loads(one.stdout)["queues"]] == ["long"]
    assert one.status == 172
    assert json.loads(one.stderr)["error"]["code"] == "unknown_queue"


def test_a_terminal_shows_nodes_instead_of_reasons_when_asked(head: Path) -> None:
    shown = run_at_terminal("gstat", "-n", "2", typed="", head=head).stdout
    plain = run_at_terminal("gstat", "--plain", typed="", head=head).stdout

    assert "n[1-2]" in shown
    assert plain.splitlines()[0].startswith("Job ID\tName\tUser")


def test_a_long_list_goes_through_the_pager_of_the_user(
    head: Path, fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in range(10, 200):
        fake.add(make_row(job, name=f"j{job}"))
    seen = tmp_path / "seen"
    monkeypatch.setenv("GSCHED_PAGER", f"tee {seen}")

    monkeypatch.setenv("LINES", "30")

    run_at_terminal("gstat", "--no-pager", typed="", head=head)
    assert not seen.exists()
    run_at_terminal("gstat", typed="", head=head)

    assert "j199" in seen.read_text()


def test_the_first_page_of_a_long_list_is_shown_before_the_others_are_there(
    head: Path, fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.long_list = FIRST_PAGE + 100
    for job in range(10, FIRST_PAGE + 200):
        fake.add(make_row(job, name=f"j{job}"))
    seen = tmp_path / "seen"
    waited: list[str] = []

    def wait_for_the_page() -> None:
        wait_until(lambda: seen.exists() and "j240" in seen.read_text(), PATIENCE_S)
        waited.append(seen.read_text())
        fake.change(300, name="other")

    fake.on_list = wait_for_the_page
    monkeypatch.setenv("GSCHED_PAGER", f"tee {seen}")
    shown = run_at_terminal("gstat", typed="", head=head).stdout.splitlines()

    assert "j300" not in waited[0]
    assert shown[0].startswith("Job ID\tName")
    numbers = [int(line.partition("\t")[0]) for line in shown[1:]]
    assert numbers == [1, 2, 3, *range(10, FIRST_PAGE + 200)]
    assert shown[numbers.index(300) + 1].split("\t")[1] == "other"


def test_a_long_list_of_equal_jobs_is_folded_and_a_pager_may_end_early(
    head: Path, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.long_list = FIRST_PAGE
    for job in range(10, FIRST_PAGE + 200):
        fake.add(make_row(job, name="same"))
    assert f"10-{FIRST_PAGE + 199}" in run_at_terminal("gstat", typed="", head=head).stdout
    for job in range(10, FIRST_PAGE + 200):
        fake.change(job, name=f"j{job}")
    monkeypatch.setenv("GSCHED_PAGER", "true")
    ran = run_at_terminal("gstat", typed="", head=head)

    assert (ran.status, ran.stdout) == (0, "")
    monkeypatch.setenv("GSCHED_PAGER", "/nonexistent/pager")
    assert len(run_at_terminal("gstat", typed="", head=head).stdout.splitlines()) > FIRST_PAGE


def test_the_pager_keeps_the_terminal_after_ctrl_c_until_it_is_left(
    head: Path, fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in range(10, FIRST_PAGE + 5000):  # more than a pipe takes
        fake.add(make_row(job, name=f"j{job}"))
    fake.long_list = FIRST_PAGE + 100
    pager = tmp_path / "pager"
    pager.write_text(
        "#!/bin/sh\nread titles\nkill -INT $PPID\nsleep 1\ncat > /dev/null\n"
        'test "$(cut -d" " -f4 /proc/$$/stat)" = $PPID && echo gstat waits\n'
    )
    pager.chmod(0o700)
    monkeypatch.setenv("GSCHED_PAGER", str(pager))

    ran = run_at_terminal("gstat", typed="", head=head)

    assert (ran.status, ran.stdout) == (0, "gstat waits\n")


def test_the_pager_is_that_of_gsched_then_that_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GSCHED_PAGER", raising=False)
    monkeypatch.delenv("PAGER", raising=False)
    assert pager_command() == ["less", "-FRX"]
    monkeypatch.setenv("PAGER", "more")
    assert pager_command() == ["more"]
    monkeypatch.setenv("GSCHED_PAGER", "")
    assert pager_command() == []
    page("text\n", wanted=True)  # not a terminal
    assert capsys.readouterr().out == "text\n"
