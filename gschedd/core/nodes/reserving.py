"""Which nodes or GPUs a reservation holds, and which running jobs are in its way."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from msgspec import structs

from gsched.errors import BadStateError, InvalidRequestError, UnknownNodeError
from gsched.model.reservation import Reservation, Window
from gsched.model.resources import Allocation, Share
from gsched.model.states import NodeState
from gsched.model.units import format_gpus
from gsched.model.wording import counted
from gschedd.core.state.records import Job, Node
from gschedd.core.state.state import PLANNED_WINDOWS, State
from gschedd.core.state.walltime import walltime_left_s
from gschedd.plan.moments import moment
from gschedd.plan.reserved import reserved_nodes
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.windows import ReservedWindow

#: For so long two recurring reservations are compared, seconds.
COMPARED_S: Final = 8 * 7 * 86_400.0


def overlap(one: Reservation, other: Reservation) -> Window | None:
    """Return the first window of a reservation that overlaps one of another; None: none does."""
    last_s = max(one.to_s, other.to_s)
    if one.recur and other.recur:
        last_s += COMPARED_S
    windows, others = one.windows(), other.windows()
    mine, its = next(windows, None), next(others, None)
    while mine is not None and its is not None and max(mine.from_s, its.from_s) < last_s:
        if mine.overlaps(its):
            return mine
        if mine.to_s <= its.to_s:
            mine = next(windows, None)
        else:
            its = next(others, None)
    return None


def is_available(node: Node) -> bool:
    """Return whether jobs may be started on a node, as far as its own state goes."""
    return node.state is NodeState.UP and not node.drained and not node.problem


def reaching_jobs(state: State, share: Share, at_s: float, name: str) -> Iterator[Job]:
    """Yield the jobs that own something of a share and may still run then, but for those in it."""
    for job in state.by_node.get(share.node, {}).values():
        attempt = job.current_attempt
        held = attempt.parts[share.node].share
        gpus = {each.index for each in held.gpus_held}
        if attempt.reservation == name or not (
            share.exclusive or gpus.intersection(share.gpu_indices)
        ):
            continue
        left_s = walltime_left_s(job)
        if left_s is None or (attempt.started_s or attempt.assigned_s) + left_s > at_s:
            yield job


def in_the_way(state: State, reservation: Reservation) -> dict[int, Job]:
    """Return the jobs of others on what a reservation holds that may run at its beginning."""
    found = (
        reaching_jobs(state, share, reservation.from_s, reservation.name)
        for share in reservation.shares
    )
    return {job.id: job for job in sorted(chain.from_iterable(found), key=lambda job: job.id)}


def reserved_windows(state: State) -> tuple[ReservedWindow, ...]:
    """Return the next windows of all reservations, as policies see them."""
    return tuple(
        _window(each, window)
        for each in state.reservations.values()
        for window in islice(each.windows(), PLANNED_WINDOWS)
    )


def _window(reservation: Reservation, window: Window) -> ReservedWindow:
    return ReservedWindow(
        name=reservation.name,
        from_s=window.from_s,
        to_s=window.to_s,
        shares=reservation.shares,
    )


def free_in(
    state: State,
    reservation: Reservation,
    free: Spaces,
    more: Iterable[Allocation] = (),
    *,
    without: int = 0,
) -> dict[str, FreeNode]:
    """Return what is free of a reservation on its nodes.

    Args:
        free: what is free on all nodes.
        more: what is given to further jobs in it.
        without: a job that counts as if it did not run.
    """
    given = [
        state.running[number].current_attempt.allocation
        for number in state.reserved_jobs.get(reservation.name, ())
        if number != without
    ]
    nodes = {share.node: free[share.node] for share in reservation.shares if share.node in free}
    return reserved_nodes(_window(reservation, reservation.window), nodes, [*given, *more])


class _Candidate(NamedTuple):
    """A node that may be chosen; the least one is the best."""

    is_new: bool
    is_unavailable: bool
    jobs: int
    name: str


def chosen(state: State, wanted: Reservation, avoid: Iterable[str] = ()) -> Allocation:
    """Return what a reservation is to hold: of what it has as much as it can, and the best rest.

    Nodes that accept jobs come first, then those on which few running jobs reach into its window.

    Args:
        avoid: nodes that it is not to have.

    Raises:
        UnknownNodeError, BadStateError, InvalidRequestError: there is not so much.
    """
    taken = _taken(state, wanted)
    if wanted.node_names:
        return tuple(_named(state, name, taken, wanted) for name in wanted.node_names)
    nodes = {
        name: node
        for name, node in state.nodes.items()
        if name not in avoid and (wanted.maintenance or _maintenance(node, wanted) is None)
    }
    if wanted.gpus:
        return _gpus(state, wanted, nodes, taken)
    free = [node for name, node in nodes.items() if name not in taken]
    if len(free) < wanted.nodes:
        raise BadStateError(
            f"{counted(wanted.nodes, 'node')} requested, and {len(free)} of "
            f"{len(state.nodes)} are free of other reservations and maintenance then",
            hint="gres calendar shows who has them when",
        )
    ranked = sorted(_candidate(state, wanted, _whole(node)) for node in free)
    names = sorted(each.name for each in ranked[: wanted.nodes])
    return tuple(_whole(state.nodes[name]) for name in names)


def _taken(state: State, wanted: Reservation) -> dict[str, list[tuple[Share, Reservation]]]:
    """Return what other reservations hold in its windows, by node."""
    found: dict[str, list[tuple[Share, Reservation]]] = {}
    for other in state.reservations.values():
        if other.name != wanted.name and overlap(wanted, other) is not None:
            for share in other.shares:
                found.setdefault(share.node, []).append((share, other))
    return found


def _maintenance(node: Node, wanted: Reservation) -> Window | None:
    windows = (Window(each.from_s, each.to_s) for each in node.windows)
    return next((each for each in windows if each.overlaps(wanted.window)), None)


def _candidate(state: State, wanted: Reservation, share: Share) -> _Candidate:
    jobs = sum(1 for _ in reaching_jobs(state, share, wanted.from_s, wanted.name))
    return _Candidate(
        is_new=wanted.share_on(share.node) is None,
        is_unavailable=not is_available(state.nodes[share.node]),
        jobs=jobs,
        name=share.node,
    )


def _whole(node: Node) -> Share:
    has = node.inventory
    return Share(
        node=node.name,
        cpus=has.cpus,
        memory_bytes=has.memory_bytes,
        gpu_indices=tuple(gpu.index for gpu in has.gpus),
        generic=has.generic,
        exclusive=True,
    )


def _named(
    state: State,
    name: str,
    taken: Mapping[str, list[tuple[Share, Reservation]]],
    wanted: Reservation,
) -> Share:
    """Return a whole node that was named."""
    node = state.nodes.get(name)
    if node is None:
        known = ", ".join(sorted(state.nodes)[:10]) or "none has registered"
        raise UnknownNodeError(f"unknown node {name!r}", hint=f"nodes here: {known}")
    for _, other in taken.get(name, ()):
        window = overlap(other, wanted) or other.window
        raise BadStateError(
            f"node {name} is in reservation {other.name} from {moment(window.from_s)} to "
            f"{moment(window.to_s)}, which overlaps",
            hint="choose other nodes or another time, or alter that one: gres calendar shows both",
        )
    window_of = None if wanted.maintenance else _maintenance(node, wanted)
    if window_of is not None:
        raise BadStateError(
            f"node {name} has maintenance from {moment(window_of.from_s)} to "
            f"{moment(window_of.to_s)}, which overlaps",
            hint="choose other nodes or another time",
        )
    return _whole(node)


def _gpus(
    state: State,
    wanted: Reservation,
    nodes: Mapping[str, Node],
    taken: Mapping[str, list[tuple[Share, Reservation]]],
) -> Allocation:
    """Return parts of nodes with the GPUs that are wanted, on few nodes."""
    shares = [
        share
        for node in nodes.values()
        if (share := _part(state, node, wanted, taken.get(node.name, ()))) is not None
    ]
    ranked = sorted(
        shares,
        key=lambda share: (
            *_candidate(state, wanted, share)[:-1],
            -len(share.gpu_indices),
            share.node,
        ),
    )
    found: list[Share] = []
    left = wanted.gpus
    for share in ranked:
        if left:
            some = _fewer(state, share, min(left, len(share.gpu_indices)))
            left -= len(some.gpu_indices)
            found.append(some)
    if left:
        gpu_type = f" {wanted.gpu_type}" if wanted.gpu_type else ""
        raise BadStateError(
            f"{format_gpus(wanted.gpus)}{gpu_type} requested, and {wanted.gpus - left} are free "
            "of other reservations and maintenance then",
            hint="gres calendar shows who has them when; gnodes shows types of GPUs",
        )
    return tuple(sorted(found, key=lambda share: share.node))


def _part(
    state: State, node: Node, wanted: Reservation, taken: Iterable[tuple[Share, Reservation]]
) -> Share | None:
    """Return the GPUs of a node that a reservation may have; None: it may have none."""
    gone = {index for share, _ in taken for index in share.gpu_indices}
    if any(share.exclusive for share, _ in taken):
        return None
    held = wanted.share_on(node.name)
    mine = set(held.gpu_indices) if held is not None else set()
    busy = {
        each.index
        for job in state.by_node.get(node.name, {}).values()
        for each in job.current_attempt.parts[node.name].share.gpus_held
    }
    indices = [
        gpu.index
        for gpu in node.inventory.gpus
        if gpu.index not in gone and wanted.gpu_type in {"", gpu.type}
    ]
    if not indices:
        return None
    indices.sort(key=lambda index: (index not in mine, index in busy, index))
    return Share(node=node.name, cpus=0, gpu_indices=tuple(indices))


def _fewer(state: State, share: Share, gpus: int) -> Share:
    """Return the first GPUs of a share, with their part of the node's CPUs and memory."""
    has = state.nodes[share.node].inventory
    part = gpus / len(has.gpus)
    return structs.replace(
        share,
        gpu_indices=tuple(sorted(share.gpu_indices[:gpus])),
        cpus=int(has.cpus * part),
        memory_bytes=int(has.memory_bytes * part),
    )


def check_kind(wanted: Reservation) -> None:
    """Check that one kind of resources is requested.

    Raises:
        InvalidRequestError: it is none, or several.
    """
    kinds = [bool(wanted.nodes), bool(wanted.node_names), bool(wanted.gpus)]
    if sum(kinds) != 1:
        raise InvalidRequestError(
            "a reservation holds either nodes or GPUs, at least one",
            hint="say --nodes N, --nodes n1,n2 or --gpus N[:TYPE]",
        )
