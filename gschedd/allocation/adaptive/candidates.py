"""Which configurations each adaptive job may have now, and its goodput on them.

A job that has not run yet starts on its minimum, or on the few GPUs that a policy allows (see
`Growth`); one that has may have at most twice the most GPUs on which it has run, as its model is
only trusted so far. A job of which nothing was heard stays on its minimum. A job that must not be
preempted cannot grow later: it starts on any number of GPUs if it was measured, or its kind was.
Jobs whose model is split over several GPUs grow by whole replicas.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from gsched.model.resources import Allocation, Request
from gsched.model.states import Placement
from gsched.model.training import Batching, Scaling
from gschedd.allocation.adaptive.cluster import Configurations, Extra, Pool, configurations_of
from gschedd.allocation.adaptive.problem import Flags, Floats, Ints
from gschedd.models.goodput.evaluation import Query, best_of_many
from gschedd.models.goodput.model import GoodputModel
from gschedd.plan.room import shortage
from gschedd.plan.space import FreeNode, emptied
from gschedd.plan.training import AdaptiveProfile, Goodput, Goodputs, gpus_by_node


class AdaptiveJob(Struct, frozen=True, kw_only=True):
    """An adaptive job that is decided about.

    Attributes:
        request: with one chunk, whose places have a GPU or more.
        allocation: what it has; empty where it waits.
        must_run: it must not be left without a configuration.
    """

    job: int
    profile: AdaptiveProfile
    request: Request
    allocation: Allocation = ()
    must_run: bool = False


class Growth(Struct, frozen=True, kw_only=True):
    """How many GPUs a job may have beyond those on which it has run.

    Attributes:
        first: GPUs on which a job may start whose step times are known; no less than its minimum.
        factor: by so much a job may grow at once, over the most GPUs on which it has run.
    """

    first: int = 1
    factor: int = 2

    def most(self, reached: int | None, least: int) -> int:
        """Return the most GPUs that a job may have.

        Args:
            reached: the most on which it has run; 0: it has not run; None: no step times are known.
            least: its minimum on a type.
        """
        return least if reached is None else max(self.factor * reached, self.first, least)


class Candidates(Struct, frozen=True, kw_only=True, eq=False):
    """The configurations of each job, with its goodput; one column for each pair.

    Attributes:
        jobs: in order.
        configurations: all that exist.
        job, configuration: of each column: indices into the two above, shape ``(K,)``; columns of
            one job stand together.
        goodput: samples a second, times efficiency; more than 0, shape ``(K,)``.
        batch_per_gpu, accumulation: with which it is reached (counts), shape ``(K,)``.
        current: the job has this configuration now, shape ``(K,)``.
    """

    jobs: Sequence[AdaptiveJob]
    configurations: Configurations
    job: Ints
    configuration: Ints
    goodput: Floats
    batch_per_gpu: Ints
    accumulation: Ints
    current: Flags

    def batching(self, job: int, configuration: int) -> Batching | None:
        """Return how a job splits its samples on a configuration; None: it decides.

        Args:
            job: index of the job.
            configuration: one that it may have.
        """
        start, end = np.searchsorted(self.job, [job, job + 1])
        at = start + int(np.flatnonzero(self.configuration[start:end] == configuration)[0])
        per_gpu = int(self.batch_per_gpu[at])
        if per_gpu < 1:
            return None
        return Batching(per_gpu=per_gpu, accumulation=int(self.accumulation[at]))


def candidates_of(
    jobs: Sequence[AdaptiveJob],
    pool: Pool,
    nodes: Mapping[str, FreeNode],
    growth: Growth | None = None,
) -> Candidates:
    """Return what jobs may have of a pool of GPUs.

    Args:
        jobs: all that are decided about; what they hold is in the pool.
        nodes: of the pool.
        growth: beyond the GPUs on which they have run; None: as published.
    """
    growth = growth or Growth()
    choices = Choices(configurations_of(pool), nodes, growth)
    extras = [extra for job in jobs for extra in choices.extras(job)]
    if extras:
        choices = Choices(configurations_of(pool, extras), nodes, growth)
    table = choices.table
    current = [choices.current(job) for job in jobs]
    found = [
        (number, gpu_type, ids)
        for number, (job, now) in enumerate(zip(jobs, current, strict=True))
        for gpu_type, ids in choices.of(job, now)
    ]
    goodputs = _goodputs([(jobs[number].profile.goodput, *rest) for number, *rest in found], table)
    return _joined(jobs, table, found, goodputs, current)


def _joined(
    jobs: Sequence[AdaptiveJob],
    table: Configurations,
    found: Sequence[tuple[int, str, Ints]],
    goodputs: Sequence[Goodputs],
    current: Sequence[int],
) -> Candidates:
    none = np.zeros(0, dtype=np.int64)
    job = np.repeat([number for number, _, _ in found] or none, [len(ids) for _, _, ids in found])
    job = job.astype(np.int64)
    configuration = np.concatenate([none, *(ids for _, _, ids in found)])
    goodput = np.concatenate([none.astype(float), *(each.goodput for each in goodputs)])
    runs = goodput > 0
    batch = np.concatenate([none, *(each.batch_per_gpu for each in goodputs)])
    accumulation = np.concatenate([none, *(each.accumulation for each in goodputs)])
    job, configuration = job[runs], configuration[runs]
    has = np.array(current or none, dtype=np.int64)
    return Candidates(
        jobs=jobs,
        configurations=table,
        job=job,
        configuration=configuration,
        goodput=goodput[runs],
        batch_per_gpu=batch[runs],
        accumulation=accumulation[runs],
        current=has[job] == configuration,
    )


def _goodputs(
    lookups: Sequence[tuple[Goodput, str, Ints]], table: Configurations
) -> list[Goodputs]:
    """Return the goodputs of several models; those that tell the same are evaluated once."""
    # alike jobs share the array of their choices, so that its identity tells it from others
    keys = [(goodput, id(ids)) for goodput, _, ids in lookups]
    queries = dict(zip(keys, lookups, strict=True))
    found: dict[tuple[Goodput, int], Goodputs] = {}
    many: list[Query] = []
    of_many: list[tuple[Goodput, int]] = []
    shapes: dict[int, tuple[Ints, Ints]] = {}
    for key, (goodput, gpu_type, ids) in queries.items():
        shape = shapes.get(key[1])
        if shape is None:
            shape = shapes[key[1]] = (table.nodes[ids], table.gpus[ids])
        if isinstance(goodput, GoodputModel):
            many.append(Query(goodput, gpu_type, *shape))
            of_many.append(key)
        else:
            found[key] = goodput.best(gpu_type, *shape)
    found.update(zip(of_many, best_of_many(many), strict=True))
    return [found[key] for key in keys]


class Choices:
    """The configurations that jobs may have; identical questions are answered once."""

    def __init__(
        self, table: Configurations, nodes: Mapping[str, FreeNode], growth: Growth
    ) -> None:
        self.table = table
        self._growth = growth
        self._nodes = nodes
        self._kinds = _Kinds(nodes)
        self._types: dict[Request, tuple[str, ...]] = {}
        self._found: dict[tuple[object, ...], list[tuple[str, Ints]]] = {}
        self._spans = {
            name: (int(table.starts[at]), int(table.starts[at + 1]))
            for at, name in enumerate(table.types)
        }

    def of(self, job: AdaptiveJob, now: int) -> list[tuple[str, Ints]]:
        """Return the configurations that a job may have, by type, none of them empty.

        Args:
            now: the one that it has, which it may keep; -1: none.
        """
        found = self._allowed(job)
        if now < 0 or any(now in ids for _, ids in found):
            return [(gpu_type, ids) for gpu_type, ids in found if len(ids)]
        kept: list[tuple[str, Ints]] = []
        for gpu_type, ids in found:
            start, end = self._spans[gpu_type]
            more = np.sort(np.append(ids, now)) if start <= now < end else ids
            if len(more):
                kept.append((gpu_type, more))
        return kept

    def current(self, job: AdaptiveJob) -> int:
        """Return the configuration that a job has now; -1: none of the table."""
        if not job.allocation:
            return -1
        types = self._kinds.of(job.allocation)
        if len(types) != 1:
            return -1
        counts = [len(share.gpu_indices) for share in job.allocation if share.gpu_indices]
        return self.table.find(next(iter(types)), len(counts), sum(counts))

    def extras(self, job: AdaptiveJob) -> Iterable[Extra]:
        """Yield configurations that a job has or needs, and that are not in the table."""
        for gpu_type, ids in self._allowed(job):
            if not len(ids):
                least = _rounded_up(job.profile.gpus_min, unit_of(job, gpu_type))
                if least <= job.profile.gpus_max:
                    yield Extra(gpu_type=gpu_type, gpus=least)
        if job.allocation and self.current(job) < 0:
            types = self._kinds.of(job.allocation)
            if len(types) == 1:
                counts = tuple(sorted(gpus_by_node(job.allocation).values(), reverse=True))
                yield Extra(gpu_type=next(iter(types)), gpus=sum(counts), counts=counts)

    def _allowed(self, job: AdaptiveJob) -> list[tuple[str, Ints]]:
        """Return the configurations that a job may have, by type, without what it has."""
        profile = job.profile
        reached = profile.gpus_reached if profile.goodput.types() else None
        key = (
            job.request,
            profile.scaling,
            profile.gpus_min,
            profile.gpus_max,
            reached,
            profile.gpu_types,
            tuple(sorted(profile.replica_gpus.items())),
            _starts_at_once(profile),
        )
        found = self._found.get(key)
        if found is None:
            found = [(name, self._on(job, name, reached)) for name in self._usable(job)]
            self._found[key] = found
        return found

    def _usable(self, job: AdaptiveJob) -> tuple[str, ...]:
        """Return the GPU types that a job can use here, in order."""
        found = self._types.get(job.request)
        if found is None:
            found = tuple(name for name in self.table.types if self._suits(job.request, name))
            self._types[job.request] = found
        allowed = job.profile.gpu_types
        return tuple(name for name in found if name in allowed) if allowed else found

    def _suits(self, request: Request, gpu_type: str) -> bool:
        """Return whether a place of a request fits on some node of a type when that is idle."""
        place = structs.replace(request.chunks[0], count=1)
        if place.gpu_type and place.gpu_type != gpu_type:
            return False
        place = structs.replace(place, gpu_type=gpu_type)
        return any(
            not shortage(place, emptied(space))
            for space in self._nodes.values()
            if any(gpu.type == gpu_type for gpu in space.all_gpus)
        )

    def _on(self, job: AdaptiveJob, gpu_type: str, reached: int | None) -> Ints:
        profile = job.profile
        least, most = profile.gpus_min, profile.gpus_max
        if profile.scaling is Scaling.RIGID:
            most = least
        ids = self._between(gpu_type, unit_of(job, gpu_type), least, most)
        ids = ids[self._placeable(ids, job.request.chunks[0].gpus, job.request.placement)]
        if len(ids) and not _starts_at_once(profile):
            gpus = self.table.gpus[ids]
            ids = ids[gpus <= self._growth.most(reached, int(gpus[0]))]
        return ids

    def _between(self, gpu_type: str, unit: int, least: int, most: int) -> Ints:
        """Return the regular configurations of so many GPUs, or the one that jobs need instead."""
        start, end = self._spans[gpu_type]
        table = self.table
        at = start + np.searchsorted(table.gpus[start:end], [least, most + 1])
        ids: Ints = np.arange(at[0], at[1])
        ids = ids[table.gpus[ids] % unit == 0]
        regular = ids[table.regular[ids]]
        return regular if len(regular) else ids[table.gpus[ids] == _rounded_up(least, unit)][:1]

    def _placeable(self, ids: Ints, chunk: int, placement: Placement) -> Flags:
        """Return which configurations a request allows."""
        nodes, gpus = self.table.nodes[ids], self.table.gpus[ids]
        if placement is Placement.PACK:
            packed: Flags = nodes == 1
            return packed
        if placement is Placement.SCATTER:
            scattered: Flags = gpus == nodes * chunk
            return scattered
        whole: Flags = (nodes == 1) | (self.table.granules[ids] % chunk == 0)
        return whole


def _starts_at_once(profile: AdaptiveProfile) -> bool:
    """Return whether a job has the number of GPUs with which it starts for ever, and is known."""
    return not profile.preemptible and bool(profile.goodput.types())


def unit_of(job: AdaptiveJob, gpu_type: str) -> int:
    """Return of how many GPUs of a type a job has multiples: those of a replica, and of a place."""
    return math.lcm(job.profile.replica_gpus.get(gpu_type, 1), job.request.chunks[0].gpus)


class _Kinds:
    """The types of the GPUs of allocations; nodes are looked at once."""

    def __init__(self, nodes: Mapping[str, FreeNode]) -> None:
        self._nodes = nodes
        self._of_node: dict[str, frozenset[str]] = {}

    def of(self, allocation: Allocation) -> frozenset[str]:
        """Return the types of the GPUs of an allocation."""
        found: frozenset[str] = frozenset()
        for share in allocation:
            if share.node not in self._nodes or not share.gpu_indices:
                continue
            types = self._of_node.get(share.node)
            if types is None:
                types = frozenset(gpu.type for gpu in self._nodes[share.node].all_gpus)
                self._of_node[share.node] = types
            if len(types) > 1:
                types = frozenset(types_of((share,), self._nodes))
            found = types if not found else found | types
        return found


def types_of(allocation: Allocation, nodes: Mapping[str, FreeNode]) -> set[str]:
    """Return the types of the GPUs of an allocation."""
    return {
        gpu.type
        for share in allocation
        if share.node in nodes
        for gpu in nodes[share.node].all_gpus
        if gpu.index in share.gpu_indices
    }


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
