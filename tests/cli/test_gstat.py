"""gstat: lists for programs and for people, and one job's story."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from gsched.model.resources import Usage
from gsched.protocol import job_rows
from tests.support.commands import command_environment, run_at_terminal, run_command
from tests.support.fake_api import NOW_S, FakeApi, make_row, serve
from tests.support.processes import PATIENCE_S

EXITED_3 = {"kind": "exited", "exit_status": 3, "shell_status": 3, "exit_code": 3, "node": "n2"}
LONG_REASON = "waits for 4 GPUs on one node; the first node with so many is free in 2 hours"


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    fake = FakeApi(tmp_path)
    fake.add(make_row(1, reason=LONG_REASON, predicted_start_s=NOW_S + 7200))
    fake.add(
        make_row(
            2, name="run", user="bob", state="running", letter="R", reason="", attempt=1, gpus=4,
            started_s=NOW_S - 61, cpu_s=72.4, nodes=("n1", "n2"), walltime_s=3600.0,
        )
    )  # fmt: skip
    fake.add(
        make_row(
            3, name="old", state="done", letter="C", reason="", started_s=NOW_S - 50,
            ended_s=NOW_S - 10, outcome=EXITED_3,
        )
    )  # fmt: skip
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[Path]:
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


def table(stdout: str) -> list[list[str]]:
    return [line.split("\t") for line in stdout.splitlines()]


def test_json_has_rows_and_no_columns(head: Path) -> None:
    document = json.loads(run_command("gstat", "--json", head=head).stdout)

    assert document.keys() == {
        *("schema", "server", "now_s", "now_iso", "jobs", "errors", "warning"),
    }


def test_a_pipe_gets_every_value_whole_between_tabs_torques_columns_first(head: Path) -> None:
    ran = run_command("gstat", head=head)

    titles, first, second = table(ran.stdout)
    assert titles[:6] == ["Job ID", "Name", "User", "Time Use", "S", "Queue"]
    assert first[:6] == ["1.fake", "train", "alice", "0", "Q", "batch"]
    assert first[-1] == LONG_REASON
    assert second[:6] == ["2.fake", "run", "bob", "00:01:12", "R", "batch"]
    assert second[6:] == ["1", "4", "00:01:01", "01:00:00", "n1+n2", "-"]
    assert ran.status == 0


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ([], ["1.fake", "2.fake"]),
        (["-a"], ["1.fake", "2.fake"]),
        (["-r"], ["2.fake"]),
        (["-i"], ["1.fake"]),
        (["--sort", "-number"], ["2.fake", "1.fake"]),
        (["-x", "--sort", "name,id"], ["3.fake", "2.fake", "1.fake"]),
        (["-x"], ["1.fake", "2.fake", "3.fake"]),
        (["3"], ["3.fake"]),
        (["-u", "bob"], ["2.fake"]),
        (["-u", "bob,alice", "-s", "Q"], ["1.fake"]),
        (["-s", "RQ"], ["1.fake", "2.fake"]),
        (["-s", "running"], ["2.fake"]),
        (["-s", "C"], ["3.fake"]),
        (["--why"], ["1.fake"]),
        (["1", "2", "3", "-s", "RC"], ["2.fake", "3.fake"]),
    ],
)
def test_filters_choose_the_jobs(head: Path, arguments: list[str], ids: list[str]) -> None:
    assert [row[0] for row in table(run_command("gstat", *arguments, head=head).stdout)[1:]] == ids


def test_unknown_ids_are_errors_and_the_others_are_shown(head: Path) -> None:
    ran = run_command("gstat", "99", "2", "x", head=head)

    assert ran.status == 153
    assert [row[0] for row in table(ran.stdout)[1:]] == ["2.fake"]
    errors = [line for line in ran.stderr.splitlines() if line.startswith("gstat: ")]
    assert errors == ["gstat: Unknown Job Id 99", "gstat: Unknown Job Id x"]


def test_only_unknown_ids_print_no_table(head: Path) -> None:
    ran = run_command("gstat", "99", head=head)

    assert (ran.status, ran.stdout) == (153, "")


def test_json_is_one_document_also_when_there_is_nothing(head: Path, fake: FakeApi) -> None:
    fake.stories.clear()
    document = json.loads(run_command("gstat", "--json", head=head).stdout)

    assert (document["schema"], document["jobs"]) == (1, [])


def test_json_holds_numbers_not_words(head: Path) -> None:
    ran = run_command("gstat", "--json", "2", "99", head=head)

    document = json.loads(ran.stdout)
    assert document["jobs"][0]["started_s"] == NOW_S - 61
    assert document["errors"]["99"]["code"] == "unknown_job"
    assert json.loads(ran.stderr)["error"]["message"] == "Unknown Job Id 99"


def test_the_story_tells_attempts_events_and_outcome(head: Path, fake: FakeApi) -> None:
    part = job_rows.PartRow(
        node="n2", state="ended", cpus=2, gpu_indices=(0, 3), memory_bytes=2**30,
        outcome=job_rows.OutcomeRow(**EXITED_3),  # type: ignore[arg-type]  # a row as words
    )  # fmt: skip
    attempt = job_rows.AttemptRow(
        attempt=1, state="ended", assigned_s=NOW_S - 60, parts=(part,), started_s=NOW_S - 50,
        usage=Usage(wall_s=40.0, cpu_s=71.0, memory_peak_bytes=3 * 2**20), startup_s=4.26,
    )  # fmt: skip
    events = (job_rows.EventRow(seq=4, at_s=NOW_S - 10, kind="JobEnded", text="ended: code 3"),)
    fake.add(fake.stories[3].row, attempts=(attempt,), events=events, submit_host="login1")
    told = run_command("gstat", "-f", "3", head=head).stdout

    assert told.startswith("Job Id: 3.fake\n    Job_Name = old\n    Job_Owner = alice@login1\n")
    assert "    exit_status = 3\n" in told
    assert "on n2: 2 CPUs, GPUs 0,3, 1gb; ended; failed with exit code 3 on n2" in told
    assert "        4.3 s from start to first step\n" in told
    assert "used: wall 00:00:40, CPU 00:01:11, peak memory 3mb" in told
    assert "ended: code 3" in told


def test_why_says_reason_place_and_start_of_one_job(head: Path, fake: FakeApi) -> None:
    fake.add(fake.stories[1].row, ahead=7)
    told = run_command("gstat", "--why", "1", head=head).stdout

    assert LONG_REASON in told
    assert told.splitlines()[1] == "    position:       8 in queue batch, 7 jobs ahead"
    assert "expected start: " in told
    assert "any moment" not in told


def test_why_at_a_terminal_wraps_under_its_column(head: Path, fake: FakeApi) -> None:
    """The reason is longer than the terminal is wide."""
    reason = f"needs 4 GPUs on one node; {'no node has enough free; ' * 8}"
    fake.add(fake.stories[1].row, cause=reason, remedy="ask for less " * 12)

    lines = run_at_terminal("gstat", "--why", "1", typed="", head=head).stdout.splitlines()

    at = next(n for n, line in enumerate(lines) if line.startswith("    remedy:"))
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("Job 1.fake (train) needs 4 GPUs")
    assert lines[1].startswith("    ")
    assert lines[at + 1].startswith(" " * 20 + "less") or lines[at + 1].startswith(" " * 20 + "ask")


def test_a_start_that_should_have_been_by_now_may_be_any_moment(head: Path, fake: FakeApi) -> None:
    """What was before it takes longer than such jobs did: that time is over, not guaranteed."""
    fake.add(make_row(4, predicted_start_s=NOW_S - 60))

    assert "expected start: any moment" in run_command("gstat", "--why", "4", head=head).stdout
    assert "any moment" in run_command("gstat", "--why", head=head).stdout


def on_terminal(head: Path, *arguments: str, width: int = 80) -> list[str]:
    """Return the lines of gstat's list on a terminal of some width."""
    words = ("--color", "never", *arguments)
    return run_at_terminal("gstat", *words, typed="", head=head, width=width).stdout.splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_a_line_a_job_with_name_gpus_and_a_short_reason(
    head: Path, fake: FakeApi, width: int
) -> None:
    """However long the reason is; the whole of it is in --why."""
    name = "train_resnet50_imagenet"
    fake.add(structs.replace(fake.stories[1].row, name=name, short_reason="2 GPUs short", gpus=4))
    fake.add(make_row(5, name="b", reason=LONG_REASON))  # of a head that has no short one

    heading, titles, *lines = on_terminal(head, width=width)

    assert heading == "Queue: batch"
    assert [line.split()[0] for line in lines] == ["1", "2", "5"]
    assert all(len(line) <= width for line in (titles, *lines))
    assert lines[0].endswith("2 GPUs short")
    assert f" {name} " in lines[0]
    assert "  4  " in lines[0]
    assert "n[1-2]" in lines[1]
    assert "  waits for 4 GPUs" in lines[2]
    assert LONG_REASON.rsplit(maxsplit=1)[-1] in " ".join(on_terminal(head, "--why", width=width))


def test_what_all_jobs_share_stands_above_the_list_once(head: Path, fake: FakeApi) -> None:
    """Two jobs of different users have their queue in common; of one alone nothing is."""
    heading, titles, *lines = on_terminal(head)

    assert heading == "Queue: batch"
    assert "User" in titles
    assert "Queue" not in titles
    assert len(lines) == 2
    assert on_terminal(head, "-r")[0].startswith("Job ID")


def test_equal_jobs_that_wait_are_one_line_with_their_number(head: Path, fake: FakeApi) -> None:
    """What runs, or differs in anything, keeps its line; a pipe has all lines."""
    for job in range(10, 30):
        fake.add(make_row(job, name="sweep", short_reason="behind job 1"))
    fake.add(make_row(30, name="other", short_reason="behind job 1"))
    for job in (31, 32):
        fake.add(make_row(job, name="run", state="running", letter="R", reason=""))

    lines = on_terminal(head)

    titles = next(line for line in lines if line.startswith("Job ID"))
    assert titles.split()[2] == "Jobs"
    shown = [line.split()[:3] for line in lines[lines.index(titles) + 1 :]]
    assert ["10-29", "20", "sweep"] in shown
    assert ["30", "other", "alice"] in shown
    assert [line[0] for line in shown][-2:] == ["31", "32"]
    assert len(table(run_command("gstat", head=head).stdout)) == 26
    assert len(on_terminal(head, "10", "11")) == 3 + 1


def test_lines_of_a_terminal_end_with_their_last_word(head: Path) -> None:
    """Blanks up to the width would be copied along with them."""
    for color in ("never", "always"):
        shown = run_at_terminal("gstat", "--color", color, typed="", head=head).stdout
        bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)

        assert not [line for line in bare.splitlines() if line.endswith(" ")]


def test_an_empty_list_is_a_sentence_at_a_terminal_and_titles_in_a_pipe(tmp_path: Path) -> None:
    """The sentence fits what was asked."""
    with serve(FakeApi(tmp_path).application(), tmp_path / "s"):
        shown = [
            run_at_terminal("gstat", *options, typed="", head=tmp_path / "s").stdout.strip()
            for options in ((), ("--why",), ("-u", "bob"), ("--all",))
        ]
        piped = run_command("gstat", head=tmp_path / "s").stdout

    assert shown == [
        "no unfinished jobs (ghist shows finished ones)",
        *("no waiting jobs", "no jobs match", "no jobs"),
    ]
    assert piped.startswith("Job ID\t")


def test_colour_only_where_it_is_wanted(head: Path) -> None:
    assert "\x1b[" in run_at_terminal("gstat", "--color", "always", typed="", head=head).stdout
    assert "\x1b[" not in run_at_terminal("gstat", "--color", "never", typed="", head=head).stdout
    assert "\x1b[" not in run_command("gstat", head=head, env={"CLICOLOR_FORCE": "1"}).stdout


def test_control_characters_of_others_do_not_reach_the_terminal(head: Path, fake: FakeApi) -> None:
    fake.add(make_row(4, name="a\x1b[2Jb", reason="tab\there"))
    row = table(run_command("gstat", "4", head=head).stdout)[1]

    assert row[1] == "a\\x1b[2Jb"
    assert row[-1] == "tab\\there"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "Z"], "-s: invalid state 'Z'"),
        (["--watch"], "--watch needs a terminal"),
        (["--user"], "option '--user' requires an argument"),
    ],
)
def test_wrong_options_are_told(head: Path, arguments: list[str], message: str) -> None:
    ran = run_command("gstat", *arguments, head=head)

    assert (ran.status, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"gstat: {message}")


def test_a_reader_that_goes_away_is_no_error(head: Path, fake: FakeApi) -> None:
    for number in range(10, 5000):  # more than a pipe holds
        fake.add(make_row(number))
    environment = command_environment(head)
    # Unbuffered, one write is all there is, and a part of it counts as written.
    environment.pop("PYTHONUNBUFFERED", None)
    gstat = subprocess.Popen(
        [sys.executable, "-m", "gsched.cli.commands.gstat"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert gstat.stdout is not None
    gstat.stdout.readline()
    gstat.stdout.close()
    gstat.stdout = None
    _, errors = gstat.communicate(timeout=PATIENCE_S)

    assert (gstat.returncode, errors) == (141, b"")


def test_a_reader_that_never_was_is_no_error_either(head: Path) -> None:
    """Less than a buffer: it fails only when it is flushed at the very end."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "gsched.cli.commands.gstat"],
        env=command_environment(head) | {"PYTHONUNBUFFERED": ""},
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)

    assert (done.returncode, done.stderr) == (141, b"")
