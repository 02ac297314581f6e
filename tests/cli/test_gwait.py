"""gwait: its exit code is the job's."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.ids import element_number
from tests.support.commands import run_command
from tests.support.fake_api import FakeApi, make_row, serve


def ended(job: int, code: int) -> dict[str, object]:
    outcome = {"kind": "exited", "exit_status": code, "shell_status": code, "exit_code": code}
    return {"state": "done", "letter": "C", "reason": "", "outcome": outcome}


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    fake = FakeApi(tmp_path)
    for job, code in ((1, 0), (2, 5), (3, 6)):
        fake.add(make_row(job, **ended(job, code)))
    killed = {"kind": "walltime", "exit_status": -11, "shell_status": 143, "signal": 15}
    fake.add(make_row(4, state="done", letter="C", outcome=killed))
    fake.add(make_row(9))
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[Path]:
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


@pytest.mark.parametrize(
    ("jobs", "status"),
    [
        (["1"], 0), (["2"], 5), (["4"], 143), (["1", "3", "2"], 6), (["99", "2"], 153),
        (["2", "99"], 5),
    ],
)  # fmt: skip
def test_the_code_is_that_of_the_first_that_failed(
    head: Path, jobs: list[str], status: int
) -> None:
    ran = run_command("gwait", *jobs, head=head)

    assert ran.status == status
    known = [job for job in jobs if job != "99"]
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [f"{j}.fake" for j in known]


def test_every_failed_job_is_reported_with_the_tail_of_its_stderr(
    head: Path, fake: FakeApi
) -> None:
    fake.output[2, "stderr"] = b"".join(b"line %d\n" % number for number in range(30))
    fake.output[3, "stderr"] = b"third\n"
    ran = run_command("gwait", "2", "3", head=head)

    assert "gwait: job 2.fake: failed with exit code 5" in ran.stderr
    assert [line for line in ran.stderr.splitlines() if line.startswith("  | line")] == [
        f"  | line {number}" for number in range(20, 30)
    ]
    assert "  | third" in ran.stderr


def test_of_a_job_that_never_started_no_output_is_looked_for(head: Path, fake: FakeApi) -> None:
    cancelled = {"kind": "cancelled", "exit_status": 271, "shell_status": 143}
    fake.add(make_row(5, state="done", letter="C", outcome=cancelled))
    ran = run_command("gwait", "5", head=head)

    assert (ran.status, ran.stderr) == (143, "gwait: job 5.fake: cancelled\n")


def test_quiet_says_nothing(head: Path) -> None:
    ran = run_command("gwait", "-q", "2", head=head)

    assert (ran.status, ran.stdout, ran.stderr) == (5, "", "")


def test_its_own_time_out_is_124_and_says_what_the_job_waits_for(head: Path) -> None:
    ran = run_command("gwait", "--timeout", "0.05", "9", head=head)

    assert ran.status == 124
    assert "job 9.fake is still queued after --timeout 0.05: waits for 2 GPUs" in ran.stderr


def test_it_waits_until_the_job_is_done(head: Path, fake: FakeApi) -> None:
    polls: list[int] = []

    def second_poll_ends(job: int) -> None:
        polls.append(job)
        if len(polls) == 2:
            fake.add(make_row(9, **ended(9, 3)))

    fake.on_wait = second_poll_ends
    assert run_command("gwait", "9", head=head).status == 3
    assert len(polls) == 2


def test_json_tells_all_jobs(head: Path) -> None:
    ran = run_command("gwait", "--json", "1", "2", "99", head=head)

    document = json.loads(ran.stdout)
    assert document["exit_status"] == ran.status == 5
    assert [story["row"]["id"] for story in document["jobs"]] == [1, 2]
    assert list(document["errors"]) == ["99"]


def test_a_time_that_is_none_is_refused(head: Path) -> None:
    ran = run_command("gwait", "--timeout", "soon", "1", head=head)

    assert ran.status == 2
    assert "invalid time 'soon'" in ran.stderr


def test_progress_is_written_as_lines_to_stderr_and_the_end_to_stdout(
    head: Path, fake: FakeApi
) -> None:
    """Also of several jobs; a line that says nothing new is not repeated."""
    ran = run_command("gwait", "--progress", "1", "2", head=head)

    assert ran.status == 5
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == ["1.fake", "2.fake"]
    lines = [line for line in ran.stderr.splitlines() if "\t" in line]
    assert lines == [
        "1.fake\tfinished with exit code 0",
        "2.fake\tfailed with exit code 5",
    ]
    assert run_command("gwait", "--progress", "--timeout", "0.2", "9", head=head).status == 124


@pytest.mark.parametrize("options", [[], ["--progress"], ["--timeout", "60"]])
def test_a_head_that_is_restarted_between_two_looks_is_waited_for(
    head: Path, fake: FakeApi, options: list[str]
) -> None:
    fake.lose_looks = 3
    ran = run_command("gwait", *options, "2", head=head)

    assert (ran.status, fake.lose_looks) == (5, 0)
    fake.lose_looks = 1000
    assert run_command("gwait", "--timeout", "0.5", "2", head=head).status == 69


HELD = "held after 5 failed starts; last: no; release it with grls -h u 9"


def test_it_says_once_that_a_job_is_held(head: Path, fake: FakeApi) -> None:
    polls: list[int] = []

    def third_poll_ends(job: int) -> None:
        polls.append(job)
        if len(polls) == 3:
            fake.add(make_row(9, **ended(9, 0)))

    fake.on_wait = third_poll_ends
    fake.add(make_row(9, state="held", letter="H", reason=HELD), holds=("user",))
    ran = run_command("gwait", "9", head=head)

    assert ran.status == 0
    assert ran.stderr == f"gwait: job 9 is {HELD}\n"


def test_with_fail_held_it_does_not_wait_for_a_held_job(head: Path, fake: FakeApi) -> None:
    fake.add(make_row(9, state="held", letter="H", reason=HELD), holds=("user",))

    ran = run_command("gwait", "--fail-held", "9", "1", head=head)

    assert ran.status == 125
    assert f"job 9 is {HELD}" in ran.stderr
    assert ran.stdout.startswith("1.fake\t0\t")


def test_of_an_array_it_names_the_failed_elements(head: Path, fake: FakeApi) -> None:
    array = {"indices": "0-2", "elements": 3, "succeeded": 1, "failed": 2}
    fake.add(make_row(22, **ended(22, 1), array=array))
    for index, code in ((0, 0), (1, 3), (2, 4)):
        fake.add(make_row(element_number(22, index), **ended(22, code)))
    fake.output[element_number(22, 1), "stderr"] = b"bad data\n"

    ran = run_command("gwait", "22", head=head)

    assert ran.status == 1
    assert "gwait: 22[1] failed with exit code 3" in ran.stderr
    assert "gwait: 22[2] failed with exit code 4" in ran.stderr
    assert "  | bad data" in ran.stderr
    assert "cannot be read" not in ran.stderr
