"""A cluster of three GPU types with adaptive training jobs that come, grow and end; from a seed.

The cluster is the published one of 64 GPUs, several times: 6 nodes of 4 T4, 3 of 8 RTX 2080 Ti and
2 of 8 A100. Kinds of jobs and their parts of all are those of the published evaluation; parameters
of the throughput model are drawn around a value for each kind, or fitted to the published traces.
"""

import random
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Chunk, Gpu, Request
from gsched.model.states import Placement
from gsched.model.training import Scaling
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    ThroughputParameters,
    TypeModel,
)
from gschedd.models.runtime import WalltimeSpeed
from gschedd.plan.snapshot import Group, JobClass, Plan, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, SortedSpaces, Spaces
from gschedd.plan.training import AdaptiveProfile, TrainingProfile, gpu_count
from scripts.bench.sia_traces import Measured, measured

#: Type, nodes and GPUs of each of them, for 64 GPUs.
SHAPE = (("t4", 6, 4), ("rtx", 3, 8), ("a100", 2, 8))
JOBS_PER_64_GPUS = 40
ROUND_S = 60.0


class Kind(Struct, frozen=True):
    """A kind of jobs: name, part of all, M0, largest batch, largest on a GPU, seconds of a restart.

    ``sample_s`` is the time of a sample on a T4, ``speedups`` those of the other types against it,
    ``sync_s`` of a gradient among nodes, ``phi`` the gradient noise scale, ``mean_s`` the run time.
    """

    name: str
    part: float
    batch: int
    batch_max: int
    per_gpu_max: int
    restart_s: float
    sample_s: float
    speedups: tuple[float, float]
    sync_s: float
    phi: float
    mean_s: float


KINDS = (
    Kind("cifar10", 0.55, 128, 4096, 512, 50, 6e-4, (1.9, 4.0), 0.05, 2000, 1200),
    Kind("deepspeech2", 0.17, 20, 640, 64, 25, 1.2e-2, (1.6, 3.5), 0.09, 600, 2400),
    Kind("bert", 0.16, 12, 384, 12, 120, 6e-2, (1.8, 5.5), 0.4, 300, 3600),
    Kind("yolov3", 0.09, 8, 512, 8, 80, 7e-2, (1.7, 4.5), 0.25, 400, 9000),
    Kind("imagenet", 0.03, 200, 12800, 128, 250, 7e-3, (1.8, 5.0), 0.2, 20000, 40000),
)


def nodes_of(gpus: int) -> dict[str, FreeNode]:
    """Return the idle nodes of a cluster of so many GPUs, a multiple of 64 or a little more."""
    times = max(1, round(gpus / 64))
    nodes = SortedSpaces()
    for gpu_type, count, size in SHAPE:
        for number in range(count * times):
            name = f"{gpu_type}-{number:05d}"
            have = tuple(Gpu(index=index, type=gpu_type) for index in range(size))
            nodes[name] = FreeNode(
                name=name,
                cpus=64,
                memory_bytes=1 << 40,
                gpus=have,
                generic=(),
                total_cpus=64,
                total_memory_bytes=1 << 40,
                total_gpus=size,
                total_generic=(),
                all_gpus=have,
                features=frozenset({name, gpu_type}),
            )
    return nodes


class _Job(Struct, kw_only=True):
    job: int
    kind: Kind
    model: GoodputModel
    arrived_s: float
    ends_s: float
    restarts: int = 0
    reached: int = 0
    allocation: Allocation = ()


class Mix:
    """Jobs in proportion to the GPUs. Each round some end, and as many come."""

    def __init__(self, gpus: int, seed: int, traces: Path | None = None) -> None:
        self.measured: dict[str, Measured] = {}
        if traces is not None:
            self.measured = {each.name: measured(traces, each.name, each.batch) for each in KINDS}
        self.random = random.Random(seed)
        self.now_s = 1e9 // ROUND_S * ROUND_S
        self.nodes: Mapping[str, FreeNode] = nodes_of(gpus)
        self.gpus = sum(space.total_gpus for space in self.nodes.values())
        self.jobs: dict[int, _Job] = {}
        self._next = 1
        count = round(self.gpus * JOBS_PER_64_GPUS / 64)
        for _ in range(count):
            job = self._arrive()
            # as if they had come one after the other
            age_s = self.random.random() * (job.ends_s - self.now_s)
            job.arrived_s -= age_s
            job.ends_s -= age_s
            job.reached = min(1 << self.random.randrange(5), 16)
            job.restarts = self.random.randrange(4)

    def snapshot(self) -> Snapshot:
        """Return what a policy sees."""
        running = [each for each in self.jobs.values() if each.allocation]
        free = Spaces(self.nodes)
        for each in running:
            free.take(each.allocation)
        return Snapshot(
            now_s=self.now_s,
            nodes={space.name: space for space in free},
            groups=[
                Group(job_class=_class_of(each.job), order=[(0, each.job)])
                for each in self.jobs.values()
                if not each.allocation
            ],
            running=[
                RunningJob(
                    job=each.job, allocation=each.allocation, started_s=each.arrived_s, end_s=None
                )
                for each in running
            ],
            profiles={each.job: self._profile(each) for each in self.jobs.values()},
        )

    def carry_out(self, plan: Plan) -> None:
        """Let a plan be done at once, and a round pass: reports refine the models, jobs end."""
        for change in (*plan.starts, *plan.moves):
            each = self.jobs[change.job]
            each.restarts += bool(each.reached)
            each.allocation = change.allocation
        for each in self.jobs.values():
            each.reached = max(each.reached, gpu_count(each.allocation))
            if each.allocation:
                each.model = self._refined(each.model)
        self.now_s += ROUND_S
        for number in [each.job for each in self.jobs.values() if each.ends_s <= self.now_s]:
            del self.jobs[number]
            self._arrive()

    def _arrive(self) -> _Job:
        kind = self.random.choices(KINDS, [each.part for each in KINDS])[0]
        lasts_s = self.random.expovariate(1 / kind.mean_s)
        made = _Job(
            job=self._next,
            kind=kind,
            model=self._model(kind),
            arrived_s=self.now_s,
            ends_s=self.now_s + lasts_s,
        )
        self.jobs[self._next] = made
        self._next += 1
        return made

    def _model(self, kind: Kind) -> GoodputModel:
        found = self.measured.get(kind.name)
        if found is not None:
            return GoodputModel(
                limits=BatchLimits(batch=kind.batch, batch_max=kind.batch_max),
                noise=self.random.choice(found.noises),
                models=found.models,
            )
        models = []
        for (gpu_type, _, _), speedup in zip(SHAPE, (1.0, *kind.speedups), strict=True):
            sample_s = kind.sample_s / speedup * self.random.uniform(0.8, 1.25)
            sync_s = kind.sync_s * self.random.uniform(0.5, 1.5)
            models.append(
                TypeModel(
                    gpu_type=gpu_type,
                    parameters=ThroughputParameters(
                        compute_s=4 * sample_s,
                        compute_per_sample_s=sample_s,
                        node_sync_s=sync_s / 4,
                        node_sync_per_replica_s=sync_s / 80,
                        network_sync_s=sync_s,
                        network_sync_per_replica_s=sync_s / 50,
                        overlap=self.random.uniform(1.0, 4.0),
                    ),
                )
            )
        return GoodputModel(
            limits=BatchLimits(
                batch=kind.batch, batch_max=kind.batch_max, per_gpu_max=kind.per_gpu_max
            ),
            noise=GradientNoise(square_norm=kind.batch / kind.phi, variance=1.0),
            models=tuple(sorted(models, key=lambda model: model.gpu_type)),
        )

    def _refined(self, model: GoodputModel) -> GoodputModel:
        """Return a model whose noise has changed, as it does with each report."""
        variance = model.noise.variance * self.random.uniform(0.97, 1.05)
        return structs.replace(model, noise=structs.replace(model.noise, variance=variance))

    def _profile(self, each: _Job) -> TrainingProfile:
        most = min(64, each.kind.batch_max)
        return TrainingProfile(
            job=each.job,
            arrived_s=each.arrived_s,
            deadline_s=None,
            work=1.0,
            total_work=1.0,
            speed=WalltimeSpeed(gpus=1),
            gpus=tuple(range(1, most + 1)),
            movable=True,
            request=_REQUEST,
            adaptive=AdaptiveProfile(
                goodput=each.model,
                scaling=Scaling.ADAPTIVE,
                age_s=self.now_s - each.arrived_s,
                restarts=each.restarts,
                restart_s=each.kind.restart_s,
                gpus_min=1,
                gpus_max=most,
                gpus_reached=each.reached,
            ),
        )


_REQUEST = Request(chunks=(Chunk(cpus=1, gpus=1),), placement=Placement.FREE, places_max=64)


def _class_of(job: int) -> JobClass:
    return JobClass(queue="batch", request=_REQUEST, walltime_s=None, training=job)
