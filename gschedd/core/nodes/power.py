"""Power saving: idle nodes are powered down by the site's program, and up again for those who wait.

A node that is on its way down counts as such until `suspend_timeout_s` is over, whatever becomes of
its connection: to power up a machine that still shuts down would have no effect. One that is on its
way up counts as on when it registers. Both, and those that are down, are in plans as nodes that can
be used later (`State.windows`); which of them jobs need is decided here, as a policy places jobs on
nodes that it can use now. Nodes of a reservation are powered up in time for its beginning.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import structs

from gsched.errors import BadStateError
from gsched.model.ids import short_job_id
from gsched.model.resources import Allocation, Chunk, Request
from gsched.model.states import NodeState, PowerState
from gsched.model.units import format_duration
from gsched.model.wording import counted
from gschedd.core.nodes import probation
from gschedd.core.state import facts as f
from gschedd.core.state.records import Node
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.transient import WaitingGroup
from gschedd.plan.fit import NoFit, place
from gschedd.plan.moments import moment
from gschedd.plan.room import RankKey, leftover
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.windows import barred, without

#: So many waiting jobs are looked at, in their order; of a class, none behind one without room.
MAX_WANTING: Final = 256
#: Comparisons of nodes for jobs that are placed on nodes of both kinds; each takes 2 us.
MAX_LOOKS: Final = 8_000
_MINUTE_S: Final = 60.0


class PowerSaving:
    """Which nodes are idle and since when, and which were switched within the last minute.

    Nothing of it is durable: after a restart of the head nodes count as idle from then on.
    """

    #: The facts that `note` takes in.
    NOTED: Final = frozenset({f.AttemptAssigned, f.NodeRegistered})

    def __init__(self, state: State) -> None:
        self._state = state
        self._idle_s: dict[str, float] = {}
        self._switched_s: dict[PowerState, deque[float]] = {
            PowerState.POWERING_DOWN: deque(),
            PowerState.POWERING_UP: deque(),
        }
        self._due_s: float | None = 0.0
        self._begun = False

    def next_due_s(self, settings: Settings) -> float | None:
        """Return when `changes` has something to do, seconds since the epoch; None: not by time."""
        return self._due_s if settings.config.power.is_on or self._state.powered else None

    def mark_due(self, settings: Settings, now_s: float) -> None:
        """Have the next cycle call `changes` if it has something to do by now."""
        due_s = self.next_due_s(settings)
        if due_s is not None and due_s <= now_s:
            self._state.dirty.any = True

    def note(self, fact: f.AnyFact) -> None:
        """Take in a fact that was applied: a node that registers or gets a job is not idle yet."""
        match fact:
            case f.AttemptAssigned():
                for share in fact.allocation:
                    self._idle_s.pop(share.node, None)
            case f.NodeRegistered():
                self._idle_s.pop(fact.node, None)
            case _:
                pass

    def changes(self, settings: Settings, now_s: float) -> list[f.AnyFact]:
        """Return which nodes are to be powered down or up now, and which are."""
        state, power = self._state, settings.config.power
        if not (power.is_on or state.powered):
            self._idle_s.clear()
            return []
        due = _over if self._begun else _again
        facts = list(due(state, settings, now_s))
        self._begun = True
        changed = {fact.node for fact in facts if isinstance(fact, f.NodeFact)}
        due_s = [
            state.nodes[name].power.due_s
            for name in state.powered
            if name not in changed and state.nodes[name].power.due_s
        ]
        if power.is_on:
            idle = self._idle(settings, now_s)
            ends_s = {name: since_s + power.suspend_after_s for name, since_s in idle.items()}
            ripe = [name for name, end_s in ends_s.items() if end_s <= now_s]
            due_s += [end_s for end_s in ends_s.values() if end_s > now_s]
            wanted, kept = _reserved(state, settings, now_s, due_s)
            if ripe or any(_is_asleep(state.nodes[name]) for name in state.powered):
                for name, job in _wanted(state, settings, now_s).items():
                    wanted.setdefault(name, f"job {short_job_id(job)}")
            up = [name for name in wanted if _is_asleep(state.nodes[name]) and name not in changed]
            facts += [
                _up(settings, name, f"for {wanted[name]}", now_s)
                for name in self._allowed(up, PowerState.POWERING_UP, settings, now_s, due_s)
            ]
            down = [name for name in ripe if name not in wanted and name not in kept]
            for name in self._allowed(down, PowerState.POWERING_DOWN, settings, now_s, due_s):
                why = f"idle for {format_duration(now_s - self._idle_s.pop(name))}"
                facts.append(_down(settings, name, why, now_s))
        switched = (fact for fact in facts if isinstance(fact, f.NodePowerChanged))
        due_s += [fact.due_s for fact in switched if fact.due_s]
        self._due_s = min(due_s, default=None)
        return facts

    def _idle(self, settings: Settings, now_s: float) -> dict[str, float]:
        """Return since when nodes are idle that may be powered down."""
        excluded = settings.config.power.excluded
        names = [
            name
            for name, node in self._state.nodes.items()
            if name not in excluded and _may_sleep(self._state, node)
        ]
        self._idle_s = {name: self._idle_s.get(name, now_s) for name in names}
        return self._idle_s

    def _allowed(
        self,
        names: list[str],
        to: PowerState,
        settings: Settings,
        now_s: float,
        due_s: list[float],
    ) -> list[str]:
        """Return those of the nodes that may be switched in this minute; note when others may."""
        most, recent = settings.config.power.nodes_per_minute, self._switched_s[to]
        while recent and recent[0] <= now_s - _MINUTE_S:
            recent.popleft()
        if not most or not names:
            return names
        chosen = names[: max(0, most - len(recent))]
        recent.extend(now_s for _ in chosen)
        if len(chosen) < len(names):
            due_s.append(recent[-most] + _MINUTE_S)
        return chosen


def _again(state: State, settings: Settings, now_s: float) -> Iterator[f.AnyFact]:
    """Yield once what was under way when the head ended: the programs may not have been run.

    The time counts anew, as no node could register while no head ran.
    """
    for name in sorted(state.powered):
        power = state.nodes[name].power
        if power.state is PowerState.POWERING_UP:
            yield _up(settings, name, power.reason, now_s)
        elif power.state is PowerState.POWERING_DOWN:
            yield _down(settings, name, power.reason, now_s)


def _over(state: State, settings: Settings, now_s: float) -> Iterator[f.AnyFact]:
    """Yield what follows for nodes whose time to go down or to come up is over."""
    for name in sorted(state.powered):
        node = state.nodes[name]
        if not node.power.due_s or node.power.due_s > now_s:
            continue
        if node.power.state is PowerState.POWERING_UP:
            limit = format_duration(settings.config.power.resume_timeout_s)
            reason = f"it was powered up, and has not registered within {limit}"
            yield _to(name, PowerState.ON, reason, now_s)
            if not node.drained:
                yield probation.drained(node, reason, now_s)
        elif node.state is NodeState.UP:
            limit = format_duration(settings.config.power.suspend_timeout_s)
            reason = f"it was to be powered down, and is still connected after {limit}"
            yield _to(name, PowerState.ON, reason, now_s)
        else:
            yield _to(name, PowerState.POWERED_DOWN, node.power.reason, now_s)


def _to(name: str, power: PowerState, reason: str, now_s: float) -> f.NodePowerChanged:
    return f.NodePowerChanged(at_s=now_s, node=name, power=power, reason=reason)


def _up(
    settings: Settings, name: str, reason: str, now_s: float, by: str = ""
) -> f.NodePowerChanged:
    due_s = now_s + settings.config.power.resume_timeout_s
    return structs.replace(_to(name, PowerState.POWERING_UP, reason, now_s), due_s=due_s, by=by)


def _down(
    settings: Settings, name: str, reason: str, now_s: float, by: str = ""
) -> f.NodePowerChanged:
    due_s = now_s + settings.config.power.suspend_timeout_s
    return structs.replace(_to(name, PowerState.POWERING_DOWN, reason, now_s), due_s=due_s, by=by)


def _is_asleep(node: Node) -> bool:
    return node.power.state is PowerState.POWERED_DOWN


def _has_jobs(state: State, node: Node) -> bool:
    """Return whether jobs are on a node or on their way to it, also one with a damaged record."""
    return bool(
        state.by_node.get(node.name)
        or state.targets_on.get(node.name)
        or state.damaged_on(node.name)
    )


def _may_sleep(state: State, node: Node) -> bool:
    """Return whether a node is idle: on, in order, and without jobs."""
    return (
        node.state is NodeState.UP
        and node.power.state is PowerState.ON
        and not (node.drained or node.problem or node.probation.due_s)
        and not any(window.begun for window in node.windows)
        and not _has_jobs(state, node)
    )


def _reserved(
    state: State, settings: Settings, now_s: float, due_s: list[float]
) -> tuple[dict[str, str], set[str]]:
    """Return the nodes that are to be on for reservations, and those that are not powered down.

    They are powered up so long before a reservation begins as that may take, and are on until it
    ends. Those that could not be down and up again before are left on. Maintenance needs none.

    Args:
        due_s: gets the times at which there are more.
    """
    power = settings.config.power
    wanted: dict[str, str] = {}
    kept: set[str] = set()
    for each in state.reservations.values():
        if each.maintenance:
            continue
        held = (state.nodes.get(share.node) for share in each.shares)
        names = {node.name for node in held if node is not None and _may_be_on(node)}
        up_s = each.from_s - power.resume_timeout_s
        if up_s <= now_s:
            wanted |= dict.fromkeys(sorted(names), f"reservation {each.name}")
        else:
            due_s.append(up_s)
        if up_s - power.suspend_timeout_s <= now_s:
            kept |= names
    return wanted, kept


def _may_be_on(node: Node) -> bool:
    """Return whether jobs may be started on a node once it is on."""
    return not (node.drained or any(window.begun for window in node.windows))


def _wanted(state: State, settings: Settings, now_s: float) -> dict[str, int]:
    """Return the nodes that waiting jobs could start on, each with the first job that would.

    The jobs are placed in their order: on nodes that are on or will be soon, and where there is no
    room, also on those that are powered down. A job that waits for nodes that are in use has none.
    """
    nodes = (state.nodes[name] for name in state.powered)
    off = {node.name: node.power.state for node in nodes}
    down = {name for name, power in off.items() if power is PowerState.POWERED_DOWN}
    leaving = {name for name, power in off.items() if power is PowerState.POWERING_DOWN}
    later = without(Spaces(state.spaces), leaving)
    soon = without(later, down)
    windows = {name: state.nodes[name].windows for name in state.windowed}
    wanted: dict[str, int] = {}
    looks = MAX_LOOKS
    groups = _startable(state, settings)
    orders = [state.ordered(group) for group in groups]
    first = [(order[0], at, 0) for at, order in enumerate(orders)]
    heapq.heapify(first)
    for _ in range(MAX_WANTING):
        if not first:
            break
        (_, job), at, place_in_class = heapq.heappop(first)
        group = groups[at]
        request, closed = (
            group.job_class.request,
            barred(windows, now_s, group.job_class.walltime_s),
        )
        found = place(request, without(soon, closed) if closed else soon)
        if isinstance(found, NoFit) and looks > 0:
            one = _is_for_one_node(request)
            looks -= 0 if one else len(later)
            here = without(later, closed) if closed else later
            found = _place_with_fewest(request, here, down, one=one)
        if isinstance(found, NoFit):
            continue  # and so do the jobs of its class that are behind it
        for share in found:
            wanted.setdefault(share.node, job)
            if share.node in down:
                down.discard(share.node)
                soon.put(later[share.node])
        soon.take(found)
        later.take(found)
        if place_in_class + 1 < len(orders[at]):
            heapq.heappush(first, (orders[at][place_in_class + 1], at, place_in_class + 1))
    return wanted


def _startable(state: State, settings: Settings) -> list[WaitingGroup]:
    """Return the classes of waiting jobs that may be started; not those for reservations."""
    return [
        group
        for group in state.groups.values()
        if settings.scheduling
        and not group.job_class.reservation
        and (queue := settings.queues.get(group.job_class.queue)) is not None
        and queue.started
    ]


def _is_for_one_node(request: Request) -> bool:
    return len(request.chunks) == 1 and request.chunks[0].count == 1


def _place_with_fewest(
    request: Request, spaces: Spaces, down: Iterable[str], *, one: bool
) -> Allocation | NoFit:
    """Place a job with as few nodes that are powered down as it needs."""
    if one:
        return place(request, spaces)  # it does not fit on any other node
    asleep = frozenset(down)

    def rank(chunk: Chunk, space: FreeNode) -> RankKey:
        return (float(space.name in asleep), *leftover(chunk, space))

    return place(request, spaces, rank)


# --- what an operator requests ---


def change_power(
    state: State, settings: Settings, node: Node, by: str, now_s: float, *, up: bool
) -> list[f.AnyFact]:
    """Return that a node is powered down or up, as an operator requests; nothing if it is.

    Raises:
        BadStateError: there are no programs for it, or the node has jobs or is not in that state.
    """
    if not settings.config.power.is_on:
        raise BadStateError(
            "no programs power nodes down and up here",
            hint="set suspend_program and resume_program in [power] of gsched.toml(5)",
        )
    reason = f"requested by {by}"
    if up:
        return _up_by_operator(state, settings, node, reason, by, now_s)
    if node.power.state in {PowerState.POWERING_DOWN, PowerState.POWERED_DOWN}:
        return []
    if node.state is not NodeState.UP:
        raise BadStateError(
            f"node {node.name} is not connected", hint="only a node that is up is powered down"
        )
    _check_free(state, node, "down")
    return [_down(settings, node.name, reason, now_s, by)]


def _up_by_operator(
    state: State, settings: Settings, node: Node, reason: str, by: str, now_s: float
) -> list[f.AnyFact]:
    if node.power.state is PowerState.POWERING_DOWN:
        raise BadStateError(
            f"node {node.name} is powering down until {moment(node.power.due_s)}",
            hint="try again then",
        )
    if node.power.state is PowerState.POWERING_UP or (
        node.power.state is PowerState.ON and node.state is NodeState.UP
    ):
        return []
    _check_free(state, node, "up")
    return [_up(settings, node.name, reason, now_s, by)]


def _check_free(state: State, node: Node, direction: str) -> None:
    if _has_jobs(state, node):
        jobs = len({*state.by_node.get(node.name, {}), *state.targets_on.get(node.name, {})})
        raise BadStateError(
            f"node {node.name} has {counted(max(1, jobs), 'job')}, so it is not powered "
            f"{direction}",
            hint=f"gnodes drain {node.name}, and wait until they have ended"
            if direction == "down"
            else f"if the machine is gone for good: gnodes confirm-dead {node.name}",
        )
