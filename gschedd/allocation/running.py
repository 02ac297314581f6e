"""Which training jobs of a snapshot wait, run, may migrate, and which GPUs come back to others."""

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from gsched.model.resources import Allocation
from gschedd.plan.snapshot import JobClass, RunningJob, Snapshot
from gschedd.plan.training import TrainingProfile


class TrainingJobs(Struct, frozen=True, kw_only=True):
    """The training jobs of a snapshot, by what can be done about them.

    Attributes:
        waiting: job classes of the training jobs that may start, by job.
        movable: running training jobs that may migrate, by job.
        fixed: running training jobs that keep their GPUs; also those that migrate now, and those on
            nodes that accept no jobs, as no other job can use their GPUs.
        others: all other running jobs.
    """

    waiting: Mapping[int, JobClass]
    movable: Mapping[int, RunningJob]
    fixed: Mapping[int, RunningJob]
    others: tuple[RunningJob, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "TrainingJobs":
        """Return the training jobs of a snapshot, each kind by job id."""
        waiting = {
            job: group.job_class
            for group in snapshot.groups
            for _, job in group.order
            if job in snapshot.profiles
        }
        movable: dict[int, RunningJob] = {}
        fixed: dict[int, RunningJob] = {}
        others: list[RunningJob] = []
        for running in sorted(snapshot.running, key=lambda running: running.job):
            profile = snapshot.profiles.get(running.job)
            if profile is None:
                others.append(running)
            elif may_migrate(running, profile, snapshot):
                movable[running.job] = running
            else:
                fixed[running.job] = running
        return cls(
            waiting=dict(sorted(waiting.items())),
            movable=movable,
            fixed=fixed,
            others=tuple(others),
        )


def may_migrate(running: RunningJob, profile: TrainingProfile, snapshot: Snapshot) -> bool:
    """Return whether a policy may migrate a training that runs."""
    if running.leaving or running.starting or not profile.movable or profile.request is None:
        return False
    if profile.adaptive is not None and not profile.adaptive.preemptible:
        return False
    return on_open_nodes(snapshot, running.allocation)


def on_open_nodes(snapshot: Snapshot, allocation: Allocation) -> bool:
    """Return whether all nodes of an allocation take work."""
    nodes = snapshot.nodes
    return all(share.node in nodes and nodes[share.node].open for share in allocation)


def open_gpus_of(snapshot: Snapshot, allocation: Allocation) -> int:
    """Return how many GPUs of an allocation are on nodes that take work: only these come back."""
    nodes = snapshot.nodes
    return sum(
        len(share.gpu_indices)
        for share in allocation
        if share.node in nodes and nodes[share.node].open
    )


def shared_until(
    snapshot: Snapshot, running: Iterable[RunningJob]
) -> dict[tuple[str, int], float | None]:
    """Return when the last share on each shared GPU ends, by node and index: then it comes back.

    Only GPUs on nodes that take work; seconds since the epoch, None for never.
    """
    nodes = snapshot.nodes
    ends: dict[tuple[str, int], float | None] = {}
    for job in running:
        for share in job.allocation:
            if share.gpu_shares and share.node in nodes and nodes[share.node].open:
                for part in share.gpu_shares:
                    key = (share.node, part.index)
                    before_s = ends.get(key, -math.inf)
                    if before_s is None or job.end_s is None:
                        ends[key] = None
                    else:
                        ends[key] = max(before_s, job.end_s)
    return ends


def is_scattered(snapshot: Snapshot) -> bool:
    """Return whether more than half of the nodes use at most half of their GPUs, but some.

    Nodes without GPUs and nodes that accept no jobs do not count. Only then DRS migrates: see
    docs/policies/drs.md.
    """
    nodes = [space for space in snapshot.nodes.values() if space.open and space.total_gpus]
    half_empty = sum(
        0 < space.total_gpus - len(space.gpus) <= space.total_gpus / 2 for space in nodes
    )
    return half_empty > len(nodes) / 2
