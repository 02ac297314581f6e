"""What to ask for the start of any job that waits, or why it cannot be predicted."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import structs

from gsched.model.arrays import Span, Spans, common, indices
from gsched.model.dependency import Dependency, DependencyKind
from gsched.model.ids import array_of, element_number, index_of, short_job_id
from gsched.model.states import HoldKind, JobState
from gsched.model.wording import counted
from gschedd.core.attempts.reserved import ends_by_reservations
from gschedd.core.forecast.context import Arrival, QueueContext, encoded
from gschedd.core.forecast.runtimes import RunTimeQuery, query_of
from gschedd.core.forecast.start import (
    MAX_AHEAD,
    TOO_MANY,
    AskStart,
    groups_before,
)
from gschedd.core.forecast.unmade import UnmadeElements
from gschedd.core.state.elements import element_spec, waiting_element
from gschedd.core.state.records import ArrayIndex, Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.models.kinds import kind_of
from gschedd.plan.load import Kind, Learning, Predictor, predict_all
from gschedd.plan.snapshot import JobClass, OrderKey, RunningJob, RunningJobs, Snapshot

T = TypeVar("T")

#: Jobs that are looked at in one piece: up to 5 ms.
AT_ONCE: Final = 250
#: With more unfinished jobs, those that come later are not looked for.
MAX_LOOKED: Final = 5000


#: Jobs of one list of which the starts are predicted, the first ones of the queue.
MAX_LISTED: Final = 500
TOO_MANY_LISTED: Final = (
    f"starts of the first {MAX_LISTED} jobs of a list are predicted; ask for the job itself"
)


class UnpredictableError(Exception):
    """The start of a job cannot be predicted; the text says why."""


#: What is worked out in pieces, so that others get their turn between them.
Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Return what comes of all pieces, one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def question_of(job: Job, *, state: State, settings: Settings, seen: Snapshot) -> AskStart:
    """Return what to ask for the start of one job that waits, in one piece.

    Raises:
        UnpredictableError: it cannot be predicted.
    """
    return at_once(_Question(state, settings).ask(job, seen))


def questions_of(
    jobs: Iterable[Job], *, state: State, settings: Settings, seen: Snapshot
) -> Steps[tuple[AskStart | None, dict[int, int], dict[int, str]]]:
    """Work out one question for the starts of many jobs that wait.

    The state may change between two pieces. The question is about the moment of the first one: what
    waits and runs, and where. Run times are predicted by what is known at the end.

    Args:
        jobs: queued, held or waiting; an array stands for the first of its elements that waits.
        seen: the present.

    Returns:
        The question, None where nothing is to be asked; which job of it stands for each of
        ``jobs``; why the others cannot be predicted.
    """
    return _Question(state, settings).ask_all(jobs, seen)


def newcomers_question(
    job: Job, *, state: State, settings: Settings, seen: Snapshot
) -> Steps[AskStart]:
    """Work out what to ask for the start of a job that was not submitted, and is not in ``seen``.

    Raises:
        UnpredictableError: it cannot be predicted.
    """
    return _Question(state, settings).ask(job, seen, is_new=True)


class _Pieces:
    """What is gathered of jobs piece by piece; lives only inside `questions_of`.

    Attributes:
        kinds: of jobs whose usage is predicted in the forecast.
        classes: of running jobs, as far as some of the same class wait.
        queries: of the run times of running jobs, encoded.
        known: what is known of all kinds that came, each as of its piece.
    """

    def __init__(self, seen: Snapshot) -> None:
        self.kinds: dict[int, Kind] = {}
        self.classes: dict[int, JobClass] = {}
        self.queries: list[bytes] = []
        self.known: Predictor | None = None
        self._seen = seen
        self._numbers: dict[Kind, int] = {}
        self._new: list[Kind] = []

    def waiting(self, kinds: Mapping[int, Kind], jobs: Iterable[int]) -> None:
        """Take in jobs that wait; those that are over by now have no kind."""
        for job in jobs:
            kind = kinds.get(job)
            if kind is not None:
                self.kinds[job] = kind
                self._number(kind)
        self._end(())

    def running(
        self,
        part: Iterable[RunningJob],
        waiting: Mapping[JobClass, JobClass],
        state: State,
        settings: Settings,
    ) -> None:
        """Take in running jobs; those that have ended meanwhile have no run time."""
        queries: list[RunTimeQuery] = []
        for each in part:
            job = state.running.get(each.job)
            if job is None:
                continue
            kind = kind_of(job.spec)
            if not each.has_all_uses:
                self.kinds[job.id] = kind
            queries.append(query_of(job, self._number(kind), settings))
            job_class = waiting.get(state.class_of(job))
            if job_class is not None:
                self.classes[job.id] = job_class
        self._end(queries)

    def _number(self, kind: Kind) -> int:
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self._numbers)
            self._new.append(kind)
        return number

    def _end(self, queries: Sequence[RunTimeQuery]) -> None:
        """End a piece."""
        new, self._new = self._new, []
        predictor = self._seen.predictor
        if predictor is None:
            pass
        elif isinstance(predictor, Learning):
            self.known = predictor.detach(new, self.known)
        else:  # of tests and files, with few kinds
            kinds = self._numbers.keys()
            self.known = predict_all(predictor, kinds, self._seen.loads, self._seen.now_s)
        self.queries.append(encoded(queries, new))


class _Question:
    """What a question is made of; lives only inside `questions_of`."""

    def __init__(self, state: State, settings: Settings) -> None:
        self._state = state
        self._settings = settings
        self._coming: dict[int, Arrival] = {}
        self._kinds: dict[int, Kind] = {}
        self._arrays: dict[int, ArrayIndex] = {}
        self._unmade: list[UnmadeElements] = []
        self._waits: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # of arrays
        self._last: OrderKey = (-(2**63), 0)

    def ask(self, job: Job, seen: Snapshot, *, is_new: bool = False) -> Steps[AskStart]:
        return (yield from self._question_of([self._meant(job, is_new=is_new)], seen))

    def ask_all(
        self, jobs: Iterable[Job], seen: Snapshot
    ) -> Steps[tuple[AskStart | None, dict[int, int], dict[int, str]]]:
        meant: dict[int, Job] = {}
        unknown: dict[int, str] = {}
        for job in sorted(jobs, key=self._state.order_key):
            if len(meant) >= MAX_LISTED:
                unknown[job.id] = TOO_MANY_LISTED
                continue
            kept, arrays, last = dict(self._coming), dict(self._arrays), self._last
            try:
                meant[job.id] = self._meant(job)
            except UnpredictableError as error:
                unknown[job.id] = str(error)
                self._coming, self._arrays, self._last = kept, arrays, last
        question = None
        if meant:
            try:
                question = yield from self._question_of(list(meant.values()), seen)
            except UnpredictableError as error:
                unknown.update(dict.fromkeys(meant, str(error)))
        return question, {number: job.id for number, job in meant.items()}, unknown

    def _meant(self, job: Job, *, is_new: bool = False) -> Job:
        """Return the job that a question about a job is about, and take in what it waits for."""
        self._check_queue(job)
        index = self._state.arrays.get(job.id)
        if index is not None:
            job = self._first_of(index)
        if is_new or not self._is_queued(job):
            self._add(job)
        self._reach(self._state.order_key(job))
        return job

    def _question_of(self, jobs: Sequence[Job], seen: Snapshot) -> Steps[AskStart]:
        state = self._state
        if len(state.jobs) <= MAX_LOOKED:
            self._add_others()
        self._add_elements()
        groups = groups_before(seen, self._last)
        if groups is None or len(self._coming) > MAX_AHEAD:
            raise UnpredictableError(TOO_MANY)
        ends_s = ends_by_reservations(state) if state.reservations else {}
        waiting = self._waiting_classes(seen)
        running = RunningJobs(seen.running)
        seen = structs.replace(seen, groups=groups, running=running).still()
        if (kept := state.volatile.kept) is not None:
            ahead = (state.jobs[job] for group in groups for _, job in group.order)
            seen = structs.replace(seen, kept=kept.detach([*ahead, *jobs]))
        pieces = _Pieces(seen)
        waits = [job for group in groups for _, job in group.order]
        waits += [each.array for each in self._unmade]
        pieces.waiting(self._kinds, self._kinds)
        for begin in range(0, len(waits), AT_ONCE):
            yield
            pieces.waiting(seen.kinds, waits[begin : begin + AT_ONCE])
        for begin in range(0, len(running), AT_ONCE):
            yield
            part = running[begin : begin + AT_ONCE]
            pieces.running(part, waiting, state, self._settings)
        yield
        first, *others = dict.fromkeys(job.id for job in jobs)
        return AskStart(
            seen=structs.replace(seen, kinds=pieces.kinds, predictor=pieces.known),
            job=first,
            key=self._last,
            cast=QueueContext(
                queries=tuple(pieces.queries),
                classes=pieces.classes,
                coming=tuple(sorted(self._coming.values(), key=lambda each: each.key)),
                unmade=tuple(self._unmade),
                arrays=frozenset(self._arrays),
                ends_s=ends_s,
            ),
            spread=True,
            others=tuple(others),
        )

    def _is_queued(self, job: Job) -> bool:
        return job.state is JobState.QUEUED and job.id in self._state.jobs

    def _check_queue(self, job: Job) -> None:
        """Raise UnpredictableError where jobs of its queue are not started."""
        queue = self._settings.queues.get(job.spec.queue)
        if queue is None:
            raise UnpredictableError(f"queue {job.spec.queue} is no longer configured")
        if not queue.started:
            raise UnpredictableError(f"queue {job.spec.queue} is stopped")
        if not self._settings.scheduling:
            raise UnpredictableError("an operator has stopped scheduling")
        if not self._state.nodes:
            raise UnpredictableError("no node has registered yet")

    def _reach(self, key: OrderKey) -> None:
        self._last = max(self._last, key)

    # --- jobs that come later ---

    def _add(self, job: Job, of: Job | None = None) -> None:
        """Add a job that is not in the queue yet, and all that it waits for."""
        if job.id in self._coming:
            return
        holds = [kind for kind in job.holds if kind is not HoldKind.DEPENDENCY]
        if holds:
            raise UnpredictableError(_held_words(job, holds, of))
        if job.spec.array is not None and job.id in self._state.arrays:
            self._take_array(self._state.arrays[job.id])
            return
        index = self._state.arrays.get(array_of(job.id))
        if index is not None and job.id not in self._state.jobs:
            self._waits_of_array(index)  # it is among the elements that are no jobs yet
            self._reach(self._state.order_key(job))
            return
        self._come(job)  # before its dependencies: no circle
        ends, starts = self._waits_of(job) if index is None else self._waits_of_array(index)
        self._come(job, ends, starts)
        self._reach(self._state.order_key(job))

    def _come(self, job: Job, ends: tuple[int, ...] = (), starts: tuple[int, ...] = ()) -> None:
        state = self._state
        self._kinds[job.id] = kind_of(job.spec)
        self._coming[job.id] = Arrival(
            job=job.id,
            job_class=state.class_of(job),
            key=state.order_key(job),
            at_s=max(job.start_after_s, job.eligible_s if array_of(job.id) else 0.0),
            ends=ends,
            starts=starts,
        )

    def _waits_of(self, job: Job) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the jobs that must have ended, and started, before a job may start."""
        ends: list[int] = []
        starts: list[int] = []
        for each in job.spec.depends:
            into = starts if each.kind is DependencyKind.AFTER else ends
            into.extend(self._parents(each, job))
        return tuple(ends), tuple(starts)

    def _waits_of_array(self, index: ArrayIndex) -> tuple[tuple[int, ...], tuple[int, ...]]:
        number = index.job.id
        if number not in self._waits:
            self._waits[number] = ((), ())
            self._waits[number] = self._waits_of(index.job)
        return self._waits[number]

    def _parents(self, dependency: Dependency, job: Job) -> Iterable[int]:
        """Return the unfinished jobs that a dependency waits for, with all that they wait for."""
        if dependency.kind is DependencyKind.ON:
            more = counted(dependency.count, "more job")
            raise UnpredictableError(f"it waits for {more} to name it with -W depend=before")
        if dependency.kind is DependencyKind.AFTER_NOT_OK:
            on = short_job_id(dependency.jobs[0])
            raise UnpredictableError(f"it starts only if job {on} fails")
        for number in dependency.jobs:
            parent = self._state.jobs.get(number)
            array = self._state.arrays.get(array_of(number) if parent is None else number)
            if array is not None:
                self._take_array(array, of=job)
            elif parent is None:
                continue  # it has ended, and that is about to be noted
            elif self._is_queued(parent):
                self._reach(self._state.order_key(parent))
            elif parent.attempt is None:
                self._add(parent, of=job)
            yield number

    def _add_others(self) -> None:
        """Add the jobs that come later and are before it then."""
        for job in self._state.jobs.values():
            if job.state not in (JobState.HELD, JobState.WAITING) or job.id in self._coming:
                continue
            if self._state.order_key(job) > self._last or job.id in self._state.arrays:
                continue
            kept, arrays, last = dict(self._coming), dict(self._arrays), self._last
            try:
                self._check_queue(job)
                self._add(job)
            except UnpredictableError:
                self._coming, self._arrays, self._last = kept, arrays, last

    # --- arrays ---

    def _first_of(self, index: ArrayIndex) -> Job:
        """Return the element of an array that is to start next."""
        waiting = waiting_element(self._state, index)
        if waiting is not None:
            return waiting
        array, elements = index.job, index.job.elements
        holds = [kind for kind in array.holds if kind is not HoldKind.DEPENDENCY]
        if holds:
            raise UnpredictableError(_held_words(array, holds, None))
        self._waits_of_array(index)
        left = next(iter(indices(elements.left)), None) if elements is not None else None
        if left is None:
            raise UnpredictableError("all of its elements that may start have started")
        return _element(index, left)

    def _take_array(self, index: ArrayIndex, of: Job | None = None) -> None:
        """Reach to the end of an array on which a job depends."""
        holds = [kind for kind in index.job.holds if kind is not HoldKind.DEPENDENCY]
        elements = index.job.elements
        if holds or (elements is not None and elements.held):
            raise UnpredictableError(_held_words(index.job, holds or [HoldKind.USER], of))
        self._arrays[index.job.id] = index
        self._reach((self._state.order_key(index.job)[0], element_number(index.job.id + 1, 0)))

    def _add_elements(self) -> None:
        """Add the elements of arrays that are no jobs yet and are before it."""
        state = self._state
        for index in sorted(state.arrays.values(), key=lambda each: state.order_key(each.job)):
            array, elements = index.job, index.job.elements
            if elements is None or set(array.holds) - {HoldKind.DEPENDENCY}:
                continue
            left = self._before(index, elements.left)
            try:
                ends, starts = self._waits_of_array(index)
            except UnpredictableError:
                continue
            if left or index.made:
                self._arrays.setdefault(array.id, index)
            if left:
                self._unmade.append(
                    UnmadeElements(
                        array=array.id,
                        job_class=state.class_of(array),
                        place=state.order_key(array)[0],
                        left=left,
                        at_s=max(array.eligible_s, array.spec.start_after_s),
                        ends=ends,
                        starts=starts,
                        slots=array.spec.array.at_once if array.spec.array is not None else 0,
                        made=len(index.made),
                    )
                )

    def _before(self, index: ArrayIndex, left: Spans) -> Spans:
        """Return the indices of an array of which the elements are before it, or are meant."""
        place, last = self._state.order_key(index.job)[0], self._last
        if place != last[0]:
            return left if place < last[0] else ()
        if array_of(last[1]) != index.job.id:
            return left if array_of(last[1]) > index.job.id else ()
        return common(left, (Span(0, index_of(last[1])),))

    def _waiting_classes(self, seen: Snapshot) -> dict[JobClass, JobClass]:
        """Return the classes of which jobs wait."""
        waiting = {group.job_class: group.job_class for group in seen.groups}
        waiting |= {each.job_class: each.job_class for each in self._unmade}
        waiting |= {each.job_class: each.job_class for each in self._coming.values()}
        return waiting


def _element(index: ArrayIndex, number: int) -> Job:
    """Return the job that an element will be which is none yet."""
    array = index.job
    return Job(
        id=element_number(array.id, number),
        spec=element_spec(array.spec),
        state=array.state,
        submitted_s=array.submitted_s,
        eligible_s=max(array.eligible_s, array.spec.start_after_s),
    )


def _held_words(job: Job, holds: Iterable[HoldKind], of: Job | None) -> str:
    kinds = " and ".join(holds)
    if of is None:
        return f"the job is held by {kinds}; its start can be predicted once it is released"
    return f"it waits for job {short_job_id(job.id)}, which is held by {kinds}"
