"""How long training jobs take from their start to their first step, learned from those before them.

Processes start, the framework is imported, ranks find each other, data and a state are read: on
a busy machine that is most of what a short training takes, and nothing of it is in its size. What
the latest starts of its kind took in the middle is expected of the next one; of a kind that never
ran, what its program, its owner's training jobs, or all training jobs here took.
"""

from collections import deque
from statistics import median
from typing import Final

from msgspec import Struct

from gschedd.models.history import LruMap
from gschedd.plan.load import Kind

#: Starts of which the one in the middle counts: few, as a machine that got busy is to be noticed
#: soon; an odd number, so that with all of them there it is one that was measured.
LATEST: Final = 9
#: Less than this counts as none: walls, and when somebody was heard, are no more exact. Seconds.
LEAST_S: Final = 1.0
#: A training that never says how far it is, and took longer than its steps by more than this, has
#: another size than its user said. Seconds: a quarter of an hour.
MOST_FROM_END_S: Final = 900.0
#: Kinds, programs and owners remembered, each.
MAX_FAMILIES: Final = 10_000


class StartupKey(Struct, frozen=True, kw_only=True):
    """What tells whose starts are alike.

    Attributes:
        kind: see `gschedd.plan.load.Kind.key`.
        program: likewise.
        owner_uid: whose it is.
    """

    kind: str
    program: str
    owner_uid: int

    @classmethod
    def of(cls, kind: Kind) -> "StartupKey":
        """Return the family of a kind."""
        return cls(kind=kind.key, program=kind.program, owner_uid=kind.owner_uid)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what it is remembered by, the nearest first; no two of these ever meet."""
        return (f"k{self.kind}", f"p{self.program}", f"o{self.owner_uid}", "")


class Startups:
    """What the latest starts took, by family; bounded."""

    def __init__(self) -> None:
        self._latest: LruMap[deque[float]] = LruMap(lambda: deque(maxlen=LATEST), MAX_FAMILIES * 3)

    def __bool__(self) -> bool:
        """Return whether anything was learned."""
        return len(self._latest) > 0

    def learn(self, family: StartupKey, startup_s: float) -> None:
        """Take a start into account; they come in the order in which they were known."""
        for key in family.keys:
            self._latest.touch(key).append(startup_s)

    def expected_s(self, family: StartupKey) -> float:
        """Return how long the next start is expected to take, seconds; 0 where nothing is known."""
        for key in family.keys:
            latest = self._latest.get(key)
            if latest:
                return median(latest)
        return 0.0


def startup_from_end_s(wall_s: float, steps_s: float) -> float | None:
    """Return how long a training took until its first step, from its run time; None: not to tell.

    Args:
        wall_s: from its start to its end, all its work done.
        steps_s: how long its steps take by what its user said.
    """
    startup_s = wall_s - steps_s
    return None if startup_s > MOST_FROM_END_S else at_least(startup_s)


def at_least(startup_s: float) -> float:
    """Return a start's time, 0 where it is too short to tell it from none."""
    return startup_s if startup_s >= LEAST_S else 0.0
