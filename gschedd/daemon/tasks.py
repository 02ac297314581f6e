"""What the head does periodically: APScheduler says when, and the database knows how it went.

A task is a row: its name, which is its key in ``[tasks]``, and what it does. Work on the database
still takes turns with commits on the store's own thread; the scheduler only starts it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from msgspec import Struct, structs

from gsched.clock import Clock
from gsched.config.tasks import NEVER, TasksConfig, cron_fields, period_s
from gsched.errors import GschedError, InvalidRequestError, StorageError, TryAgainError
from gsched.logs import one_line
from gsched.protocol.tasks import TaskOutcome, TaskRow
from gschedd.store.queues import NoteStore

log = logging.getLogger("gschedd.tasks")

#: Until a task is tried again that found the database held or the disk full.
RETRY_S: Final = 3600.0
NOTE: Final = "task"  # the kind of note that is the last run of a task
LONGEST: Final = 400  # characters of what a task says


class PeriodicTask(Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        name: its key in ``[tasks]``.
        run: does it; returns what there is to say of it.
        at_start: it also runs when the head starts, whenever it ran last.
    """

    name: str
    run: Callable[[], Awaitable[str]]
    at_start: bool = False


class PeriodicTasks:
    """Runs tasks at their times, none twice at once.

    Args:
        tasks: their rows.
        config: their times.
        store: keeps the last run of each.
        in_writer: runs something on the store's thread, between commits.
        clock: of this machine.
    """

    def __init__(
        self,
        tasks: Iterable[PeriodicTask],
        config: TasksConfig,
        *,
        store: NoteStore,
        in_writer: Callable[[Callable[[], None]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._config = config
        self._store = store
        self._in_writer = in_writer
        self._clock = clock
        self._rows = {name: TaskRow(name=name, schedule="") for name in self._tasks}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._fault: asyncio.Future[None] | None = None
        self._scheduler = AsyncIOScheduler(
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 100}
        )

    async def run(self) -> None:
        """Run tasks until cancelled.

        Raises:
            StorageError: a task found that the database failed: the head must stop.
        """
        await self._in_writer(self._load)
        self._fault = asyncio.get_running_loop().create_future()
        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        self._scheduler.start()
        try:
            for name in self._tasks:
                self._plan(name, is_start=True)
            await self._fault
        finally:
            self._scheduler.shutdown(wait=False)
            for task in self._running.values():
                task.cancel()

    def configure(self, config: TasksConfig) -> None:
        """Take in other times; a task that runs is left alone."""
        before, self._config = self._config, config
        for name in self._tasks if self._fault is not None else ():
            if getattr(before, name) != getattr(config, name):
                self._plan(name)

    def rows(self) -> tuple[TaskRow, ...]:
        """Return how the tasks are."""
        return tuple(
            structs.replace(row, schedule=getattr(self._config, name), next_s=self._next_s(name))
            for name, row in self._rows.items()
        )

    def start(self, name: str, by: str) -> None:
        """Start a task now; its next time stays as it is.

        Raises:
            InvalidRequestError: there is no such task, or it runs.
        """
        if name not in self._tasks:
            raise InvalidRequestError(
                f"unknown task {name[:50]!r}", hint=f"valid: {', '.join(self._tasks)}"
            )
        if name in self._running:
            raise InvalidRequestError(
                f"task {name} runs already", hint="gsched tasks shows when it began"
            )
        log.info("task %s is started by %s", name, by)
        self._begin(name)

    def _load(self) -> None:
        for name, text in self._store.notes(NOTE).items():
            if name in self._rows:
                self._rows[name] = _read(name, text)

    def _plan(self, name: str, *, is_start: bool = False) -> None:
        """Set the next time of a task, from its last run and its schedule."""
        schedule = getattr(self._config, name)
        row, now_s = self._rows[name], self._clock.wall_s()
        every_s = period_s(schedule)
        due_s = now_s if self._tasks[name].at_start and is_start else None
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)
        if schedule == NEVER:
            return
        if every_s is None:
            trigger = CronTrigger(**cron_fields(schedule))
        else:
            trigger = IntervalTrigger(seconds=every_s)
            if row.started_s is None or (began_s := row.started_s) > now_s:  # the clock went back
                began_s = now_s - every_s
            due_s = due_s or max(now_s, began_s + every_s)
        if is_start and self._was_missed(row, now_s):
            due_s = now_s
        elif is_start and row.outcome is TaskOutcome.FAILED and row.next_s is not None:
            due_s = min(row.next_s, due_s or row.next_s)  # it may have been going to be tried again
        when = {} if due_s is None else {"next_run_time": _moment(due_s)}
        self._scheduler.add_job(self._ring, trigger, args=(name,), id=name, **when)

    def _was_missed(self, row: TaskRow, now_s: float) -> bool:
        """Return whether the time of a task came while no head ran, and say so."""
        if row.outcome is TaskOutcome.INTERRUPTED:
            log.warning("task %s had not ended when the head did: it runs now", row.name)
            return True
        if row.next_s is None or row.next_s > now_s:
            return False
        log.info("task %s was due while no head ran: it runs now", row.name)
        return True

    def _next_s(self, name: str) -> float | None:
        """Return when a task runs next, at its time or because it is tried again."""
        jobs = (self._scheduler.get_job(each) for each in (name, _retry_of(name)))
        moments = (getattr(job, "next_run_time", None) for job in jobs)
        return min((float(each.timestamp()) for each in moments if each is not None), default=None)

    async def _ring(self, name: str) -> None:
        """Begin a task at its time, if it does not run still."""
        row = self._rows[name]
        if name not in self._running:
            self._begin(name)
            return
        self._rows[name] = structs.replace(row, overlaps=row.overlaps + 1)
        log.warning(
            "task %s still runs, since %.0f s, and is not started a second time: its period is "
            "too short",
            name,
            self._clock.wall_s() - (row.started_s or 0.0),
        )

    def _begin(self, name: str) -> None:
        self._rows[name] = structs.replace(
            self._rows[name],
            started_s=self._clock.wall_s(),
            ended_s=None,
            outcome=TaskOutcome.RUNNING,
            text="",
        )
        self._running[name] = asyncio.create_task(self._run(name), name=f"task {name}")

    async def _run(self, name: str) -> None:
        await self._note(name)
        outcome = TaskOutcome.DONE
        try:
            text = await self._tasks[name].run()
        except StorageError as error:
            self._fail(error)
            return
        except TryAgainError as error:
            outcome, text = TaskOutcome.FAILED, error.message
            self._try_again(name, error)
        except Exception as error:  # its next time comes
            outcome = TaskOutcome.FAILED
            text = error.message if isinstance(error, GschedError) else repr(error)
            log.exception("task %s failed", name)
        finally:
            del self._running[name]
        self._rows[name] = structs.replace(
            self._rows[name],
            ended_s=self._clock.wall_s(),
            outcome=outcome,
            text=one_line(text[:LONGEST]),
        )
        await self._note(name)

    def _try_again(self, name: str, error: TryAgainError) -> None:
        retry_s, next_s = self._clock.wall_s() + RETRY_S, self._next_s(name)
        if next_s is not None and next_s <= retry_s:
            log.warning("task %s: %s; it runs again at its next time", name, error)
            return
        log.warning("task %s: %s; it is tried again in an hour", name, error)
        self._scheduler.add_job(
            self._ring,
            next_run_time=_moment(retry_s),
            args=(name,),
            id=_retry_of(name),
            replace_existing=True,
        )

    async def _note(self, name: str) -> None:
        """Make the row of a task durable, if the database can be written now."""
        row = structs.replace(self._rows[name], next_s=self._next_s(name), overlaps=0)
        try:
            text = msgspec.json.encode(row).decode()
            await self._in_writer(partial(self._store.save_note, NOTE, name, text))
        except StorageError as error:
            self._fail(error)
        except TryAgainError as error:
            log.warning("the run of task %s is not recorded: %s", name, error)

    def _fail(self, error: StorageError) -> None:
        if self._fault is not None and not self._fault.done():
            self._fault.set_exception(error)


def _retry_of(name: str) -> str:
    return f"{name} again"


def _moment(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, tz=UTC)


def _read(name: str, text: str) -> TaskRow:
    """Return the last run of a task; one that had not ended was interrupted."""
    try:
        row = msgspec.json.decode(text, type=TaskRow)
    except msgspec.MsgspecError:
        log.warning("the record of task %s cannot be read", name)
        return TaskRow(name=name, schedule="")
    if row.outcome is TaskOutcome.RUNNING:
        return structs.replace(row, outcome=TaskOutcome.INTERRUPTED)
    return row
