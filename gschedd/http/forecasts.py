"""Forecasts for users, computed in a worker process: a query waits for one, but not for long."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar, assert_never

from msgspec import structs

from gsched.clock import Clock
from gsched.logs import Complaints
from gsched.model.job import JobSpec
from gsched.model.states import JobState
from gsched.protocol import submissions
from gschedd.core.cycle.rounds import Failed
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.deadline import FAILED, concluded, inquire, is_planned, outlook_of
from gschedd.core.forecast.question import Steps, questions_of
from gschedd.core.forecast.start import AskStart, ForecastAnswer, ForecastQuestion, answer_to
from gschedd.core.head import Head
from gschedd.core.state.elements import waiting_job
from gschedd.core.views.jobs import start_row
from gschedd.http.pace import Pace, Turns
from gschedd.plan.forecast import Forecast
from gschedd.planner.process import Worker

log = logging.getLogger("gschedd.forecasts")

#: How long a query waits for a forecast, seconds; where the last one took longer it does not wait.
PATIENCE_S: Final = 2.0
#: How long before that for the worker to start, which the first query has done: seconds.
FIRST_PATIENCE_S: Final = 20.0
#: Where forecasts take long: how long one is good enough, seconds, so that no new one is begun.
FRESH_S: Final = 30.0
#: The same: how long one is shown while a new one is computed, seconds.
KEPT_S: Final = 600.0
MAX_KEPT: Final = 2000
#: Jobs of one request whose start is forecast where the policy does not say when they end; each
#: costs up to some hundred questions to the policy.
MAX_FORECASTS: Final = 8
#: How long a forecast is shown again to whoever lists jobs, seconds.
LIST_FRESH_S: Final = 2.0
#: Jobs that are looked at before other requests get their turn.
AT_ONCE: Final = 100

NOT_YET: Final = "not known yet: the forecast is still being computed; ask again later"
TOO_LONG: Final = "not known: the forecast takes too long"
NOT_PLANNED: Final = "the job is not planned yet; see gstat later"

T = TypeVar("T")


class Forecasts:
    """Asks the policy about jobs, in a worker if there is one, one question at a time.

    Users take turns, so that nobody's queries keep those of others from being answered.

    Args:
        head: of which they are.
        worker: in which policies may take their time; None: they are asked here.
        time_limit_s: within which the forecast for a submission has to come.
        clock: of this machine.
    """

    def __init__(
        self, *, head: Head, worker: Worker | None, time_limit_s: float, clock: Clock
    ) -> None:
        self._head = head
        self._worker = worker
        self._time_limit_s = time_limit_s
        self._clock = clock
        self._complaints = Complaints(log, clock)
        self._turns = Turns(1)
        self._tasks: set[asyncio.Task[object]] = set()
        self._slow = False
        self._closed = False
        self._kept: dict[int, tuple[float, Forecast]] = {}

    @property
    def trouble(self) -> str:
        """Return what has befallen the worker, in words, or the empty string."""
        return "" if self._worker is None else self._worker.trouble

    async def close(self) -> None:
        """Answer whoever waits that there is no forecast, and end the worker."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._worker is not None:
            await self._worker.close()

    # --- jobs that wait ---

    async def start_of(self, job: int, *, uid: int) -> Forecast:
        """Return when a job starts that waits.

        Args:
            uid: who asks.
        """
        return await self._start_of(job, uid, await self._until_s())

    async def _until_s(self) -> float:
        """Return until when a query waits, in the loop's time; the first ones for the worker."""
        worker = self._worker
        if worker is not None and not worker.ready and not worker.failures and not self._closed:
            task = asyncio.create_task(worker.begin())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait({task}, timeout=FIRST_PATIENCE_S)
        return asyncio.get_running_loop().time() + (0.0 if self._slow else PATIENCE_S)

    async def _start_of(self, job: int, uid: int, until_s: float) -> Forecast:
        kept_s, kept = self._kept.get(job, (0.0, Forecast(start_unknown=NOT_YET)))
        age_s = self._clock.monotonic_s() - kept_s
        if self._slow and job in self._kept and age_s < FRESH_S:
            return kept
        starts = await self._waited_for(lambda: self._forecast_starts([job]), uid, until_s)
        if starts is not None:
            return starts.get(job, Forecast())
        return self._still_good(job)

    async def starts_of(self, jobs: Sequence[int], *, uid: int) -> dict[int, Forecast]:
        """Return when jobs start that wait, in one forecast for all of them.

        Args:
            uid: who asks.
        """
        now_s = self._clock.monotonic_s()
        fresh_s = FRESH_S if self._slow else LIST_FRESH_S if len(jobs) > 1 else 0.0
        old = [job for job in jobs if now_s - self._kept.get(job, (-math.inf,))[0] > fresh_s]
        if old:
            until_s = await self._until_s()
            await self._waited_for(lambda: self._forecast_starts(jobs), uid, until_s)
        return {job: self._still_good(job) for job in jobs}

    def _still_good(self, job: int) -> Forecast:
        """Return the last forecast for a job, unless it is too old."""
        kept_s, kept = self._kept.get(job, (-math.inf, Forecast(start_unknown=NOT_YET)))
        is_over = kept.start_s is not None and kept.start_s < self._clock.wall_s()
        age_s = self._clock.monotonic_s() - kept_s
        return Forecast(start_unknown=NOT_YET) if is_over or age_s > KEPT_S else kept

    async def _forecast_starts(self, numbers: Sequence[int]) -> dict[int, Forecast]:
        """Ask, and keep what is told: whoever has asked may have gone."""
        head = self._head
        found = (waiting_job(head.state, number) for number in numbers)
        jobs = [job for job in found if job is not None]
        seen = snapshot(head.state, head.settings, self._clock.wall_s(), head.model)
        question, meant, unknown = await _in_pieces(
            questions_of(jobs, state=head.state, settings=head.settings, seen=seen)
        )
        starts = {job: Forecast(start_unknown=why) for job, why in unknown.items()}
        if question is not None:
            answer = await self._answer(question)
            match answer:
                case ForecastAnswer(too_long=True):
                    starts |= dict.fromkeys(meant, Forecast(start_unknown=TOO_LONG))
                case ForecastAnswer():
                    none = Forecast()
                    starts |= {job: answer.starts.get(on, none) for job, on in meant.items()}
                case Failed():
                    failed = Forecast(start_unknown=f"not known: {answer.why}")
                    starts |= dict.fromkeys(meant, failed)
                case _:
                    assert_never(answer)
        if len(self._kept) + len(starts) > MAX_KEPT:
            self._kept.clear()
        now_s = self._clock.monotonic_s()
        self._kept.update((job, (now_s, start)) for job, start in starts.items())
        return starts

    async def outlooks(self, jobs: Iterable[int], *, uid: int) -> dict[int, Forecast]:
        """Return what is expected of training jobs that were just submitted, by job."""
        head = self._head
        found: dict[int, Forecast] = {}
        forecasts = 0
        until_s: float | None = None  # one wait for all of them
        for count, number in enumerate(jobs, start=1):
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
            job = head.state.training_jobs.get(number)
            if job is None:
                continue  # it was deleted meanwhile
            start = Forecast()
            if job.state is JobState.QUEUED and number not in head.verdicts and not head.safe_mode:
                if is_planned(job.spec, head.state):
                    start = Forecast(start_unknown=NOT_PLANNED)
                elif forecasts < MAX_FORECASTS:
                    forecasts += 1
                    if until_s is None:
                        until_s = await self._until_s()
                    start = await self._start_of(number, uid, until_s)
                    job = head.state.training_jobs.get(number)
                    if job is None:
                        continue
            outlook = outlook_of(
                job,
                state=head.state,
                settings=head.settings,
                verdicts=head.verdicts,
                now_s=self._clock.wall_s(),
                start_s=start.start_s,
            )
            if outlook.meets is None and not outlook.why:
                outlook = structs.replace(outlook, why=start.start_unknown)
            found[number] = outlook
        return found

    # --- jobs that were not submitted ---

    async def outlook(self, spec: JobSpec, *, uid: int) -> Forecast:
        """Return what would become of a job if it were submitted now."""
        if self._head.safe_mode:
            return self._head.foresee(spec, self._clock.wall_s())
        until_s = asyncio.get_running_loop().time() + self._time_limit_s
        found = await self._waited_for(lambda: self._forecast_outlook(spec), uid, until_s)
        return found or Forecast(why=f"no forecast came within {self._time_limit_s:g} s")

    async def _forecast_outlook(self, spec: JobSpec) -> Forecast:
        head, now_s = self._head, self._clock.wall_s()
        inquiry = await _in_pieces(
            inquire(
                spec, state=head.state, settings=head.settings, now_s=now_s, predictor=head.model
            )
        )
        answer = None
        if inquiry.question is not None:
            answer = await self._answer(self._sendable(inquiry.question))
        if isinstance(answer, Failed):
            return FAILED if answer.raised else Forecast(why=answer.why)
        return concluded(inquiry, answer, state=head.state, settings=head.settings, now_s=now_s)

    def _sendable(self, question: ForecastQuestion) -> ForecastQuestion:
        """Return a question as a value; of one about training jobs only what their policy sees."""
        rounds = self._head.rounds
        if isinstance(question, AskStart) or rounds is None:
            return question
        training_view = rounds.policy.training_view(question.seen)
        assert training_view is not None, "it is about one"
        # what they know of kinds and run times is in their profiles
        seen = structs.replace(training_view, kinds={}, predictor=None).detach()
        return structs.replace(question, seen=seen)

    # --- the worker ---

    async def _waited_for(
        self, work: Callable[[], Awaitable[T]], uid: int, until_s: float
    ) -> T | None:
        """Return what comes of some work, done in a user's turn; None where that takes too long.

        Work that has begun by then goes on, and its result is kept for the next query; other work
        is left alone. A query that does not wait at all has its work begun where nothing else is.
        """
        if self._worker is None:
            return await work()
        left_s = until_s - asyncio.get_running_loop().time()
        if self._closed or (left_s <= 0 and self._tasks):
            return None
        begun = asyncio.Event()
        task = asyncio.create_task(self._in_turn(work, uid, begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task}, timeout=max(left_s, 0.0))
        if not task.done():
            if left_s > 0 and not begun.is_set():
                task.cancel()
            return None
        return None if task.cancelled() else task.result()

    async def _in_turn(self, work: Callable[[], Awaitable[T]], uid: int, begun: asyncio.Event) -> T:
        async with self._turns.turn(uid):
            begun.set()
            return await work()

    async def _answer(self, question: ForecastQuestion) -> ForecastAnswer | Failed:
        """Return the answer to a question, or that there is none."""
        if self._worker is None:
            try:
                return answer_to(question, self._head.policy)
            except Exception as error:  # noqa: BLE001 # a policy's fault costs an answer
                return self._failed(str(error))
        begun_s = self._clock.monotonic_s()
        answer = await self._worker.forecast(question)
        self._slow = self._clock.monotonic_s() - begun_s > PATIENCE_S
        if isinstance(answer, Failed) and answer.raised:
            return self._failed(answer.why.splitlines()[-1])
        return answer

    def _failed(self, why: str) -> Failed:
        self._complaints.say("forecast", f"the policy failed when asked for a forecast: {why}")
        return Failed(number=0, why="the policy failed", raised=True)


async def _in_pieces(steps: Steps[T]) -> T:
    """Return what comes of some steps; others get their turn between them."""
    pace = Pace()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        await pace.keep()


def with_start(result: submissions.SubmitResult, outlook: Forecast) -> submissions.SubmitResult:
    """Return the answer to a dry run with when the job would start."""
    unknown = outlook.start_unknown or (outlook.why if outlook.start_s is None else "")
    row = start_row(structs.replace(outlook, start_unknown=unknown))
    expected_s = row.planned_s if row.expected_s is None else row.expected_s
    return structs.replace(result, predicted_start_s=expected_s, start=row)


def with_outlook(
    result: submissions.SubmitResult, spec: JobSpec, outlook: Forecast
) -> submissions.SubmitResult:
    """Return an answer with what is expected of a training's end."""
    if result.error is not None or not spec.states_training:
        return result
    return structs.replace(
        result,
        deadline_s=spec.deadline_s or None,
        planned_gpus=outlook.gpus,
        predicted_end_s=outlook.end_s,
        meets_deadline=outlook.meets,
        late_reason=outlook.why,
    )
