"""Who holds the resources that a migration would need: other jobs, and other migrations."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from gsched.model.ids import short_job_id
from gsched.model.resources import Request, Share
from gsched.model.units import format_size
from gsched.model.wording import counted, share_words
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.plan.room import shortage
from gschedd.plan.space import Spaces

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
