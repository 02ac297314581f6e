"""A plan from the configuration that each adaptive job is to have."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gsched.model.resources import Allocation, Share
from gsched.model.training import Batching
from gsched.model.units import format_gpus
from gschedd.allocation.adaptive.candidates import Candidates, types_of
from gschedd.allocation.adaptive.placer import Placing, placed
from gschedd.allocation.adaptive.problem import Floats, Ints
from gschedd.allocation.placement import fits
from gschedd.plan.snapshot import JobClass, Move, Plan, Snapshot, Start, Tune, Wait
from gschedd.plan.space import FreeNode, Spaces, kept_back
from gschedd.plan.training import gpu_count
from gschedd.plan.words import NO_GPU, Reason, released_words


class Decided(Struct, frozen=True, kw_only=True, eq=False):
    """What was decided about adaptive jobs.

    Attributes:
        candidates: among which was chosen.
        chosen: configuration of each job of the candidates, -1 for none; shape ``(J,)``.
        gain: by how much the cost of each job falls, shape ``(J,)``.
        waiting: job classes of those that wait to start, by job.
    """

    candidates: Candidates
    chosen: Ints
    gain: Floats
    waiting: Mapping[int, JobClass]


def plan_of(snapshot: Snapshot, decided: Decided, *, again_s: float | None = None) -> Plan:
    """Return what has to be done so that each job has its configuration.

    Jobs that wait start on what is free now. If their GPUs have yet to be released by jobs that
    move, they wait until they are.
    """
    placements = placements_of(snapshot, decided)
    moves = _moves(snapshot, decided, placements)
    free = _left(snapshot, decided, moves)
    starts: list[Start] = []
    waits: list[Wait] = []
    for number, each in enumerate(decided.candidates.jobs):
        job_class = decided.waiting.get(each.job)
        if job_class is None:
            continue
        allocation = placements.get(each.job, ())
        if not allocation or not fits(allocation, free):
            reason = _why_not(decided, number, allocation)
            waits.append(Wait(job_class=job_class, first=each.job, reason=reason))
            continue
        free.take(allocation)
        starts.append(
            Start(
                job=each.job,
                job_class=job_class,
                allocation=allocation,
                why=f"on {in_words(allocation, snapshot.nodes)}",
                batching=_batching(decided, number),
            )
        )
    return Plan(
        starts=tuple(starts),
        waits=tuple(waits),
        moves=tuple(moves),
        tunes=tuple(_tunes(decided, placements)),
        again_s=again_s,
    )


def placements_of(snapshot: Snapshot, decided: Decided) -> dict[int, Allocation]:
    """Return the allocation of each job that has a configuration and finds room for it."""
    candidates = decided.candidates
    table = candidates.configurations
    placings: list[Placing] = []
    leaving: list[Allocation] = []
    current = dict(
        zip(
            candidates.job[candidates.current],
            candidates.configuration[candidates.current],
            strict=True,
        )
    )
    for number, each in enumerate(candidates.jobs):
        configuration = int(decided.chosen[number])
        if configuration < 0:
            leaving.append(each.allocation)
            continue
        placings.append(
            Placing(
                job=each.job,
                request=each.request,
                gpu_type=table.type_of(configuration),
                gpus=int(table.gpus[configuration]),
                granule=int(table.granules[configuration]),
                stays=bool(each.allocation) and current.get(number, -1) == configuration,
                allocation=each.allocation,
            )
        )
    return placed(Spaces(snapshot.nodes), placings, leaving)


def _moves(
    snapshot: Snapshot, decided: Decided, placements: Mapping[int, Allocation]
) -> list[Move]:
    """Return all moves, those that gain most first: the head may make fewer of them at once."""
    moving = [
        number
        for number, each in enumerate(decided.candidates.jobs)
        if each.allocation and placements.get(each.job, ()) != each.allocation
    ]
    moving.sort(key=lambda number: (-decided.gain[number], number))
    return [_move(snapshot, decided, placements, number) for number in moving]


def _move(
    snapshot: Snapshot, decided: Decided, placements: Mapping[int, Allocation], number: int
) -> Move:
    each = decided.candidates.jobs[number]
    allocation = placements.get(each.job, ())
    before = in_words(each.allocation, snapshot.nodes)
    if not allocation:
        return Move(job=each.job, allocation=(), why=f"other jobs gain more from its {before}")
    after = in_words(allocation, snapshot.nodes)
    why = "migrated to defragment GPUs" if after == before else f"{after} instead of {before}"
    return Move(job=each.job, allocation=allocation, why=why, batching=_batching(decided, number))


def _left(snapshot: Snapshot, decided: Decided, moves: Sequence[Move]) -> Spaces:
    """Return what is free now, and kept for no job that moves."""
    spaces = Spaces(snapshot.nodes)
    held = {each.job: each.allocation for each in decided.candidates.jobs}
    coming: dict[str, list[Share]] = {}
    leaving: dict[str, list[Share]] = {}
    for move in moves:
        for share in move.allocation:
            coming.setdefault(share.node, []).append(share)
        for share in held[move.job]:
            leaving.setdefault(share.node, []).append(share)
    for node, shares in coming.items():
        spaces.put(kept_back(spaces[node], leaving.get(node, ()), shares))
    return spaces


def _tunes(decided: Decided, placements: Mapping[int, Allocation]) -> list[Tune]:
    tunes: list[Tune] = []
    for number, each in enumerate(decided.candidates.jobs):
        if each.allocation and placements.get(each.job, ()) == each.allocation:
            batching = _batching(decided, number)
            if batching is not None:
                tunes.append(Tune(job=each.job, batching=batching))
    return tunes


def _batching(decided: Decided, number: int) -> Batching | None:
    return decided.candidates.batching(number, int(decided.chosen[number]))


def _why_not(decided: Decided, number: int, allocation: Allocation) -> Reason:
    if allocation:
        return released_words(gpu_count(allocation))
    candidates, configuration = decided.candidates, int(decided.chosen[number])
    if configuration >= 0:
        table = candidates.configurations
        wanted = format_gpus(int(table.gpus[configuration]))
        words = f"no room in one piece for {wanted}{_of_type(table.type_of(configuration))}"
        return Reason(words, f"needs {wanted} together")
    if number not in candidates.job:
        words = "no GPUs that it can use are free, or held by jobs that can migrate"
        return Reason(words, NO_GPU.short)
    return Reason("other jobs gain more goodput from the GPUs", "others gain more")


def in_words(allocation: Allocation, nodes: Mapping[str, FreeNode]) -> str:
    """Return number and types of the GPUs of an allocation."""
    return format_gpus(gpu_count(allocation)) + _of_type(
        "+".join(sorted(types_of(allocation, nodes)))
    )


def _of_type(gpu_type: str) -> str:
    return f" of type {gpu_type}" if gpu_type else ""
