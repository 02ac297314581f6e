"""Moments and windows of sacct, and the order of squeue: as Slurm 22.05.8 reads them."""

import contextlib
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.fields import Listing, in_order
from gsched.cli.slurm.moments import past_moment
from gsched.cli.slurm.sacct import TimeSpan, window_of
from gsched.model.ids import element_number, short_job_id
from gsched.protocol.job_rows import JobList
from tests.support.fake_api import NOW_S, make_row

AT_S = 1_795_692_354.0  # 2026-11-26T11:25:54 UTC
pytestmark = pytest.mark.usefixtures("utc")


@pytest.fixture(scope="module")
def utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def shown(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-26T11:25:54"),
        ("now-1day", "2026-11-25T11:25:54"),
        ("now-2days", "2026-11-24T11:25:54"),
        ("now-1hour", "2026-11-26T10:25:54"),
        ("now+30minutes", "2026-11-26T11:55:54"),
        ("now-90", "2026-11-26T11:24:24"),
        ("now-1week", "2026-11-19T11:25:54"),
        ("now-1weeks", "2026-11-19T11:25:54"),
        ("now-5minute", "2026-11-26T11:20:54"),
        ("now-10second", "2026-11-26T11:25:44"),
        ("2026-11-20", "2026-11-20T00:00:00"),
        ("2026-11-20T10:20", "2026-11-20T10:20:00"),
        ("2026-11-20T10:20:30", "2026-11-20T10:20:30"),
        ("11/20", "2026-11-20T00:00:00"),
        ("11/20/26", "2026-11-20T00:00:00"),
        ("11/20/99", "2099-11-20T00:00:00"),
        ("11/20/70", "2070-11-20T00:00:00"),
        ("11/20-10:20", "2026-11-20T10:20:00"),
        ("112026", "2026-11-20T00:00:00"),
        ("1120", "2026-11-20T00:00:00"),
        ("010203", "2003-01-02T00:00:00"),
        ("10:20", "2026-11-26T10:20:00"),
        ("10:20:30", "2026-11-26T10:20:30"),
        ("23:50", "2026-11-26T23:50:00"),
        ("midnight", "2026-11-26T00:00:00"),
        ("noon", "2026-11-26T12:00:00"),
        ("teatime", "2026-11-26T16:00:00"),
        ("fika", "2026-11-26T15:00:00"),
        ("today", "2026-11-26T00:00:00"),
        ("tomorrow", "2026-11-27T00:00:00"),
        ("10:20PM", "2026-11-26T22:20:00"),
        ("10:20am", "2026-11-26T10:20:00"),
        ("12:10am", "2026-11-26T00:10:00"),
        ("12:10pm", "2026-11-26T12:10:00"),
        ("2026-11-20 10:20", "2026-11-20T10:20:00"),
        ("11.20.26", "2026-11-20T00:00:00"),
        ("12/31", "2025-12-31T00:00:00"),
        ("11/27", "2026-11-27T00:00:00"),
        ("now - 1 day", "2026-11-25T11:25:54"),
        ("now -1 day", "2026-11-25T11:25:54"),
        ("now-1 day", "2026-11-25T11:25:54"),
        ("11/20/26-10:20", "2026-11-20T10:20:00"),
        ("10:20-11/20", "2026-11-20T10:20:00"),
        ("NOW", "2026-11-26T11:25:54"),
        ("Noon", "2026-11-26T12:00:00"),
        ("2026-02-30", "2026-03-02T00:00:00"),
        ("1/2", "2026-01-02T00:00:00"),
        ("1/2/26", "2026-01-02T00:00:00"),
        ("01/02/26T10:00", "2026-01-02T10:00:00"),
        ("11/20T10:20", "2026-11-20T10:20:00"),
        ("today noon", "2026-11-26T12:00:00"),
        ("tomorrow 10:20", "2026-11-27T10:20:00"),
        ("2026-11-20T", "2026-11-20T00:00:00"),
        ("2026-11-20T9:05", "2026-11-20T09:05:00"),
        ("9:05", "2026-11-26T09:05:00"),
        ("0:00", "2026-11-26T00:00:00"),
        ("23:59:59", "2026-11-26T23:59:59"),
        ("12/31T10:00", "2025-12-31T10:00:00"),
        ("now-0days", "2026-11-26T11:25:54"),
        ("10:20-tomorrow", "2026-11-27T10:20:00"),
        ("10:20-1231", "2025-12-31T10:20:00"),
        ("10:20 12/31", "2025-12-31T10:20:00"),
    ],
)
def test_a_moment_is_read_as_slurm_reads_it(text: str, expected: str) -> None:
    """Its sacct has printed these, but for the seconds of ``now``."""
    assert shown(past_moment(text, now_s=AT_S)) == expected


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("now-5min", 4),
        ("now-5sec", 4),
        ("now-3d", 4),
        ("now-3h", 4),
        ("now-1w", 4),
        ("now-1s", 4),
        ("elevenses", 0),
        ("today-1day", 7),
        ("noon-1hour", 6),
        ("midnight-1day", 10),
        ("2026-1-2", 0),
        ("00:00:60", 6),
        ("epoch", 0),
        ("20261120", 0),
        ("now+1day1hour", 9),
        ("now-1day+1hour", 8),
        ("26-11-20", 0),
        ("2026/11/20", 0),
        ("now-5m", 4),
        ("2026-11-20T10", 13),
        ("10", 2),
        ("20.11.26", 0),
        ("11/20/2026", 8),
        ("2026-11", 0),
        ("uptime", 0),
        ("now-1foo", 4),
        ("foo", 0),
        ("now-1months", 4),
        ("now-1year", 4),
        ("2026-11-20T10:20:30.5", 19),
        ("1764000000", 0),
        ("24:00", 0),
        ("13/45", 0),
        ("now+", 3),
        ("yesterday", 0),
    ],
)
def test_what_is_no_moment_is_refused_where_slurm_stops(text: str, place: int) -> None:
    with pytest.raises(SlurmError) as refused:
        past_moment(text, now_s=AT_S)
    assert refused.value.message == f"Invalid time specification (pos={place}): {text}"


@given(st.text(alphabet="0123456789:/.-+T nowdaymitresku\n", max_size=24))
def test_any_other_text_is_a_moment_or_refused(text: str) -> None:
    with contextlib.suppress(SlurmError):
        past_moment(text, now_s=AT_S)


@pytest.mark.parametrize(
    ("since", "until", "others", "expected"),
    [
        ("", "", "", ("2026-11-26T00:00:00", "2026-11-26T11:25:55")),
        ("", "", "s", ("2026-11-26T11:25:54", "2026-11-26T11:25:55")),
        ("now-1day", "", "s", ("2026-11-25T11:25:54", "2026-11-25T11:25:55")),
        ("now-1day", "now", "s", ("2026-11-25T11:25:54", "2026-11-26T11:25:54")),
        ("now-1day", "", "", ("2026-11-25T11:25:54", "2026-11-26T11:25:55")),
        ("", "", "j", ("1970-01-01T00:00:00", "2026-11-26T11:25:55")),
        ("", "", "js", ("1970-01-01T00:00:00", "2026-11-26T11:25:55")),
        ("now-1day", "", "js", ("2026-11-25T11:25:54", "2026-11-25T11:25:55")),
        ("", "now-2days", "j", ("1970-01-01T00:00:00", "2026-11-24T11:25:54")),
        ("", "now+1day", "s", ("2026-11-26T11:25:54", "2026-11-27T11:25:54")),
    ],
)
def test_the_window_depends_on_what_else_is_stated(
    since: str, until: str, others: str, expected: tuple[str, str]
) -> None:
    """As ``sacct -v`` tells it."""
    named, states = "j" in others, "s" in others
    window = window_of(since, until, is_named=named, has_states=states, now_s=AT_S)
    assert tuple(map(shown, window)) == expected


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(SlurmError) as refused:
        window_of("", "now-1day", is_named=False, has_states=False, now_s=AT_S)
    assert refused.value.message == (
        "Start time (2026-11-26T00:00:00) requested is after end time (2026-11-25T11:25:54)."
    )


def test_jobs_are_in_a_window_by_the_state_that_they_had_then() -> None:
    outcome = {"kind": "exited", "exit_status": 0, "shell_status": 0, "exit_code": 0}
    job = make_row(
        1, state="done", outcome=outcome, submitted_s=100.0, started_s=200.0, ended_s=300.0
    )
    waits = make_row(2, submitted_s=100.0)

    def states(since_s: float, until_s: float) -> set[str]:
        names = ("PENDING", "R", "COMPLETED", "F")
        window = TimeSpan(since_s, until_s)
        return {name for name in names if window.holds(job, frozenset({name}))}

    assert states(120.0, 130.0) == {"PENDING"}
    assert states(250.0, 260.0) == {"R"}
    assert states(290.0, 310.0) == {"R", "COMPLETED"}
    assert states(310.0, 320.0) == set()
    assert states(0.0, 90.0) == set()
    assert not TimeSpan(310.0, 320.0).holds(job, frozenset())
    assert TimeSpan(290.0, 320.0).holds(job, frozenset())
    assert TimeSpan(310.0, 320.0).holds(waits, frozenset({"PD"}))
    assert not TimeSpan(310.0, 320.0).holds(waits, frozenset({"R", "CD"}))


ROWS = (
    make_row(7, name="b", queue="short", cpus=4, submitted_s=NOW_S - 5),
    make_row(3, name="a", queue="batch", cpus=1, priority=5, submitted_s=NOW_S - 9),
    make_row(element_number(5, 10), name="c", queue="batch", state="running", cpus=2,
        nodes=("n10",), started_s=NOW_S - 60),
    make_row(element_number(5, 2), name="c", queue="batch", state="running", cpus=2,
        nodes=("n2",), started_s=NOW_S - 90, walltime_s=100.0),
    make_row(4, name="D", queue="batch", cpus=1, submitted_s=NOW_S - 7),
)  # fmt: skip


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("i", "3 4 5[2] 5[10] 7"),
        ("-i", "7 5[10] 5[2] 4 3"),
        ("j", "4 3 7 5[2] 5[10]"),
        ("C,-i", "4 3 5[10] 5[2] 7"),
        ("P,t,-Q", "3 4 5[2] 5[10] 7"),
        ("Pt-i", "4 3 5[10] 5[2] 7"),
        ("-t,+i", "5[2] 5[10] 3 4 7"),
        ("N", "5[2] 5[10] 3 4 7"),
        ("-M", "5[2] 5[10] 3 4 7"),
        ("S", "5[2] 5[10] 3 4 7"),
        ("L,i", "5[2] 3 4 5[10] 7"),
        ("V", "5[2] 5[10] 3 4 7"),
        ("cluster", "3 4 5[2] 5[10] 7"),
        ("z,-,i", "3 4 5[2] 5[10] 7"),
    ],
)
def test_jobs_are_in_the_order_of_the_fields_that_are_named(order: str, expected: str) -> None:
    """Each letter is a field, also without commas; the first one counts most."""
    reply = JobList(server="s", now_s=NOW_S, jobs=ROWS)
    assert " ".join(short_job_id(row.id) for row in in_order(Listing.of(reply), order)) == expected


@pytest.mark.parametrize(("order", "letter"), [("X", "X"), ("P, i", " "), ("i,#P", "#")])
def test_what_is_no_field_is_refused(order: str, letter: str) -> None:
    with pytest.raises(SlurmError, match=f"Invalid sort specification: {letter}$"):
        in_order(Listing("s", NOW_S, ROWS), order)
