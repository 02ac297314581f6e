"""Jobs of a trace, and how they are said to a head."""

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gsched.model.training import Adaptive, Training
from gsched.protocol.submissions import SubmitJob
from gschedd.core.state.settings import Caller
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.ground_truth import ModelledTraining
from gschedd.sim.program import Program

FIRST_UID: Final = 1001
#: What a training is told that takes its time until its first step.
STARTUP: Final = "--startup-s="


class TraceJob(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One job of a trace, in gsched's own terms; CSV and JSONL traces have these fields.

    Attributes:
        submit_s: when it is submitted, seconds since the trace begins.
        duration_s: how long it runs on a node of speed 1 that it shares with nobody.
        project, qos: that it names; of use where the configuration has projects and QOS.
        cpus, gpus: asked for, on all its nodes together.
        nodes: how many nodes to spread over; 0: as few as can be.
        memory_bytes: asked for, on all its nodes together; 0: none named.
        walltime_s: its limit; None: none named.
        deadline_s: by when it should be done, seconds after its submission; None: none.
        cpus_used: how many CPUs it keeps busy, on all its nodes together; None: those asked for.
        memory_used_bytes: None: what was requested.
        resources: a resource list as after ``-l``, instead of the counts above.
        training: the size of a training: it runs as long as that takes on the GPUs that it gets,
            and ``duration_s`` counts for nothing. It can be moved.
        adaptive: what of its batch and its GPUs may be chosen for the best goodput.
        behaviour: of an adaptive training: what it does on the GPUs and with the batch that it is
            given; ``duration_s`` counts for nothing.
        gpu_use: for which part of the time it keeps a GPU of its own busy; with ``--work gpus``.
        gpu_uses: how busy its GPUs are over time, as pairs: from which second of its run on, and
            for which part of the time (0 to 1); of use with ``--savings``.
        startup_s: a training takes so long from each of its starts to its first step.
        gpus_max: a training may be given any number of GPUs from ``gpus`` to this.
        reject_if_late: it is refused when it is submitted, unless its deadline can be met.
    """

    submit_s: float
    duration_s: float
    user: str = "user"
    project: str = ""
    qos: str = ""
    name: str = "job"
    kind: str = ""
    queue: str = ""
    cpus: int = 1
    gpus: int = 0
    gpu_type: str = ""
    nodes: int = 0
    memory_bytes: int = 0
    walltime_s: float | None = None
    priority: int = 0
    deadline_s: float | None = None
    cpus_used: float | None = None
    memory_used_bytes: int | None = None
    exit_code: int = 0
    resources: str = ""
    training: Training | None = None
    adaptive: Adaptive | None = None
    behaviour: ModelledTraining | None = None
    startup_s: float = 0.0
    gpus_max: int = 0
    reject_if_late: bool = False
    gpu_use: float = 1.0
    gpu_uses: tuple[tuple[float, float], ...] = ()


class Users:
    """Gives each user of a trace a uid, in order of appearance."""

    def __init__(self) -> None:
        self._callers: dict[str, Caller] = {}

    def caller(self, user: str) -> Caller:
        """Return the caller of that name."""
        known = self._callers.get(user)
        if known is None:
            uid = FIRST_UID + len(self._callers)
            known = self._callers[user] = Caller(user=user, uid=uid, gid=FIRST_UID)
        return known


class Classifier:
    """Says a trace's jobs in the words of a cluster: over how many nodes, how many on each."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self._most_cpus = max(node.inventory.cpus for node in nodes)
        self._most_gpus = max((len(node.inventory.gpus) for node in nodes), default=0)

    def spread(self, job: TraceJob) -> int:
        """Return over how many nodes a job goes that does not say it itself."""
        if job.nodes:
            return job.nodes
        by_gpus = math.ceil(job.gpus / self._most_gpus) if job.gpus and self._most_gpus else 1
        return max(by_gpus, math.ceil(job.cpus / self._most_cpus), 1)

    def submission(self, job: TraceJob) -> SubmitJob:
        """Return what the job's user submits."""
        if job.training is not None or job.adaptive is not None:
            return _training(job)
        count = self.spread(job)
        return SubmitJob(
            key="",
            name=job.name,
            workdir="/",
            resources=(job.resources or _resources(job, count),),
            queue=job.queue,
            account=job.project,
            qos=job.qos,
            priority=job.priority,
            launch="command",
            arguments=("run",),
            every_node=count > 1,
            kind=job.kind,
        )

    def program(self, job: TraceJob) -> Program:
        """Return what each part of the job does."""
        parts = self.spread(job)
        cpus = job.cpus_used if job.cpus_used is not None else job.cpus
        memory = job.memory_used_bytes if job.memory_used_bytes is not None else job.memory_bytes
        return Program(
            work_s=job.duration_s,
            cpus=cpus / parts,
            memory_bytes=memory // parts,
            exit_code=job.exit_code,
            gpu_use=job.gpu_use,
            gpu_uses=job.gpu_uses,
        )


def _training(job: TraceJob) -> SubmitJob:
    """Return a training as its user submits it: one place for each GPU, wherever they are."""
    least, most = max(1, job.gpus), max(1, job.gpus, job.gpus_max)
    cpus = max(1, job.cpus // least)
    words = f"select={least}:ncpus={cpus}:ngpus=1"
    return SubmitJob(
        key="",
        name=job.name,
        workdir="/",
        resources=(job.resources or f"{words},place=free",),
        queue=job.queue,
        account=job.project,
        qos=job.qos,
        priority=job.priority,
        launch="torchrun",
        arguments=("train", *([f"{STARTUP}{job.startup_s!r}"] if job.startup_s else [])),
        kind=job.kind,
        places_max=most if most > least else 0,
        deadline_after_s=job.deadline_s or 0.0,
        reject_if_late=job.reject_if_late,
        training=job.training,
        adaptive=job.adaptive,
        movable=True,
    )


def _resources(job: TraceJob, count: int) -> str:
    words = f"nodes={count}:ppn={max(1, math.ceil(job.cpus / count))}"
    if job.gpus:
        words += f":gpus={math.ceil(job.gpus / count)}"
        words += f":gpu_type={job.gpu_type}" if job.gpu_type else ""
    if job.memory_bytes:
        words += f",mem={job.memory_bytes}b"
    if job.walltime_s is not None:
        words += f",walltime={job.walltime_s:.3f}".rstrip("0").rstrip(".")
    return words
