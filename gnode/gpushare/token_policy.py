"""Which job may use a shared GPU next: pure, with the time as an argument.

One token exists for each GPU, and a group of processes, the job, holds it. A high job is served
first and keeps the token until it is idle; low jobs take turns in slices, and give the token back
as soon as a high job wants it. A job that does not drain within `Settings.drain_max_s` is
overtaken, which is counted.

Source:
    Wang et al., GPU sharing method for deep learning clusters with priorities, Computer Science
    50(6), 2023. The order of low jobs is that of Gemini (Chen et al., IEEE TCC 2021), by a decayed
    usage instead of a window of time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gsched.model.states import ShareClass

SLICE_GROWTH_MAX: Final = 16  # doublings of a slice; the longest slice ends them earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Durations of the policy, seconds.

    Attributes:
        slice_beside_high_s: slice of a low job while a high job is attached.
        slice_first_s, slice_max_s: slices of low jobs among themselves: the first, doubled with
            each further grant up to the longest.
        drain_max_s: a job that has not drained by then is overtaken.
        overlaps_max: a job that was overtaken so often in a row is demoted; 0: none is.
        half_life_s: after this time half of a job's usage is forgotten.
        window_first, window_max: unfinished launches of a process of a low job beside a high one.
        window_fixed: instead of an adapted window; None: adapted; 0: no window.
        drain_target_s: windows are halved above this drain, and doubled below half of it.
    """

    slice_beside_high_s: float = 0.05
    slice_first_s: float = 0.1
    slice_max_s: float = 2.0
    drain_max_s: float = 0.5
    overlaps_max: int = 0
    half_life_s: float = 10.0
    window_first: int = 4
    window_max: int = 64
    window_fixed: int | None = None
    drain_target_s: float = 0.001


class Why(StrEnum):
    """Why a gate was closed."""

    PREEMPTED = "preempted"
    SLICE_END = "slice_end"
    IDLE = "idle"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class OpenGate:
    """The group holds the token with this epoch."""

    group: str
    epoch: int


@dataclass(frozen=True, slots=True)
class CloseGate:
    """The group must stop launching, drain, and tell so."""

    group: str
    epoch: int
    why: Why


@dataclass(frozen=True, slots=True)
class AskIdle:
    """The group is to tell when it is idle: another one waits."""

    group: str


@dataclass(frozen=True, slots=True)
class SetWindow:
    """Maximum number of unfinished launches of each process of the group; 0: no limit."""

    group: str
    window: int


Effect = OpenGate | CloseGate | AskIdle | SetWindow


@dataclass(slots=True)
class Counters:
    """What has happened on one GPU since the daemon started."""

    grants: int = 0
    revokes: int = 0
    preemptions: int = 0
    overlaps: int = 0
    demotions: int = 0
    drains: int = 0
    drain_s_max: float = 0.0
    drain_s_sum: float = 0.0


@dataclass(slots=True)
class Group:
    """One job on the GPU.

    Attributes:
        overlaps_in_row: times that it was overtaken since it has drained in time.
        demoted: it counts as a low job, and gets no token while a high job is attached.
    """

    name: str
    share_class: ShareClass
    arrived: int
    wants_since_s: float | None = None
    idle: bool = False
    usage_s: float = 0.0
    usage_at_s: float = 0.0
    held_s: float = 0.0
    window: int = 0
    overlaps: int = 0
    overlaps_in_row: int = 0
    demoted: bool = False

    @property
    def high(self) -> bool:
        """Return whether this is a high job that has not been demoted."""
        return self.share_class is ShareClass.HIGH and not self.demoted


@dataclass(slots=True)
class _Grant:
    """The token in the hands of a group, until it has drained."""

    group: str
    epoch: int
    since_s: float
    slice_end_s: float
    closed_at_s: float | None = None
    asked_idle: bool = False


@dataclass(slots=True)
class TokenPolicy:
    """The token of one GPU. Each method returns the effects of one event, in order.

    Attributes:
        settings: durations.
        quiet_until_s: before this time only claims are granted: a daemon that was restarted waits
            for the job that held the token.
        groups: jobs with processes on this GPU.
        gone: jobs that have none at the moment: what they have used, and whether they are demoted.
    """

    settings: Settings = field(default_factory=Settings)
    quiet_until_s: float = 0.0
    counters: Counters = field(default_factory=Counters)
    groups: dict[str, Group] = field(default_factory=dict)
    gone: dict[str, Group] = field(default_factory=dict)
    _grant: _Grant | None = None
    _overtaken: dict[str, int] = field(default_factory=dict)
    _epoch: int = 0
    _arrivals: int = 0
    _low_grants: int = 0

    # ---- questions ----

    @property
    def holder(self) -> str | None:
        """Return the group whose gate is open, or None."""
        grant = self._grant
        return grant.group if grant is not None and grant.closed_at_s is None else None

    @property
    def draining(self) -> str | None:
        """Return the group whose gate was closed and that has not drained, or None."""
        grant = self._grant
        return grant.group if grant is not None and grant.closed_at_s is not None else None

    def epoch_of(self, group: str) -> int:
        """Return the epoch of the group's grant; 0: it has none."""
        return self._grant.epoch if self._grant is not None and self._grant.group == group else 0

    def next_tick_s(self) -> float | None:
        """Return when `tick` is due, or None if no time matters."""
        due: list[float] = []
        grant = self._grant
        if grant is None:
            if any(self._waiting()):
                due.append(self.quiet_until_s)
        elif grant.closed_at_s is not None:
            due.append(grant.closed_at_s + self.settings.drain_max_s)
        elif self._has_equal_rival(grant):
            due.append(grant.slice_end_s)
        return min(due) if due else None

    def usage_s(self, group: str, now_s: float) -> float:
        """Return the decayed time for which the group has held the token, seconds."""
        one = self.groups[group]
        usage_s = _decayed(one.usage_s, now_s - one.usage_at_s, self.settings.half_life_s)
        if self._grant is not None and self._grant.group == group:
            usage_s += now_s - max(self._grant.since_s, one.usage_at_s)
        return usage_s

    def held_s(self, group: str, now_s: float) -> float:
        """Return for how long the group has held the token in all, seconds."""
        one = self.groups.get(group) or self.gone[group]
        held_s = one.held_s
        if self._grant is not None and self._grant.group == group:
            held_s += now_s - self._grant.since_s
        return held_s

    # ---- events ----

    def attach(self, group: str, share_class: ShareClass, now_s: float) -> list[Effect]:
        """A job has its first process on this GPU; one that had some before keeps its account."""
        if group in self.groups:
            return []
        self._arrivals += 1
        one = self.gone.pop(group, None) or Group(group, share_class, 0, usage_at_s=now_s)
        one.arrived, one.window = self._arrivals, self.settings.window_first
        one.wants_since_s, one.idle = None, False
        self.groups[group] = one
        if one.high:
            self._low_grants = 0
        return [*self._windows(), *self._decide(now_s)]

    def detach(self, group: str, now_s: float) -> list[Effect]:
        """A job has no process left on this GPU: what it held is free."""
        if group not in self.groups:
            return []
        effects: list[Effect] = []
        grant = self._grant
        if grant is not None and grant.group == group:
            if grant.closed_at_s is None:
                effects.append(CloseGate(group, grant.epoch, Why.LEFT))
            self._charge(grant, now_s)
            self._grant = None
        self._overtaken.pop(group, None)
        self.gone[group] = self.groups.pop(group)
        return [*effects, *self._windows(), *self._decide(now_s)]

    def forget(self, group: str) -> None:
        """A job without processes is over."""
        self.gone.pop(group, None)

    def request(self, group: str, now_s: float) -> list[Effect]:
        """A process of the job waits for the token, or is not idle any more."""
        one = self.groups[group]
        one.idle = False
        if self.holder == group:
            return self.repeated()
        if one.wants_since_s is None:
            one.wants_since_s = now_s
        return self._decide(now_s)

    def repeated(self) -> list[Effect]:
        """Return once more what the holder has been told, for a process that does not know it."""
        grant = self._grant
        if grant is None or grant.closed_at_s is not None:
            return []
        opened = OpenGate(grant.group, grant.epoch)
        return [opened, AskIdle(grant.group)] if grant.asked_idle else [opened]

    def claim(self, group: str, now_s: float) -> list[Effect]:
        """The job held the token of a daemon that has ended."""
        one = self.groups[group]
        if self._grant is None and not self._overtaken:
            return [*self._give(one, now_s), *self._decide(now_s)]
        return self.request(group, now_s)

    def idle(self, group: str, now_s: float) -> list[Effect]:
        """All processes of the job are idle. Without a waiting job it is asked again later."""
        grant = self._grant
        if grant is None or grant.group != group or grant.closed_at_s is not None:
            return []
        if self._rival(grant) is None:
            grant.asked_idle = False
            return []
        self.groups[group].idle = True
        return self._decide(now_s)

    def released(
        self, group: str, epoch: int, now_s: float, *, drain_s: float = 0.0
    ) -> list[Effect]:
        """The job has drained after its gate was closed; an old epoch changes nothing."""
        one = self.groups[group]
        if self._overtaken.get(group) == epoch:
            del self._overtaken[group]
            return self._decide(now_s)
        grant = self._grant
        if (
            grant is None
            or grant.closed_at_s is None
            or (grant.group, grant.epoch) != (group, epoch)
        ):
            return []
        self._count_drain(drain_s)
        one.overlaps_in_row = 0
        effects = self._adapt(one, drain_s)
        self._charge(grant, now_s)
        self._grant = None
        return [*effects, *self._decide(now_s)]

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed: slices end, and drains last too long."""
        return self._decide(now_s)

    # ---- decisions ----

    def _decide(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        grant = self._grant
        if grant is not None and grant.closed_at_s is None:
            effects += self._look_at_holder(grant, now_s)
        elif grant is not None:
            effects += self._look_at_drain(grant, now_s)
            if self._grant is not None and self._grant is not grant:
                effects += self._look_at_holder(self._grant, now_s)
        if self._grant is None and now_s >= self.quiet_until_s:
            best = self._best(now_s)
            if best is not None:
                effects += self._give(best, now_s)
                effects += self._decide(now_s)  # whoever else waits: is told, or it is asked to
        return effects

    def _look_at_holder(self, grant: _Grant, now_s: float) -> list[Effect]:
        rival = self._rival(grant)
        if rival is None:
            return []
        holder = self.groups[grant.group]
        equal = rival.high == holder.high
        if rival.high and not holder.high:
            return [self._close(grant, Why.PREEMPTED, now_s)]
        if holder.idle:
            return [self._close(grant, Why.IDLE, now_s)]
        if equal and now_s >= grant.slice_end_s:
            return [self._close(grant, Why.SLICE_END, now_s)]
        if not grant.asked_idle:
            grant.asked_idle = True
            return [AskIdle(grant.group)]
        return []

    def _look_at_drain(self, grant: _Grant, now_s: float) -> list[Effect]:
        """A high job that wants to go on gets its gate back; a stuck job is overtaken."""
        one = self.groups[grant.group]
        assert grant.closed_at_s is not None
        if one.high and one.wants_since_s is not None and self._best(now_s) is one:
            self._charge(grant, now_s)
            self._grant = None
            return self._give(one, now_s)
        if now_s - grant.closed_at_s < self.settings.drain_max_s:
            return []
        self.counters.overlaps += 1
        one.overlaps += 1
        self._count_drain(now_s - grant.closed_at_s)
        effects = self._adapt(one, now_s - grant.closed_at_s)
        self._overtaken[grant.group] = grant.epoch
        self._charge(grant, now_s)
        self._grant = None
        return [*effects, *self._demoted(one)]

    def _demoted(self, one: Group) -> list[Effect]:
        """Count an overlap, and demote a job that has had too many in a row."""
        one.overlaps_in_row += 1
        if one.demoted or not 0 < self.settings.overlaps_max <= one.overlaps_in_row:
            return []
        one.demoted = True
        self.counters.demotions += 1
        return self._windows()  # of the others, where a high job has become a low one

    def _rival(self, grant: _Grant) -> Group | None:
        """Return the first waiting group besides the holder, high ones first."""
        waiting = [one for one in self._waiting() if one.name != grant.group]
        return min(waiting, key=lambda one: (not one.high, one.arrived), default=None)

    def _has_equal_rival(self, grant: _Grant) -> bool:
        rival = self._rival(grant)
        return rival is not None and rival.high == self.groups[grant.group].high

    def _waiting(self) -> Iterator[Group]:
        beside_high = self._has_high()
        for one in self.groups.values():
            if one.demoted and beside_high:
                continue
            if one.wants_since_s is not None and one.name not in self._overtaken:
                yield one

    def _best(self, now_s: float) -> Group | None:
        return min(
            self._waiting(),
            key=lambda one: (
                not one.high,
                self.usage_s(one.name, now_s),
                one.wants_since_s,
                one.arrived,
            ),
            default=None,
        )

    def _give(self, one: Group, now_s: float) -> list[Effect]:
        self._epoch += 1
        one.wants_since_s, one.idle = None, False
        self._grant = _Grant(one.name, self._epoch, now_s, now_s + self._slice_s(one))
        self.counters.grants += 1
        return [OpenGate(one.name, self._epoch)]

    def _slice_s(self, one: Group) -> float:
        if any(other.high for other in self.groups.values()) and not one.high:
            return self.settings.slice_beside_high_s
        growth = min(self._low_grants, SLICE_GROWTH_MAX)
        if not one.high:
            self._low_grants += 1
        return min(self.settings.slice_max_s, self.settings.slice_first_s * 2.0**growth)

    def _close(self, grant: _Grant, why: Why, now_s: float) -> CloseGate:
        grant.closed_at_s = now_s
        self.groups[grant.group].idle = False
        self.counters.revokes += 1
        self.counters.preemptions += why is Why.PREEMPTED
        return CloseGate(grant.group, grant.epoch, why)

    def _charge(self, grant: _Grant, now_s: float) -> None:
        """Add the time since the grant, drain included, to the group's usage."""
        one = self.groups[grant.group]
        one.usage_s = self.usage_s(grant.group, now_s)
        one.usage_at_s = now_s
        one.held_s += now_s - grant.since_s

    def _count_drain(self, drain_s: float) -> None:
        self.counters.drains += 1
        self.counters.drain_s_sum += drain_s
        self.counters.drain_s_max = max(self.counters.drain_s_max, drain_s)

    # ---- windows ----

    def _adapt(self, one: Group, drain_s: float) -> list[Effect]:
        """Halve the window of a group that drains slowly, double that of a fast one."""
        if one.high or self.settings.window_fixed is not None or not self._has_high():
            return []
        target_s, before = self.settings.drain_target_s, one.window
        if drain_s > target_s:
            one.window = max(1, one.window // 2)
        elif drain_s < target_s / 2:
            one.window = min(self.settings.window_max, one.window * 2)
        return [SetWindow(one.name, one.window)] if one.window != before else []

    def _has_high(self) -> bool:
        return any(one.high for one in self.groups.values())

    def _windows(self) -> list[Effect]:
        """Return the windows of all groups: low ones have one while a high job is attached."""
        limited, fixed = self._has_high(), self.settings.window_fixed
        return [
            SetWindow(
                one.name,
                0 if one.high or not limited else one.window if fixed is None else fixed,
            )
            for one in self.groups.values()
        ]


def _decayed(usage_s: float, elapsed_s: float, half_life_s: float) -> float:
    return float(usage_s * 2.0 ** (-max(0.0, elapsed_s) / half_life_s))
