"""Only so many jobs move at once: which of a policy's moves are made now, and which later (I16)."""

from collections import Counter
from collections.abc import Callable, Sequence

from gschedd.core.attempts.migration import movable
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Move, Plan
from gschedd.plan.space import Spaces
from gschedd.plan.validate import validate

Objection = Callable[[Sequence[Move]], str]


def paced(state: State, settings: Settings, moves: Sequence[Move]) -> tuple[Move, ...]:
    """Return those of a policy's moves that are to be made now.

    Training jobs that save their state all at the same moment would take each other's disk and
    network, so no more move at once than is set, whoever wants it. Of several users the one of
    whose jobs the fewest have moved so far is next, as with drains. What is left the policy may
    propose again when one of these is at its place.

    A move into a place that another one has to leave first is made together with that one. Where so
    many jobs want each other's places that there would never be room for all of them, they move
    when nothing else does.
    """
    room = settings.config.moves.at_once - len(state.targets)
    if len(moves) <= room:
        return tuple(moves)

    def objection(some: Sequence[Move]) -> str:
        plan, spaces = Plan(moves=tuple(some)), Spaces(state.spaces)
        return validate(plan, spaces, lambda _: None, lambda job: movable(state, job)).objection

    if room > 0 and objection(moves):
        return tuple(moves)  # it is for the check of the whole plan to say so
    return _chosen(state, moves, room, objection)


def _chosen(
    state: State, moves: Sequence[Move], room: int, objection: Objection
) -> tuple[Move, ...]:
    chosen: list[Move] = []
    rest = list(moves)
    turns = Counter(state.volatile.turns)
    while len(chosen) < room:
        rest.sort(key=lambda move: turns[_owner(state, move)])  # stable: else as they were planned
        group = _next(state, chosen, rest, room - len(chosen), objection)
        if not group:
            break
        chosen.extend(group)
        turns.update(_owner(state, move) for move in group)
        rest = [move for move in rest if move not in group]
    if not chosen and room > 0 and not state.targets and rest:
        chosen = _with_those_before(state, [], rest, rest[0], len(rest), objection)
    return tuple(chosen)


def _owner(state: State, move: Move) -> int:
    return state.jobs[move.job].spec.owner.uid


def _next(
    state: State, chosen: list[Move], rest: list[Move], room: int, objection: Objection
) -> list[Move]:
    """Return the next move, with those that have to be made with it; empty if none has room."""
    for move in rest:
        group = _with_those_before(state, chosen, rest, move, room, objection)
        if group:
            return group
    return []


def _with_those_before(
    state: State,
    chosen: list[Move],
    rest: list[Move],
    move: Move,
    most: int,
    objection: Objection,
) -> list[Move]:
    """Return a move and those that leave the place that it needs; empty if they are too many."""
    group = [move]
    while objection([*chosen, *group]):
        leaver = next((other for other in _leavers(state, rest, group) if other not in group), None)
        if leaver is None or len(group) >= most:
            return []
        group.append(leaver)
    return group


def _leavers(state: State, rest: list[Move], group: list[Move]) -> list[Move]:
    """Return moves away from where a group goes, those first that have what it is to have."""
    wanted: dict[str, set[int]] = {}
    for move in group:
        for share in move.allocation:
            wanted.setdefault(share.node, set()).update(share.gpu_indices)
    found: list[tuple[bool, Move]] = []
    for move in rest:
        attempt = state.jobs[move.job].attempt
        here = attempt.allocation if attempt is not None else ()
        shares = [share for share in here if share.node in wanted]
        if shares:
            apart = all(wanted[share.node].isdisjoint(share.gpu_indices) for share in shares)
            found.append((apart, move))
    return [move for _, move in sorted(found, key=lambda each: each[0])]
