"""New attempts: what a job gets with its allocation."""

from collections.abc import Collection

from gsched.model.resources import Allocation
from gsched.model.training import Batching
from gschedd.core.attempts.warm import next_attempt
from gschedd.core.state import facts as f
from gschedd.core.state.learning import predict
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.goodput import is_unmeasured
from gschedd.models.sizes import stated_size
from gschedd.plan.layouts import layout_of
from gschedd.plan.load import Predictor


class Assigner:
    """Makes the facts of new attempts at one moment, each with a port of its own."""

    def __init__(
        self, state: State, settings: Settings, now_s: float, predictor: Predictor | None
    ) -> None:
        self._state = state
        self._settings = settings
        self._now_s = now_s
        self._predictor = predictor
        self._ports = set(state.ports)

    def assign(
        self,
        job: Job,
        allocation: Allocation,
        why: str,
        batching: Batching | None = None,
        reservation: str = "",
    ) -> f.AttemptAssigned:
        """Return that a job is given an allocation, in a reservation or in none."""
        everywhere = job.spec.runs_everywhere
        nodes = tuple(share.node for share in allocation)
        port = 0
        if everywhere or len(nodes) > 1:
            port = free_port(job, self._settings, self._ports)
            self._ports.add(port)
        active = nodes if everywhere else nodes[:1]
        lease_s = attempt_lease_s(job)
        predictions = {}
        if self._predictor is not None:
            predictions = predict(self._predictor, self._state, job, active, self._now_s)
        return f.AttemptAssigned(
            at_s=self._now_s,
            job=job.id,
            attempt=next_attempt(job),
            allocation=allocation,
            active=active,
            master_port=port,
            why=why,
            predictions=predictions,
            steps_s=self._steps_s(job, allocation),
            token=self._state.epoch_id,
            lease_s=lease_s,
            lease_grace_s=job.spec.grace_s if lease_s else 0.0,
            batching=batching,
            profile_batches=is_unmeasured(self._state, job, allocation),
            reservation=reservation,
        )

    def _steps_s(self, job: Job, allocation: Allocation) -> float:
        """Return how long all steps of a training take there by what its user said; 0: unknown."""
        size = stated_size(job.spec)
        if size is None or job.work_done > 0:
            return 0.0
        rate = size.speed.rate(layout_of(allocation, self._state.gpus_of, self._settings.fabric))
        return size.work / rate if rate > 0 else 0.0


def free_port(job: Job, settings: Settings, taken: Collection[int]) -> int:
    """Return a rendezvous port that no other attempt has; a new attempt begins elsewhere.

    Another cluster on the same machines most likely begins elsewhere, too. Where it does not, the
    node finds the port taken, and the next attempt has another one.
    """
    first, last = settings.config.head.master_port_first, settings.config.head.master_port_last
    count = last - first + 1
    begin = (settings.master_port_begin + job.id * 13 + job.attempts * 101) % count
    for step in range(count):
        port = first + (begin + step) % count
        if port not in taken:
            return port
    return first + begin  # more distributed jobs than ports: some will find theirs taken


def attempt_lease_s(job: Job) -> float:
    """Return the lease of a job's next attempt."""
    return job.spec.lease_s if job.spec.rerunnable else 0.0
