"""How many messages of a job are read in a second, and how many connections are taken in: pure."""

from dataclasses import dataclass
from typing import Final

#: Messages of a job on channels of one kind: each second, and at once after a quiet time. A job
#: that allocates as fast as it can sends some ten thousand a second for a moment, and few later.
MESSAGES_PER_S: Final = 4000.0
MESSAGES_AT_ONCE: Final = 10_000.0
#: Whoever has spent a budget is read again when it has so many.
READ_AGAIN: Final = 20.0
#: Connections that have not proved to be of a job: each second, and at once after a quiet time.
STRANGERS_PER_S: Final = 1000.0
STRANGERS_AT_ONCE: Final = 1000.0


@dataclass(slots=True)
class Budget:
    """What is left to a job, or to strangers. What comes beyond that waits, and nothing is lost.

    Attributes:
        at_s: time to which ``left`` refers.
        per_s: what a second brings.
        most: that can be left.
    """

    at_s: float
    left: float = MESSAGES_AT_ONCE
    per_s: float = MESSAGES_PER_S
    most: float = MESSAGES_AT_ONCE

    def take(self, now_s: float) -> bool:
        """Spend one message; return whether there was one."""
        self.fill(now_s)
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def fill(self, now_s: float) -> None:
        """Add what the passed time has brought."""
        earned = max(0.0, now_s - self.at_s) * self.per_s
        self.left, self.at_s = min(self.most, self.left + earned), now_s

    def next_s(self) -> float:
        """Return when who has spent all is to be read again."""
        return self.at_s + max(0.0, READ_AGAIN - self.left) / self.per_s
