"""The client keys of submissions, by which a submission that is repeated finds its job."""

from collections import OrderedDict
from typing import Final

#: Ended submissions whose keys are remembered in memory; older ones are in the database.
MAX_ENDED_KEYS: Final = 100_000


class ClientKeys:
    """Client keys with their jobs, for each user apart: nobody can meet another's.

    Keys of jobs that are not done are the texts of their specs, so they take no memory of their
    own.
    """

    __slots__ = ("_ended", "_of_users")

    def __init__(self) -> None:
        self._of_users: dict[int, dict[str, int]] = {}
        self._ended: OrderedDict[tuple[int, str], int] = OrderedDict()

    def find(self, uid: int, key: str) -> int | None:
        """Return the job that a user submitted with this key; None: there is none."""
        job = self._of_users.get(uid, {}).get(key)
        return self._ended.get((uid, key)) if job is None else job

    def note(self, uid: int, key: str, job: int) -> None:
        """Note the key of a job that is not done."""
        of_user = self._of_users.get(uid)
        if of_user is None:
            of_user = self._of_users[uid] = {}
        of_user[key] = job

    def note_ended(self, uid: int, key: str, job: int) -> None:
        """Note the key of a job that is done; the one noted first is forgotten first."""
        of_user = self._of_users.get(uid, {})
        if of_user.get(key) == job:
            del of_user[key]
            if not of_user:
                del self._of_users[uid]
        self._ended[uid, key] = job
        if len(self._ended) > MAX_ENDED_KEYS:
            self._ended.popitem(last=False)

    def every(self) -> dict[tuple[int, str], int]:
        """Return all jobs by user and key."""
        unfinished = {
            (uid, key): job for uid, jobs in self._of_users.items() for key, job in jobs.items()
        }
        return {**self._ended, **unfinished}
