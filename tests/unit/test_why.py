"""gstat --why: a sentence, then a line for each thing, and nothing twice."""

import pytest

from gsched.cli.show.why import print_why, why_lines, why_sentence
from gsched.protocol import job_rows
from gsched.protocol.job_rows import AheadRow, AheadRows, StartRow
from tests.support.fake_api import NOW_S, make_row, make_story

NEEDS = "needs 3 CPUs on one node; no node has enough free (2 nodes lack CPUs)"
BEFORE = "2 jobs with the same request ahead in the queue (next: job 5)"
REMEDY = "2 CPUs instead of 3 would fit now: galter -l nodes=1:ppn=2 7"


def story(
    cause: str, *, row: dict[str, object] | None = None, **changes: object
) -> job_rows.JobStory:
    fields: dict[str, object] = {"name": "fill4", "reason": cause, **(row or {})}
    return make_story(make_row(7, **fields), cause=cause, **changes)


@pytest.mark.parametrize(
    ("cause", "row", "sentence"),
    [
        (NEEDS, {}, f"Job 7.fake (fill4) {NEEDS}"),
        ("held by user", {"state": "held"}, "Job 7.fake (fill4) is held by user"),
        (
            "waits for its dependencies: afterok:3",
            {"state": "held"},
            "Job 7.fake (fill4) waits for its dependencies: afterok:3",
        ),
        ("queue batch is stopped", {}, "Job 7.fake (fill4) is queued: queue batch is stopped"),
        (
            "waiting for the next scheduling cycle",
            {},
            "Job 7.fake (fill4) is waiting for the next scheduling cycle",
        ),
        ("", {"state": "running"}, "Job 7.fake (fill4) is running"),
        (
            "",
            {
                "state": "done",
                "outcome": {"kind": "exited", "exit_status": 3, "shell_status": 3, "exit_code": 3},
            },
            "Job 7.fake (fill4) is done: failed with exit code 3",
        ),
    ],
)
def test_the_first_line_is_a_sentence(cause: str, row: dict[str, object], sentence: str) -> None:
    assert why_sentence(story(cause, row=row)) == sentence


def test_each_thing_has_its_line_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """What the list says of jobs ahead is the position here, and not said again."""
    ahead = AheadRows(
        jobs=12,
        cpus=36,
        gpus=2,
        first=(
            AheadRow(id=5, name="fill2", user="root", cpus=3, walltime_s=600.0),
            AheadRow(id=2**40 + 6 * 2**20 + 11, name="many", user="bob", cpus=3, gpus=1),
        ),
    )
    start = StartRow(
        expected_s=NOW_S + 600, early_s=NOW_S + 300, late_s=NOW_S + 900,
        scenarios=20, counted=12, learned=12, runs=40,
    )  # fmt: skip
    row = {"reason": f"{BEFORE}; {NEEDS}", "start": start}

    print_why(story(NEEDS, row=row, ahead=12, ahead_jobs=ahead, remedy=REMEDY))

    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"Job 7.fake (fill4) {NEEDS}"
    assert [line[:20].strip() for line in lines] == [
        *("position:", "", "", "", "expected start:", "based on:", "remedy:"),
    ]
    texts = [line[20:] for line in lines]
    assert texts[:4] == [
        "13 in queue batch, 12 jobs ahead with 36 CPUs and 2 GPUs in total",
        "5      fill2  root  3 CPUs, walltime 00:10:00",
        "6[11]  many   bob   3 CPUs, 1 GPU",
        "and 10 more",
    ]
    assert "(between " in texts[4]
    assert texts[5:] == ["run times learned from 40 runs", REMEDY]


@pytest.mark.parametrize(
    ("cause", "state", "unknown", "expected"),
    [
        (
            "held by user",
            "held",
            "the job is held by user; its start can be predicted once it is released",
            "cannot be predicted before it is released",
        ),
        ("queue batch is stopped", "queued", "queue batch is stopped", "cannot be predicted"),
        (
            NEEDS,
            "queued",
            "it waits for job 3, which is held by user",
            "cannot be predicted: it waits for job 3, which is held by user",
        ),
    ],
)
def test_why_a_start_is_unknown_is_said_where_the_reason_does_not_say_it(
    cause: str, state: str, unknown: str, expected: str
) -> None:
    waits = story(cause, row={"state": state, "start": StartRow(unknown=unknown)})

    assert ("expected start", expected) in list(why_lines(waits))


def test_a_head_that_does_not_tell_the_cause_is_understood() -> None:
    whole = f"{BEFORE}; {NEEDS}"
    older = make_story(make_row(7, reason=whole), ahead=2)

    assert why_sentence(older) == f"Job 7.fake (train) is queued: {whole}"
    assert list(why_lines(older)) == [("position", "3 in queue batch, 2 jobs ahead")]
