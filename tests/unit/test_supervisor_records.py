"""Exit records from what was seen, torchrun reports of doubtful quality, orders half written."""

import json
import os
import pathlib
from typing import Any, get_args

import msgspec
import pytest

from gnode.supervisor import errors, journal, record, spool
from gnode.supervisor.asking import Asking
from gnode.supervisor.ending import Ending
from gnode.supervisor.spool import JournalCommands
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.states import LaunchStage, OutcomeKind, Subject
from tests.support.records import a_task

EXIT_7 = 7 << 8


def ended(status: int | None, ending: Ending | None = None, **changes: Any) -> ExitRecord:
    seen = record.Seen(started_s=5000.0, started_boottime_s=100.0)
    seen.status = status
    made = record.ended(
        a_task(**changes), seen, ending or Ending(walltime_s=None, grace_s=1), Asking()
    )
    assert set(made) <= set(ExitRecord.__struct_fields__)
    return msgspec.json.decode(json.dumps(made).encode(), type=ExitRecord)


@pytest.fixture
def report(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "report"


def test_an_unknown_status_is_never_success() -> None:
    made = ended(None)

    assert made.kind is OutcomeKind.SUPERVISOR_LOST
    assert (made.exit_code, made.signal) == (None, None)


def test_the_agent_s_report_names_the_first_failure(report: pathlib.Path) -> None:
    report.write_text('{"rank": 3, "failed_s": 5001.5, "exit_code": null, "signal": 11}')

    made = ended(139 << 8, failure_report=str(report))

    assert made.kind is OutcomeKind.SIGNALLED
    assert (made.signal, made.exit_code) == (11, None)
    assert (made.rank, made.failed_s) == (3, 5001.5)


def test_a_report_about_a_job_that_succeeded_is_not_read(report: pathlib.Path) -> None:
    report.write_text('{"rank": 3, "failed_s": 5001.5, "exit_code": 9}')

    made = ended(0, failure_report=str(report))

    assert (made.kind, made.exit_code, made.rank) == (OutcomeKind.EXITED, 0, None)


@pytest.mark.parametrize(("stopped_s", "rank"), [(101.0, None), (103.0, 1)])
def test_a_failure_after_our_stop_is_our_doing(
    report: pathlib.Path, stopped_s: float, rank: int | None
) -> None:
    report.write_text('{"rank": 1, "failed_s": 5002.0, "exit_code": 1}')
    ending = Ending(walltime_s=None, grace_s=1)
    ending.stop("peer_failed", 1, stopped_s)

    assert ended(EXIT_7, ending, failure_report=str(report)).rank == rank


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"failed_s": "soon"}',
        '{"failed_s": true, "rank": 1}',
        '{"failed_s": -1, "rank": 1}',
        '{"failed_s": 1e400, "rank": 1}',
        f'{{"failed_s": {"9" * 400}, "rank": 1}}',
        "\udcff",
    ],
)
def test_a_report_that_is_none_changes_nothing(report: pathlib.Path, text: str) -> None:
    report.write_text(text, errors="surrogateescape")

    made = ended(EXIT_7, failure_report=str(report))

    assert (made.kind, made.exit_code, made.rank) == (OutcomeKind.EXITED, 7, None)


@pytest.mark.parametrize("field", ['"rank": -1', '"exit_code": 0', '"signal": 900', '"message": 1'])
def test_a_field_that_cannot_be_is_left_out(report: pathlib.Path, field: str) -> None:
    report.write_text(f'{{"failed_s": 5001, {field}}}')

    made = ended(EXIT_7, failure_report=str(report))

    assert (made.kind, made.exit_code, made.rank) == (OutcomeKind.EXITED, 7, None)
    assert made.failed_s == 5001


def test_a_report_that_is_a_link_or_a_pipe_is_not_read(
    report: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "real").write_text('{"rank": 3, "failed_s": 5001.5, "exit_code": 9}')
    report.symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")

    assert ended(EXIT_7, failure_report=str(report)).rank is None
    assert ended(EXIT_7, failure_report=str(tmp_path / "pipe")).rank is None
    assert ended(EXIT_7, failure_report=str(tmp_path / "real")).rank == 3


def test_a_message_that_is_no_text_can_still_be_read(report: pathlib.Path) -> None:
    report.write_text('{"failed_s": 5001, "message": "\\ud800 boom"}')

    assert ended(EXIT_7, failure_report=str(report)).message == "\\ud800 boom"


@pytest.mark.parametrize("subject", get_args(errors.Subject))
@pytest.mark.parametrize("stage", get_args(errors.Stage))
def test_a_launch_failure_follows_the_schema(stage: errors.Stage, subject: errors.Subject) -> None:
    error = errors.LaunchError("no", stage=stage, subject=subject, errno=5)

    made = record.never_ran(a_task(), error)

    decoded = msgspec.json.decode(json.dumps(made).encode(), type=ExitRecord)
    expected = LaunchFailure(stage=LaunchStage(stage), subject=Subject(subject), errno=5)
    assert (decoded.job, decoded.attempt, decoded.failure) == (12, 2, expected)
    assert set(made) <= set(ExitRecord.__struct_fields__)
    unreadable = record.unreadable("12.2", ValueError("x"))
    assert msgspec.convert(unreadable, ExitRecord).kind is OutcomeKind.LAUNCH_FAILED


def test_orders_are_read_once_and_only_whole_lines(tmp_path: pathlib.Path) -> None:
    journal.make_journal(str(tmp_path)).close()
    file = tmp_path / journal.NAME
    commands = JournalCommands(str(tmp_path), journal.open_journal(str(tmp_path)))
    assert commands.read() == []

    file.write_text('{"a": 1}\n{"b"')
    assert commands.read() == [{"a": 1}]
    assert commands.read() == []

    with file.open("a") as more:
        more.write(': 2}\nnonsense\n{"c": 3}\n')
    assert commands.read() == [{"b": 2}, {"c": 3}]


def test_one_attempt_has_one_supervisor_for_ever(tmp_path: pathlib.Path) -> None:
    (tmp_path / "task.json").write_text(json.dumps(vars(a_task())))
    directory = str(tmp_path)
    journal.make_journal(directory).close()

    first = spool.claim(directory)
    assert first is not None
    assert spool.claim(directory) is None
    assert spool.is_claimed(directory)
    first.close()
    assert not spool.is_claimed(directory)
    again = spool.claim(directory)
    assert again is not None
    assert not spool.was_begun(directory)

    again.journal.announce_start()
    assert spool.was_begun(directory)
    assert not spool.may_have_run(directory)
    again.close()
    assert spool.claim(directory) is None


def test_what_the_launcher_has_opened_is_claimed_without_its_path(tmp_path: pathlib.Path) -> None:
    """The lock is on the file that the launcher has looked at, whatever the path leads to."""
    (tmp_path / "task.json").write_text(json.dumps(vars(a_task())))
    directory = str(tmp_path)
    journal.make_journal(directory).close()
    before = set(os.listdir("/proc/self/fd"))

    claimed = spool.claim("/nowhere", spool.open_task(directory))
    assert claimed is not None
    assert claimed.task.argv == a_task().argv
    assert spool.is_claimed(directory)

    assert spool.claim("/nowhere", spool.open_task(directory)) is None
    claimed.close()
    assert not spool.is_claimed(directory)
    assert set(os.listdir("/proc/self/fd")) == before
