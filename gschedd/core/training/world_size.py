"""On how many ranks a training can go on, as its script says, and how many a place would have."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from gsched.errors import InvalidRequestError
from gsched.model.ids import short_job_id
from gsched.model.resources import Allocation
from gsched.model.states import LaunchKind
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.plan.training import gpu_count

#: So many numbers a training tells at most; with that many there may be larger ones.
MAX_SIZES: Final = 256
#: Sets of numbers whose numbers of GPUs are kept: training jobs are few, and asked for in each
#: cycle.
MAX_KEPT: Final = 1_024
_MAX_LISTED: Final = 12


def ranks_on(job: Job, allocation: Allocation) -> int:
    """Return how many ranks of a job a place would have; 0: only its script knows."""
    if job.spec.launch is not LaunchKind.TORCHRUN:
        return 0
    return sum(len(share.gpu_indices) or max(1, share.cpus) for share in allocation)


def known_sizes(state: State, job: Job) -> tuple[int, ...]:
    """Return the numbers of ranks that a training has said it can run on; empty: any, or unknown.

    What it says now counts, else what it said with its newest checkpoint.
    """
    reached = state.reached.get(job.id)
    if reached is not None and reached.world_sizes:
        return reached.world_sizes
    return job.saved.world_sizes if job.saved is not None else ()


def takes(sizes: Iterable[int], ranks: int) -> bool:
    """Return whether a training that has told these numbers can run on ``ranks``, 0: unknown."""
    allowed = tuple(sizes)
    return (
        not allowed
        or not ranks
        or ranks in allowed
        or (len(allowed) >= MAX_SIZES and ranks > allowed[-1])
    )


def takes_gpus(state: State, job: Job, gpus: int) -> bool:
    """Return whether a training can go on with so many GPUs, as far as it has said."""
    return takes(known_sizes(state, job), gpus if _has_one_rank_per_gpu(state, job) else 0)


def check_gpus(state: State, job: Job, gpus: int) -> None:
    """Do nothing if a training can go on with so many GPUs, as far as it has said.

    Raises:
        InvalidRequestError: it has said that it cannot.
    """
    if not takes_gpus(state, job, gpus):
        sizes = known_sizes(state, job)
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} cannot go on on {gpus} ranks: its script says that it "
            "can on "
            f"{_listed(sizes)}",
            hint="choose one of these numbers; it runs on untouched",
        )


def counts_taken(state: State, job: Job, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of some numbers of GPUs that a training can run on; all if it would be none."""
    sizes = known_sizes(state, job)
    if not sizes or not _has_one_rank_per_gpu(state, job):
        return counts
    return _taken(counts, sizes)


@lru_cache(MAX_KEPT)
def _taken(counts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count for count in counts if takes(sizes, count)) or counts


def _has_one_rank_per_gpu(state: State, job: Job) -> bool:
    """Return whether a training has as many ranks as GPUs: torchrun's, and what is seen to."""
    if job.spec.launch is LaunchKind.TORCHRUN:
        return job.spec.request.gpus > 0
    reached, attempt = state.reached.get(job.id), job.attempt
    if reached is None or attempt is None or reached.attempt != attempt.number:
        return False
    return reached.gpus == gpu_count(attempt.allocation)


def _listed(sizes: tuple[int, ...]) -> str:
    """Return numbers as words: ``1, 2, 4 or 8``; long lists are cut."""
    if len(sizes) > _MAX_LISTED:
        return f"{', '.join(map(str, sizes[: _MAX_LISTED - 1]))}, … {sizes[-1]}"
    *most, last = map(str, sizes)
    return f"{', '.join(most)} or {last}" if most else last
