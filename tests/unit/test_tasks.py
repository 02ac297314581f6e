"""Periodic tasks: those that were missed, that take too long, that fail; and their times."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from gsched.clock import SystemClock
from gsched.config.load import parse_config
from gsched.config.tasks import TasksConfig, cron_fields
from gsched.errors import ConfigError, InvalidRequestError, StorageError, TryAgainError
from gsched.protocol.tasks import TaskOutcome, TaskRow
from gschedd.daemon.tasks import RETRY_S, PeriodicTask, PeriodicTasks

OFTEN = TasksConfig(purge="1s", purge_users="never", check_rows="never")
SELDOM = TasksConfig(purge="1d", purge_users="never", check_rows="never")


class Books:
    """Stands where the store is."""

    def __init__(self, **rows: TaskRow) -> None:
        self.kept = {name: msgspec.json.encode(row).decode() for name, row in rows.items()}
        self.history: list[TaskRow] = []
        self.refuses: Exception | None = None

    def notes(self, kind: str) -> dict[str, str]:
        return dict(self.kept)

    def save_note(self, kind: str, name: str, text: str | None) -> None:
        assert text is not None
        if self.refuses is not None:
            raise self.refuses
        self.kept[name] = text
        self.history.append(msgspec.json.decode(text, type=TaskRow))


async def at_once(work: Callable[[], None]) -> None:
    work()


def made(
    books: Books, run: Callable[[], Awaitable[str]], config: TasksConfig = SELDOM, **more: bool
) -> PeriodicTasks:
    rows = [PeriodicTask(name="purge", run=run, **more)]
    return PeriodicTasks(rows, config, store=books, in_writer=at_once, clock=SystemClock())


def until(tasks: PeriodicTasks, is_so: Callable[[TaskRow], bool]) -> TaskRow:
    """Run tasks until the row of the only one is so."""

    async def story() -> TaskRow:
        running = asyncio.create_task(tasks.run())
        async with asyncio.timeout(20):
            while not is_so(tasks.rows()[0]) and not running.done():  # noqa: ASYNC110 - rows tell nobody
                await asyncio.sleep(0.01)
        row = tasks.rows()[0]
        running.cancel()
        (fault,) = await asyncio.gather(running, return_exceptions=True)
        if isinstance(fault, StorageError):
            raise fault
        return row

    return asyncio.run(story())


async def well() -> str:
    return "removed 3"


def is_over(row: TaskRow) -> bool:
    return row.ended_s is not None and row.outcome is not TaskOutcome.INTERRUPTED


def ago(seconds: float, **more: object) -> TaskRow:
    now_s = SystemClock().wall_s()
    fields = {"started_s": now_s - seconds, "ended_s": now_s - seconds + 1, **more}
    return msgspec.convert({"name": "purge", "schedule": "", "outcome": "done", **fields}, TaskRow)


def test_a_run_is_in_the_database_with_its_outcome_and_the_next_time() -> None:
    books = Books()
    row = until(made(books, well), is_over)

    assert (row.outcome, row.text, row.schedule) == (TaskOutcome.DONE, "removed 3", "1d")
    assert row.next_s is not None
    assert row.started_s is not None
    assert abs(row.next_s - row.started_s - 86400) < 5
    assert [each.outcome for each in books.history] == [TaskOutcome.RUNNING, TaskOutcome.DONE]
    assert books.history[-1].next_s == row.next_s


def test_a_task_that_was_due_while_no_head_ran_runs_once_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many of its times have passed."""
    caplog.set_level("INFO")
    now_s = SystemClock().wall_s()
    runs: list[int] = []

    async def counted() -> str:
        runs.append(1)
        return ""

    books = Books(purge=ago(900_000, next_s=now_s - 800_000))
    before = books.kept["purge"]
    until(made(books, counted), lambda row: books.kept["purge"] != before and is_over(row))

    assert runs == [1]
    assert "task purge was due while no head ran" in caplog.text


@pytest.mark.parametrize("schedule", ["1d", "0 0 1 1 *"])
def test_a_task_whose_time_has_not_come_waits(schedule: str) -> None:
    """A head that is restarted often does not run it each time."""
    now_s = SystemClock().wall_s()
    config = TasksConfig(purge=schedule, purge_users="never", check_rows="never")
    tasks = made(Books(purge=ago(3600, next_s=now_s + 82_800)), well, config)
    row = until(tasks, lambda row: row.next_s is not None)

    assert row.outcome is TaskOutcome.DONE
    assert row.text == ""
    if schedule == "1d":
        assert row.next_s is not None
        assert abs(row.next_s - now_s - 82_800) < 5


@pytest.mark.parametrize("schedule", ["1d", "0 0 1 1 *"])
def test_a_task_that_failed_is_tried_again_after_an_hour_by_the_next_head_too(
    schedule: str,
) -> None:
    now_s = SystemClock().wall_s()
    config = TasksConfig(purge=schedule, purge_users="never", check_rows="never")
    books = Books(purge=ago(600, outcome="failed", next_s=now_s + 3000))
    row = until(made(books, well, config), lambda row: row.next_s is not None)

    assert row.outcome is TaskOutcome.FAILED
    assert row.next_s is not None
    assert abs(row.next_s - now_s - 3000) < 5


def test_a_task_that_the_end_of_the_head_interrupted_runs_again() -> None:
    books = Books(purge=ago(60, outcome="running", ended_s=None, next_s=9e9))
    row = until(made(books, well), is_over)

    assert row.text == "removed 3"


def test_a_task_that_takes_longer_than_its_period_runs_once_at_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at_once_most = running = 0

    async def slow() -> str:
        nonlocal at_once_most, running
        running += 1
        at_once_most = max(at_once_most, running)
        await asyncio.sleep(30)
        return ""

    row = until(made(Books(), slow, OFTEN), lambda row: row.overlaps == 2)

    assert at_once_most == 1
    assert row.outcome is TaskOutcome.RUNNING
    assert "task purge still runs" in caplog.text
    assert "is not started a second time" in caplog.text


def test_a_task_that_fails_is_shown_and_runs_at_its_next_time() -> None:
    outcomes = iter([RuntimeError("out of luck")])

    async def at_last() -> str:
        for error in outcomes:
            raise error
        return "done at last"

    books = Books()
    row = until(made(books, at_last, OFTEN), lambda row: row.text == "done at last")

    assert row.outcome is TaskOutcome.DONE
    failed = [each for each in books.history if each.outcome is TaskOutcome.FAILED]
    assert [each.text for each in failed] == ["RuntimeError('out of luck')"]


def test_a_database_that_is_held_costs_a_run_and_one_that_fails_the_head() -> None:
    async def held() -> str:
        raise TryAgainError("another program holds the database")

    row = until(made(Books(), held), is_over)
    assert (row.outcome, row.text) == (TaskOutcome.FAILED, "another program holds the database")
    assert row.next_s is not None
    assert row.ended_s is not None
    assert abs(row.next_s - row.ended_s - RETRY_S) < 60, "not in a day"

    async def fails() -> str:
        raise StorageError("no such table")

    with pytest.raises(StorageError, match="no such table"):
        until(made(Books(), fails), is_over)
    books = Books()
    books.refuses = StorageError("the disk is gone")
    with pytest.raises(StorageError, match="the disk is gone"):
        until(made(books, well), lambda _: False)


def test_what_cannot_be_started_by_hand_says_why() -> None:
    async def story() -> None:
        release = asyncio.Event()

        async def waits() -> str:
            await release.wait()
            return ""

        tasks = made(Books(purge=ago(1, next_s=9e9)), waits)
        running = asyncio.create_task(tasks.run())
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequestError, match="unknown task 'x'"):
            tasks.start("x", "root")
        tasks.start("purge", "root")
        with pytest.raises(InvalidRequestError, match="runs already"):
            tasks.start("purge", "root")
        tasks.configure(TasksConfig(purge="never", purge_users="never", check_rows="never"))
        assert tasks.rows()[0].next_s is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


def test_days_of_the_week_are_those_of_a_crontab() -> None:
    """0 and 7 are Sunday, where APScheduler counts from Monday."""
    days = {
        "0": "sun",
        "7": "sun",
        "1-5": "mon,tue,wed,thu,fri",
        "5-7": "fri,sat,sun",
        "*/3": "sun,wed,sat",
        "mon-fri,0": "mon-fri,sun",
        "*": "*",
    }
    for text, wanted in days.items():
        assert cron_fields(f"0 3 * * {text}")["day_of_week"] == wanted, text


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("10", None),
        ("30 3 * * 1-5", None),
        ("never", None),
        ("61 3 * * *", "59"),
        ("3 * * *", "has 4 fields, not five"),
        ("0.1s", "is not from 1 s to 366 days"),
        ("soon", "soon"),
        ("0 0 31 2 *", None),
    ],
)
def test_times_that_are_none_are_refused_with_their_line(schedule: str, words: str | None) -> None:
    text = f'[tasks]\npurge = "{schedule}"\n'
    if words is None:
        assert parse_config(text, where="f").tasks.purge == schedule
        return
    with pytest.raises(ConfigError, match=r"^f:2: \[tasks\] purge: ") as refused:
        parse_config(text, where="f")
    assert words in str(refused.value)
