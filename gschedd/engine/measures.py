"""What the head measures of itself: how long its steps take, and which of them is under way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from gsched.clock import Clock

#: A step that takes longer is told as a reason why the head does not work, seconds.
SLOW_S: Final = 15.0
_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

CYCLE: Final = "a scheduling cycle"
PLANNING: Final = "the plan of training jobs"
COMMIT: Final = "a commit to the database"


class Measures:
    """Times of the head's steps, and its requests.

    Attributes:
        registry: for prometheus-client.
        events: that were committed.
        requests: that were answered, by HTTP status.
        in_flight: requests that are being answered.
    """

    def __init__(self, clock: Clock) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a series more of each
        self._clock = clock
        self.registry = registry = CollectorRegistry()
        self._times = {
            step: Histogram(name, f"Time of {step}.", buckets=_BUCKETS_S, registry=registry)
            for step, name in (
                (CYCLE, "gsched_cycle_seconds"),
                (PLANNING, "gsched_planning_seconds"),
                (COMMIT, "gsched_commit_seconds"),
            )
        }
        self.events = Counter("gsched_events", "Events committed.", registry=registry)
        self.requests = Counter(
            "gsched_requests", "Requests of users, by HTTP status.", ["status"], registry=registry
        )
        self.in_flight = Gauge(
            "gsched_requests_in_flight", "Requests being answered.", registry=registry
        )
        self._under_way: dict[str, float] = {}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure a step."""
        begin_s = self._under_way[step] = self._clock.monotonic_s()
        try:
            yield
        finally:
            del self._under_way[step]
            self._times[step].observe(self._clock.monotonic_s() - begin_s)

    def slow_step(self) -> str:
        """Return which step takes too long, in words; empty: none does."""
        now_s = self._clock.monotonic_s()
        for step, begin_s in self._under_way.items():
            if now_s - begin_s > SLOW_S:
                return f"{step} has not finished for {now_s - begin_s:.0f} s"
        return ""
