"""Why a request does not fit, in words: the term that fails, and the node that comes closest."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import WHOLE_PERCENT, Chunk, Request
from gsched.model.states import Placement
from gsched.model.units import format_gpus, format_size
from gsched.model.wording import counted, share_words
from gschedd.plan.room import shortage, usable_gpus
from gschedd.plan.sharing import untouched
from gschedd.plan.space import FreeNode, Spaces


class Reason(str):
    """Why a job waits, in words; ``short`` has it in two to four of them, for a list."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, words: str, short: str) -> Self:
        """Return the words."""
        self = super().__new__(cls, words)
        self.short = short
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.short)


NO_GPU: Final = Reason("no free GPUs", "no free GPUs")

IN_TIME: Final = Reason("its GPUs come free in time for its deadline", "starts in time")


def released_words(gpus: int) -> Reason:
    """Return that a job's GPUs are still with running jobs that give them up."""
    words = f"{format_gpus(gpus)} being released"
    return Reason(f"waiting for {words} by running jobs", words)


def as_reason(words: str) -> Reason:
    """Return words as they are, or with their first clause as the short ones."""
    return words if isinstance(words, Reason) else Reason(words, words.partition(";")[0])


class Lack:
    """Why a request does not fit, put into words when somebody asks: that looks at every node.

    The words are about the nodes as they are by then.
    """

    __slots__ = ("_request", "_requested", "_spaces")

    def __init__(
        self, request: Request, spaces: Spaces, *, requested: Request | None = None
    ) -> None:
        self._request = request
        self._spaces = spaces
        self._requested = requested

    @property
    def reason(self) -> Reason:
        """Return the words, long and short, about the nodes as they are now."""
        return explain(self._request, self._spaces, requested=self._requested)

    def __str__(self) -> str:
        return str(self.reason)

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        reason = self.reason  # what leaves this process says how the nodes were here
        return Reason, (str(reason), reason.short)


def explain(request: Request, spaces: Spaces, *, requested: Request | None = None) -> Reason:
    """Return in words why the request does not fit: the term that fails, and the best node.

    ``requested`` is what the user requested, where ``request`` is made of it.
    """
    for chunk in request.chunks:
        reason = _explain_chunk(chunk, request, spaces)
        if reason is not None:
            return reason
    places = (requested or request).places
    return Reason(
        f"needs {places} chunks at the same time; free resources cannot hold all of them",
        f"needs {places} chunks",
    )


def _explain_chunk(chunk: Chunk, request: Request, spaces: Spaces) -> Reason | None:
    needed = chunk.count if request.placement is Placement.SCATTER else 1
    fitting, reasons = 0, Counter[str]()
    for space in spaces:
        reason = shortage(chunk, space, exclusive=request.exclusive)
        reasons[reason] += 1
        fitting += not reason
    if fitting >= needed:
        return None
    del reasons[""]
    what = describe_chunk(chunk)
    if not reasons:
        words = f"needs {needed} nodes with {what}, there are {len(spaces)}"
        return Reason(words, f"needs {needed} nodes")
    others = ", ".join(
        _count_nodes(count, reason)
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:3]
    )
    best = _best_space(chunk, _able(chunk, spaces))
    most = f"; most free: {_free_words(chunk, best)}" if best is not None else ""
    wanted = f"needs {what} on one node" if needed == 1 else f"needs {needed} nodes with {what}"
    free = f"only {fitting} of {len(spaces)} nodes" if fitting else "no node"
    have = "have" if fitting > 1 else "has"
    words = f"{wanted}; {free} {have} enough free ({others}){most}"
    return Reason(words, f"needs {needed} nodes" if fitting else _short(chunk, best, reasons))


def _short(chunk: Chunk, best: FreeNode | None, reasons: Mapping[str, int]) -> str:
    """Return what the node that comes closest lacks: ``1 GPU, 2 CPUs short``, or what all lack."""
    if best is None:  # all CPUs are in use, or no open node has the features
        reason = max(reasons, key=lambda each: (each != "closed", reasons[each]))
        return _SHORT.get(reason, f"{counted(chunk.cpus, 'CPU')} short")
    cpus = chunk.cpus - best.cpus
    gpus = chunk.gpus - len(usable_gpus(chunk, best))
    lacking = [counted(n, noun) for n, noun in ((gpus, "GPU"), (cpus, "CPU")) if n > 0]
    if chunk.memory_bytes > best.memory_bytes and not lacking:
        lacking.append(f"{format_size(chunk.memory_bytes - best.memory_bytes)} memory")
    if lacking:
        return f"{', '.join(lacking)} short"
    reason = shortage(chunk, best) or "exclusive"
    return _SHORT.get(reason, f"{reason} short")


def _count_nodes(count: int, reason: str) -> str:
    """Return ``2 nodes lack CPUs``."""
    one, many = _REASON_WORDS.get(reason, (f"lacks {reason}", f"lack {reason}"))
    return f"1 node {one}" if count == 1 else f"{count} nodes {many}"


_REASON_WORDS = {
    "closed": ("is drained, down or full", "are drained, down or full"),
    "exclusive": ("is in use or exclusive", "are in use or exclusive"),
    "cpus": ("lacks CPUs", "lack CPUs"),
    "memory": ("lacks memory", "lack memory"),
    "gpus": ("lacks GPUs", "lack GPUs"),
    "gpu_share": ("has no room on a GPU", "have no room on a GPU"),
    "gpu_low": (
        "has room only on GPUs that are busy or have enough low jobs",
        "have room only on GPUs that are busy or have enough low jobs",
    ),
    "sharing": ("does not share GPUs", "do not share GPUs"),
    "features": ("lacks the feature or name", "lack the feature or name"),
}


#: The same in two to four words, where no number is to be told.
_SHORT = {
    "closed": "no open node",
    "exclusive": "needs an idle node",
    "gpu_share": "no room on GPUs",
    "gpu_low": "no room on GPUs",
    "sharing": "no shared GPUs",
    "features": "lacks node features",
}


#: Features that no user has named, in words.
_FEATURE_WORDS: Final = {FILES_FEATURE: "a gnode that can stage files (not of an older version)"}


def describe_chunk(chunk: Chunk) -> str:
    """Return ``2 CPUs, 1 GPU (a100), 4gb memory``."""
    words = [counted(chunk.cpus, "CPU")]
    if chunk.gpus:
        kind = f" ({chunk.gpu_type})" if chunk.gpu_type else ""
        words.append(counted(chunk.gpus, "GPU") + kind)
    if chunk.gpu_share is not None:
        words.append(share_words(chunk.gpu_share))
    if chunk.memory_bytes:
        words.append(f"{format_size(chunk.memory_bytes)} memory")
    words.extend(f"{count} {name}" for name, count in chunk.generic)
    words.extend(_FEATURE_WORDS.get(each, each) for each in chunk.features)
    return ", ".join(words)


def best_node(chunk: Chunk, spaces: Iterable[FreeNode]) -> str:
    """Return the node that comes closest to ``chunk``, in words: ``n1 with 3 CPUs, 2 GPUs``."""
    best = _best_space(chunk, spaces)
    return "" if best is None else _free_words(chunk, best)


def _able(chunk: Chunk, spaces: Iterable[FreeNode]) -> Iterator[FreeNode]:
    """Yield the nodes with something free that have the features; mostly few, so those first."""
    return (each for each in spaces if each.cpus > 0 and each.features.issuperset(chunk.features))


def _best_space(chunk: Chunk, spaces: Iterable[FreeNode]) -> FreeNode | None:
    candidates = [space for space in spaces if space.open and space.cpus > 0]
    if not candidates:
        return None
    return min(
        candidates,
        key=lambda s: (
            chunk.gpu_share is not None and not s.sharing,
            -_percent_left(s) if chunk.gpu_share is not None else 0,
            -min(len(usable_gpus(chunk, s)), chunk.gpus),
            -s.cpus,
            -s.memory_bytes,
            s.name,
        ),
    )


def _free_words(chunk: Chunk, best: FreeNode) -> str:
    whole = Chunk(
        cpus=best.cpus,
        gpus=len(usable_gpus(chunk, best)) if chunk.gpus else 0,
        memory_bytes=best.memory_bytes if chunk.memory_bytes else 0,
        generic=tuple((name, dict(best.generic).get(name, 0)) for name, _ in chunk.generic),
    )
    share = f", {_most_shared(best)}" if chunk.gpu_share is not None else ""
    return f"{best.name} with {describe_chunk(whole)}{share}"


def _percent_left(space: FreeNode) -> int:
    """Return how much of some GPU is left for a share."""
    if space.gpus:
        return WHOLE_PERCENT
    return max((each.percent for each in space.shared), default=0)


def _most_shared(space: FreeNode) -> str:
    """Return what is left of the GPU of a node of which the most is left for shares."""
    left = [*space.shared, *map(untouched, space.gpus)]
    if space.sharing is None or not left:
        return "no GPU to share"
    most = max(left, key=lambda each: (each.percent, each.memory_bytes, -each.gpu.index))
    return f"{most.percent} % of GPU {most.gpu.index} with {format_size(most.memory_bytes)}"
