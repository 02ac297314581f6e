"""DRS with the published migration, to compare ``drs`` with.

Where more than half of the nodes run jobs on at most half of their GPUs, all training jobs that may
migrate are placed again, those on one node first, by decreasing number of GPUs, and nothing starts
until they have arrived. Our additions: a job whose nodes and GPUs there do not change is not
stopped; if not all fit again, none migrates.

Source: Fu Maozhong, Hu Haiyang, Li Zhongjin, Journal of Computer Research and Development 60(6),
2023, doi 10.7544/issn1000-1239.202220149.
"""

from collections.abc import Mapping
from functools import partial

from msgspec import structs

from gsched.model.resources import Allocation, Request
from gschedd.allocation.placement import PlacementRequest, settle
from gschedd.allocation.running import TrainingJobs, is_scattered, on_open_nodes
from gschedd.plan.elastic import allocate_on
from gschedd.plan.snapshot import Move, Plan, Policy, RunningJob, Snapshot, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.training import gpu_count, gpus_by_node

CONSOLIDATED = "running training jobs are being consolidated"


def drs_paper(base: Policy) -> Policy:
    """Return DRS with the published migration.

    Args:
        base: decides about waiting jobs, and migrates none.
    """
    return partial(_plan, base=base)


def _plan(snapshot: Snapshot, base: Policy) -> Plan:
    training_jobs = TrainingJobs.of(snapshot)
    if not training_jobs.waiting:
        return base(snapshot)
    arriving = any(
        job.leaving and job.job in snapshot.profiles and on_open_nodes(snapshot, job.allocation)
        for job in snapshot.running
    )
    moves = (
        () if arriving or not is_scattered(snapshot) else _moves(snapshot, training_jobs.movable)
    )
    if not arriving and not moves:
        return base(snapshot)
    plan = base(snapshot)
    waits = tuple(
        Wait(job_class=job_class, first=job, reason=CONSOLIDATED)
        for job, job_class in training_jobs.waiting.items()
    )
    return structs.replace(plan, starts=(), waits=waits, moves=moves)


def _moves(snapshot: Snapshot, movable: Mapping[int, RunningJob]) -> tuple[Move, ...]:
    """Return the migrations by which all jobs are placed again; none if not all fit."""
    spaces = Spaces(snapshot.nodes)
    for running in movable.values():
        spaces.give(running.allocation)
    requests = {job: snapshot.profiles[job].request for job in movable}
    places = settle(
        spaces,
        [
            PlacementRequest(job=job, gpus=gpu_count(movable[job].allocation), request=request)
            for job, request in requests.items()
            if request is not None
        ],
    )
    if len(places) < len(movable):
        return ()
    counts = {job: gpus_by_node(place) for job, place in places.items()}
    moving = {
        job: running
        for job, running in movable.items()
        if counts[job] != gpus_by_node(running.allocation)
    }
    for job, running in movable.items():
        if job not in moving:
            spaces.take(running.allocation)
    moves: list[Move] = []
    for job, running in moving.items():
        allocation = _allocated(requests[job], spaces, counts[job])
        if allocation is None:
            return ()
        spaces.take(allocation)
        nodes = ", ".join(sorted(gpus_by_node(running.allocation)))
        why = f"from {nodes}, moved together with others"
        moves.append(Move(job=job, allocation=allocation, why=why))
    return tuple(moves)


def _allocated(
    request: Request | None, spaces: Spaces, counts: Mapping[str, int]
) -> Allocation | None:
    return None if request is None else allocate_on(request, spaces, counts)
