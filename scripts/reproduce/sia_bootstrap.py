"""What is known of a training of Sia's lists before it runs: the step times of profiles."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.models.kinds import kind_of
from gschedd.models.steptimes import Steps
from scripts.reproduce.sia_lists import Cluster
from scripts.reproduce.sia_training import TracedTraining


class Bootstrap(StrEnum):
    """What is measured of a training beside what it reports."""

    NONE = "none"  # nothing: only what it reports while it runs
    RUNS = "runs"  # several batches on one GPU, at its first start on each type: as gsched does
    TYPES = "types"  # the same on each type before its first start: as Sia does
    ORACLE = "oracle"  # steps on all configurations of whole nodes, before its first start


class Teacher:
    """Tells a head before the first start of each job what its profile came to.

    The time for that counts nowhere: Sia's authors name less than 20 GPU-seconds for each type.

    Args:
        truth: of a job, by its name.
    """

    def __init__(
        self,
        head: Head,
        truth: Callable[[str], TracedTraining],
        cluster: Cluster,
        bootstrap: Bootstrap,
    ) -> None:
        self._head = head
        self._truth = truth
        self._cluster = cluster
        self._bootstrap = bootstrap

    def take(self, facts: Sequence[f.AnyFact]) -> None:
        """Tell of each job that was submitted, as of its kind; then of each that starts, itself.

        What is known of a job itself counts as run, and a job that has not run starts small.
        """
        if self._bootstrap in (Bootstrap.NONE, Bootstrap.RUNS):
            return
        for fact in facts:
            if isinstance(fact, f.JobSubmitted):
                self._tell(fact.job, -fact.job, fact.at_s)
            elif isinstance(fact, f.AttemptAssigned) and fact.attempt == 1:
                self._tell(fact.job, fact.job, fact.at_s)

    def _tell(self, job: int, of: int, now_s: float) -> None:
        state = self._head.state
        spec = state.jobs[job].spec
        for steps in self._steps(self._truth(spec.name)):
            state.goodputs.learn(kind_of(spec).key, of, steps, now_s)

    def _steps(self, truth: TracedTraining) -> Iterator[Steps]:
        for count, each, kind in self._cluster.kinds:
            profile = truth.profile(kind)
            for sample in profile:
                yield Steps(
                    counts=(1,),
                    gpu_type=kind,
                    samples=sample.batch_per_gpu,
                    step_s=sample.step_s,
                    batch_per_gpu=sample.batch_per_gpu,
                    gradient_s=sample.gradient_s,
                    batch_per_gpu_max=profile[-1].batch_per_gpu,
                    profiled=True,
                )
            if self._bootstrap is Bootstrap.ORACLE:
                yield from _scaling(truth, kind, count, each)


def _scaling(truth: TracedTraining, kind: str, count: int, each: int) -> Iterator[Steps]:
    """Yield steps on parts of a node and on whole nodes, at the smallest and a large batch."""
    device = truth.application.device(kind)
    layouts: list[tuple[int, ...]] = [(2**power,) for power in range(1, each.bit_length())]
    layouts += [(each,) * nodes for nodes in range(2, count + 1)]
    for counts in layouts:
        sizes = {device.per_gpu_min, device.largest(counts)}
        for size in sorted(sizes):
            times = device.times(counts, size)
            if times is None:
                continue
            slowdown = truth.application.slowdown
            yield Steps(
                counts=counts,
                gpu_type=kind,
                samples=sum(counts) * size,
                step_s=slowdown * times.step_s,
                batch_per_gpu=size,
                gradient_s=slowdown * times.gradient_s,
            )
