"""The head as a machine: inputs in, facts and effects out. One task owns it.

`Head.step` and `Head.cycle` change the state and return what must now be made durable; replies and
effects may leave the shell only after that. No clock, socket, file or random source is touched, so
the daemon, the simulator and the tests run this very code.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import assert_never

from msgspec import structs

from gsched.errors import GschedError, InvalidTransitionError, NotPermittedError, TryAgainError
from gsched.model.job import JobSpec
from gsched.model.resources import Load, Request, Usage
from gsched.model.states import NodeState
from gsched.protocol import node as n
from gsched.protocol.job_steps import LoginRequest, StepFailed, StepReport, StepRequest
from gschedd.core.apply.jobs import apply, note_heartbeat
from gschedd.core.attempts import reports, steps
from gschedd.core.attempts.assign import Assigner
from gschedd.core.attempts.idle_gpus import answers
from gschedd.core.attempts.migration import arrivals, next_overdue_s, overdue
from gschedd.core.attempts.react import react
from gschedd.core.attempts.reserved import due_reservations, next_reservation_s
from gschedd.core.attempts.settle import follow, is_overtaken
from gschedd.core.cycle import rounds as r
from gschedd.core.cycle.dirty import Retry, due_groups, due_jobs, noted
from gschedd.core.cycle.epoch import begin_epoch, next_epoch_s
from gschedd.core.cycle.preempt import Preemptions, claimed_starts, overdue_claims
from gschedd.core.cycle.run import MAX_STARTS, Cycle, carried_out, run_cycle
from gschedd.core.forecast.deadline import foresee, guarantee_of
from gschedd.core.nodes import admission
from gschedd.core.nodes.admission import Refusal
from gschedd.core.nodes.leases import Leases
from gschedd.core.nodes.power import PowerSaving
from gschedd.core.nodes.probation import due_probes, next_probe_s
from gschedd.core.nodes.windows import due_windows
from gschedd.core.recovery.adopt import Hold, Survey
from gschedd.core.recovery.adopting import adopted
from gschedd.core.requests import commands as c
from gschedd.core.requests.actions import act
from gschedd.core.requests.dependencies import made_to_wait
from gschedd.core.requests.followers import begin_step, more_followers, resolved
from gschedd.core.requests.migrate import next_vacating
from gschedd.core.requests.resubmit import check_agreed, prepare_again
from gschedd.core.requests.submit import Submission, first_state, known_submission, submission_of
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.elements import SLURM_MARK, more_elements, reserved
from gschedd.core.state.learning import learned
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import NOTHING, Run, Step, refused_step, together
from gschedd.core.state.transient import WaitingGroup
from gschedd.core.training import checkpoints as coalescing
from gschedd.core.training.backoff import ask_again, next_retry_s
from gschedd.models.predict import Model
from gschedd.plan.compose import Composed
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import JobClass, Plan, Policy, Wait

#: The least time until a policy that wants it is asked again, seconds: else it could ask for ever.
LEAST_PAUSE_S = 1.0
#: Different requests remembered so that equal ones share memory; then the memory begins anew.
MAX_INTERNED = 10_000


class Head:
    """The state, and the only ways to change it.

    Attributes:
        waits: why each class waits, from the last cycle.
        verdicts: what is expected of training jobs, from the last cycle, by job.
        oddities: counted messages that did not fit, by name.
        safe_mode: why nothing is started, or empty.
        cycles: scheduling cycles run.
        model: learns what jobs cost, and tells the policy; None where nothing is to be learned.
        policy_failure: what the policy raised in the last cycle, or None.
        retry: how often in a row it failed, and when it is asked again.
        leases: how long nodes have not answered that jobs have leases on.
        power, preemptions: which nodes are to be powered down or up; which running jobs give way.
        again_s: when the policy wanted to be asked again, seconds since the epoch; None: no matter.
        unfinished: the last cycle ended before the end of the queue, after ``starts_max`` starts,
            or before all jobs were looked at that may preempt others.
        rounds: how training jobs are planned elsewhere; None: the policy is called for all at once.
    """

    def __init__(
        self,
        *,
        state: State,
        settings: Settings,
        policy: Policy,
        model: Model | None = None,
        apart: Composed | None = None,
    ) -> None:
        self.state = state
        self.settings = settings
        self.policy = policy
        self.model = model
        self.waits: dict[JobClass, Wait] = {}
        self.verdicts: dict[int, Forecast] = {}
        self._unsure: set[JobClass] = set()
        self.oddities: Counter[str] = Counter()
        self.safe_mode = ""
        self.cycles = 0
        self.policy_failure: Exception | None = None
        self.retry = Retry()
        self.again_s: float | None = None
        self.unfinished = False
        self.starts_max = MAX_STARTS
        self.leases = Leases(state)
        self.power = PowerSaving(state)
        self.preemptions = Preemptions()
        self.rounds = None if apart is None else r.Rounds(apart)
        self._requests: dict[Request, Request] = {}
        state.usage.configure(settings.config.shares)

    def begin(self, now_s: float) -> Iterator[Step]:
        """Take in, node by node, that this head has just started: any may have died meanwhile."""
        for name in [name for name, node in self.state.nodes.items() if node.state is NodeState.UP]:
            fact = f.NodeDisconnected(at_s=now_s, node=name, reason="the head restarted")
            yield self._advance([fact], "start of the head")

    def command(self, command: c.AnyCommand, now_s: float, outlook: Forecast | None = None) -> Step:
        """Carry out a command or refuse it; ``outlook`` is of a job to be refused if it is late."""
        try:
            if self.safe_mode and not isinstance(command, c.ActOnNode):
                raise TryAgainError(
                    f"nothing is submitted or changed in {self.safe_mode}",
                    hint="ask an operator; jobs that run are not touched",
                )
            if isinstance(command, c.Submit):
                return self._submit(command, now_s, outlook)
            if isinstance(command, c.Resubmit):
                return self._resubmit(command, now_s)
            kind = type(command.action).__name__
            return self._advance(self._decide(command, now_s), f"request {kind}")
        except InvalidTransitionError:
            raise  # a fault of ours, half way through a change: nothing may go on from here
        except GschedError as error:
            return refused_step(error)

    def preview(self, command: c.AnyCommand, now_s: float) -> Step:
        """Return what a command would come to, without doing it: a refusal, or its first facts."""
        try:
            return Step(facts=tuple(self._decide(command, now_s)))
        except GschedError as error:
            return refused_step(error)

    def _decide(self, command: c.AnyCommand, now_s: float) -> list[f.AnyFact]:
        if isinstance(command, c.Submit | c.Resubmit):
            raise AssertionError("submissions take another way")  # noqa: TRY004 # no caller's type
        return act(self.state, self.settings, command, now_s)

    def _submit(self, command: c.Submit, now_s: float, outlook: Forecast | None) -> Step:
        known = known_submission(self.state, command.caller.uid, command.submitted.key)
        if known is not None:
            return Step(job=known)
        submission = submission_of(
            command, state=self.state, settings=self.settings, intern=self._intern, now_s=now_s
        )
        guarantees: list[f.AnyFact] = []
        if command.submitted.reject_if_late:
            spec = submission.spec
            outlook = outlook or self.foresee(spec, now_s)
            guarantee = guarantee_of(self.state.next_job, spec, outlook, now_s=now_s)
            if self.state.plans_training:
                guarantees.append(guarantee)  # else nobody plans for it, so it would bind nobody
        of_slurm = SLURM_MARK in command.submitted.environment
        return self._queue(submission, command.caller, now_s, guarantees, of_slurm=of_slurm)

    def _resubmit(self, command: c.Resubmit, now_s: float) -> Step:
        known = known_submission(self.state, command.original.spec.owner.uid, command.key)
        if known is not None:
            return Step(job=known)
        submission = prepare_again(command, self.state, self.settings, now_s)
        check_agreed(command, submission)
        of_slurm = command.original.short_number > 0
        return self._queue(submission, command.caller, now_s, of_slurm=of_slurm)

    def _queue(
        self,
        submission: Submission,
        caller: Caller,
        now_s: float,
        more: Iterable[f.AnyFact] = (),
        *,
        of_slurm: bool,
    ) -> Step:
        """Queue a job under the next number.

        Args:
            submission: what is submitted.
            caller: who submits it.
            now_s: seconds since the epoch.
            more: what is known of the job already.
            of_slurm: it was submitted by a command of Slurm.
        """
        job, spec = self.state.next_job, submission.spec
        begins = first_state(spec, now_s)
        short_number = reserved(spec.array, job) if of_slurm else 0
        facts: list[f.AnyFact] = [
            f.JobSubmitted(at_s=now_s, job=job, spec=spec, state=begins, short_number=short_number)
        ]
        facts += made_to_wait(submission.depends, job, self.state, caller, now_s)
        step = self._advance([*facts, *more], "submission")
        return structs.replace(step, job=job, warnings=submission.warnings)

    def foresee(self, spec: JobSpec, now_s: float) -> Forecast:
        """Return what would become of a job if it were submitted now; nothing is changed."""
        if self.safe_mode:
            return Forecast(why=f"no job is started: {self.safe_mode}")
        return foresee(
            spec,
            state=self.state,
            settings=self.settings,
            policy=self.policy,
            now_s=now_s,
            predictor=self.model,
        )

    def _intern(self, request: Request) -> Request:
        if len(self._requests) >= MAX_INTERNED:
            self._requests.clear()
        return self._requests.setdefault(request, request)

    def registered(self, node: str, message: n.Register, now_s: float) -> Step:
        """Take in a node's registration, or refuse a gnode that is another one than the node.

        In safe mode nothing is taken in but that it is there.
        """
        refusal = self.refused(node, message, now_s)
        if refusal is not None:
            return Step(error=NotPermittedError(refusal.message))
        if self.safe_mode:
            return self._advance([reports.registration(node, message, now_s)], "message Register")
        return self._hear(reports.on_register(self.state, node, message, now_s), "message Register")

    def refused(self, node: str, message: n.Register, now_s: float) -> Refusal | None:
        """Return why a gnode may not register as a node, and remember it; None if it may."""
        refusal = admission.refusal(self.state, node, message, now_s)
        if refusal is not None:
            self.oddities["node_refused"] += 1
        return refusal

    def reported(self, node: str, report: n.AttemptMessage | StepReport, now_s: float) -> Step:
        """Take in what a node reports of an attempt; in safe mode it is to say it again later.

        The database may be wrong then: whatever is concluded from it may be, too.
        """
        if self.safe_mode:
            self.oddities["report_in_safe_mode"] += 1
            return NOTHING
        match report:
            case n.Started():
                found = reports.on_started(self.state, node, report, now_s)
            case n.Exited():
                self.note_load(node, report.load, now_s)
                found = reports.on_exited(self.state, node, report, now_s)
            case n.Prepared():
                found = reports.on_prepared(self.state, node, report, now_s)
            case n.Checkpointed():
                found = reports.on_checkpointed(self.state, node, report, now_s)
            case n.CheckpointFailed():
                found = reports.on_checkpoint_failed(self.state, node, report, now_s)
            case n.TrainingProgress():
                found = reports.on_progress(self.state, node, report, now_s)
            case StepRequest() | StepFailed() | LoginRequest():
                found = steps.on_step(self.state, node, report, now_s)
            case _:
                assert_never(report)
        return self._hear(found, f"message {type(report).__name__}")

    def probed(self, node: str, report: n.Probed, now_s: float) -> Step:
        """Take in whether a node can start jobs."""
        return self._hear(reports.on_probed(self.state, node, report, now_s), "message Probed")

    def failed_to_launch(self, node: str, report: n.Exited, now_s: float) -> Step:
        """Take in that the head itself cannot launch a part."""
        return self._hear(reports.on_exited(self.state, node, report, now_s), "failed launch")

    def has_problem(self, node: str, problem: str, now_s: float) -> Step:
        """Take in whether a node takes new jobs: why not, empty if it does."""
        return self._hear(reports.on_problem(self.state, node, problem, now_s), "message Heartbeat")

    def disconnected(self, node: str, reason: str, now_s: float) -> Step:
        """Take in that a node's connection is gone."""
        return self._hear(
            reports.on_disconnected(self.state, node, reason, now_s), "closed channel"
        )

    def note_load(
        self, node: str, load: Load, now_s: float, used: Sequence[tuple[int, int, Usage]] = ()
    ) -> None:
        """Take in a node's load and what its attempts have used; the next heartbeat replaces it."""
        note_heartbeat(self.state, node, load, used, now_s)

    def tick(self, now_s: float) -> Step:
        """Take in that time has passed."""
        alarm_s = self.next_alarm_s()
        if alarm_s is None or alarm_s > now_s:
            return NOTHING
        if self.again_s is not None and self.again_s <= now_s:
            self.again_s = None
            self.state.dirty.mark_all()
        if self.retry.take(now_s):
            self.state.dirty.mark_all()
        begin_epoch(self.state, self.settings, now_s)
        ask_again(self.state, now_s)
        self.power.mark_due(self.settings, now_s)
        facts = [
            *due_jobs(self.state, now_s),
            *due_probes(self.state, now_s),
            *due_windows(self.state, now_s),
            *due_reservations(self.state, self.settings, now_s),
            *coalescing.due(self.state, now_s),
            *more_followers(self.state, self.settings, now_s),
            *overdue_claims(self.state, now_s),
        ]
        steps = [self._advance([*facts, *overdue(self.state, self.settings, now_s)], "timer")]
        if self.rounds is not None and self.rounds.lose_patience(now_s):
            steps.append(self._go_on(self.rounds, now_s))
        if self.preemptions.take_due(now_s):  # no cycle: nothing has to be planned again for that
            steps += self._preempt(now_s)
        return together(steps)

    def answer_idle_gpus(self, jobs: list[int], now_s: float) -> Step:
        """Take in that nodes have told of idle GPUs of these jobs, or that they are used again."""
        if self.safe_mode:
            return NOTHING
        return self._advance(answers(self.state, self.settings, jobs, now_s), "message Uses")

    def expire_leases(self, now_s: float, steady_s: float) -> Step:
        """Take in that time has passed on a clock that never jumps, ``steady_s``.

        In safe mode nothing expires, as nothing is started either; the wait begins anew after it.
        """
        if self.safe_mode:
            self.leases.wait_anew()
            return NOTHING
        return self._advance(self.leases.expired(self.settings, now_s, steady_s), "timer of leases")

    def next_expiry_s(self) -> float | None:
        """Return when `expire_leases` has something to do next, on the steady clock."""
        return None if self.safe_mode else self.leases.next_due_s()

    def next_alarm_s(self) -> float | None:
        """Return when `tick` has something to do next, seconds since the epoch."""
        if self.safe_mode:
            return None
        state, volatile = self.state, self.state.volatile  # asked after whatever happens
        alarms_s = (
            state.delayed[0][0] if state.delayed else None,
            self.retry.due_s,
            self.rounds.alarm_s if self.rounds is not None else None,
            self.again_s,
            next_overdue_s(state, self.settings) if state.targets else None,
            next_retry_s(state) if volatile.stuck else None,
            coalescing.next_due_s(state) if volatile.unwritten else None,
            next_probe_s(state) if state.on_probation else None,
            state.windowed.next_s,
            next_reservation_s(state) if state.reservations else None,
            self.power.next_due_s(self.settings),
            self.preemptions.next_due_s(state) if state.claims else self.preemptions.due_s,
            next_epoch_s(state, self.settings) if state.groups else None,
            0.0 if volatile.coming.events else None,
        )
        return min(due_s) if (due_s := [at_s for at_s in alarms_s if at_s is not None]) else None

    def cycle(self, now_s: float) -> Step:
        """Run a cycle if anything has changed; after an ``unfinished`` one another is to follow."""
        self.unfinished = False
        begin_epoch(self.state, self.settings, now_s)
        if not self.state.dirty.any or self.safe_mode:
            return NOTHING
        made = self._advance(more_elements(self.state, now_s), "cycle")
        steps = [made, self._arrive(now_s), *self._vacate(now_s), self._plan(now_s)]
        if self.rounds is None or self.rounds.pending is None or self.rounds.slow:
            steps += self._preempt(now_s)
        saved = self._advance(self.power.changes(self.settings, now_s), "power saving")
        self.unfinished |= bool(self.state.dirty.arrays or saved.facts)
        return together([*steps, saved])

    def _arrive(self, now_s: float) -> Step:
        """Let moving jobs whose new places are free go on there."""
        if not self.state.targets and not self.state.claims:
            return NOTHING
        assigner = Assigner(self.state, self.settings, now_s, self.model)
        moved = self._advance([*arrivals(self.state, assigner, now_s)], "cycle")
        starts = [*claimed_starts(self.state, self.settings, assigner, now_s)]
        return together([moved, self._advance(starts, "cycle")])

    def _vacate(self, now_s: float) -> Iterator[Step]:
        """Let jobs leave nodes that are drained for good, as many as may move at once."""
        while (fact := next_vacating(self.state, self.settings, now_s)) is not None:
            yield self._advance([fact], "drain of a node")

    def _preempt(self, now_s: float) -> Iterator[Step]:
        """Let running jobs give way for waiting ones that are more important."""
        for facts in self.preemptions.found(self.state, self.settings, self.waits, now_s):
            yield self._advance(facts, "preemption")
        self.unfinished |= self.preemptions.plan_first

    def _plan(self, now_s: float) -> Step:
        """Ask the policy what to do with what waits."""
        if self.state.plans_training and self.state.training_jobs:
            self.state.dirty.every = True  # what one gives back may let another one run on more
        if self._unsure:
            groups = self.state.groups
            self._unsure = {job_class for job_class in self._unsure if job_class in groups}
        if self.rounds is not None and (self.rounds.pending or self.state.training_jobs):
            return self._plan_elsewhere(self.rounds, now_s)
        return self._plan_here(now_s)

    def _plan_here(self, now_s: float) -> Step:
        """Ask the policy about all jobs at once."""
        due = due_groups(self.state, self.waits, self._unsure)
        if due is not None and not due:
            return NOTHING
        self.cycles += 1
        self.policy_failure = None
        self.again_s = self.again_s if due else None
        try:
            result = run_cycle(
                *(self.state, self.settings, self.policy, now_s, self.model),
                due=due,
                starts_max=self.starts_max,
            )
        except Exception as error:  # noqa: BLE001 # a policy's fault costs one cycle, not the cluster
            return self._failed(error, now_s)
        self.retry.went_well()
        return self._accept(result, due, now_s)

    def _failed(self, error: Exception, now_s: float, what: str = "policy_failed") -> Step:
        """Note that the policy has failed, or what runs it."""
        self.policy_failure = error
        self.oddities[what] += 1
        self.state.dirty.every = True
        self.retry.failed(now_s)
        return Step()

    def _accept(self, result: Cycle, due: Iterable[WaitingGroup] | None, now_s: float) -> Step:
        """Take in a plan for training jobs and all other jobs, checked already."""
        if (at_s := result.again_s) is not None:
            self.again_s = max(min(at_s, self.again_s or at_s), now_s + LEAST_PAUSE_S)
        self.verdicts = {verdict.job: verdict for verdict in result.verdicts}
        return self._carry_out(result, due)

    def _carry_out(self, result: Cycle, due: Iterable[WaitingGroup] | None) -> Step:
        self.waits, self._unsure = noted(self.state, self.waits, self._unsure, result.waits, due)
        self.unfinished = result.more and bool(result.facts)  # else it is the same plan for ever
        if self.unfinished:
            self.state.dirty.mark_all()
        if result.refused:
            self.state.dirty.every = True
            self.oddities["plan_refused"] += len(result.refused)
        if result.objection:
            self.state.dirty.every = True
            self.oddities["moves_refused"] += 1
        return self._advance(result.facts, "cycle")

    # --- training jobs planned elsewhere ---

    def take_question(self) -> r.Question | None:
        """Return what is to be asked of the planner now; `answered` takes the answer."""
        return self.rounds.take_question() if self.rounds is not None else None

    def _plan_elsewhere(self, rounds: r.Rounds, now_s: float) -> Step:
        """Begin a round, or let the others go on while one is under way."""
        self.policy_failure = None
        steps = []
        try:
            if rounds.slow:
                steps.append(self._go_on(rounds, now_s))
            if rounds.pending is not None:
                rounds.again = True
            elif not rounds.begin(self.state, self.settings, now_s, self.model):
                return together([*steps, self._plan_here(now_s)])
        except Exception as error:  # noqa: BLE001 # as of any cycle
            return together([*steps, self._failed(error, now_s)])
        self.state.dirty.take()
        self.cycles += 1
        return together(steps)

    def _go_on(self, rounds: r.Rounds, now_s: float) -> Step:
        """Let other jobs start that take nothing from training jobs."""
        try:
            plan = rounds.meanwhile(self.state, self.settings, now_s, self.model)
        except Exception as error:  # noqa: BLE001 # as of any cycle
            return self._failed(error, now_s)
        due = rounds.others(self.state)
        return self._carry_out(self._checked(plan, now_s), due)

    def _checked(self, plan: Plan, now_s: float) -> Cycle:
        return carried_out(self.state, self.settings, plan, now_s, self.model)

    def answered(self, answer: r.Answer, now_s: float) -> Step:
        """Take in what the planner says; an answer that nobody waits for any more is ignored."""
        rounds = self.rounds
        if rounds is None or not rounds.is_awaited(answer):
            return NOTHING
        rounds.answered(now_s)
        if self.safe_mode:
            return NOTHING
        self.policy_failure = None
        try:
            step = self._hear_planner(rounds, answer, now_s)
        except Exception as error:  # noqa: BLE001 # as of any cycle
            step = self._failed(error, now_s)
        if rounds.pending is None:
            rounds.over = rounds.begun
            if rounds.again:
                self.state.dirty.mark_all()
            # It was not known before which jobs wait, and for what.
            step = together([step, *self._preempt(now_s)])
        return step

    def _hear_planner(self, rounds: r.Rounds, answer: r.Answer, now_s: float) -> Step:
        state, settings = self.state, self.settings
        match answer:
            case r.Planned():
                rounds.failures = 0
                self.retry.went_well()
                plan = rounds.compose(answer.plan, state, settings, now_s, self.model)
                self.again_s = None
                return self._accept(self._checked(plan, now_s), None, now_s)
            case r.Checked():
                plan, job_classes = rounds.checked(answer.late, now_s)
                if plan.again_s is not None:
                    self.again_s = max(plan.again_s, now_s + LEAST_PAUSE_S)
                due = [state.groups[each] for each in job_classes if each in state.groups]
                return self._carry_out(self._checked(plan, now_s), due)
            case r.Failed():
                rounds.failures += 1
                what = "policy_failed" if answer.raised else "planner_failed"
                self._failed(r.PlannerError(answer.why), now_s, what)
                if rounds.failures < r.FAILURES_BORNE:
                    return NOTHING
                plan = rounds.compose(Plan(), state, settings, now_s, self.model)
                return self._carry_out(self._checked(plan, now_s), rounds.others(state))
            case _:
                assert_never(answer)

    def _hear(self, consequences: reports.Consequences, cause: str) -> Step:
        facts: list[f.AnyFact] = []
        effects: list[e.AnyEffect] = []
        for each in consequences:
            if isinstance(each, str):
                self.oddities[each] += 1
            elif isinstance(each, f.Fact):
                facts.append(each)
            else:
                effects.append(each)
        step = self._advance(facts, cause)
        return structs.replace(step, effects=(*step.effects, *effects)) if effects else step

    def adopt(self, survey: Survey, now_s: float, *, hold: Hold = Hold.NOTHING) -> Step:
        """Take back what nodes know: the ends of what is known here, then what is not."""
        advance = partial(self._advance, cause="recovery")
        return adopted(self.state, survey, now_s, hold, advance)

    def _advance(self, facts: Iterable[f.AnyFact], cause: str, *, follows: bool = True) -> Step:
        """Apply facts and, unless they are of the past, all that follows from them.

        Args:
            cause: of all of them: a request, a message, a timer or a cycle.
        """
        pending = list(facts)
        if not pending:
            return NOTHING
        state, watchers = self.state, (self.leases, self.power, self.preemptions)
        applied: list[f.AnyFact] = []
        effects: list[e.AnyEffect] = []
        runs: list[Run] = []
        begin_step(state)
        while pending:
            following: list[f.AnyFact] = []
            for each in coalescing.with_unwritten(state, pending):
                if is_overtaken(state, each):
                    continue
                fact = structs.replace(each, cause=cause)
                apply(state, fact)
                for watcher in watchers:
                    if type(fact) in watcher.NOTED:
                        watcher.note(fact)
                if isinstance(fact, f.PartEnded) and self.model is not None:
                    runs.extend(learned(self.model, state, fact))
                applied.append(fact)
                effects.extend(react(state, fact))
                if follows:
                    following.extend(follow(state, fact))
                    following.extend(resolved(state, self.settings, fact))
            pending = following
        if not applied:
            return NOTHING
        return Step(facts=tuple(applied), effects=tuple(effects), runs=tuple(runs))
