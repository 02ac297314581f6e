"""Which job may use a shared GPU next: pure, with the time as an argument.

One token exists for each GPU, and a group of processes, the job, holds it. A high job is served
first and keeps the token until it is idle; low jobs take turns in slices, and give the token back
as soon as a high job wants it. A job that does not drain within `TokenSettings.drain_max_s` is
overtaken, which is counted, unless it loads code.

Beside a high job that is never idle, low jobs are opportunistic: one of them at a time launches
beside the high one for `TokenSettings.opportunistic_fraction` of
`TokenSettings.opportunistic_period_s`, so that none starves. A job that was sent a signal launches
beside the others, too, until it has ended or its time is over.

Source:
    Wang et al., GPU sharing method for deep learning clusters with priorities, Computer Science
    50(6), 2023. The order of low jobs is that of Gemini (Chen et al., IEEE TCC 2021), by a decayed
    usage instead of a window of time. Opportunistic low jobs are the idea of TGS (Wu
    et al., NSDI 2023), which adapts it to the high job's progress, as it cannot know what it costs;
    here the length of the slices bounds the cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gnode.gpushare.token_model import (
    AskIdle,
    ClosedReason,
    CloseGate,
    Counters,
    Effect,
    OpenGate,
    SetWindow,
    TokenGroup,
    TokenSettings,
)
from gsched.model.states import ShareClass

SLICE_GROWTH_MAX: Final = 16  # doublings of a slice; the longest slice ends them earlier
DEMOTION_GROWTH_MAX: Final = 6  # doublings of a demotion


@dataclass(slots=True)
class _Grant:
    """The token in the hands of a group, until it has drained."""

    group: str
    epoch: int
    since_s: float
    slice_end_s: float
    closed_at_s: float | None = None
    idle_requested: bool = False
    loading: bool = False
    why: ClosedReason = ClosedReason.SLICE_END  # its gate closes, of a concurrent grant


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

    settings: TokenSettings = field(default_factory=TokenSettings)
    quiet_until_s: float = 0.0
    counters: Counters = field(default_factory=Counters)
    groups: dict[str, TokenGroup] = field(default_factory=dict)
    gone: dict[str, TokenGroup] = field(default_factory=dict)
    _grant: _Grant | None = None
    _concurrent: dict[str, _Grant] = field(default_factory=dict)
    _next_opportunity_s: float = 0.0
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
        grant = self._grant_of(group)
        return 0 if grant is None else grant.epoch

    @property
    def concurrent(self) -> list[str]:
        """Return the groups whose gates are open at the same time as the holder's."""
        return [name for name, one in self._concurrent.items() if one.closed_at_s is None]

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
        due += [one.slice_end_s for one in self._concurrent.values() if one.closed_at_s is None]
        due += [at for one in self.groups.values() if (at := one.demoted_until_s) is not None]
        opportunity_at_s = self._opportunity_at_s()
        if opportunity_at_s is not None:
            due.append(opportunity_at_s)
        return min(due) if due else None

    def usage_s(self, group: str, now_s: float) -> float:
        """Return the decayed time for which the group has held the token, seconds."""
        one = self.groups[group]
        usage_s = _decayed(one.usage_s, now_s - one.usage_at_s, self.settings.half_life_s)
        grant = self._grant_of(group)
        if grant is not None:
            usage_s += now_s - max(grant.since_s, one.usage_at_s)
        return usage_s

    def held_s(self, group: str, now_s: float) -> float:
        """Return for how long the group has held the token in all, seconds."""
        one = self.groups.get(group) or self.gone[group]
        held_s = one.held_s
        grant = self._grant_of(group)
        if grant is not None:
            held_s += now_s - grant.since_s
        return held_s

    # ---- events ----

    def attach(self, group: str, share_class: ShareClass, now_s: float) -> list[Effect]:
        """A job has its first process on this GPU; one that had some before keeps its account."""
        if group in self.groups:
            return []
        self._arrivals += 1
        one = self.gone.pop(group, None) or TokenGroup(group, share_class, 0, usage_at_s=now_s)
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
                effects.append(CloseGate(group, grant.epoch, ClosedReason.LEFT))
            self._charge(grant, now_s)
            self._grant = None
        if (concurrent := self._concurrent.pop(group, None)) is not None:
            if concurrent.closed_at_s is None:
                effects.append(CloseGate(group, concurrent.epoch, ClosedReason.LEFT))
            self._charge(concurrent, now_s)
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
        if group in self.concurrent:
            return [OpenGate(group, self._concurrent[group].epoch)]
        if one.wants_since_s is None:
            one.wants_since_s = now_s
        return self._decide(now_s)

    def repeated(self) -> list[Effect]:
        """Return once more what the holder has been told, for a process that does not know it."""
        grant = self._grant
        if grant is None or grant.closed_at_s is not None:
            return []
        opened = OpenGate(grant.group, grant.epoch)
        return [opened, AskIdle(grant.group)] if grant.idle_requested else [opened]

    def claim(self, group: str, now_s: float) -> list[Effect]:
        """The job held the token of a daemon that has ended."""
        one = self.groups[group]
        if self._grant is None and group not in self._concurrent and not self._overtaken:
            return [*self._give(one, now_s), *self._decide(now_s)]
        return self.request(group, now_s)

    def idle(self, group: str, now_s: float) -> list[Effect]:
        """All processes of the job are idle. Without a waiting job it is asked again later."""
        grant = self._grant
        if grant is None or grant.group != group or grant.closed_at_s is not None:
            return []
        if self._rival(grant) is None:
            grant.idle_requested = False
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
        concurrent = self._concurrent.get(group)
        if (
            concurrent is not None
            and concurrent.closed_at_s is not None
            and concurrent.epoch == epoch
        ):
            self._charge(self._concurrent.pop(group), now_s)
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

    def loading(self, group: str, epoch: int) -> None:
        """The job's drain waits for code that is loaded: what it costs is not held against it."""
        grant, one = self._grant, self.groups[group]
        if grant is None or (grant.group, grant.epoch) != (group, epoch):
            return
        grant.loading = one.loading_s < self.settings.loading_max_s

    def attend(self, group: str, until_s: float, now_s: float) -> list[Effect]:
        """A job was sent a signal: its launches pass until then, so that it can attend to it.

        A program that waits at the gate would run no handler of Python's.
        """
        one = self.groups.get(group)
        if one is None or until_s <= now_s:
            return []
        one.attended_until_s = max(until_s, one.attended_until_s)
        if self.holder == group:
            return []  # and when it loses the token, it launches beside the next holder
        if group in self.concurrent:
            concurrent = self._concurrent[group]
            concurrent.slice_end_s = max(concurrent.slice_end_s, until_s)
            concurrent.why = ClosedReason.ATTENDED
            return []
        return [
            *self._give_concurrent(one, until_s, ClosedReason.ATTENDED, now_s),
            *self._decide(now_s),
        ]

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed: slices end, and drains last too long."""
        return self._decide(now_s)

    # ---- decisions ----

    def _decide(self, now_s: float) -> list[Effect]:
        effects = [*self._end_demotions(now_s), *self._close_concurrent(now_s)]
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
        return [*effects, *self._give_opportunistic(now_s)]

    # ---- grants at the same time as the token ----

    def _grant_of(self, group: str) -> _Grant | None:
        if self._grant is not None and self._grant.group == group:
            return self._grant
        return self._concurrent.get(group)

    def _opportunity_at_s(self) -> float | None:
        """Return when a low job may launch beside the holder; None: none waits, or needs to."""
        grant = self._grant
        if (
            self.settings.opportunistic_fraction <= 0
            or grant is None
            or grant.closed_at_s is not None
        ):
            return None
        if not self.groups[grant.group].high or any(
            one.why is ClosedReason.OPPORTUNISTIC and one.closed_at_s is None
            for one in self._concurrent.values()
        ):
            return None
        since_s = [
            one.wants_since_s for one in self._low_waiting() if one.wants_since_s is not None
        ]
        if not since_s:
            return None
        return max(self._next_opportunity_s, min(since_s) + self.settings.opportunistic_period_s)

    def _low_waiting(self) -> list[TokenGroup]:
        return [one for one in self._waiting() if not one.high]

    def _give_opportunistic(self, now_s: float) -> list[Effect]:
        at_s = self._opportunity_at_s()
        if at_s is None or now_s < at_s:
            return []
        period_s = self.settings.opportunistic_period_s
        waited = [
            one for one in self._low_waiting() if (one.wants_since_s or 0) + period_s <= now_s
        ]
        one = min(waited, key=lambda one: (self.usage_s(one.name, now_s), one.arrived))
        slice_s = self.settings.opportunistic_fraction * period_s
        self._next_opportunity_s = now_s + period_s
        self.counters.opportunistic_slices += 1
        return self._give_concurrent(one, now_s + slice_s, ClosedReason.OPPORTUNISTIC, now_s)

    def _give_concurrent(
        self, one: TokenGroup, until_s: float, why: ClosedReason, now_s: float
    ) -> list[Effect]:
        before = self._grant_of(one.name)
        if before is not None:
            self._charge(before, now_s)
            if before is self._grant:
                self._grant = None
        self._overtaken.pop(one.name, None)
        self._epoch += 1
        one.wants_since_s, one.idle = None, False
        self._concurrent[one.name] = _Grant(one.name, self._epoch, now_s, until_s, why=why)
        return [OpenGate(one.name, self._epoch)]

    def _close_concurrent(self, now_s: float) -> list[Effect]:
        """Close what is over. A low job in its slice gets the token if nobody else has it."""
        effects: list[Effect] = []
        for grant in [one for one in self._concurrent.values() if one.closed_at_s is None]:
            one = self.groups[grant.group]
            free = self._grant is None and now_s >= self.quiet_until_s
            if free and grant.why is ClosedReason.OPPORTUNISTIC and not any(self._waiting()):
                del self._concurrent[grant.group]
                grant.slice_end_s = now_s + self._slice_s(one)
                self._grant = grant
            elif now_s >= grant.slice_end_s:
                effects.append(self._close(grant, grant.why, now_s))
        return effects

    def _look_at_holder(self, grant: _Grant, now_s: float) -> list[Effect]:
        rival = self._rival(grant)
        if rival is None:
            return []
        holder = self.groups[grant.group]
        equal = rival.high == holder.high
        why = (
            ClosedReason.PREEMPTED
            if rival.high and not holder.high
            else ClosedReason.IDLE
            if holder.idle
            else ClosedReason.SLICE_END
            if equal and now_s >= grant.slice_end_s
            else None
        )
        if why is not None and now_s < holder.attended_until_s:
            grant.slice_end_s, grant.why = holder.attended_until_s, ClosedReason.ATTENDED
            self._concurrent[grant.group], self._grant = grant, None
            return []
        if why is not None:
            return [self._close(grant, why, now_s)]
        if not grant.idle_requested:
            grant.idle_requested = True
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
        if grant.loading:
            self.counters.loads += 1
            one.loading_s += now_s - grant.closed_at_s
            self._overtaken[grant.group] = grant.epoch
            self._charge(grant, now_s)
            self._grant = None
            return []
        self.counters.overlaps += 1
        one.overlaps += 1
        self._count_drain(now_s - grant.closed_at_s)
        effects = self._adapt(one, now_s - grant.closed_at_s)
        self._overtaken[grant.group] = grant.epoch
        self._charge(grant, now_s)
        self._grant = None
        return [*effects, *self._demoted(one, now_s)]

    def _demoted(self, one: TokenGroup, now_s: float) -> list[Effect]:
        """Count an overlap, and demote a job that has had too many in a row."""
        one.overlaps_in_row += 1
        if one.demoted or not 0 < self.settings.overlaps_max <= one.overlaps_in_row:
            return []
        demotion_s = self.settings.demotion_s * 2.0 ** min(one.demotions, DEMOTION_GROWTH_MAX)
        one.demoted_until_s = now_s + demotion_s
        one.demotions += 1
        self.counters.demotions += 1
        return self._windows()  # of the others, where a high job has become a low one

    def _end_demotions(self, now_s: float) -> list[Effect]:
        over = [
            one
            for one in self.groups.values()
            if one.demoted_until_s is not None and now_s >= one.demoted_until_s
        ]
        for one in over:
            one.demoted_until_s, one.overlaps_in_row = None, 0
        return self._windows() if over else []

    def _rival(self, grant: _Grant) -> TokenGroup | None:
        """Return the first waiting group besides the holder, high ones first."""
        waiting = [one for one in self._waiting() if one.name != grant.group]
        return min(waiting, key=lambda one: (not one.high, one.arrived), default=None)

    def _has_equal_rival(self, grant: _Grant) -> bool:
        rival = self._rival(grant)
        return rival is not None and rival.high == self.groups[grant.group].high

    def _waiting(self) -> Iterator[TokenGroup]:
        beside_high = self._has_high()
        for one in self.groups.values():
            if one.demoted and beside_high:
                continue
            if one.wants_since_s is not None:
                yield one

    def _best(self, now_s: float) -> TokenGroup | None:
        return min(
            self._waiting(),
            key=lambda one: (
                not one.high,
                one.name in self._overtaken,
                self.usage_s(one.name, now_s),
                one.wants_since_s,
                one.arrived,
            ),
            default=None,
        )

    def _give(self, one: TokenGroup, now_s: float) -> list[Effect]:
        if (concurrent := self._concurrent.pop(one.name, None)) is not None:
            self._charge(concurrent, now_s)
        self._overtaken.pop(one.name, None)  # it goes on, and drains once more when it must
        self._epoch += 1
        one.wants_since_s, one.idle = None, False
        self._grant = _Grant(one.name, self._epoch, now_s, now_s + self._slice_s(one))
        self.counters.grants += 1
        return [OpenGate(one.name, self._epoch)]

    def _slice_s(self, one: TokenGroup) -> float:
        if any(other.high for other in self.groups.values()) and not one.high:
            return self.settings.slice_beside_high_s
        growth = min(self._low_grants, SLICE_GROWTH_MAX)
        if not one.high:
            self._low_grants += 1
        return min(self.settings.slice_max_s, self.settings.slice_first_s * 2.0**growth)

    def _close(self, grant: _Grant, why: ClosedReason, now_s: float) -> CloseGate:
        grant.closed_at_s = now_s
        self.groups[grant.group].idle = False
        self.counters.revokes += 1
        self.counters.preemptions += why is ClosedReason.PREEMPTED
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

    def _adapt(self, one: TokenGroup, drain_s: float) -> list[Effect]:
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
