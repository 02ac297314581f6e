"""What the commands about existing jobs read from their command lines."""

import signal
import time

import pytest

from gsched.cli.commands.galter import absolute_output, make_alteration
from gsched.cli.moments import parse_coming, parse_moment
from gsched.cli.operands import (
    normal_ids,
    parse_grace_s,
    parse_hold_list,
    parse_signal,
)
from gsched.cli.submit.deadline import parse_deadline
from gsched.cli.times import parse_start_time
from gsched.errors import BadResourceError, UsageError
from gsched.protocol.actions import Alteration

NOW_S = time.mktime((2026, 11, 21, 17, 30, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("TERM", 15),
        ("SIGTERM", 15),
        ("sigterm", 15),
        ("9", 9),
        ("suspend", signal.SIGSTOP),
        ("resume", signal.SIGCONT),
        ("SIGNULL", 0),
        ("0", 0),
        ("USR1", signal.SIGUSR1),
    ],
)
def test_a_signal_is_read_with_and_without_sig(text: str, number: int) -> None:
    """POSIX: names with or without SIG, any case, or numbers; Torque's two words."""
    assert parse_signal(text) == number


@pytest.mark.parametrize(("text", "close"), [("TREM", "TERM"), ("-9", ""), ("999", ""), ("", "")])
def test_no_signal_is_refused_with_the_nearest_name(text: str, close: str) -> None:
    """What was asked stands in the message."""
    with pytest.raises(UsageError, match=f"-s: unknown signal '{text}'") as caught:
        parse_signal(text)
    assert close in caught.value.hint


def test_a_hold_list_names_each_kind_once() -> None:
    """Order does not matter, repetition neither; n is nothing."""
    assert parse_hold_list("u") == ("user",)
    assert parse_hold_list("os") == ("operator", "system")
    assert parse_hold_list("uu") == ("user",)
    assert parse_hold_list("n") == ()
    for wrong in ("un", "x", ""):
        with pytest.raises(UsageError, match="invalid hold list"):
            parse_hold_list(wrong)


def test_grace_is_seconds_or_force() -> None:
    """Torque gives a delay in seconds, OpenPBS force or a number of mails, which are never sent."""
    assert parse_grace_s("") is None
    assert parse_grace_s("300") == 300
    assert parse_grace_s("5m") == 300
    assert parse_grace_s("0") == 0
    assert parse_grace_s("force") == 0
    assert parse_grace_s("suppress_email=3") is None
    with pytest.raises(UsageError, match="invalid value 'kill_delay=3'"):
        parse_grace_s("kill_delay=3")
    with pytest.raises(BadResourceError, match="soon"):
        parse_grace_s("soon")


def test_all_is_recognised_in_any_case() -> None:
    """Torque takes ALL, too; nothing else is changed."""
    assert normal_ids(("ALL", "17.srv", "All")) == ("all", "17.srv", "all")


def alter(**options: "str | int | tuple[str, ...] | None") -> Alteration:
    """Return what galter sends for some of its options."""
    return make_alteration(options, now_s=NOW_S, directory="/site")


def test_galter_sends_only_what_was_said() -> None:
    """What is not mentioned stays as it is: None, not a default."""
    assert alter(name="x", account=None, resources=()) == Alteration(name="x")
    assert alter(priority=-1024) == Alteration(priority=-1024)
    assert alter(priority=0) == Alteration(priority=0)
    assert alter(resources=("walltime=+1:00:00",)) == Alteration(resources=("walltime=+1:00:00",))
    assert alter(hold_list="n") == Alteration(holds=())
    assert alter(rerunnable="n") == Alteration(rerunnable=False)
    assert alter(grace="5m") == Alteration(grace_s=300.0)
    assert alter(attributes=("kill_delay=7",)) == Alteration(grace_s=7.0)
    assert alter(start_after="202611220800").start_after_s == NOW_S + 14.5 * 3600


def test_galter_reads_mail_points_and_recipients() -> None:
    assert alter(mail_points="eb") == Alteration(mail_points="be")
    assert alter(mail_points="n", mail_to="me") == Alteration(mail_points="n", mail_to="me")
    assert alter(mail_to="") == Alteration(mail_to="")
    for wrong in ({"mail_points": "x"}, {"mail_points": "j"}, {"mail_to": "a b"}):
        with pytest.raises(UsageError, match="invalid"):
            alter(**wrong)


def test_galter_without_anything_to_change_is_an_error() -> None:
    """Otherwise a forgotten option would look like success."""
    with pytest.raises(UsageError, match="nothing to change"):
        alter(name=None, resources=())
    with pytest.raises(UsageError, match="unknown attribute 'stagein'"):
        alter(attributes=("stagein=x@y:z",))


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("/a/b", "/a/b"),
        ("out/", "/site/out/"),
        ("a:b", "/site/b"),
        ("host:/a/b", "/a/b"),
        ("./a:b", "/site/./a:b"),
        ("~/x", "~/x"),
        ("$HOME/x", "$HOME/x"),
    ],
)
def test_output_paths_belong_to_the_callers_directory(path: str, absolute: str) -> None:
    """A host is dropped; what only the owner's shell knows is left to the node."""
    assert absolute_output(path, "/site") == absolute


def local(*moment: int) -> float:
    """Return the seconds since the epoch of a local time."""
    year, month, day, hour, minute = (*moment, 0, 0)[:5]
    return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "moment_s"),
    [
        ("now", NOW_S),
        ("today", local(2026, 11, 21)),
        ("yesterday", local(2026, 11, 20)),
        ("2d", NOW_S - 2 * 86400),
        ("1h30m", NOW_S - 5400),
        ("2026-11-20", local(2026, 11, 20)),
        ("2026-11-20 08:05", local(2026, 11, 20, 8, 5)),
        ("2026-11-20T08:05:00", local(2026, 11, 20, 8, 5)),
        ("2026-11", local(2026, 11, 1)),
        ("yesterday 08:05", local(2026, 11, 20, 8, 5)),
        ("today 08:05:30", local(2026, 11, 21, 8, 5) + 30),
        ("08:05", local(2026, 11, 21, 8, 5)),
        ("@1700000000", 1_700_000_000.0),
        ("yesterday 14:30", local(2026, 11, 20, 14, 30)),
        ("Monday", local(2026, 11, 16)),
        ("fri 09:00", local(2026, 11, 20, 9)),
        ("saturday 23:59", local(2026, 11, 14, 23, 59)),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, moment_s: float) -> None:
    """Days begin at midnight of local time."""
    assert parse_moment(text, now_s=NOW_S, option="--since") == moment_s


@pytest.mark.parametrize(
    ("text", "moment_s"),
    [
        ("now", NOW_S),
        ("+4h", NOW_S + 14400),
        ("23:58", local(2026, 11, 21, 23, 58)),
        ("00:01", local(2026, 11, 22, 0, 1)),
        ("tomorrow", local(2026, 11, 22)),
        ("tomorrow 08:00", local(2026, 11, 22, 8)),
        ("tomorrow  8:05", local(2026, 11, 22, 8, 5)),
        ("tomorrowT08:00", local(2026, 11, 22, 8)),
        ("monday 08:00", local(2026, 11, 23, 8)),
        ("Saturday 00:01", local(2026, 11, 28, 0, 1)),
        ("2026-12-01 08:00", local(2026, 12, 1, 8)),
    ],
)
def test_options_of_coming_times_have_one_parser(text: str, moment_s: float) -> None:
    """Of maintenance and reservations, and of ``-a`` what Torque does not read."""
    assert parse_coming(text, now_s=NOW_S, option="--from") == moment_s
    if "-" not in text and text != "now":
        assert parse_start_time(text, now_s=NOW_S) == moment_s
    if " " in text and not text[0].isdigit():
        assert parse_deadline(text, now_s=NOW_S).at_s == moment_s


@pytest.mark.parametrize(
    ("text", "moment_s"),
    [
        ("tomorrow 18:00", local(2026, 11, 22, 18)),
        ("18:00", local(2026, 11, 24, 18)),
        ("+90m", local(2026, 11, 24, 9, 30)),
        ("now", NOW_S),
    ],
)
def test_an_end_counts_from_its_beginning_and_days_from_now(text: str, moment_s: float) -> None:
    """Tomorrow is the day after this one, also where a maintenance begins later."""
    begin_s = local(2026, 11, 24, 8)

    assert parse_coming(text, now_s=NOW_S, option="--to", begin_s=begin_s) == moment_s


@pytest.mark.parametrize("text", ["07:00", "08:00"])
def test_an_end_before_a_stated_beginning_is_refused_with_the_next_day(text: str) -> None:
    """The hint is read as that; without a stated beginning the next such time is meant."""
    begin_s = local(2026, 11, 24, 8)
    with pytest.raises(UsageError, match=f"--to: {text} is not after the beginning") as caught:
        parse_coming(text, now_s=NOW_S, option="--to", begin_s=begin_s)
    assert "2026-11-24 08:00" in caught.value.message
    words = caught.value.hint.split("'")[1]
    hour = int(text[:2])
    assert parse_coming(words, now_s=NOW_S, option="--to") == local(2026, 11, 25, hour)
    assert parse_coming(text, now_s=begin_s, option="--to") == local(2026, 11, 25, hour)


@pytest.mark.parametrize(
    "text", ["tomorrow noon", "tomorrow 25:00", "tomorrow 8", "tomorrows", "+tomorrow", "+x"]
)
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--from: invalid time") as caught:
        parse_coming(text, now_s=NOW_S, option="--from")
    assert "'tomorrow 08:00'" in caught.value.hint


def test_a_time_ago_is_no_time_to_come() -> None:
    with pytest.raises(UsageError, match="a time ago"):
        parse_coming("2d", now_s=NOW_S, option="--from")


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "2026-13-01", "5", "-2d", "2026-02-30", "d", "@x"),
        *("tomorrow", "now 08:00", "today 2d", "today 25:00"),
    ],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    """The message names the option and shows the value."""
    with pytest.raises(UsageError, match="--until") as caught:
        parse_moment(text, now_s=NOW_S, option="--until")
    assert repr(text) in caught.value.message


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_yesterday_is_right_when_clocks_change(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """A day of 23 or 25 hours is one day."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for month, day in ((3, 29), (3, 30), (10, 25), (10, 26), (3, 8), (11, 1), (11, 2)):
            now_s = local(2026, month, day, 3, 30)
            moment_s = parse_moment("yesterday", now_s=now_s, option="--since")

            assert time.localtime(moment_s)[3:6] == (0, 0, 0)
            assert time.localtime(moment_s + 43200)[2] == time.localtime(now_s - 86400)[2]
    finally:
        monkeypatch.undo()
        time.tzset()
