"""Sessions of the page that their users have ended: they stay ended when the monitor restarts.

A session is a signed text, so nothing but this list makes one invalid before its time. The list is
a file beside the key: `monitor.db` may be removed or made anew, and a logout must outlive that.
"""

from typing import Final

import msgspec
from msgspec import Struct

from gsched.config.web import SESSION_HOURS_MAX
from gsched.files import replace_file

#: Ended sessions of a user that are listed one by one; with more, all of the user's sessions that
#: are as old as the oldest of them are over.
LISTED_MOST: Final = 256
#: After this time no session is valid, whatever ``session_hours`` becomes.
LONGEST_S: Final = SESSION_HOURS_MAX * 3600


class _OfUser(Struct):
    """What a user has ended.

    Attributes:
        begun_s: when each of these sessions began, by its name; seconds since the epoch.
        until_s: all that began until then are over, seconds since the epoch.
    """

    begun_s: dict[str, float] = {}
    until_s: float = 0.0


class DamagedListError(Exception):
    """The file is not what was written: nobody knows which sessions are over."""


class EndedSessions:
    """The sessions that were ended, by the number of their user.

    Args:
        path: of the file.

    Raises:
        DamagedListError: its content is not what was written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._users: dict[int, _OfUser] = {}
        try:
            with open(path, "rb") as file:
                self._users = msgspec.json.decode(file.read(), type=dict[int, _OfUser])
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError as error:
            raise DamagedListError(f"{path}: {error}") from error

    def has(self, uid: int, name: str, begun_s: float) -> bool:
        """Return whether a session is over."""
        of_user = self._users.get(uid)
        return of_user is not None and (name in of_user.begun_s or begun_s <= of_user.until_s)

    def add(self, uid: int, name: str, begun_s: float, now_s: float) -> bytes:
        """Note that a session is over, and return what is to be written."""
        of_user = self._users.setdefault(uid, _OfUser())
        of_user.begun_s[name] = begun_s
        while len(of_user.begun_s) > LISTED_MOST:
            oldest = min(of_user.begun_s, key=of_user.begun_s.__getitem__)
            of_user.until_s = max(of_user.until_s, of_user.begun_s.pop(oldest))
        self._forget(now_s - LONGEST_S)
        return msgspec.json.encode(self._users)

    def _forget(self, before_s: float) -> None:
        """Forget sessions that are too old to be valid."""
        for uid, of_user in list(self._users.items()):
            of_user.begun_s = {
                name: begun_s for name, begun_s in of_user.begun_s.items() if begun_s >= before_s
            }
            if not of_user.begun_s and of_user.until_s < before_s:
                del self._users[uid]

    def write(self, content: bytes) -> None:
        """Write what `add` has returned; raises OSError."""
        replace_file(self._path, content, mode=0o600, durable=True)
