"""Sessions of the page that were ended: they stay so, and the list stays small."""

import stat
from pathlib import Path

import pytest

from gschedd.monitor.ended_sessions import LISTED_MOST, LONGEST_S, DamagedListError, EndedSessions

DAY_S = 86_400.0


def end(sessions: EndedSessions, uid: int, name: str, begun_s: float, now_s: float) -> None:
    sessions.write(sessions.add(uid, name, begun_s, now_s))


def test_a_session_that_has_ended_has_ended_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ended"
    end(EndedSessions(str(path)), 1000, "a", 10.0, 20.0)
    again = EndedSessions(str(path))

    assert again.has(1000, "a", 10.0)
    assert not again.has(1000, "b", 10.0)
    assert not again.has(1001, "a", 10.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_list_of_a_user_is_bounded_and_forgets_no_session(tmp_path: Path) -> None:
    """With many, older sessions of this user are over, too; those of others are not."""
    path = str(tmp_path / "ended")
    sessions = EndedSessions(path)
    names = [f"s{number}" for number in range(LISTED_MOST + 10)]
    for number, name in enumerate(names):
        end(sessions, 1000, name, 100.0 + number, 1e4)
    again = EndedSessions(path)

    assert all(again.has(1000, name, 100.0 + number) for number, name in enumerate(names))
    assert again.has(1000, "older", 50.0)
    assert not again.has(1000, "newer", 100.0 + len(names))
    assert not again.has(1001, "older", 50.0)
    assert Path(path).stat().st_size < 40 * LISTED_MOST


def test_sessions_that_are_too_old_to_be_valid_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "ended"
    sessions = EndedSessions(str(path))
    end(sessions, 1000, "old", 0.0, DAY_S)
    end(sessions, 1001, "new", LONGEST_S, LONGEST_S + 2 * DAY_S)

    assert b"old" not in path.read_bytes()
    assert EndedSessions(str(path)).has(1001, "new", LONGEST_S)


@pytest.mark.parametrize("content", [b"", b'{"1000": {"begun_s": {"a": 1', b"[]", b'{"x": {}}'])
def test_a_damaged_list_is_no_empty_list(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ended"
    path.write_bytes(content)

    with pytest.raises(DamagedListError, match="ended"):
        EndedSessions(str(path))
