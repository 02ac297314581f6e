"""What a policy may decide inside the common pass: which nodes, and how long a job will run."""

from gsched.model.resources import Allocation
from gschedd.plan.room import Rank, leftover
from gschedd.plan.snapshot import JobClass, Snapshot
from gschedd.plan.times import JobPredictions


class Chooser:
    """The plain choices: best fit, and every job runs as long as is planned. Override any.

    Attributes:
        predictions: what is predicted of jobs; lives as long as one plan.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.predictions = JobPredictions(snapshot)

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- for those that override it
        """Return by what nodes are ranked for a job."""
        return leftover

    def started(self, job: int, allocation: Allocation) -> None:
        """Take note that the plan starts a job."""

    def run_time_s(self, job: int, job_class: JobClass, allocation: Allocation) -> float | None:
        """Return how long a job is planned to run there, seconds; None for no end."""
        return self.predictions.run_time_s(job, job_class, allocation)
