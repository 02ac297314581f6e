"""Two training jobs that fragment two nodes, one that needs a whole node, and what they came to.

An ordinary job holds the second node at first, so that `left` and `filler` begin together on the
first one and `right` goes to the second. When `filler` is done each node has one GPU in use, and
nobody but a move gives `whole` the two GPUs of one node in time.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

NODES: Final = ("n1", "n2")
GPUS: Final = 2
CPUS: Final = 4
#: Samples of a step on each GPU.
BATCH: Final = 16
STEP_TIME_S: Final = 0.25
#: The network of ``examples/elastic_paced.py``: what it sends is not worth counting.
PARAMETERS: Final = 8449


class Part(Struct, frozen=True, kw_only=True):
    """One job of the case.

    Attributes:
        work_s: how long its steps take on its GPUs, as its user predicts it; of an ordinary job
            its duration.
        gpus: on one node.
        node: that it must have; only an ordinary job names one.
        deadline_s: after its submission; None: it is no training.
        submit_s: after the first one; None: it comes when the nodes are fragmented.
    """

    name: str
    work_s: float
    gpus: int = 1
    node: str = ""
    deadline_s: float | None = None
    submit_s: float | None = 2.0

    @property
    def steps(self) -> int:
        """Return the steps of a training."""
        return round(self.work_s / STEP_TIME_S)

    @property
    def samples(self) -> int:
        """Return the samples that it needs for these."""
        return self.steps * BATCH * self.gpus

    @property
    def resources(self) -> str:
        """Return what it requests, as after ``-l``."""
        return f"nodes={self.node or 1}:ppn=1:gpus={self.gpus}"


#: `left` and `right` run longer than `whole` can wait, so that only a move lets it be in time.
PARTS: Final = (
    Part(name="opener", work_s=8.0, gpus=2, node="n2", submit_s=0.0),
    Part(name="left", work_s=100.0, deadline_s=900.0),
    Part(name="filler", work_s=8.0, deadline_s=900.0),
    Part(name="right", work_s=110.0, deadline_s=900.0, submit_s=4.0),
    Part(name="whole", work_s=12.0, gpus=2, deadline_s=60.0, submit_s=None),
)


class Step(Struct, frozen=True, kw_only=True):
    """A decision: a job was started, or moved, to these nodes."""

    job: str
    nodes: tuple[str, ...]
    moved_from: tuple[str, ...] = ()

    def __str__(self) -> str:
        to = "+".join(self.nodes) or "queue"
        if self.moved_from:
            return f"{self.job} {'+'.join(self.moved_from)}>{to}"
        return f"{self.job} {to}"


class Told(Struct, frozen=True, kw_only=True):
    """What one run of the case came to; moments in seconds since its first submission.

    Attributes:
        steps: starts and moves in order; the start that ends a move is not among them.
        submitted_s: by job.
        started_s, ended_s: of the first attempt and of the last, by job.
        deadline_s: of those that have one, by job.
        move_s: what each move cost, from the order to the first step after it, by job.
        lost_s: for how long each job that moved made no progress, by job.
        step_s: what a step took on average, by job, where that was measured.
        startup_s: from its first start to its first step, by job.
    """

    policy: str
    steps: Sequence[Step]
    submitted_s: dict[str, float]
    started_s: dict[str, float]
    ended_s: dict[str, float]
    deadline_s: dict[str, float]
    move_s: dict[str, float]
    lost_s: dict[str, float]
    step_s: dict[str, float]
    startup_s: dict[str, float]

    def met(self, name: str) -> bool:
        """Return whether a job met its deadline."""
        ended_s = self.ended_s.get(name)
        return ended_s is not None and ended_s <= self.deadline_s[name]

    @property
    def moves(self) -> tuple[Step, ...]:
        """Return who was moved, from where to where."""
        return tuple(step for step in self.steps if step.moved_from)
