"""What a policy may decide inside the common pass: which nodes, and how long a job will run."""

from gsched.model.resources import Allocation
from gschedd.plan.room import Rank, leftover
from gschedd.plan.snapshot import RunningJob, Shape


class Chooser:
    """The plain choices: best fit, and every job runs until its walltime. Override any."""

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- for those that override it
        """Return by what nodes are ranked for a job."""
        return leftover

    def started(self, job: int, allocation: Allocation) -> None:
        """Take note that the plan starts a job."""

    def run_time_s(self, job: int, shape: Shape, allocation: Allocation) -> float | None:  # noqa: ARG002 -- for those that override it
        """Return how long a job is planned to run there, seconds; None for no end."""
        return shape.walltime_s

    def end_s(self, running: RunningJob) -> float | None:
        """Return when a running job is planned to end, seconds since the epoch; None for never."""
        return running.end_s
