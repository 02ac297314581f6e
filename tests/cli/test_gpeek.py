"""gpeek: a job's output, whole, its end, or as it comes."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.protocol.job_rows import AttemptRow, OutcomeRow, PartRow
from tests.support.commands import run_command
from tests.support.fake_api import FakeApi, make_row, serve
from tests.support.processes import PATIENCE_S
from tests.support.ptys import Sitting

LINES = b"".join(b"line %d\n" % number for number in range(100_000))  # more than one chunk


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    fake = FakeApi(tmp_path)
    fake.add(make_row(1, state="running", letter="R"))
    fake.output[1, "stdout"] = LINES
    fake.output[1, "stderr"] = b"no newline at the end"
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[Path]:
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], LINES.decode()),
        (["-n", "2"], "line 99998\nline 99999\n"),
        (["-n", "0"], ""),
        (["-e"], "no newline at the end"),
        (["-e", "-n", "3"], "no newline at the end"),
    ],
)
def test_output_is_whole_or_its_last_lines(head: Path, arguments: list[str], expected: str) -> None:
    ran = run_command("gpeek", *arguments, "1.fake", head=head)

    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout == expected


def test_many_last_lines_need_a_wider_look(head: Path) -> None:
    ran = run_command("gpeek", "-n", "5000", "1", head=head)

    assert ran.stdout.splitlines()[0] == "line 95000"


def test_following_prints_what_comes_until_the_job_is_done(head: Path, fake: FakeApi) -> None:
    fake.output[1, "stdout"] = b"first\n"
    looked = threading.Event()

    def grow() -> None:
        assert looked.wait(PATIENCE_S)
        fake.output[1, "stdout"] += b"second\n"
        fake.change(1, state="done")

    writer = threading.Thread(target=grow)
    writer.start()

    def look(key: tuple[int, str]) -> bytes:
        data = fake.output[key]
        looked.set()
        return data

    fake.output_of = look
    ran = run_command("gpeek", "-f", "1", head=head)
    writer.join()

    assert (ran.status, ran.stdout) == (0, "first\nsecond\n")


def test_a_job_whose_node_does_not_answer_is_read_from_the_file_here(
    head: Path, fake: FakeApi, tmp_path: Path
) -> None:
    here = tmp_path / "out"
    here.write_bytes(b"a\nb\nc\n")
    fake.add(fake.stories[1].row, stdout_path=str(here))
    fake.fail_output = "node n1 does not answer"
    ran = run_command("gpeek", "-n", "2", "1", head=head)

    assert (ran.status, ran.stdout) == (0, "b\nc\n")
    assert ran.stderr == f"gpeek: node n1 does not answer; reading {here} here\n"


def test_without_such_a_file_the_heads_words_are_the_error(head: Path, fake: FakeApi) -> None:
    fake.fail_output = "node n1 does not answer"
    ran = run_command("gpeek", "1", head=head)

    assert (ran.status, ran.stdout) == (75, "")
    assert ran.stderr.startswith("gpeek: node n1 does not answer")


@pytest.mark.parametrize(("state", "is_told"), [("starting", True), ("running", False)])
def test_a_job_whose_start_was_not_reported_is_a_note(
    head: Path, fake: FakeApi, state: str, *, is_told: bool
) -> None:
    """Its state is R from the launch on; an empty output would be taken for that of the job."""
    parts = tuple(PartRow(node=node, state="pending", cpus=1) for node in ("n1", "n2"))
    attempt = AttemptRow(attempt=1, state=state, assigned_s=0.0, parts=parts)
    fake.add(fake.stories[1].row, attempts=(attempt,))
    fake.output[1, "stdout"] = b""
    words = "job 1 is starting on n1, n2, it has no output yet; follow it with gpeek -f 1"

    ran = run_command("gpeek", "1", head=head)

    assert (ran.status, ran.stdout) == (0, "")
    assert ran.stderr == (f"gpeek: {words}\n" if is_told else "")


def test_an_unknown_job_is_an_error(head: Path) -> None:
    ran = run_command("gpeek", "99", head=head)

    assert ran.status == 153
    assert ran.stderr.startswith("gpeek: Unknown Job Id 99")


def test_a_job_that_is_done_elsewhere_says_where_its_file_is(head: Path, fake: FakeApi) -> None:
    fake.output.clear()
    fake.change(1, state="done")
    ran = run_command("gpeek", "1", head=head)

    assert (ran.status, ran.stdout) == (156, "")
    assert (
        f"job 1 has finished, but its stdout is not readable here: {fake.directory}" in ran.stderr
    )
    assert "read it on n1" in ran.stderr


def test_a_terminal_gets_no_control_sequences_unless_they_are_requested(
    fake: FakeApi, head: Path
) -> None:
    """In a pipe every byte is as the job wrote it."""
    fake.output[1, "stdout"] = b"\x1b]0;title\x07 \x1b[31mred\x1b[0m"
    command = [sys.executable, "-m", "gsched.cli.commands.gpeek", "1"]
    environment = dict(os.environ) | {"GSCHED_HEAD": str(head)}

    def shown(*more: str) -> bytes:
        terminal = Sitting([*command, *more], env=environment)
        assert terminal.code() == 0
        terminal.close()
        return terminal.seen

    assert b"\\x1b]0;title\\x07 \x1b[31mred\x1b[0m" in shown()
    assert b"\x1b]0;title\x07" in shown("--raw")
    piped = run_command("gpeek", "1", head=head)
    assert piped.stdout == "\x1b]0;title\x07 \x1b[31mred\x1b[0m"


@pytest.mark.parametrize("words", [[], ["-n", "1"], ["-f"]])
def test_the_reason_of_a_job_that_failed_is_a_note(
    head: Path, fake: FakeApi, words: list[str]
) -> None:
    """Its own output cannot tell that no more of it could be written."""
    reason = "the file system of /tmp/outbox on n1, where its output waits to return, is full"
    outcome = OutcomeRow(kind="exited", exit_status=1, shell_status=1, exit_code=1, message=reason)
    fake.add(make_row(2, state="done", letter="C", outcome=outcome))
    fake.output[2, "stdout"] = b"first\n"

    ran = run_command("gpeek", *words, "2", head=head)

    assert (ran.status, ran.stdout) == (0, "first\n")
    assert ran.stderr == f"gpeek: job 2: {reason}\n"
