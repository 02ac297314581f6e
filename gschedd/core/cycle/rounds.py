"""Training jobs planned elsewhere: what is asked, what the answer comes to, what goes on meanwhile.

A round is one plan for the training jobs, then one for all other jobs beside it, then the check of
what these would start on GPUs. The first and the last step are questions that are answered
elsewhere, one at a time; see decision 12. What is answered at once comes to what one call would
have.
"""

from collections.abc import Callable, Mapping
from typing import Final, assert_never

from msgspec import Struct, structs

from gschedd.core.attempts.migration import movable
from gschedd.core.cycle.run import class_if_waiting, is_started, limit_room, note_planned, snapshot
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.transient import WaitingGroup
from gschedd.plan.compose import (
    Composed,
    LeftOver,
    PerGpuDemand,
    check,
    claim_of,
    joined,
    remaining,
    settled,
    starts_beside,
    to_check,
)
from gschedd.plan.load import Predictor
from gschedd.plan.snapshot import JobClass, Plan, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.validate import validate
from gschedd.plan.words import Reason

#: A planner that answered within this time is waited for: then all jobs are decided about together.
PATIENCE_S: Final = 0.05
#: After so many failed rounds in a row all other jobs are planned without regard to training jobs.
FAILURES_BORNE: Final = 3

PLANNING: Final = Reason(
    "waiting for the plan of training jobs, which may need these GPUs", "behind training jobs"
)
CHECKING: Final = Reason(
    "checking that the job does not make a training job miss its deadline", "checking deadlines"
)


class AskPlan(Struct, frozen=True, kw_only=True):
    """What is to become of the training jobs? ``seen`` is detached."""

    number: int
    seen: Snapshot


class AskCheck(Struct, frozen=True, kw_only=True):
    """Which of these starts would make training jobs late? It goes on from the answer before."""

    number: int
    starts: tuple[Start, ...]


Question = AskPlan | AskCheck


class Planned(Struct, frozen=True, kw_only=True):
    """The plan for the training jobs."""

    number: int
    plan: Plan


class Checked(Struct, frozen=True, kw_only=True):
    """Which training each start would make late, by the job that is started; 0: none."""

    number: int
    late: Mapping[int, int]


class Failed(Struct, frozen=True, kw_only=True):
    """There is no answer.

    Attributes:
        why: in words.
        raised: the policy failed, and not what runs it.
    """

    number: int
    why: str
    raised: bool = False


Answer = Planned | Checked | Failed


class PlannerError(Exception):
    """The planner has not answered, or the policy has failed there."""


class Answerer:
    """Answers questions, wherever it is; it remembers the last plan, as a check goes on from it.

    Args:
        policy: whose policy for training jobs is asked.
    """

    def __init__(self, policy: Composed) -> None:
        self._training = policy.limited
        self._last: tuple[int, Snapshot, Plan] | None = None

    def answer(self, question: Question, may_go_on: Callable[[], bool] = lambda: True) -> Answer:
        """Return the answer; whatever the policy raises is raised.

        Args:
            question: of the head.
            may_go_on: whether there is time for a further check.
        """
        match question:
            case AskPlan():
                plan = self._training(question.seen)
                self._last = (question.number, question.seen, plan)
                return Planned(number=question.number, plan=plan)
            case AskCheck():
                if self._last is None or self._last[0] != question.number - 1:
                    return Failed(number=question.number, why="the planner restarted")
                _, seen, plan = self._last
                late = check(self._training, seen, plan, question.starts, may_go_on)
                return Checked(number=question.number, late=late)
            case _:
                assert_never(question)


class Rounds:
    """What was asked, and what is to be done with the answer. It decides nothing about the state.

    Attributes:
        policy: for training jobs and all other jobs.
        pending: the question that is not answered yet.
        number: of the last question.
        begun, over: how many rounds.
        again: something has changed since the round began, so another one is to follow.
        slow: the planner is not waited for.
        took_s: how long the last answer took, seconds.
        failures: rounds that failed in a row.
        lost: starts of training jobs that could not be made any more when they were planned.
    """

    def __init__(self, policy: Composed) -> None:
        self.policy = policy
        self.pending: Question | None = None
        self.number = 0
        self.begun = self.over = 0
        self.again = False
        self.slow = False
        self.took_s = 0.0
        self.failures = 0
        self.lost = 0
        self._sent_s = 0.0
        self._to_send: Question | None = None
        self._others: frozenset[int] = frozenset()
        self._open: frozenset[str] = frozenset()
        self._seen: Snapshot | None = None
        self._candidates: tuple[Start, ...] = ()
        self._waits: dict[JobClass, Wait] = {}

    # --- questions ---

    def take_question(self) -> Question | None:
        """Return the question that is to be sent now, once."""
        question, self._to_send = self._to_send, None
        return question

    def _ask(self, question: Question, now_s: float) -> None:
        self.pending = self._to_send = question
        self.number = question.number
        self._sent_s = now_s

    def begin(
        self, state: State, settings: Settings, now_s: float, predictor: Predictor | None
    ) -> bool:
        """Ask what is to become of the training jobs; return False where there are none to plan."""
        seen = snapshot(state, settings, now_s, predictor)
        training_view = self.policy.training_view(seen)
        if training_view is None:
            return False
        others = [
            group for group in seen.groups if group.job_class.training not in training_view.profiles
        ]
        self._others = frozenset(group.job_class.training for group in others)
        self._open = self.policy.kept_for_others(seen, others)
        # what they know of kinds and run times is in their profiles
        training_view = structs.replace(training_view, kinds={}, predictor=None).detach()
        self._seen = structs.replace(training_view, nodes=dict(seen.nodes), limits=None)
        note_planned(state, seen)
        self.again = False
        self.begun += 1
        self._ask(AskPlan(number=self.number + 1, seen=training_view), now_s)
        return True

    # --- time ---

    @property
    def alarm_s(self) -> float | None:
        """Return until when an answer is waited for, seconds since the epoch; None: it is not."""
        return None if self.pending is None or self.slow else self._sent_s + PATIENCE_S

    def lose_patience(self, now_s: float) -> bool:
        """Return whether the others are to go on now; True once for each question."""
        alarm_s = self.alarm_s
        self.slow = self.slow or (alarm_s is not None and alarm_s <= now_s)
        return alarm_s is not None and self.slow

    def covers(self, *, all_seen: bool) -> int:
        """Return how many rounds will be over when all that is so now has been planned.

        Args:
            all_seen: a cycle has seen it, and has asked, or noted that it is to ask again.
        """
        if self.pending is not None and all_seen and not self.again:
            return self.begun
        return self.begun + 1

    # --- other jobs ---

    def others(self, state: State) -> list[WaitingGroup]:
        """Return the groups that are planned by the policy for all other jobs."""
        return [
            group
            for group in state.groups.values()
            if not group.job_class.training or group.job_class.training in self._others
        ]

    def meanwhile(
        self, state: State, settings: Settings, now_s: float, predictor: Predictor | None
    ) -> Plan:
        """Return what other jobs may do while the training jobs are being planned."""
        due = self.others(state)
        seen = snapshot(state, settings, now_s, predictor, due=due)
        if not seen.groups:
            return Plan()
        return self._beside(seen, self.policy.queue_policy(seen), state)

    def _beside(
        self, seen: Snapshot, plan: Plan, state: State, left: LeftOver | None = None
    ) -> Plan:
        """Return a plan for the others without what training jobs may need."""
        if self.failures >= FAILURES_BORNE:
            return plan
        starts = starts_beside(
            seen,
            plan,
            claim=_claim(state),
            training_jobs=state.training_jobs,
            open_to_others=self._open,
            left=left,
        )
        accepted = {start.job for start in starts}
        waits = {wait.job_class: wait for wait in plan.waits}
        for start in plan.starts:
            if start.job not in accepted:
                waits.setdefault(start.job_class, _wait(start, PLANNING))
        return structs.replace(plan, starts=starts, waits=tuple(waits.values()))

    def _left(self, first: Plan, second: Plan, state: State, settings: Settings) -> LeftOver:
        """Return what a plan has left, and who of the others is behind a job that it lacks."""
        assert self._seen is not None, "a round has begun"
        planned = {group.job_class.training for group in self._seen.groups} | self._others | {0}
        unplanned = (
            state.ordered(group)[0]
            for group in state.groups.values()
            if group.job_class.training not in planned
            and is_started(settings, group.job_class.queue)
        )
        ahead = min(unplanned, default=None)
        jobs = (state.jobs[start.job] for start in second.starts)
        behind = {job.id for job in jobs if ahead is not None and state.order_key(job) > ahead}
        return LeftOver(nodes=remaining(self._seen, [], first).nodes, not_for=frozenset(behind))

    # --- answers ---

    def is_awaited(self, answer: Answer) -> bool:
        """Return whether an answer is that to the last question."""
        return self.pending is not None and answer.number == self.pending.number

    def answered(self, now_s: float) -> None:
        """Note that the answer has come."""
        self.pending = None
        self.took_s = now_s - self._sent_s
        self.slow = self.took_s > PATIENCE_S

    def compose(
        self,
        first: Plan,
        state: State,
        settings: Settings,
        now_s: float,
        predictor: Predictor | None,
    ) -> Plan:
        """Return the plan for the training jobs and, beside it, for the others; ask for the check.

        Args:
            first: the plan for the training jobs; of it what cannot be done any more is left out.
        """
        valid = _still_valid(first, state, now_s)
        self.lost += len(first.starts) - len(valid.starts)
        seen = snapshot(state, settings, now_s, predictor, due=self.others(state))
        if not seen.groups:
            return valid
        rest = remaining(seen, list(seen.groups), valid)
        second = self.policy.queue_policy(rest)
        second = self._beside(rest, second, state, self._left(first, second, state, settings))
        self._candidates = to_check(valid, second, rest, _claim(state), state.training_jobs)
        if not self._candidates:
            return joined(valid, second)
        self._ask(AskCheck(number=self.number + 1, starts=self._candidates), now_s)
        waiting = set(self._candidates)
        self._waits = {wait.job_class: wait for wait in second.waits}
        waits = dict(self._waits)
        for start in self._candidates:
            waits.setdefault(start.job_class, _wait(start, CHECKING))
        others = structs.replace(
            second,
            starts=tuple(start for start in second.starts if start not in waiting),
            waits=tuple(waits.values()),
        )
        return joined(valid, others)

    def checked(self, late: Mapping[int, int], now_s: float) -> tuple[Plan, list[JobClass]]:
        """Return what of the checked starts is to be made, and which classes that is about."""
        candidates, self._candidates = self._candidates, ()
        job_classes = list(dict.fromkeys(start.job_class for start in candidates))
        waits = tuple(
            self._waits[job_class] for job_class in job_classes if job_class in self._waits
        )
        plan = settled(Plan(starts=candidates, waits=waits), candidates, late, now_s=now_s)
        return plan, job_classes


def _claim(state: State) -> PerGpuDemand:
    """Return what training jobs ask for beside each GPU."""
    return claim_of({job.spec.request for job in state.training_jobs.values()})


def _wait(start: Start, reason: Reason) -> Wait:
    return Wait(job_class=start.job_class, first=start.job, reason=reason)


def _still_valid(plan: Plan, state: State, now_s: float) -> Plan:
    """Return a plan without what has become impossible since it was requested."""
    checked = validate(
        plan,
        Spaces(state.spaces),
        lambda job: class_if_waiting(state, job),
        lambda job: movable(state, job),
        limits=limit_room(state, now_s),
    )
    return structs.replace(plan, starts=checked.accepted, moves=checked.moves)
