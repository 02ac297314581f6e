"""When a policy that failed is asked again, although nothing has changed."""

from typing import Final

#: Until a policy that failed is asked again, at first; twice as long after each further failure.
FIRST_RETRY_S: Final = 1.0
#: The longest of these times: a fault that passes costs no more than this, one that stays no more
#: than a dozen cycles and lines of the log an hour.
LAST_RETRY_S: Final = 300.0


class Retry:
    """Failures of a policy in a row, and when it gets its next chance.

    A change asks it at once, as always; this is for the quiet hours, in which the jobs that wait
    would else wait until somebody submits another one.

    Attributes:
        failures: in a row; 0 after a cycle that went well.
        due_s: when to ask again, seconds since the epoch; None while nothing has failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.due_s: float | None = None

    def failed(self, now_s: float) -> None:
        """Note a failure."""
        # the exponent is bounded, or years of failures would overflow
        delay_s = min(FIRST_RETRY_S * 2 ** min(self.failures, 30), LAST_RETRY_S)
        self.failures += 1
        self.due_s = now_s + delay_s

    def went_well(self) -> None:
        """Note a cycle without a fault."""
        self.failures = 0
        self.due_s = None

    def take(self, now_s: float) -> bool:
        """Return whether the policy is to be asked again now; True once for each failure."""
        if self.due_s is None or now_s < self.due_s:
            return False
        self.due_s = None
        return True
