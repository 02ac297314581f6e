"""The course of a training job while the queue is played forward: its work, and where it runs."""

import math

from msgspec import structs

from gsched.model.resources import Allocation, Gpu
from gschedd.plan.layouts import held_gpus, layout_of
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.training import TrainingProfile, gpus_by_node


class TrainingRun:
    """A training job that runs, as its profile and its allocation say.

    Args:
        profile: of the job at the beginning.
        allocation: where it runs.
        seen: the snapshot that knows the nodes.
        starts: it starts now; otherwise the profile's ``startup_s`` counts from now.
    """

    def __init__(
        self, profile: TrainingProfile, allocation: Allocation, seen: Snapshot, *, starts: bool
    ) -> None:
        self._profile = profile
        self._seen = seen
        self._startup_s = profile.whole_startup_s if starts else profile.startup_s
        adaptive = profile.adaptive
        self._work: float | None = profile.work
        if adaptive is not None:
            self._work = adaptive.left
        self._rate = self._rate_on(allocation)

    def _gpus_of(self, node: str) -> tuple[Gpu, ...]:
        space = self._seen.nodes.get(node)
        return () if space is None else space.all_gpus

    def _rate_on(self, allocation: Allocation) -> float:
        """Return the work done in a second on an allocation; 0 where nothing is known."""
        adaptive = self._profile.adaptive
        if adaptive is None:
            layout = layout_of(allocation, self._gpus_of, self._seen.fabric)
            return self._profile.speed.rate(layout)
        import numpy as np

        held = held_gpus(allocation, self._gpus_of)
        types = sorted({gpu.type for gpus in held.values() for gpu in gpus})
        counts = gpus_by_node(allocation)
        if len(types) != 1 or not counts:
            return 0.0
        nodes, gpus = np.array([len(counts)]), np.array([sum(counts.values())])
        return float(adaptive.goodput.best(types[0], nodes, gpus).goodput[0])

    def move(self, allocation: Allocation) -> None:
        """Migrate: resume after the time without progress that a migration costs."""
        adaptive = self._profile.adaptive
        self._startup_s = self._profile.move_s if adaptive is None else adaptive.restart_s
        self._rate = self._rate_on(allocation)

    def advance(self, time_s: float) -> None:
        """Do the work of some time."""
        if self._work is None:
            return
        steps_s = max(time_s - self._startup_s, 0.0)
        self._startup_s = max(self._startup_s - time_s, 0.0)
        self._work = max(self._work - self._rate * steps_s, 0.0)

    def end_s(self, now_s: float) -> float | None:
        """Return when it has done its work, seconds since the epoch; None: that is unknown."""
        if self._work is None or self._rate <= 0:
            return None
        end_s = now_s + self._startup_s + self._work / self._rate
        return end_s if math.isfinite(end_s) else None

    def profile(self) -> TrainingProfile:
        """Return what is known of it now."""
        profile, work = self._profile, self._work
        if work is None:
            return profile
        if profile.adaptive is not None:
            adaptive = structs.replace(profile.adaptive, left=work)
            return structs.replace(profile, startup_s=self._startup_s, adaptive=adaptive)
        return structs.replace(profile, startup_s=self._startup_s, work=work)


def course_of(
    job: int, allocation: Allocation, seen: Snapshot, *, starts: bool = False
) -> TrainingRun | None:
    """Return the course of a job that a policy plans as a training job; None: it is no such job."""
    profile = seen.profiles.get(job)
    return None if profile is None else TrainingRun(profile, allocation, seen, starts=starts)
