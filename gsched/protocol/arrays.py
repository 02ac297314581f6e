"""Schema of arrays in `gsched.protocol.api`."""

from msgspec import Struct


class ArrayRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many elements of an array are in which state.

    Attributes:
        indices: of all elements, as they were stated: ``0-99:2``.
        at_once: so many may be unfinished jobs at once; 0: any number.
        elements: how many there are.
        left, held, cancelled: indices of those that are no jobs: yet, until they are released, and
            for good.
        waiting: neither running nor done, jobs or not.
        unstarted: the row stands for these elements alone, which were cancelled together before any
            of them started.
    """

    indices: str
    elements: int
    at_once: int = 0
    left: str = ""
    held: str = ""
    cancelled: str = ""
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    deleted: int = 0
    unstarted: bool = False
