"""What a node says of a message that it cannot read."""

from msgspec import Struct

from gsched.model.numbers import Count


class Unreadable(Struct, frozen=True, kw_only=True, tag="unreadable", omit_defaults=True):
    """Node to head: a message of yours cannot be read here; it is set aside, and I go on.

    A launch or preparation that comes back so is not sent again: the head holds its job.

    Attributes:
        of: the type of the message; empty: that cannot be read either.
        job, attempt: that it is about; 0: it is about none, or that cannot be read either.
        reason: in words.
    """

    of: str = ""
    job: Count = 0
    attempt: Count = 0
    reason: str = ""
