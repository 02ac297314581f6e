"""Windows of time on nodes that keep jobs away: maintenance, reservations, nodes that are off."""

from msgspec import Struct

from gsched.model.numbers import Amount, Count
from gsched.model.resources import Share


class NodeWindow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which a node, or a part of it, is kept free of jobs.

    Attributes:
        number: the same for all nodes of one order; 0: of a reservation, or the node is powered
            down until then.
        from_s, to_s: seconds since the epoch.
        reason: in words, for everybody.
        by: the operator who has ordered it.
        begun: it is now.
        reservation: whose jobs alone may have the node then; empty: no job may.
        share: that part of the node is kept; None: all of it.
    """

    number: Count
    from_s: Amount
    to_s: Amount
    reason: str = ""
    by: str = ""
    begun: bool = False
    reservation: str = ""
    share: Share | None = None

    @property
    def kind(self) -> str:
        """Return what it is, in words."""
        return f"reservation {self.reservation}" if self.reservation else "the maintenance"

    def bars(self, start_s: float, walltime_s: float | None) -> bool:
        """Return whether a job may not start then: its limit reaches into the window.

        A job without a walltime has no limit that would end it before.
        """
        if start_s >= self.to_s:
            return False
        return walltime_s is None or start_s + walltime_s > self.from_s
