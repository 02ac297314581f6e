"""Frames of terminal sessions, the history of output, and escapes at the keyboard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched import terminal as t
from gsched.terminal import Escape, FrameKind, History, Keyboard, TerminalSize

SIDES = st.integers(0, 0xFFFF)


@given(SIDES, SIDES)
def test_a_window_size_survives_the_way(rows: int, columns: int) -> None:
    kind, content = t.split(t.window_frame(TerminalSize(rows, columns)))

    assert kind is FrameKind.WINDOW
    assert t.window_of(content) == (rows, columns)


@given(SIDES, SIDES, st.none() | st.integers(0, 2**63))
def test_a_request_to_attach_survives_the_way(rows: int, columns: int, offset: int | None) -> None:
    kind, content = t.split(t.attach_frame(TerminalSize(rows, columns), offset=offset))

    assert kind is FrameKind.ATTACH
    assert t.attach_of(content) == ((rows, columns), offset)


@pytest.mark.parametrize("status", [0, 3, 255, -9])
def test_an_exit_status_survives_the_way(status: int) -> None:
    kind, content = t.split(t.end_frame(status))

    assert kind is FrameKind.END
    assert t.end_of(content) == status


@pytest.mark.parametrize("message", [b"", b"?", b"q123", b"d" * (t.MAX_FRAME_BYTES + 1)])
def test_what_is_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(t.FrameError):
        t.split(message)


@pytest.mark.parametrize("read", [t.window_of, t.attach_of, t.offset_of, t.end_of])
@given(content=st.binary(max_size=40))
def test_a_content_of_the_wrong_length_is_refused(read, content: bytes) -> None:  # type: ignore[no-untyped-def] # four functions of different types
    lengths = {t.window_of: 4, t.attach_of: 12, t.offset_of: 8, t.end_of: 4}
    if len(content) == lengths[read]:
        read(content)
    else:
        with pytest.raises(t.FrameError):
            read(content)


# --- the history ---


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_the_history_keeps_the_newest_output_and_counts_all(parts: list[bytes], most: int) -> None:
    history = History(most)
    for part in parts:
        history.add(part)
    whole = b"".join(parts)

    assert history.end == len(whole)
    assert history.begin == max(0, len(whole) - most)
    for seen in range(history.begin, history.end + 1):
        assert history.since(seen) == (seen, whole[seen:])


@given(st.binary(min_size=10, max_size=60))
def test_a_cut_history_begins_with_a_whole_line(data: bytes) -> None:
    history = History(9)
    history.add(data)

    begin, kept = history.since(None)

    assert data.endswith(kept)
    assert begin == len(data) - len(kept)
    assert b"\n" not in data[-9:] or data[begin - 1 : begin] == b"\n"


def test_who_has_seen_what_is_forgotten_gets_all_that_is_kept() -> None:
    history = History(8)
    history.add(b"one\ntwo\nthree\n")

    assert history.since(2) == (8, b"three\n")
    assert history.since(99) == (8, b"three\n")
    assert history.since(14) == (14, b"")


# --- the keyboard ---


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (b"~.", [Escape.ABORT]),
        (b"~d", [Escape.DETACH]),
        (b"ls\r~?", [b"ls\r", Escape.HELP]),
        (b"ls ~.", [b"ls ~."]),
        (b"~~.", [b"~."]),
        (b"~/bin\r", [b"~/bin\r"]),
        (b"\r~~\r~.x", [b"\r~\r", Escape.ABORT, b"x"]),
        (b"~?~?~d", [Escape.HELP, Escape.HELP, Escape.DETACH]),
        (b"~\r~.", [b"~\r", Escape.ABORT]),
    ],
)
def test_a_tilde_at_the_beginning_of_a_line_is_for_the_client(
    typed: bytes, found: list[bytes | Escape]
) -> None:
    assert Keyboard().typed(typed) == found

    keyboard = Keyboard()
    single = [each for value in typed for each in keyboard.typed(bytes((value,)))]
    assert _joined(single) == found


def test_an_escape_that_is_not_offered_is_typed() -> None:
    assert Keyboard(frozenset({Escape.ABORT})).typed(b"~d~.") == [b"~d~."]


@given(st.binary(max_size=80))
def test_without_tildes_everything_is_for_the_program(data: bytes) -> None:
    data = data.replace(b"~", b"")

    assert b"".join(each for each in Keyboard().typed(data) if isinstance(each, bytes)) == data


def _joined(found: list[bytes | Escape]) -> list[bytes | Escape]:
    joined: list[bytes | Escape] = []
    for each in found:
        if isinstance(each, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += each
        else:
            joined.append(each)
    return joined


# --- the allowance ---


def test_a_burst_is_free_and_a_flood_has_to_wait() -> None:
    allowance = t.Allowance(1000.0, burst_bytes=500)

    assert allowance.spend(500, 10.0) == 0.0
    assert allowance.spend(1000, 10.0) == pytest.approx(1.0)
    assert allowance.spend(1000, 11.0) == pytest.approx(1.0)
    assert allowance.spend(500, 100.0) == 0.0  # what was not used is not saved up
