"""What is done about jobs that do not use their GPUs: their owners are warned, then they end.

Nodes find the idle GPUs (`gnode.hw.idle`) and tell of them with what jobs use at the moment, once a
minute at least; each such report is looked at here. A job is ended only while all its nodes say
that its GPUs are idle: a head or a node that has restarted waits until that is known again.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import structs

from gsched.config.idle_gpus import IdleAction, IdleGpusConfig, IdleRule
from gsched.model.gpu_idle import IdleGpu
from gsched.model.resources import WHOLE_PERCENT, LiveUse, percent_held
from gsched.model.states import AttemptState, HoldKind, JobState, StopReason
from gsched.model.wording import counted
from gsched.protocol.uses import Uses
from gschedd.core.attempts.migration import requested
from gschedd.core.nodes.live import uses_of
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, IdleWarning, Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.moments import moment
from gschedd.plan.snapshot import Move

#: What a node has said of an attempt holds for so long, seconds: it says it once a minute.
FRESH_S: Final = 180.0
#: A part of the reason of a hold.
HELD_FOR: Final = "idle since"
#: What an action means for the job.
ENDINGS: Final = MappingProxyType({"hold": "held", "requeue": "requeued", "cancel": "cancelled"})


class IdleNow(NamedTuple):
    """The idle GPUs of an attempt, as its nodes have told lately.

    Attributes:
        gpus: with the node of each.
        of: so many GPUs has the attempt, shared ones too.
        since_s: since when the first of them is idle.
        terminal_idle_s: since when nothing was typed at its terminals; None: it has none.
    """

    gpus: tuple[tuple[str, IdleGpu], ...]
    of: int
    since_s: float
    terminal_idle_s: float | None

    @property
    def by_node(self) -> dict[str, tuple[int, ...]]:
        """Return the indices of the idle GPUs by node."""
        nodes = dict.fromkeys(node for node, _ in self.gpus)
        return {node: tuple(gpu.index for at, gpu in self.gpus if at == node) for node in nodes}


def idle_now(state: State, job: Job, now_s: float) -> IdleNow | None:
    """Return the idle GPUs of a job; None: not all its nodes have told of theirs lately."""
    attempt = job.attempt
    if attempt is None:
        return None
    uses = uses_of(state, job.id, attempt)
    found: list[tuple[str, IdleGpu]] = []
    terminals_s: list[float] = []
    count, since_s = 0, now_s
    for node, part in attempt.parts.items():
        held = sum(1 for _ in part.share.gpus_held)
        use, reported_s = uses.get(node, (LiveUse(), 0.0))
        if not held:
            continue
        if use.gpus_idle is None or now_s - reported_s > FRESH_S:
            return None
        count += held
        for gpu in use.gpus_idle:  # that it is not idle any more would have been told at once
            idle_s = gpu.idle_s + now_s - reported_s
            found.append((node, structs.replace(gpu, idle_s=idle_s)))
            since_s = min(since_s, now_s - idle_s)
        if use.terminal_idle_s is not None:
            terminals_s.append(use.terminal_idle_s)
    return IdleNow(tuple(found), count, since_s, min(terminals_s, default=None))


def rule_of(config: IdleGpusConfig, job: Job) -> IdleRule | None:
    """Return the rule for a job; None: it is exempt."""
    spec = job.spec
    if (
        spec.owner.user in config.exempt_users
        or spec.account in config.exempt_accounts
        or spec.queue in config.exempt_queues
    ):
        return None
    rule: IdleRule = config
    for queue in config.queue:
        if queue.name == spec.queue:
            rule = queue.changed(rule)
    if spec.interactive is None:
        return rule
    changed = config.interactive.changed(rule)
    if config.interactive.action is None and changed.action in ENDINGS:
        return IdleRule(action="warn", warn_s=changed.warn_s, warn_held_s=changed.warn_held_s)
    return changed


def concerned(state: State, settings: Settings, message: Uses) -> list[int]:
    """Return the jobs of a report that may have to be answered, by number."""
    config = settings.config.idle_gpus
    found: list[int] = []
    for number, _, use in message.uses:
        job = state.running.get(number)
        if job is None or not (use.gpus_idle or job.idle is not None):
            continue
        rule = rule_of(config, job)
        if rule is not None and rule.action != "report":
            found.append(number)
    return found


def answers(
    state: State, settings: Settings, numbers: list[int], now_s: float
) -> Iterator[f.AnyFact]:
    """Yield what is done about the idle GPUs of these jobs."""
    for number in numbers:
        job = state.running.get(number)
        if job is None or job.state is not JobState.RUNNING:
            continue
        attempt = job.current_attempt
        rule, now = rule_of(settings.config.idle_gpus, job), idle_now(state, job, now_s)
        if attempt.state is AttemptState.RUNNING and rule is not None and now is not None:
            yield from _answer(_Case(state, settings, job, attempt, rule, now, now_s))


class _Case(NamedTuple):
    """A job that runs, its rule, and which of its GPUs are idle."""

    state: State
    settings: Settings
    job: Job
    attempt: Attempt
    rule: IdleRule
    now: IdleNow
    now_s: float

    @property
    def warning(self) -> IdleWarning | None:
        warning = self.job.idle
        return warning if warning is not None and warning.attempt == self.attempt.number else None

    @property
    def long_idle(self) -> tuple[tuple[str, IdleGpu], ...]:
        """Return the GPUs that are idle for longer than the rule allows."""
        most_s = {True: self.rule.warn_held_s, False: self.rule.warn_s}
        return tuple(each for each in self.now.gpus if each[1].idle_s >= most_s[each[1].held])

    @property
    def is_attended(self) -> bool:
        """Return whether somebody has typed at a terminal of an interactive job lately."""
        limit_s = self.settings.config.idle_gpus.interactive.terminal_s
        quiet_s = self.now.terminal_idle_s
        return self.job.spec.interactive is not None and quiet_s is not None and quiet_s < limit_s

    @property
    def ends(self) -> bool:
        """Return whether the job is ended if the GPUs stay idle that are so now."""
        is_enough = len(self.long_idle) >= self.rule.act_part * self.now.of
        return self.action in ENDINGS and is_enough

    @property
    def action(self) -> IdleAction:
        """Return what ends the job if its GPUs stay idle; ``warn``: nothing does.

        It is requeued once: a job that is idle again would be so for ever.
        """
        action = self.rule.action
        if action not in ENDINGS:
            return "warn"
        spec = self.job.spec
        if spec.movable or spec.rerunnable:
            is_again = action == "requeue" and self.job.idle_requeues > 0
            return "hold" if is_again else action
        ends = self.rule.end_any or spec.interactive is not None  # whose rule says "cancel"
        return "cancel" if ends else "warn"


def _answer(case: _Case) -> Iterator[f.AnyFact]:
    warning, idle = case.warning, {(node, gpu.index) for node, gpu in case.long_idle}
    if warning is None:
        if idle and not case.is_attended:
            yield _warned(case)
        return
    known = {(node, index) for node, found in warning.gpus.items() for index in found}
    is_over = not known.intersection((node, gpu.index) for node, gpu in case.now.gpus)
    if is_over or case.is_attended:
        job = case.job
        yield f.IdleWarningEnded(at_s=case.now_s, job=job.id, attempt=case.attempt.number)
        if (
            warning.reclaimed and HELD_FOR in job.hold_reason
        ):  # it did not save its state, and works
            yield f.JobReleased(at_s=case.now_s, job=job.id, holds=(HoldKind.USER,), by="gsched")
        return
    if not case.ends:
        return
    if not warning.acts_s or not idle <= known:  # its owner knows of other GPUs, or of no end
        if not warning.reclaimed:
            yield _warned(case)
    elif warning.acts_s <= case.now_s:
        yield from _reclaimed(case, warning)


def _warned(case: _Case) -> f.GpusIdleWarned:
    idle = case.now._replace(gpus=case.long_idle)
    return f.GpusIdleWarned(
        at_s=case.now_s,
        job=case.job.id,
        attempt=case.attempt.number,
        gpus=idle.by_node,
        of=idle.of,
        since_s=case.now.since_s,
        action=case.action if case.ends else "warn",
        acts_s=case.now_s + case.rule.act_s if case.ends else 0.0,
    )


def _reclaimed(case: _Case, warning: IdleWarning) -> Iterator[f.AnyFact]:
    """Yield the end of a job: by a checkpoint if it can make one, else by a stop."""
    job, number, now_s, action = case.job, case.attempt.number, case.now_s, case.action
    all_since_s = max(now_s - gpu.idle_s for _, gpu in case.long_idle)
    why = f"{counted(len(case.long_idle), 'GPU')} {HELD_FOR} {moment(all_since_s)}"
    if not warning.reclaimed:
        yield f.IdleGpusReclaimed(
            at_s=now_s,
            job=job.id,
            attempt=number,
            action=action,
            gpus=percent_held(case.attempt.allocation) / WHOLE_PERCENT,
            planned_end_s=_planned_end_s(job, case.attempt),
        )
    if action == "hold" and HoldKind.USER not in job.holds:
        yield f.JobHeld(at_s=now_s, job=job.id, holds=(HoldKind.USER,), by="gsched", reason=why)
    if job.spec.movable and action != "cancel" and not warning.reclaimed:
        move = Move(job=job.id, allocation=(), why=why)
        yield requested(case.state, case.settings, job, move, by="gsched", now_s=now_s)
        return
    if action != "cancel" and not job.spec.rerunnable:
        return  # it could not save its state, and must not lose it
    yield f.StopRequested(
        at_s=now_s,
        job=job.id,
        attempt=number,
        reason=StopReason.DELETE if action == "cancel" else StopReason.RERUN,
        grace_s=job.spec.grace_s,
        by="gsched",
        message=why,
    )


def _planned_end_s(job: Job, attempt: Attempt) -> float:
    """Return when the walltime of an attempt ends, else its predicted run time; 0: it has none."""
    if attempt.started_s is None:
        return 0.0
    if job.spec.walltime_s is not None:
        return attempt.started_s + job.spec.walltime_s - job.spent_s
    predictions = (part.prediction for part in attempt.parts.values())
    wall_s = max((each.wall_high_s or 0.0 for each in predictions if each), default=0.0)
    return attempt.started_s + wall_s if wall_s else 0.0


def idle_time(state: State, fact: f.AttemptEnded) -> f.GpusIdled | None:
    """Return for how long the GPUs of an attempt that has ended were idle; None: they were not."""
    warning = state.jobs[fact.job].idle
    if warning is not None and warning.attempt != fact.attempt:
        warning = None
    if warning is None and not fact.usage.gpu_idle_s:
        return None
    returned_s = 0.0
    if warning is not None and warning.planned_end_s:
        left_s = max(0.0, warning.planned_end_s - fact.ended_s)
        returned_s = left_s * warning.reclaimed_gpus
    return f.GpusIdled(
        at_s=fact.at_s,
        job=fact.job,
        attempt=fact.attempt,
        idle_s=fact.usage.gpu_idle_s,
        action=warning.reclaimed if warning is not None else "",
        returned_s=returned_s,
    )


def idle_words(fact: f.GpusIdleWarned) -> str:
    """Return a warning in words: ``6 of 8 GPUs idle since ...: n1 (GPUs 2,3); ...``."""
    count = sum(len(found) for found in fact.gpus.values())
    where = "; ".join(f"{node} (GPU {','.join(map(str, at))})" for node, at in fact.gpus.items())
    words = f"{count} of {counted(fact.of, 'GPU')} idle since {moment(fact.since_s)}: {where}"
    if not fact.acts_s:
        return words
    return f"{words}; the job is {ENDINGS[fact.action]} at {moment(fact.acts_s)} if they stay idle"
