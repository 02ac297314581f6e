"""Moves that people ask for: one job to a place of their choice, or all of a node's jobs away."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, structs

from gsched.errors import (
    BadStateError,
    InvalidRequestError,
    RequestTooLargeError,
    UnknownNodeError,
)
from gsched.model.ids import short_job_id
from gsched.model.resources import Allocation, Request, Share
from gsched.model.states import AttemptState, JobState, NodeState, Placement
from gsched.model.units import format_gpus, format_size
from gsched.model.wording import counted, share_words
from gsched.protocol.actions import MigrateJob
from gschedd.core.attempts.migration import movable, requested
from gschedd.core.nodes.reserving import free_in
from gschedd.core.requests import commands as c
from gschedd.core.requests.access import own_job
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job, Node
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.walltime import walltime_left_s
from gschedd.core.training.world_size import check_gpus, takes_gpus
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, place
from gschedd.plan.room import shortage
from gschedd.plan.snapshot import Move, Plan
from gschedd.plan.space import Spaces, emptied
from gschedd.plan.validate import Movable, validate
from gschedd.plan.windows import barred, without


def migrate_job(
    state: State, settings: Settings, command: c.ActOnJob, action: MigrateJob, now_s: float
) -> list[f.AnyFact]:
    """Return the move of a job, to the place that is requested or to any other one.

    Raises:
        GschedError: it cannot be moved, or not there; the message says why and what to do.
    """
    job = own_job(state, settings, command)
    what = _movable(state, job)
    request = _request_for(job, what, action.gpus)
    if action.gpus:
        check_gpus(state, job, request.gpus)
    nodes = [_target(state, name) for name in dict.fromkeys(action.nodes)]
    spaces = _without(state, job, what.allocation, now_s)
    allocation = _place_for(state, job, request, nodes, spaces, resized=action.gpus > 0)
    if _layout(allocation) == _layout(what.allocation):
        where = ", ".join(share.node for share in allocation)
        raise BadStateError(f"job {short_job_id(job.id)} already runs on {where}")
    why = action.message or "gmigrate"
    move = Move(job=job.id, allocation=allocation, why=why)
    return [requested(state, settings, job, move, by=command.caller.user, now_s=now_s)]


def _movable(state: State, job: Job) -> Movable:
    """Return a job that can be moved now.

    Raises:
        BadStateError: it cannot, and why.
    """
    if job.state is JobState.MIGRATING:
        move = job.target
        to = ", ".join(share.node for share in move.allocation) or "its queue"
        why = f" ({move.why})" if move.why else ""
        raise BadStateError(
            f"job {short_job_id(job.id)} already migrates to {to}, requested by {move.by}{why}",
            hint=f"gmigrate --wait {short_job_id(job.id)} waits for that migration; another one "
            "can be requested when it is complete",
        )
    if job.state is not JobState.RUNNING:
        raise BadStateError(
            f"job {short_job_id(job.id)} is {job.state}: only a running job can migrate"
        )
    if not job.spec.movable:
        raise BadStateError(
            f"job {short_job_id(job.id)} does not say that it can save its state, so it cannot "
            "be moved",
            hint="submit such jobs with --elastic or --checkpoint-signal; grerun restarts it from "
            "the beginning",
        )
    if job.current_attempt.state is not AttemptState.RUNNING:
        raise BadStateError(
            f"job {short_job_id(job.id)} is still starting: it has no state to save yet",
            hint="try again soon",
        )
    found = movable(state, job.id)
    assert found is not None, "it is all that is asked of one that moves"
    return found


def _request_for(job: Job, what: Movable, gpus: int) -> Request:
    """Return what a job is to get: as many places as it has, or those of so many GPUs.

    Raises:
        InvalidRequestError: it does not take that number.
    """
    request = what.request
    if not gpus:
        places = sum(share.slots for share in what.allocation)
        return at_count(request, places) if is_elastic(request) else request
    if not is_elastic(request):
        if gpus == request.gpus:
            return request
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} asks for {format_gpus(request.gpus)} and runs on no "
            "other number",
            hint="submit it with a range, as --gpus 1..8, to change that while it runs",
        )
    each = request.chunks[0].gpus
    places, rest = divmod(gpus, each) if each else (0, 1)
    if rest or not request.places <= places <= request.places_max:
        least, most = request.places * each, request.places_max * each
        step = f", in steps of {each}" if each > 1 else ""
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} runs on {least} to {most} GPUs{step}, not on {gpus}",
            hint="choose a number within its range",
        )
    return at_count(request, places)


def _target(state: State, name: str) -> Node:
    """Return a node that takes jobs.

    Raises:
        UnknownNodeError: the name is unknown.
        BadStateError: it takes none.
    """
    node = state.nodes.get(name)
    if node is None:
        known = ", ".join(sorted(state.nodes)[:10]) or "none has registered"
        raise UnknownNodeError(f"unknown node {name!r}", hint=f"nodes here: {known}")
    if node.state is not NodeState.UP:
        raise BadStateError(f"node {name} is not connected", hint="see gnodes for others")
    if node.drained:
        raise BadStateError(f"node {name} is drained: {node.reason}", hint="see gnodes for others")
    if node.problem:
        raise BadStateError(f"node {name} takes no jobs: {node.problem}", hint="see gnodes")
    return node


def _place_for(
    state: State,
    job: Job,
    request: Request,
    nodes: list[Node],
    spaces: Spaces,
    *,
    resized: bool,
) -> Allocation:
    """Return a place for a job, as if it had left the one that it has.

    Without nodes it stays where it is if only its number of GPUs changes and they are there; else
    it goes to other nodes.

    Raises:
        BadStateError: there is none now.
        RequestTooLargeError: those nodes could not hold it even if nothing else ran there.
    """
    present = {share.node for share in job.current_attempt.allocation}
    if nodes:
        names: Iterable[str] = [node.name for node in nodes]
    else:
        if resized:
            near = _best(request, _only(spaces, present))
            if not isinstance(near, NoFit):
                return near
        names = [name for name in state.nodes if resized or name not in present]
    chosen = _only(spaces, names)
    found = _best(request, chosen)
    if isinstance(found, NoFit):
        names = [node.name for node in nodes]
        raise _refusal(state, job, request, chosen, found, nodes=names, resized=resized)
    move = Move(job=job.id, allocation=found, why="gmigrate")
    objection = validate(
        Plan(moves=(move,)),
        Spaces(state.spaces),
        lambda _: None,
        lambda number: movable(state, number),
    ).objection
    if objection:
        holding, kind = holders(state, job, request, chosen)
        who = holder_words(holding, kind)
        raise BadStateError(
            f"job {short_job_id(job.id)} cannot be moved there now: {objection}"
            f"{'; ' if who else ''}{who}",
            hint=", or ".join(remedies(holding)),
        )
    return found


def _refusal(  # noqa: PLR0913 # what was requested, and what was found
    state: State,
    job: Job,
    request: Request,
    chosen: Spaces,
    found: NoFit,
    *,
    nodes: list[str],
    resized: bool,
) -> BadStateError | RequestTooLargeError:
    """Return why a job cannot migrate: who holds what it needs, and what to do."""
    job_id, where = short_job_id(job.id), ", ".join(sorted(nodes))
    if not len(chosen):
        return BadStateError(f"job {job_id} cannot be moved: there is no other node")
    never = _best(request, Spaces({space.name: emptied(space) for space in chosen}))
    if isinstance(never, NoFit) and nodes:
        return RequestTooLargeError(
            f"{where} cannot hold job {job_id}, even with nothing else there: {never.text}",
            hint="name another node or more of them, or another number of GPUs",
        )
    if nodes:
        lead = f"{where} has no room for job {job_id} now"
    elif resized:
        lead = f"job {job_id} cannot have {format_gpus(request.gpus)} now"
    else:
        lead = f"no other node has room for job {job_id} now"
    holding, kind = holders(state, job, request, chosen)
    who = holder_words(holding, kind)
    advice = [*remedies(holding)]
    fewer = _fewer(state, job, request, chosen) if resized else 0
    if fewer:
        advice.append(f"request --gpus {fewer}")
    if nodes:
        advice.append("name other nodes with --to")
    return BadStateError(
        f"{lead}: {found.text}{'; ' if who else ''}{who}", hint=", or ".join(advice)
    )


def _fewer(state: State, job: Job, request: Request, spaces: Spaces) -> int:
    """Return the most GPUs, fewer than requested and more than it has, that a job can have now."""
    has = sum(share.slots for share in job.current_attempt.allocation)
    for places in range(request.places - 1, has, -1):
        less = at_count(job.spec.request, places)
        if takes_gpus(state, job, less.gpus) and not isinstance(_best(less, spaces), NoFit):
            return less.gpus
    return 0


def _best(request: Request, spaces: Spaces) -> Allocation | NoFit:
    """Return a place on one node, where places may share one; else on several."""
    if request.placement is Placement.FREE:
        together = place(structs.replace(request, placement=Placement.PACK), spaces)
        if not isinstance(together, NoFit):
            return together
    return place(request, spaces)


def _without(state: State, job: Job, allocation: Allocation, now_s: float) -> Spaces:
    """Return what is free for a job when it has left its place, without what windows close.

    One that runs in a reservation stays in it.
    """
    spaces = Spaces(state.spaces)
    spaces.give(allocation)
    inside = state.reservations.get(job.current_attempt.reservation)
    if inside is not None and inside.begun:
        return Spaces(free_in(state, inside, spaces, without=job.id))
    windows = state.windows(now_s)
    if not windows:
        return spaces
    left_s, started_s = walltime_left_s(job), job.current_attempt.started_s
    if left_s is not None and started_s is not None:
        left_s = max(0.0, left_s - (now_s - started_s))
    return without(spaces, barred(windows, now_s, left_s))


def _only(spaces: Spaces, names: Iterable[str]) -> Spaces:
    return Spaces({name: spaces[name] for name in names if name in spaces})


def _layout(allocation: Allocation) -> list[tuple[str, int]]:
    return [(share.node, share.slots) for share in allocation]


# --- whole nodes ---


def vacating(state: State) -> Iterator[Node]:
    """Yield the nodes that jobs are to leave."""
    return (state.nodes[name] for name in sorted(state.vacating) if name in state.nodes)


class Leaving(Struct, frozen=True, kw_only=True):
    """How many jobs of a node that is drained leave it.

    Attributes:
        now: there is room for each of them, or it is on its way already.
        later: other nodes could hold each of them, but have no room now, or it is still starting.
        never: it cannot save its state, or the nodes that take jobs could not hold it even idle.
    """

    now: int = 0
    later: int = 0
    never: int = 0


def leaving_node(state: State, node: str, now_s: float) -> Leaving:
    """Return what becomes of the jobs of a node that is drained already; ending ones not counted.

    The check is that of a migration: `gmigrate --dry-run` of each job says the same.
    """
    counts = {"now": 0, "later": 0, "never": 0}
    for job in state.by_node.get(node, {}).values():
        if job.state is not JobState.EXITING:
            counts[_leaves(state, job, now_s)] += 1
    return Leaving(**counts)


def _leaves(state: State, job: Job, now_s: float) -> str:
    if not job.spec.movable:
        return "never"
    if job.state is JobState.MIGRATING:
        return "now"
    what = movable(state, job.id)
    if what is not None:
        free = _without(state, job, what.allocation, now_s)
        if _anywhere(state, job, what, free) is not None:
            return "now"
    request = job.spec.request if what is None else what.request
    if is_elastic(request):
        request = at_count(request, request.places)
    idle = Spaces(
        {
            name: emptied(state.spaces[name])
            for name, each in state.nodes.items()
            if each.state is NodeState.UP and not each.drained and name in state.spaces
        }
    )
    return "never" if isinstance(_best(request, idle), NoFit) else "later"


def next_vacating(state: State, settings: Settings, now_s: float) -> f.MigrationRequested | None:
    """Return the next move away from a node that is to be left, None if there is none now.

    Only so many jobs move at once, or a rack that is drained would save the state of all of them at
    the same moment. Of several users the one of whose jobs the fewest have left so far is next, and
    of his jobs the oldest.
    """
    if not state.vacating or len(state.targets) >= settings.config.moves.at_once:
        return None
    jobs = {
        number: job
        for node in vacating(state)
        for number, job in state.by_node.get(node.name, {}).items()
        if number not in state.volatile.stuck
    }
    for job in sorted(
        jobs.values(), key=lambda job: (state.volatile.turns[job.spec.owner.uid], job.id)
    ):
        what = movable(state, job.id)
        if what is None:
            continue
        allocation = _anywhere(state, job, what, _without(state, job, what.allocation, now_s))
        if allocation is not None:
            node = next(n for n in vacating(state) if job.id in state.by_node.get(n.name, {}))
            why = f"{node.name} is drained: {node.reason}"
            move = Move(job=job.id, allocation=allocation, why=why)
            return requested(state, settings, job, move, by="gsched", now_s=now_s)
    return None


def _anywhere(state: State, job: Job, what: Movable, spaces: Spaces) -> Allocation | None:
    """Return the best place on nodes that take jobs, with fewer GPUs only if there is no other."""
    request = what.request
    if not is_elastic(request):
        found = place(request, spaces)
        return None if isinstance(found, NoFit) else found
    most = sum(share.slots for share in what.allocation)
    for places in range(most, request.places - 1, -1):
        fewer = at_count(request, places)
        if not takes_gpus(state, job, fewer.gpus):
            continue
        found = _best(fewer, spaces)
        if not isinstance(found, NoFit):
            return found
    return None


#: So many holders are named.
MOST_NAMED: Final = 3
_CPUS, _MEMORY, _GPUS = "cpus", "memory", "gpus"


class Holder(Struct, frozen=True, kw_only=True):
    """A job that has a part of a node, or will have it.

    Attributes:
        reserved: it migrates there; what it will have is kept for it.
        leaving: in words, that it will give it back soon: it is being stopped, or migrates away.
    """

    job: Job
    share: Share
    reserved: bool = False
    leaving: str = ""


def holders(state: State, job: Job, request: Request, spaces: Spaces) -> tuple[list[Holder], str]:
    """Return which other jobs hold what a migration lacks on nodes, and which resource that is.

    Migrations come first: they are not in the list of what runs on a node.
    """
    kind = _lacking(request, spaces)
    found = [
        holder
        for space in spaces
        if space.open
        for holder in _on_node(state, space.name)
        if holder.job is not job and _amount(holder.share, kind)
    ]
    found.sort(
        key=lambda each: (
            not each.reserved,
            not each.leaving,
            -_amount(each.share, kind),
            each.job.id,
        )
    )
    return found, kind


def _lacking(request: Request, spaces: Spaces) -> str:
    """Return the resource of which most nodes have too little; of GPUs, if no node lacks others."""
    wants_gpus = any(chunk.gpus or chunk.gpu_share for chunk in request.chunks)
    lacks = [
        shortage(chunk, space, exclusive=request.exclusive)
        for chunk in request.chunks
        for space in spaces
    ]
    if wants_gpus and (_GPUS in lacks or not {_CPUS, _MEMORY} & set(lacks)):
        return _GPUS
    return _MEMORY if lacks.count(_MEMORY) > lacks.count(_CPUS) else _CPUS


def _on_node(state: State, node: str) -> Iterator[Holder]:
    for job in state.targets_on.get(node, {}).values():
        for share in job.target.allocation:
            if share.node == node:
                yield Holder(job=job, share=share, reserved=True)
    for job in state.by_node.get(node, {}).values():
        share = job.current_attempt.parts[node].share
        leaving = "is ending" if job.current_attempt.stop is not None else ""
        yield Holder(job=job, share=share, leaving="migrates away" if job.move else leaving)


def _amount(share: Share, kind: str) -> float:
    if kind == _GPUS:
        return sum(held.percent for held in share.gpus_held)
    return share.memory_bytes if kind == _MEMORY else share.cpus


def holder_words(found: Iterable[Holder], kind: str) -> str:
    """Return who holds what, in words; empty: nobody does."""
    words = [_words(each, kind) for each in found]
    if len(words) > MOST_NAMED:
        words[MOST_NAMED:] = [f"{counted(len(words) - MOST_NAMED, 'more job')} hold others"]
    return "; ".join(words)


def _words(holder: Holder, kind: str) -> str:
    who = f"job {short_job_id(holder.job.id)} of {holder.job.spec.owner.user}"
    what, plural = _what(holder.share, kind)
    verb = "are" if plural else "is"
    if holder.reserved:
        return f"{what} {verb} reserved for {who}, which migrates there"
    leaving = f", which {holder.leaving}" if holder.leaving else ""
    return f"{what} {verb} in use by {who}{leaving}"


def _what(share: Share, kind: str) -> tuple[str, bool]:
    """Return ``GPUs 0,1 of n2``, and whether that is more than one thing."""
    if kind == _MEMORY:
        return f"{format_size(share.memory_bytes)} memory of {share.node}", False
    if kind == _CPUS:
        return f"{counted(share.cpus, 'CPU')} of {share.node}", share.cpus != 1
    whole = share.gpu_indices
    parts = [f"GPU{'s' * (len(whole) != 1)} {','.join(map(str, whole))}"] if whole else []
    parts += [share_words(each, each.index) for each in share.gpu_shares]
    return f"{', '.join(parts)} of {share.node}", len(whole) + len(share.gpu_shares) != 1


def remedies(found: list[Holder]) -> Iterator[str]:
    """Yield what to do, in words, while others hold what a migration needs."""
    first = found[0] if found else None
    if first is None:
        yield "see gnodes for what is free"
    elif first.reserved:
        number = short_job_id(first.job.id)
        yield f"request it again when job {number} has migrated (see gstat -f {number})"
    elif first.leaving:
        yield f"request it again when job {short_job_id(first.job.id)} has left"
    else:
        yield "request it again when one of these jobs has ended"
