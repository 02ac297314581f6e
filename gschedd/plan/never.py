"""Why a request can never be met, in words: the term that fails, and the largest node."""

from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import Chunk, Request
from gsched.model.states import Placement
from gsched.model.units import format_size
from gschedd.plan.fit import sum_of
from gschedd.plan.room import shortage
from gschedd.plan.space import Spaces
from gschedd.plan.words import best_node, describe_chunk

NAMES_MOST = 8  # features or GPU types that a message lists


def explain_never(request: Request, idle: Spaces) -> tuple[str, str]:
    """Return (message, hint) for a request that does not fit although every node is idle.

    Args:
        request: what was requested.
        idle: all nodes as if nothing ran on them.
    """
    packed = request.placement is Placement.PACK
    site = _Site(idle)
    for chunk in (sum_of(request),) if packed else request.chunks:
        needed = chunk.count if request.placement is Placement.SCATTER else 1
        found = _failing_term(chunk, needed, site)
        if found is not None:
            return found
    return _too_many_places(request, idle)


class _Site:
    """All nodes as if idle; lives only inside `explain_never`, and looks for nothing twice."""

    def __init__(self, idle: Spaces) -> None:
        self.idle = idle
        self.types = sorted({gpu.type for space in idle for gpu in space.gpus if gpu.type})
        words = {word for space in idle for word in space.features}
        self.words = sorted(words - {FILES_FEATURE})
        self._fitting: dict[Chunk, int] = {}

    def fitting(self, term: Chunk) -> int:
        """Return how many nodes could hold a term."""
        found = self._fitting.get(term)
        if found is None:
            found = self._fitting[term] = sum(not shortage(term, space) for space in self.idle)
        return found


def _failing_term(chunk: Chunk, needed: int, site: _Site) -> tuple[str, str] | None:
    """Return the first term of a chunk that too few nodes have, each looked at by itself."""
    idle = site.idle
    if len(idle) < needed:
        return (
            (
                f"needs {needed} nodes, but there are only {len(idle)}; "
                f"the largest is {best_node(chunk, idle)}"
            ),
            f"request at most {len(idle)} with nodes=N",
        )
    for term, hint in _terms(chunk, site):
        fitting = site.fitting(term)
        if fitting < needed:
            return _words(term, needed, fitting, idle), hint
    fitting = site.fitting(chunk)
    if fitting >= needed:
        return None
    return _words(chunk, needed, fitting, idle), "one node must have all of that at once"


def _terms(chunk: Chunk, site: _Site) -> list[tuple[Chunk, str]]:
    """Return each term of a chunk as a chunk of its own, with what to do if it fails."""
    spread = "request less per node, or spread the job over more nodes with nodes=N"
    terms = [(Chunk(cpus=chunk.cpus), spread)]
    if chunk.gpus:
        if chunk.gpu_type and chunk.gpu_type not in site.types:
            spread = f"GPU types here: {_listed(site.types)}"
        terms.append((Chunk(cpus=0, gpus=chunk.gpus, gpu_type=chunk.gpu_type), spread))
    if chunk.gpu_share is not None:
        share = Chunk(cpus=0, gpu_share=chunk.gpu_share, gpu_type=chunk.gpu_type)
        terms.append((share, _share_hint(site.idle)))
    if chunk.memory_bytes:
        terms.append((Chunk(cpus=0, memory_bytes=chunk.memory_bytes), terms[0][1]))
    terms.extend(
        (
            Chunk(cpus=0, features=(word,)),
            "upgrade gsched on the nodes"
            if word == FILES_FEATURE
            else f"nodes and features here: {_listed(site.words)}",
        )
        for word in chunk.features
    )
    terms.extend((Chunk(cpus=0, generic=(pair,)), "ask for less") for pair in chunk.generic)
    return terms


def _share_hint(idle: Spaces) -> str:
    """Return what to do about a share of a GPU that no node can give."""
    gpus = [gpu for space in idle if space.sharing for gpu in space.gpus]
    if not gpus:
        return (
            "no node shares its GPUs here: request a whole GPU, with gpus=1; the site lets jobs "
            "share GPUs with runtime in [gpu_share], or with gsched up --share"
        )
    largest = max(
        gpu.memory_bytes if gpu.share_bytes_max is None else gpu.share_bytes_max for gpu in gpus
    )
    divided = all(gpu.share_bytes_max is not None for gpu in gpus)
    what = "MIG instance here" if divided else "GPU that is shared"
    return (
        f"the largest {what} has {format_size(largest)}: "
        "request less memory, or a whole GPU with gpus=1"
    )


def _words(part: Chunk, needed: int, fitting: int, idle: Spaces) -> str:
    what = describe_chunk(part).removeprefix("0 CPUs, ")  # a term of its own has no CPUs
    if part.features == (what,) and not fitting:
        return f"no node is named {what} and none has the feature {what}"
    wanted = f"needs {what} on one node" if needed == 1 else f"needs {needed} nodes with {what}"
    have = "no node can provide that" if not fitting else f"only {fitting} of {len(idle)} nodes can"
    return f"{wanted}, but {have}; the largest is {best_node(part, idle)}"


def _too_many_places(request: Request, idle: Spaces) -> tuple[str, str]:
    if request.placement is Placement.SCATTER and request.places > len(idle):
        there = "there is 1" if len(idle) == 1 else f"there are {len(idle)}"
        return (
            f"place=scatter needs {request.places} nodes, {there}",
            "request fewer chunks, or place=free, which puts several of them on one node",
        )
    cpus = sum(space.cpus for space in idle)
    gpus = sum(len(space.gpus) for space in idle)
    wanted = f"{request.places} chunks with {request.cpus} CPUs and {request.gpus} GPUs in total"
    there = f"{len(idle)} nodes with {cpus} CPUs and {gpus} GPUs"
    return (
        f"needs {wanted}; {there} cannot hold all of them at the same time, even when idle",
        "request fewer or smaller chunks",
    )


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:NAMES_MOST]) + (", …" if len(names) > NAMES_MOST else "")
