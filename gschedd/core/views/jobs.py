"""The core's records as users see them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from msgspec import structs

from gsched.config.tables import QueueConfig
from gsched.model.dependency import format_dependencies
from gsched.model.gpu_tokens import TokenUse
from gsched.model.ids import ELEMENT_BASE
from gsched.model.job import Labels, Outcome, stated_of
from gsched.model.reports import made_of
from gsched.model.request import format_resources
from gsched.model.resources import Request
from gsched.model.states import AttemptState, JobState, NodeState
from gsched.protocol import api, job_rows
from gsched.protocol.job_rows import StartRow
from gschedd.core.forecast.deadline import is_planned, outlook_of
from gschedd.core.head import Head
from gschedd.core.nodes.passing import passage_of
from gschedd.core.requests.authorize import hides
from gschedd.core.requests.notify import origin_of
from gschedd.core.requests.projects import coordinates
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job, Part
from gschedd.core.state.settings import Caller
from gschedd.core.state.state import State
from gschedd.core.state.transient import Lane
from gschedd.core.training.checkpoints import checkpoint_dir
from gschedd.core.training.startups import expected_startup_s
from gschedd.core.views.ahead import jobs_ahead, waiting_elements
from gschedd.core.views.arrays import original_id, with_array
from gschedd.core.views.details import (
    NOTHING_USED,
    advice,
    checkpoint_row,
    live_parts,
    move_row,
    progress_row,
    share_of,
    share_row,
    tokens_of,
    used_so_far,
)
from gschedd.core.views.private import anonymous, anonymous_ahead
from gschedd.core.views.reasons import (
    NO_WHY,
    Reasons,
    Why,
    describe,
    idle_why,
    next_try_s,
    unanswered,
)
from gschedd.core.views.remedies import Remedies
from gschedd.models.sizes import stated_size
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import JobClass
from gschedd.plan.training import gpu_count

T = TypeVar("T")

_LABELS: Final = Labels.__struct_fields__
_labels = attrgetter(*_LABELS)
_MOVES: Final = ("moves", "moves_lost", "moves_cost_s", "preemptions", "preempted_gpu_s")
WAITING_STATES = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING})
#: Name and letter of each state, and whether it is one of a job that waits.
_SHOWN_STATES = {state: (state.value, state.letter, state in WAITING_STATES) for state in JobState}


class JobViews:
    """Tells of jobs and nodes as they are now.

    Args:
        viewer: to whom, where that counts; None: jobs of all users are told of.
    """

    def __init__(self, head: Head, *, now_s: float, viewer: Caller | None = None) -> None:
        self._now_s = now_s
        self._viewer = viewer
        self._state = head.state
        self._settings = head.settings
        self._verdicts = head.verdicts
        self._safe_mode = head.safe_mode
        self._leases = head.leases
        self._reasons = Reasons(head.state, head.settings, head.waits, head.safe_mode)
        self._remedies = Remedies(head.state, head.settings, head.safe_mode)
        self._sizes: dict[Request, tuple[int, int, int, int]] = {}

    def _size(self, request: Request) -> tuple[int, int, int, int]:
        """Return CPUs, places, GPUs and memory; 100,000 jobs have few different requests."""
        size = self._sizes.get(request)
        if size is None:
            size = (request.cpus, request.places, request.gpus, request.memory_bytes)
            self._sizes[request] = size
        return size

    def row(self, job: Job) -> job_rows.JobRow:
        """Return the line of a job, done or not."""
        row = self._with_deadline(self._plain_row(job), job)
        row = with_array(row, job, self._state, self._now_s)
        return anonymous(row) if self._hides(job) else row

    def _hides(self, job: Job) -> bool:
        viewer = self._viewer
        if viewer is None or not viewer.is_private:
            return False
        is_coordinator = coordinates(viewer.user, job.spec.account, self._settings)
        return hides(viewer, job.spec.owner, coordinates=is_coordinator)

    def has_columns(self, job_class: JobClass, lane: Lane) -> bool:
        """Return whether waiting jobs of a class and lane can be in columns."""
        return not (
            job_class.training
            or job_class.request.places_max
            or self._reasons.has_elements(job_class, lane)
        )

    def columns(
        self,
        job_class: JobClass,
        numbers: Sequence[int],
        ahead: Sequence[int],
        *,
        first: int,
        whole: bool = False,
    ) -> tuple[job_rows.JobColumns | None, list[Job]]:
        """Return waiting jobs of a class in columns, None if there are none, and those left.

        The latter have run before, say, and need a row each.

        Args:
            job_class: of the jobs.
            numbers: of jobs in one of its lanes.
            ahead: how many jobs are ahead of each there.
            first: the job at the front of the lane.
            whole: all that rows have, not only what tables show.
        """
        training = self._state.training_jobs
        planned = self.planned(job_class)
        found = [self._state.jobs[number] for number in numbers]
        left = [
            job
            for job in found
            if job.attempts
            or (number := job.id) == planned
            or number >= ELEMENT_BASE
            or number in training
        ]
        if left:
            rows = {job.id for job in left}
            ahead = [place for place, job in zip(ahead, found, strict=True) if job.id not in rows]
            found = [job for job in found if job.id not in rows]
        return self._in_columns(job_class, found, ahead, first, whole=whole), left

    def planned(self, job_class: JobClass) -> int:
        """Return the job of a class of which the last plan tells the start; 0: of none."""
        return self._reasons.planned(job_class)

    def row_of_class(self, job_class: JobClass, job: Job) -> tuple[job_rows.JobRow, bool]:
        """Return the line of a waiting job with the reason of its class, and if others have it.

        Those behind it in the queue wait for it, too, unless nothing of their queue is started.
        """
        why, in_order = self._reasons.of_class(job_class)
        row = structs.replace(self._plain_row(job), reason=why.words, short_reason=why.short)
        return row, in_order

    def _in_columns(
        self,
        job_class: JobClass,
        found: Sequence[Job],
        ahead: Sequence[int],
        front: int,
        *,
        whole: bool,
    ) -> job_rows.JobColumns | None:
        if not found:
            return None
        row, in_order = self.row_of_class(job_class, found[0])
        specs = [job.spec for job in found]
        columns = job_rows.JobColumns(
            row=row,
            ids=[job.id for job in found],
            names=[spec.name for spec in specs],
            users=_differing([spec.owner.user for spec in specs]),
            ahead=list(ahead) if in_order else [],
            first=front,
        )
        if not whole:
            return columns
        priorities = self._state.priorities
        labels = _differing([_labels(spec) for spec in specs])
        return structs.replace(
            columns,
            submitted_s=[job.submitted_s for job in found],
            priorities=_differing([spec.priority for spec in specs]),
            terms=[] if priorities is None else [priorities.terms(job) for job in found],
            labels=[Labels(**dict(zip(_LABELS, each, strict=True))) for each in labels],
        )

    def _with_deadline(self, row: job_rows.JobRow, job: Job) -> job_rows.JobRow:
        """Return the line of a training with what is expected of it, or what became of it."""
        if not job.spec.states_training:
            return row
        spec, deadline_s = job.spec, job.spec.deadline_s or None
        gpus_most = spec.request.places_max * spec.request.chunks[0].gpus
        if job.attempt is not None and gpus_most:
            row = structs.replace(row, gpus=gpu_count(job.attempt.allocation))
        if job.state is JobState.DONE:
            end_s, predicted_s = job.ended_s, None
            well = job.outcome is not None and job.outcome.succeeded
            meets = None
            if deadline_s is not None:
                meets = well and end_s is not None and end_s <= deadline_s
        else:
            outlook = self._outlook(job, row.predicted_start_s)
            end_s = predicted_s = outlook.end_s
            meets = outlook.meets
        slack_s = None if deadline_s is None or end_s is None else deadline_s - end_s
        return structs.replace(
            row,
            gpus_most=gpus_most,
            deadline_s=deadline_s,
            predicted_end_s=predicted_s,
            slack_s=slack_s,
            meets_deadline=meets,
        )

    def _outlook(self, job: Job, start_s: float | None) -> Forecast:
        return outlook_of(
            job,
            state=self._state,
            settings=self._settings,
            verdicts=self._verdicts,
            now_s=self._now_s,
            start_s=start_s,
        )

    def _plain_row(self, job: Job) -> job_rows.JobRow:
        spec, attempt = job.spec, job.attempt
        cpus, places, gpus, memory_bytes = self._size(spec.request)
        nodes: tuple[str, ...] = ()
        used, live, cpu_s, wall_s = NOTHING_USED, None, job.cpu_s, job.wall_s
        if attempt is not None:
            nodes = tuple(attempt.parts)
            cpus = sum([part.share.cpus for part in attempt.parts.values()])
            used, live = used_so_far(self._state, job.id, attempt)
            wall_s += self.present_wall_s(attempt)
            if attempt.ended_s is None:
                cpu_s += used.cpu_s
        state, letter, waits = _SHOWN_STATES[job.state]
        row = job_rows.JobRow(
            id=job.id,
            name=spec.name,
            user=spec.owner.user,
            queue=spec.queue,
            state=state,
            letter=letter,
            submitted_s=job.submitted_s,
            cpus=cpus,
            places=places,
            gpus=gpus,
            memory_bytes=memory_bytes,
            priority=spec.priority,
            walltime_s=spec.walltime_s,
            started_s=_started_s(job),
            attempt=job.attempts,
            nodes=nodes,
            cpu_s=cpu_s,
            wall_s=wall_s,
            live=live,
            memory_peak_bytes=used.memory_peak_bytes,
            memory_mean_bytes=used.memory_mean_bytes,
        )
        why = self._reasons.why(job) if waits else self.unanswered(job)
        rare = self._rare(job, why)
        return structs.replace(row, **rare) if rare else row

    def _rare(self, job: Job, why: Why) -> dict[str, object]:
        """Return what few rows have: each field that a row is made with takes its time."""
        spec, priorities = job.spec, self._state.priorities
        rare: dict[str, object] = {}
        if why is not NO_WHY:
            rare["reason"], rare["short_reason"] = why.words, why.short
            rare["predicted_start_s"] = why.start_s
        if job.state in WAITING_STATES:
            rare["next_try_s"] = next_try_s(job)
            if priorities is not None and job.state is JobState.QUEUED:
                rare["terms"] = priorities.terms(job)
        if job.ended_s is not None:
            rare["ended_s"] = job.ended_s
        if job.outcome is not None:
            rare["outcome"] = outcome_row(job.outcome)
        if spec.request.gpu_share is not None:
            rare["gpu_share"] = share_of(job)
        reservation = (
            job.attempt.reservation if job.attempt is not None else ""
        ) or spec.reservation
        if reservation:
            rare["reservation"] = reservation
        if job.sparse is not None:
            rare["short_number"] = job.short_number if spec.array is None else 0
            rare |= {name: getattr(job, name) for name in _MOVES}
        labels = _labels(spec)
        if any(labels):
            rare.update(zip(_LABELS, labels, strict=True))
        return rare

    def unanswered(self, job: Job) -> Why:
        """Return what is to be said of a job that does not wait; NO_WHY: nothing."""
        if self._is_plain(job):
            return NO_WHY
        requeued_s = self._leases.requeued_s(job, self._settings)
        patience_s = self._settings.config.head.node_timeout_s
        why = unanswered(job, self._state, self._now_s, requeued_s, patience_s)
        if why.cause:
            return why
        passage = passage_of(job, self._state, self._now_s)
        if passage is not None:
            return Why(passage.words, short=passage.short)
        return idle_why(job, self._state, self._now_s)

    def _is_plain(self, job: Job) -> bool:
        """Return whether there is nothing to say of a running job: most are so."""
        state = self._state
        if job.attempt is None or job.id in state.volatile.passages:
            return False
        for name, part in job.attempt.parts.items():
            node, share = state.nodes.get(name), part.share
            if (
                share.gpu_indices
                or share.gpu_shares
                or (node is not None and node.state is NodeState.UNREACHABLE)
            ):
                return False
        return True

    def present_wall_s(self, attempt: Attempt | None) -> float:
        """Return for how long an attempt has run; what ended is charged already."""
        if attempt is None or attempt.started_s is None or attempt.state is AttemptState.ENDED:
            return 0.0
        return max(0.0, self._now_s - attempt.started_s)

    def story(
        self,
        job: Job,
        *,
        attempts: Iterable[Attempt],
        events: Iterable[tuple[int, f.AnyFact]],
        now_s: float,
        start: Forecast | None = None,
    ) -> job_rows.JobStory:
        """Return all that is known of a job.

        Args:
            start: when a job that waits starts; None: that was not asked for.
        """
        spec = job.spec
        shown = tuple(attempts)
        row = self.row_with_start(job, start) if start is not None else self.row(job)
        ahead = self._ahead(job)
        why = self._reasons.why(job)
        first = next(iter(shown[-1].parts.values())) if shown else None
        story = job_rows.JobStory(
            server=self._settings.server,
            now_s=now_s,
            row=row,
            attempts=tuple(self._attempt(job, attempt) for attempt in shown),
            events=tuple(
                job_rows.EventRow(
                    seq=seq,
                    at_s=fact.at_s,
                    kind=type(fact).__name__,
                    text=describe(fact),
                    cause=fact.cause,
                )
                for seq, fact in events
            ),
            workdir=spec.workdir,
            resources=format_resources(spec.request, spec.walltime_s),
            stdout_path=(first.stdout_path if first else "") or spec.stdout_path,
            stderr_path=(first.stderr_path if first else "") or spec.stderr_path,
            join=spec.join.value,
            launch=spec.launch.value,
            rerunnable=spec.rerunnable,
            grace_s=spec.grace_s,
            submit_host=spec.owner.host,
            start_after_s=spec.start_after_s,
            holds=tuple(hold.value for hold in job.holds),
            depends=format_dependencies(job.spec.depends),
            rerun_of=original_id(job),
            ahead=None if ahead is None else ahead.jobs,
            ahead_jobs=ahead,
            cause=why.own,
            remedy=self._remedies.of(job) or why.remedy,
            urgency=spec.urgency.value if spec.urgency is not None else "",
            training=spec.training,
            movable=spec.movable,
            startup_s=self._startup_s(job),
            guaranteed=job.guaranteed,
            late_reason=self._why_late(job, row),
            moves_requested=job.moves_requested,
            move=move_row(job),
            checkpoint=checkpoint_row(job),
            progress=progress_row(self._state.reached.get(job.id)),
            advice=advice(job, self._state, self._now_s),
            checkpoint_dir=checkpoint_dir(job),
            checkpoint_signal=spec.checkpoint_signal,
            restarts_max=spec.restarts_max,
            restarts=job.faults if spec.restarts_max else 0,
            lease_s=spec.lease_s,
            start_unknown=row.start.unknown if row.start is not None else "",
        )
        stated = stated_of(spec) | {
            "stdout_path": story.stdout_path,
            "stderr_path": story.stderr_path,
            "notify_url": origin_of(spec.notify_url),
        }
        return structs.replace(story, **stated)

    def _attempt(self, job: Job, attempt: Attempt) -> job_rows.AttemptRow:
        live = live_parts(self._state, job.id, attempt)
        row = attempt_row(attempt, tokens_of(self._state, job).get(attempt.number))
        if not live:
            return row
        parts = (structs.replace(part, live=live.get(part.node)) for part in row.parts)
        return structs.replace(row, parts=tuple(parts))

    def _ahead(self, job: Job) -> job_rows.AheadRows | None:
        if not self._is_in_queue(job):
            return None
        ahead = jobs_ahead(job, self._state)
        hidden = (
            anonymous_ahead(row) if self._hides(self._state.jobs[row.id]) else row
            for row in ahead.first
        )
        return structs.replace(ahead, first=tuple(hidden))

    def _is_in_queue(self, job: Job) -> bool:
        """Return whether a job may start: arrays, and elements that are no jobs yet, may not."""
        is_array = job.spec.array is not None
        return job.state is JobState.QUEUED and job.id in self._state.jobs and not is_array

    def _startup_s(self, job: Job) -> float:
        """Return what is expected of a training's start; 0 where nothing is, or it is over."""
        size = stated_size(job.spec)
        if size is None or job.state is JobState.DONE:
            return 0.0
        return expected_startup_s(job.spec, size, self._state)

    def _why_late(self, job: Job, row: job_rows.JobRow) -> str:
        if job.state is JobState.DONE or row.meets_deadline is not False:
            return ""
        return self._outlook(job, row.predicted_start_s).why

    def lacks_start(self, job: Job) -> bool:
        """Return whether a job waits, and it can be asked when it starts."""
        return job.state in WAITING_STATES and not self._safe_mode

    def row_with_start(self, job: Job, start: Forecast) -> job_rows.JobRow:
        """Return the line of a job that waits with when it starts."""
        row = self.row(job)
        if job.state not in WAITING_STATES or self._hides(job):
            return row
        planned_s = row.predicted_start_s
        if planned_s is not None and planned_s <= self._now_s:
            planned_s = None  # what runs has outlived the plan, and no cycle has noticed yet
        if planned_s is None and not is_planned(job.spec, self._state):
            planned = structs.replace(row, predicted_start_s=start.start_s)
            row = self._with_deadline(planned, job)
        start_shown = start_row(start, planned_s=planned_s)
        expected_s = start_shown.expected_s
        if expected_s is None and start_shown.not_before_s is None:
            expected_s = start_shown.planned_s
        preempts_s = self._reasons.why(job).preempts_s
        if preempts_s is not None and (expected_s is None or preempts_s < expected_s):
            expected_s, start_shown = preempts_s, StartRow(planned_s=preempts_s)
        return structs.replace(row, predicted_start_s=expected_s, start=start_shown)


def start_row(start: Forecast, *, planned_s: float | None = None) -> StartRow:
    """Return a forecast as users see it.

    Args:
        planned_s: when the policy itself plans the start, where it has said so.
    """
    interval = start.interval
    planned_s = start.start_s if planned_s is None else planned_s
    if interval is None:
        return StartRow(
            planned_s=planned_s,
            not_before_s=start.not_before_s,
            unknown="" if planned_s is not None else start.start_unknown,
        )
    not_before_s = interval.not_before_s if interval.expected_s is None else None
    known = {name: getattr(interval.known, name) for name in interval.known.__struct_fields__}
    return made_of(
        StartRow,
        interval,
        not_before_s=not_before_s,
        planned_s=planned_s,
        unknown=start.start_unknown if interval.expected_s is None else "",
        **known,
    )


def _differing(values: list[T]) -> list[T]:
    """Return a column, which is empty where all jobs have the value of the first one."""
    return values if values.count(values[0]) < len(values) else []


def _started_s(job: Job) -> float | None:
    """Of a job that is not done, the start that its walltime counts from: the present one."""
    if job.state is JobState.DONE:
        return job.started_s
    return None if job.attempt is None else job.attempt.started_s


def outcome_row(outcome: Outcome | None) -> job_rows.OutcomeRow | None:
    """Return an outcome as users see it."""
    if outcome is None:
        return None
    return job_rows.OutcomeRow(
        kind=outcome.kind.value,
        exit_status=outcome.pbs_status,
        shell_status=outcome.shell_status,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        node=outcome.node,
        rank=outcome.rank,
        message=outcome.message,
    )


def attempt_row(attempt: Attempt, tokens: TokenUse | None = None) -> job_rows.AttemptRow:
    """Return an attempt as users see it; ``tokens``: how it takes turns on a shared GPU."""
    return job_rows.AttemptRow(
        attempt=attempt.number,
        state=attempt.state.value,
        assigned_s=attempt.assigned_s,
        parts=tuple(part_row(node, part, tokens) for node, part in attempt.parts.items()),
        started_s=attempt.started_s,
        ended_s=attempt.ended_s,
        usage=attempt.usage,
        outcome=outcome_row(attempt.outcome),
        startup_s=attempt.startup_s,
    )


def part_row(node: str, part: Part, tokens: TokenUse | None = None) -> job_rows.PartRow:
    """Return a part as users see it."""
    record = part.record
    return job_rows.PartRow(
        node=node,
        state=part.state.value,
        cpus=part.share.cpus,
        pid=part.pid,
        gpu_indices=part.share.gpu_indices,
        gpu_shares=tuple(map(share_row, part.share.gpu_shares)),
        memory_bytes=part.share.memory_bytes,
        started_s=part.started_s,
        ended_s=record.ended_s if record is not None else None,
        usage=part.usage,
        outcome=None if record is None else outcome_row(record.outcome(node)),
        gpu_tokens=tokens if part.share.gpu_shares else None,
    )


def jobs_by_state(state: State) -> dict[str, int]:
    """Return how many unfinished jobs there are, by state; an array is one."""
    counts: Counter[str] = Counter()
    for (_, job_state), count in state.counts.items():
        counts[job_state.value] += count
    return dict(counts)


def queue_rows(state: State, queues: Mapping[str, QueueConfig]) -> tuple[api.QueueRow, ...]:
    """Return the queues with their settings, and their unfinished jobs counted by state."""
    counts = Counter(state.counts)
    for array in (index.job for index in state.arrays.values()):
        if array.elements is not None:
            waiting, held = waiting_elements(array)
            counts[array.spec.queue, array.state] += waiting - 1
            counts[array.spec.queue, JobState.HELD] += held

    def jobs_of(queue: str) -> dict[str, int]:
        return {state.value: counts[queue, state] for state in JobState if counts[queue, state]}

    return tuple(made_of(api.QueueRow, queue, jobs=jobs_of(name)) for name, queue in queues.items())
