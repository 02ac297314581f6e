"""How many messages of a job are read in a second: pure, with the time as an argument."""

from dataclasses import dataclass
from typing import Final

#: Messages of a job on channels of one kind: each second, and at once after a quiet time. A job
#: that allocates as fast as it can sends some ten thousand a second for a moment, and few later.
MESSAGES_PER_S: Final = 4000.0
MESSAGES_AT_ONCE: Final = 10_000.0
#: A job that has spent its budget is read again when it has so many.
READ_AGAIN: Final = 20.0


@dataclass(slots=True)
class Budget:
    """What is left to a job. What it sends beyond that waits in its sockets, and nothing is lost.

    Attributes:
        at_s: time to which ``left`` refers.
    """

    at_s: float
    left: float = MESSAGES_AT_ONCE

    def take(self, now_s: float) -> bool:
        """Spend one message; return whether there was one."""
        self.fill(now_s)
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def fill(self, now_s: float) -> None:
        """Add what the passed time has brought."""
        earned = max(0.0, now_s - self.at_s) * MESSAGES_PER_S
        self.left, self.at_s = min(MESSAGES_AT_ONCE, self.left + earned), now_s

    def next_s(self) -> float:
        """Return when a job that has spent all is to be read again."""
        return self.at_s + max(0.0, READ_AGAIN - self.left) / MESSAGES_PER_S
