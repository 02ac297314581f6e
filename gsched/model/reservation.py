"""Reservations: nodes or GPUs that are kept for some users and projects in a window of time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from gsched.model.numbers import Amount, Count
from gsched.model.resources import Allocation, Share

#: As `datetime.weekday` counts days.
_FRIDAY: Final = 4
_WEEK: Final = 7


@cache
def zone_of(name: str) -> tzinfo | None:
    """Return a time zone, as ``Europe/Berlin``; None: it is not known here."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no zone, no name of a file, or a directory
        return None


class Recurrence(StrEnum):
    """When a reservation has its next window."""

    NEVER = ""
    DAILY = "daily"
    WEEKLY = "weekly"
    WEEKDAYS = "weekdays"


class AtEnd(StrEnum):
    """What becomes of the jobs that still run in a reservation when it ends."""

    REQUEUE = "requeue"  # those that are not rerunnable are cancelled
    CANCEL = "cancel"


class Window(Struct, frozen=True, order=True):
    """A time from ``from_s`` to ``to_s``, seconds since the epoch."""

    from_s: float
    to_s: float

    def overlaps(self, other: "Window") -> bool:
        """Return whether both have some time in common."""
        return self.from_s < other.to_s and other.from_s < self.to_s


class Reservation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes or GPUs that only the jobs of some users and projects get from ``from_s`` to ``to_s``.

    Attributes:
        from_s, to_s: its window, or the present or next one, seconds since the epoch.
        shares: what it holds; an exclusive share is the whole node.
        nodes, node_names, gpus, gpu_type: what was requested: so many nodes, these nodes, or so
            many GPUs.
        users, projects: whose jobs may use it. Without projects any of the users' jobs, without
            users all jobs of the projects; with both, jobs of the users for the projects.
        recur: when its next window is.
        zone: in whose local time that is the same time of day.
        magnetic: jobs of its users that name no reservation use it, too.
        maintenance: no job runs in it.
        ignore_jobs: what runs there at its beginning runs on; else such jobs give way.
        release_unused_s: it ends when no job has been in it for so long; 0: it does not.
        reason: for everybody.
        by: the operator who has created it.
        begun: its window is now.
        used_s: since when no job is in it, of the present window; 0: none has been.
    """

    name: str
    from_s: Amount
    to_s: Amount
    shares: Allocation = ()
    nodes: Count = 0
    node_names: tuple[str, ...] = ()
    gpus: Count = 0
    gpu_type: str = ""
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    recur: Recurrence = Recurrence.NEVER
    zone: str = "UTC"
    magnetic: bool = False
    maintenance: bool = False
    ignore_jobs: bool = False
    release_unused_s: Amount = 0.0
    at_end: AtEnd = AtEnd.REQUEUE
    reason: str = ""
    by: str = ""
    begun: bool = False
    used_s: Amount = 0.0

    @property
    def window(self) -> Window:
        """Return the present or next window."""
        return Window(self.from_s, self.to_s)

    def permits(self, user: str, project: str) -> bool:
        """Return whether a user's jobs for a project may use it."""
        if self.maintenance:
            return False
        if self.users and user not in self.users:
            return False
        if self.projects and project not in self.projects:
            return False
        return bool(self.users or self.projects)

    def share_on(self, node: str) -> Share | None:
        """Return what it holds on a node; None: nothing."""
        return next((share for share in self.shares if share.node == node), None)

    def windows(self) -> Iterator[Window]:
        """Yield its window and, if it recurs, all that follow."""
        window = self.window
        yield window
        while self.recur is not Recurrence.NEVER:
            days = self._days_to_next(window)
            window = Window(self._later(window.from_s, days), self._later(window.to_s, days))
            yield window

    def _days_to_next(self, window: Window) -> int:
        match self.recur:
            case Recurrence.WEEKLY:
                return _WEEK
            case Recurrence.WEEKDAYS:
                weekday = self._local(window.from_s).weekday()
                return _WEEK - weekday if weekday >= _FRIDAY else 1
            case _:
                return 1

    def _later(self, at_s: float, days: int) -> float:
        """Return the same time of day so many days later."""
        naive = self._local(at_s).replace(tzinfo=None) + timedelta(days=days)
        return naive.replace(tzinfo=zone_of(self.zone) or UTC).timestamp()

    def _local(self, at_s: float) -> datetime:
        return datetime.fromtimestamp(at_s, tz=zone_of(self.zone) or UTC)
