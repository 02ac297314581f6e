"""The calendar of reservations on the page."""

import os
import time
from collections.abc import Iterator

import pytest

from gsched.model.reservation import Recurrence, Reservation
from gsched.model.resources import Share
from gsched.model.window import NodeWindow
from gsched.protocol.node_rows import NodeRow
from gsched.protocol.reservations import ReservationRow
from gschedd.monitor.page.reservations import DAY_WIDTH, DAYS, Calendar, calendar

DAY_S, HOUR_S = 86400.0, 3600.0
#: Thursday 2026-10-15 12:00 in Berlin; the clocks change on Sunday the 25th.
NOW_S = 1792058400.0


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def drawn(begin_s: float, hours: float, recur: Recurrence = Recurrence.NEVER) -> Calendar:
    kept = Reservation(
        name="course",
        from_s=begin_s,
        to_s=begin_s + hours * HOUR_S,
        shares=(Share(node="n1", cpus=4, exclusive=True),),
        users=("anna",),
        recur=recur,
        zone="Europe/Berlin",
    )
    return calendar([ReservationRow(reservation=kept)], [], now_s=NOW_S)


def test_a_window_is_at_its_time_of_day() -> None:
    (line,) = drawn(NOW_S + DAY_S, 6).lines

    assert (line.name, line.holds, line.users) == ("course", "1 node: n1", "users anna")
    (bar,) = line.bars
    assert (bar.left, bar.width, bar.is_now) == (1.5 * DAY_WIDTH, DAY_WIDTH / 4, False)
    assert line.words == "2026-10-16 12:00:00 to 2026-10-16 18:00:00"


def test_a_window_of_now_and_before_today_begins_at_the_edge() -> None:
    (bar,) = drawn(NOW_S - 2 * DAY_S, 100 * 24).lines[0].bars

    assert (bar.left, bar.width, bar.is_now) == (0.0, DAYS * DAY_WIDTH, True)


def test_windows_that_recur_keep_their_place_when_the_clocks_change() -> None:
    (line,) = drawn(NOW_S + HOUR_S, 1, Recurrence.DAILY).lines
    begin = 13 / 24 * DAY_WIDTH
    places = [bar.left % DAY_WIDTH for bar in line.bars]

    assert len(places) == DAYS
    assert places[:10] == pytest.approx([begin] * 10, abs=0.1)
    assert places[10] == pytest.approx(14 / 25 * DAY_WIDTH, abs=0.1)  # a day of 25 hours
    assert places[11:] == pytest.approx([begin] * 3, abs=0.1)
    assert line.words.endswith("and 11 more")


@pytest.mark.parametrize("begin_s", [NOW_S + 15 * DAY_S, NOW_S - 2 * DAY_S])
def test_what_is_not_in_these_days_has_no_line(begin_s: float) -> None:
    assert drawn(begin_s, 1).lines == []


def test_a_short_window_can_be_seen() -> None:
    (bar,) = drawn(NOW_S + HOUR_S, 0.1).lines[0].bars

    assert bar.width > DAY_WIDTH / 24


def test_maintenance_is_a_line_for_all_its_nodes() -> None:
    window = NodeWindow(number=3, from_s=NOW_S, to_s=NOW_S + HOUR_S, reason="new fans", by="root")
    nodes = [
        NodeRow(
            name=name,
            state="up",
            cpus=4,
            cpus_free=4,
            memory_bytes=1,
            memory_free_bytes=1,
            windows=(window,),
        )
        for name in ("n1", "n2")
    ]
    (line,) = calendar([], nodes, now_s=NOW_S).lines

    assert (line.name, line.holds, line.users) == ("", "2 nodes: n[1-2]", "new fans")


def test_days_have_names_and_weekends() -> None:
    found = calendar([], [], now_s=NOW_S)

    assert found.days[0] == ("Thu", "Oct 15")
    assert len(found.days) == DAYS
    assert found.weekends == [2, 3, 9, 10]
    assert found.now == DAY_WIDTH / 2
