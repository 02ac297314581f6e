"""Why a job waits and what happened to it, in words."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from gsched.model.arrays import format_spans
from gsched.model.ids import array_of, short_job_id
from gsched.model.reservation import Reservation
from gsched.model.resources import Share
from gsched.model.signals import describe_signal
from gsched.model.states import HoldKind, JobState, NodeState, PartState, PowerState, StopReason
from gsched.model.units import format_duration, format_gpu_hours, format_gpus, format_size
from gsched.model.wording import (
    ahead_words,
    batching_words,
    behind_words,
    counted,
    outcome_words,
    share_words,
)
from gschedd.core.attempts.idle_gpus import ENDINGS, idle_now, idle_words
from gschedd.core.attempts.relaunch import AFTER
from gschedd.core.requests.dependencies import dependencies_short, dependency_reason
from gschedd.core.state import facts as f
from gschedd.core.state.elements import free_slots, waiting_element
from gschedd.core.state.records import ArrayIndex, Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.transient import Lane
from gschedd.core.views.ahead import ElementsAhead
from gschedd.plan.limits import AtLimit
from gschedd.plan.moments import moment
from gschedd.plan.snapshot import JobClass, Wait
from gschedd.plan.words import Lack, as_reason

SCHEDULING_STOPPED: Final = "an operator has stopped scheduling: no job is started"
NEXT_CYCLE: Final = "waiting for the next scheduling cycle"
MAX_HOLDERS: Final = 8  # jobs that are named of those that count under a limit
MAX_SHOWN: Final = 200  # characters of a list of indices
_OfReservation = (
    f.ReservationCreated | f.ReservationChanged | f.ReservationBegun | f.ReservationEnded
)


class Why(NamedTuple):
    """Why a job waits, in parts.

    Attributes:
        cause: what it waits for itself.
        ahead: how many jobs with its request are ahead of it; empty: none.
        remedy: what lets it start, where that is part of the reason.
        short: all of it in two to four words, for a line of a list.
        element: which element of an array this is about; empty: the job itself.
        start_s: when it is predicted to start, where its last plan says so.
        preempts_s: when running jobs have given way for it, where they are to.
    """

    cause: str
    ahead: str = ""
    remedy: str = ""
    short: str = ""
    element: str = ""
    start_s: float | None = None
    preempts_s: float | None = None

    @property
    def words(self) -> str:
        """Return all of it."""
        words = "; ".join(filter(None, (self.ahead, self.cause, self.remedy)))
        return f"{self.element}: {words}" if self.element else words

    @property
    def own(self) -> str:
        """Return what it waits for itself, and of an array which of its elements does."""
        return f"its next element {self.element} {self.cause}" if self.element else self.cause


NO_WHY: Final = Why("")


class Reasons:
    """Why jobs wait, as one query tells it.

    The jobs of one class wait for the same, and to put that into words may take a look at every
    node. So it is done once for each class, and kept as long as this object: for one query.
    """

    __slots__ = ("_elements", "_safe_mode", "_settings", "_state", "_waits", "_words")

    def __init__(
        self, state: State, settings: Settings, waits: Mapping[JobClass, Wait], safe_mode: str = ""
    ) -> None:
        self._state = state
        self._settings = settings
        self._waits = waits
        self._safe_mode = safe_mode
        self._words: dict[JobClass, tuple[str, str]] = {}
        self._elements = ElementsAhead(state)

    def of(self, job: Job) -> str:
        """Return why a job that is neither running nor done waits; never empty: no silent wait."""
        return self.why(job).words

    def why(self, job: Job) -> Why:
        """Return the same in parts, and when the job is predicted to start by its last plan."""
        match job.state:
            case JobState.QUEUED if job.claim is not None:
                words = f"starts when {_jobs_words(job.claim.jobs)} given way"
                return Why(words, short="others give way", preempts_s=job.claim.until_s)
            case JobState.QUEUED:
                return self._of_queued(job)
            case JobState.HELD if set(job.holds) == {HoldKind.DEPENDENCY}:
                return Why(dependency_reason(job), short=dependencies_short(job))
            case JobState.HELD:
                who = "" if set(job.holds) == {HoldKind.USER} else " as an operator"
                command = f"grls -h {_hold_letters(job)} {short_job_id(job.id)}{who}"
                held = _held_words(job)
                if HoldKind.DEPENDENCY in job.holds:
                    held += f"; {dependency_reason(job)}"
                short = held.partition(":")[0].partition(";")[0]
                return Why(held, remedy=f"release it with {command}", short=short)
            case JobState.WAITING:
                return Why(_delayed_reason(job), short=_delayed_short(job))
            case _:
                return NO_WHY

    def _of_queued(self, job: Job) -> Why:  # a line a reason
        state = self._state
        stopped = self._of_all(job.spec.queue)
        if stopped is not None:
            return stopped
        index = state.arrays.get(job.id)
        if index is not None:
            return self._of_array(index)
        if array_of(job.id) in state.arrays and job.id not in state.jobs:
            earlier = f"waits for earlier elements of job {array_of(job.id)}[]"
            return Why(earlier, short="behind earlier elements")
        job_class = state.class_of(job)
        group = state.groups.get(job_class)
        known = self._of_class(job_class)
        if known is None or group is None:
            return Why(NEXT_CYCLE, short="next cycle")
        unmade, first = self._elements.of(job, job_class)
        lane = group.lanes[state.lane_of(job)]
        ahead = bisect_left(lane, state.place_of(job)) + unmade
        start_s = self._start_s(job.id, job_class)
        preempts_s = start_s if self._waits[job_class].gives_way else None
        why = Why(known[0], short=known[1], start_s=start_s, preempts_s=preempts_s)
        if ahead == 0:
            return why
        following = min(lane[0], first or lane[0])[1]
        return why._replace(ahead=ahead_words(ahead, following), short=behind_words(following))

    def of_class(self, job_class: JobClass) -> tuple[Why, bool]:
        """Return why the jobs of a class wait, and whether they wait behind each other, too."""
        stopped = self._of_all(job_class.queue)
        if stopped is not None:
            return stopped, False
        known = self._of_class(job_class)
        if known is None:
            return Why(NEXT_CYCLE, short="next cycle"), False
        return Why(known[0], short=known[1]), True

    def planned(self, job_class: JobClass) -> int:
        """Return the job of a class of which the last plan tells the start; 0: of none."""
        wait = self._waits.get(job_class)
        return 0 if wait is None or wait.predicted_start_s is None else wait.first

    def has_elements(self, job_class: JobClass, lane: Lane) -> bool:
        """Return whether elements of arrays that are no jobs yet are of a class and lane."""
        return self._elements.has(job_class, lane)

    def _of_all(self, queue: str) -> Why | None:
        """Return why no job of a queue is started; None: they are."""
        if self._safe_mode:
            return Why(f"no job is started: {self._safe_mode}", short="safe mode")
        closed = self._closed(queue)
        if closed is not None:
            return closed
        if not self._state.nodes:
            return Why("no node has registered yet", short="no nodes")
        return None

    def _of_class(self, job_class: JobClass) -> tuple[str, str] | None:
        """Return why the jobs of a class wait, in words and short; None: no cycle has seen them."""
        wait = self._waits.get(job_class)
        if wait is None:
            return None
        if job_class not in self._words:
            lack = wait.reason
            reason = lack.reason if isinstance(lack, Lack) else as_reason(lack)
            more = self._of_outside() if _wants_gpus(job_class) else ""
            if isinstance(reason, AtLimit):
                more = self._of_holders(reason)
            more += f"; {wait.gives_way}" if wait.gives_way else ""
            self._words[job_class] = (str(reason) + more, reason.short)
        return self._words[job_class]

    def _start_s(self, job: int, job_class: JobClass) -> float | None:
        """Return when a job starts by its last plan, which tells it of the first of a class."""
        wait = self._waits[job_class]
        return wait.predicted_start_s if wait.first == job else None

    def _of_holders(self, limit: AtLimit) -> str:
        """Return which running jobs count under a limit."""
        found = sorted(self._state.limits.jobs_of(limit.bound.scope))
        if not found:
            return ""
        shown = ", ".join(map(short_job_id, found[:MAX_HOLDERS]))
        more = f" and {len(found) - MAX_HOLDERS} more" if len(found) > MAX_HOLDERS else ""
        return f": job{'s' * (len(found) > 1)} {shown}{more}"

    def _of_outside(self) -> str:
        """Return which GPUs no job gets, since processes of no job use them."""
        found = [
            (name, each)
            for name, use in self._state.volatile.gpu_use.items()
            for each in (use.outside if use.avoid else ())
        ]
        if not found:
            return ""
        name, first = found[0]
        gpus = {(node, each.index) for node, each in found}
        more = f" (and {len(gpus) - 1} more)" if len(gpus) > 1 else ""
        return (
            f"; GPU {first.index} of {name}{more} is used by {first.program} of {first.user} "
            f"(pid {first.pid}) outside of all jobs"
        )

    def _closed(self, name: str) -> Why | None:
        """Return why no job of a queue is started; None: they are."""
        queue = self._settings.queues.get(name)
        if queue is None:
            gone = f"queue {name} is no longer configured"
            return Why(gone, remedy="galter -q moves the job", short="queue not configured")
        if not queue.started:
            return Why(f"queue {name} is stopped", short="queue stopped")
        if not self._settings.scheduling:
            return Why(SCHEDULING_STOPPED, short="scheduling stopped")
        return None

    def _of_array(self, index: ArrayIndex) -> Why:
        first = waiting_element(self._state, index)
        if first is not None:
            return self.why(first)._replace(element=short_job_id(first.id))
        free = free_slots(index)
        if free <= 0:
            most = counted(len(index.made), "element")
            return Why(
                f"{most} at once is the array's limit", short=f"limit {len(index.made)} at once"
            )
        if index.made:
            return Why("all elements that may start have started", short="all started")
        return Why(NEXT_CYCLE, short="next cycle")


def unanswered(
    job: Job, state: State, now_s: float, requeued_s: float | None = None, patience_s: float = 0.0
) -> Why:
    """Return that nodes of a running job do not answer, and what that means; else nothing.

    Args:
        patience_s: a node that has been silent for less than this may just connect again.
        requeued_s: when its lease has expired there, seconds since the epoch; None: it has none.
    """
    if job.attempt is None:
        return NO_WHY
    silent = [
        node
        for name, part in job.attempt.parts.items()
        if part.state in {PartState.PENDING, PartState.RUNNING}
        and (node := state.nodes.get(name)) is not None
        and node.state is NodeState.UNREACHABLE
    ]
    if not silent:
        return NO_WHY
    first = min(silent, key=lambda node: node.since_s)
    others = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
    silent_s = now_s - first.since_s
    if silent_s < patience_s:
        words = f"reconnecting: no connection to node {first.name}{others} for {silent_s:.0f} s"
        return Why(words, short=f"{first.name} reconnecting")
    ends = job.state is JobState.EXITING
    then = "the job ends once it answers" if ends else "the job may still run there"
    words = f"node {first.name} has not answered for {format_duration(silent_s)}{others}; "
    if requeued_s is not None:
        what = "ends" if ends or not job.spec.rerunnable else "is requeued"
        words += (
            f"the job {what} at {moment(requeued_s)} when its lease has expired, "
            "unless the node returns"
        )
    else:
        again = "queues the job again" if job.spec.rerunnable and not ends else "ends the job"
        words += f"{then}; if the machine is gone, gnodes confirm-dead {first.name} {again}"
    return Why(words, short=f"{first.name} unreachable")


def idle_why(job: Job, state: State, now_s: float) -> Why:
    """Return that a running job does not use its GPUs, and what follows; else nothing."""
    attempt = job.attempt
    if attempt is None or job.state is not JobState.RUNNING:
        return NO_WHY
    shares = attempt.allocation
    if not any(share.gpu_indices or share.gpu_shares for share in shares):
        return NO_WHY
    now = idle_now(state, job, now_s)
    if now is None or not now.gpus:
        return NO_WHY
    count = len(now.gpus)
    words = f"{count} of {counted(now.of, 'GPU')} idle since {moment(now.since_s)}"
    short = f"{counted(count, 'GPU')} idle"
    warning = job.idle
    if warning is not None and warning.attempt == job.attempts and warning.acts_s:
        then = moment(warning.acts_s)
        words += f"; the job is {ENDINGS[warning.action]} at {then} if they stay idle"
    return Why(words, short=short)


def _held_words(job: Job) -> str:
    """Return ``held by user: REASON``, or ``held after 5 failed starts``: then gsched holds it."""
    if _is_after_failures(job.hold_reason):
        return f"held {job.hold_reason}"
    because = f": {job.hold_reason}" if job.hold_reason else ""
    return f"held by {' and '.join(job.holds)}{because}"


def _is_after_failures(reason: str) -> bool:
    return reason.startswith(f"{AFTER} ")


def _hold_letters(job: Job) -> str:
    return "".join(kind[0] for kind in job.holds if kind is not HoldKind.DEPENDENCY)


def _wants_gpus(job_class: JobClass) -> bool:
    return any(chunk.gpus or chunk.gpu_share for chunk in job_class.request.chunks)


def next_try_s(job: Job) -> float | None:
    """Return when a job that waits for its next try gets it, seconds since the epoch; else None."""
    if job.state is not JobState.WAITING or not job.requeue_reason:
        return None
    return job.not_before_s if job.not_before_s >= job.spec.start_after_s else None


def _delayed_reason(job: Job) -> str:
    try_s = next_try_s(job)
    if try_s is not None:
        return f"{job.requeue_reason}; next try at {moment(try_s)}"
    return f"requested start time is {moment(job.start_after_s)}"


def _delayed_short(job: Job) -> str:
    try_s = next_try_s(job)
    return f"starts {moment(job.start_after_s)}" if try_s is None else f"retry {moment(try_s)}"


def describe_place(share: Share) -> str:
    """Return ``n1 (2 CPUs, GPUs 0,1)``."""
    words = counted(share.cpus, "CPU")
    if share.gpu_indices:
        indices = ",".join(map(str, share.gpu_indices))
        words += f", GPU{'s' * (len(share.gpu_indices) != 1)} {indices}"
    words += "".join(f", {share_words(part, part.index)}" for part in share.gpu_shares)
    return f"{share.node} ({words})"


def describe(fact: f.AnyFact) -> str:
    """Return what happened, in words, for a job's or node's history."""
    if isinstance(fact, f.JobFact):
        return _describe_job_fact(fact)
    if isinstance(fact, _OfReservation):
        return _describe_reserved(fact)
    return _describe_node_fact(fact)


def _describe_job_fact(fact: f.JobFact) -> str:  # noqa: C901, PLR0911, PLR0912, PLR0915 # a line a fact
    match fact:
        case f.JobSubmitted():
            again = ", recovered from what a node knew" if fact.recovered else ""
            return f"submitted by {fact.spec.owner.user} to queue {fact.spec.queue}{again}"
        case f.JobDiscarded():
            return f"given up by {fact.by}: its record in the database was damaged"
        case f.ElementsMade():
            return f"elements {format_spans(fact.elements)[:MAX_SHOWN]} became jobs"
        case f.ElementsDropped():
            because = f": {fact.message}" if fact.message else ""
            gone = format_spans(fact.elements)[:MAX_SHOWN]
            return f"elements {gone} cancelled by {fact.by}{because}"
        case f.ElementsHeld():
            return f"elements {format_spans(fact.elements)[:MAX_SHOWN]} held by {fact.by}"
        case f.ElementsReleased():
            return f"elements {format_spans(fact.elements)[:MAX_SHOWN]} released by {fact.by}"
        case f.JobHeld():
            because = f": {fact.reason}" if fact.reason else ""
            return f"held ({', '.join(fact.holds)}) by {fact.by}{because}"
        case f.JobReleased():
            return f"released ({', '.join(fact.holds)}) by {fact.by}"
        case f.JobDue():
            return "retry" if fact.retry else "start time reached"
        case f.JobAltered():
            return f"altered by {fact.by}: {', '.join(fact.changed)}"
        case f.JobSignalled():
            return f"signal {describe_signal(fact.signal)} sent by {fact.by}"
        case f.AttemptAssigned():
            places = ", ".join(map(describe_place, fact.allocation))
            return f"attempt {fact.attempt} assigned to {places}: {fact.why}"
        case f.AttemptRecovered():
            places = ", ".join(map(describe_place, fact.allocation))
            return f"attempt {fact.attempt} on {places} recovered: its nodes knew it"
        case f.MigrationRequested():
            there = ", ".join(map(describe_place, fact.allocation)) or "its queue"
            return f"migration to {there} requested by {fact.by}: {fact.why}"
        case f.MigrationPrepared():
            return (
                f"the next attempt {'is prepared' if fact.ready else f'starts cold: {fact.reason}'}"
            )
        case f.CheckpointTaken():
            size = format_size(fact.size_bytes)
            return f"checkpoint of step {fact.step} ({size}) saved in {fact.wall_s:.1f} s"
        case f.BatchingChosen():
            batching = fact.batching
            words = batching_words(batching.per_gpu, batching.accumulation)
            return f"attempt {fact.attempt}: {words}"
        case f.MigrationAbandoned():
            return f"migration abandoned: {fact.reason}"
        case f.TargetLost():
            return f"returned to its queue: {fact.reason}"
        case f.TrainingResumed(lost=True):
            return f"attempt {fact.attempt} restarted from the job's own last checkpoint, if any"
        case f.TrainingResumed():
            step = f" at step {fact.step}" if fact.step else ""
            return f"attempt {fact.attempt} resumed{step}"
        case f.StartupMeasured():
            return f"attempt {fact.attempt} took {fact.startup_s:.1f} s until its first step"
        case f.StepsMeasured():
            gpus, steps = "+".join(map(str, fact.steps.counts)), fact.steps
            what = f"profile: {steps.samples:g} samples take" if steps.profiled else "a step takes"
            return (
                f"attempt {fact.attempt}: {what} {steps.step_s:.3g} s on {gpus} "
                f"{steps.gpu_type} GPU{'s' * (steps.gpus != 1)}"
            )
        case f.MigrationMeasured():
            took = f"took {fact.cost_s:.1f} s without progress"
            return f"the migration to attempt {fact.attempt} {took}"
        case f.DeadlineJudged():
            return _describe_judgement(fact)
        case f.GpusIdleWarned():
            return idle_words(fact)
        case f.IdleWarningEnded():
            return f"attempt {fact.attempt}: the warning of idle GPUs has ended"
        case f.IdleGpusReclaimed():
            return f"idle GPUs reclaimed: the job is {ENDINGS[fact.action]}"
        case f.GpusIdled():
            words = f"attempt {fact.attempt}: GPUs idle for {format_gpu_hours(fact.idle_s)}"
            returned = f", {format_gpu_hours(fact.returned_s)} returned" if fact.returned_s else ""
            return words + returned
        case f.JobPreempted():
            return f"preempted by {fact.by} ({fact.way}): {fact.why}"
        case f.RoomClaimed():
            return f"starts when {_jobs_words(fact.jobs)} given way"
        case f.ClaimEnded():
            return f"waits again: {fact.reason}"
        case f.PartOpened():
            return f"attempt {fact.attempt}: its programs start tasks on {fact.node}"
        case f.PartStarted():
            return f"attempt {fact.attempt} started on {fact.node}, pid {fact.pid}"
        case f.StopRequested():
            note = f": {fact.message}" if fact.message else ""
            return f"stop requested by {fact.by} ({fact.reason.replace('_', ' ')}){note}"
        case f.PartEnded():
            ending = outcome_words(fact.record.outcome())
            if fact.record.stop_reason is StopReason.MOVE:
                ending = "stopped for the migration"
            return f"attempt {fact.attempt} ended on {fact.node}: {ending}"
        case f.AttemptEnded():
            wall = format_duration(fact.usage.wall_s)
            return f"attempt {fact.attempt} ended after {wall}: {outcome_words(fact.outcome)}"
        case f.JobRequeued() if fact.holds and _is_after_failures(fact.reason):
            return f"held {fact.reason}"
        case f.JobRequeued():
            return f"requeued: {fact.reason}"
        case f.JobEnded():
            return f"done: {outcome_words(fact.outcome)}"
        case _:
            return type(fact).__name__


def _jobs_words(jobs: tuple[int, ...]) -> str:
    """Return ``jobs 12, 13 have``."""
    shown = ", ".join(map(short_job_id, jobs[:MAX_HOLDERS]))
    more = f" and {len(jobs) - MAX_HOLDERS} more" if len(jobs) > MAX_HOLDERS else ""
    return f"job{'s' * (len(jobs) > 1)} {shown}{more} {'have' if len(jobs) > 1 else 'has'}"


def _describe_judgement(fact: f.DeadlineJudged) -> str:
    end = f", done by {moment(fact.end_s)}" if fact.end_s is not None else ""
    gpus = f" on {format_gpus(fact.gpus)}" if fact.gpus else ""
    if fact.meets:
        return f"expected to meet its deadline{gpus}{end}"
    because = f": {fact.why}" if fact.why else ""
    return f"expected to miss its deadline{gpus}{end}{because}"


def _describe_node_fact(fact: f.AnyFact) -> str:  # one line a fact
    match fact:
        case f.NodeRegistered():
            gpus = len(fact.inventory.gpus)
            return f"registered with {fact.inventory.cpus} CPUs, {gpus} GPUs"
        case f.NodeDisconnected():
            return f"disconnected: {fact.reason}"
        case f.NodeDrained():
            leave = ", migrating its jobs" if fact.migrate else ""
            return f"drained by {fact.by}{leave}: {fact.reason}"
        case f.NodeResumed():
            return f"resumed by {fact.by}" + (": the probe passed" if fact.automatic else "")
        case f.NodeFaulted():
            return f"consecutive failed starts: {fact.faults} {fact.message}".rstrip()
        case f.NodeRemoved():
            return f"removed by {fact.by}"
        case f.NodeReplaced():
            return f"replaced by {fact.by}: its identity begins with {fact.identity[:8]} now"
        case _:
            return _describe_fitness(fact)


def _describe_window(fact: f.NodeWindowAdded | f.NodeWindowBegun | f.NodeWindowEnded) -> str:
    match fact:
        case f.NodeWindowAdded(window=window):
            because = f": {window.reason}" if window.reason else ""
            times = f"from {moment(window.from_s)} to {moment(window.to_s)}"
            return f"maintenance {window.number} {times} ordered by {window.by}{because}"
        case f.NodeWindowBegun():
            return f"maintenance {fact.number} has begun"
        case f.NodeWindowEnded():
            return f"maintenance {fact.number} " + (
                f"cancelled by {fact.by}" if fact.by else "is over"
            )


def _describe_fitness(fact: f.AnyFact) -> str:
    """Say what a node has found out about itself."""
    match fact:
        case f.NodeProblemChanged():
            return f"takes no new jobs: {fact.problem}" if fact.problem else "takes new jobs again"
        case f.NodeProbeRequested():
            return f"probe {fact.request} requested"
        case f.NodeProbed():
            return "probe passed" if fact.passed else f"probe failed: {fact.message}"
        case f.NodeWindowAdded() | f.NodeWindowBegun() | f.NodeWindowEnded():
            return _describe_window(fact)
        case f.NodePowerChanged(power=PowerState.ON):
            return fact.reason
        case f.NodePowerChanged():
            return f"{fact.power.words}: {fact.reason}"
        case _:
            return type(fact).__name__


def _describe_reserved(fact: _OfReservation) -> str:
    match fact:
        case f.ReservationBegun():
            return f"reservation {fact.name} has begun"
        case f.ReservationEnded():
            by = f" by {fact.by}" if fact.by else ""
            return f"reservation {fact.name} is over: {fact.why}{by}"
        case f.ReservationCreated(reservation=kept):
            return f"{_held_then(kept)} created by {kept.by}"
        case f.ReservationChanged(reservation=kept):
            by = f" by {fact.by}" if fact.by else ""
            return f"{_held_then(kept)}: {fact.why}{by}"


def _held_then(kept: Reservation) -> str:
    """Return a reservation in words: ``reservation r from ... to ... on n1, n2``."""
    nodes = ", ".join(share.node for share in kept.shares)
    return f"reservation {kept.name} from {moment(kept.from_s)} to {moment(kept.to_s)} on {nodes}"
