"""What the priority of a waiting job is the sum of."""

from msgspec import Struct


class PriorityTerms(Struct, frozen=True, kw_only=True):
    """The terms of a priority, each multiplied by its weight of ``[priority]``.

    Attributes:
        priority: the sum.
        factor: the fair share of the user, 0 to 1, without its weight.
    """

    priority: float
    factor: float
    fair_share: float
    age: float
    size: float
    queue: float
    qos: float
    own: float
