"""How far jobs are, from what they report: texts, and the bars of ``gwait --progress``.

Training jobs report their steps and their work, an array has counts of its elements; of any other
job only its state and its run time are known.
"""

import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, Protocol

from msgspec import Struct

from gsched.cli.common import is_terminal, printable
from gsched.cli.follow import ending_words
from gsched.cli.times import local_times
from gsched.clock import Clock
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.protocol.job_rows import JobStory

#: How often the head is asked: on a terminal, and where lines are written.
BARS_S: Final = 1.0
LINES_S: Final = 10.0
#: Characters of a state beside a bar: on a narrow terminal all columns would be cut for it.
WORDS_MOST: Final = 24


class JobProgress(Struct, frozen=True, kw_only=True):
    """How far a job is.

    Attributes:
        part: of all, 0 to 1; None: unknown.
        counts: ``step 120 of about 400``, ``3 of 10 elements``; empty: it does not say.
        left_s: until it is done, as far as it can be told from its speed; None: it cannot.
        words: its state, and why it waits.
    """

    job_id: str
    name: str
    words: str
    part: float | None = None
    counts: str = ""
    left_s: float | None = None

    @property
    def line(self) -> str:
        """Return it as one line, with TABs between its columns."""
        percent = "" if self.part is None else f"{100 * self.part:.1f} %"
        left = "" if self.left_s is None else f"{format_duration(self.left_s)} left"
        return f"{self.job_id}\t{self.words}\t{percent}\t{self.counts}\t{left}".rstrip("\t")


def reached_of(story: JobStory) -> JobProgress:
    """Return how far a job is."""
    row, report = story.row, story.progress
    words = row.state
    if row.state == JobState.DONE:
        words = ending_words(story)
    elif row.state != JobState.RUNNING and row.reason:
        words = f"{row.state}: {local_times(row.reason)}"
    plain = JobProgress(job_id=row.shown_id(story.server), name=row.name, words=words)
    if row.array is not None:
        return _of_array(story, plain)
    if report is not None and (report.step or report.work_done):
        return _of_training(story, plain)
    if row.state == JobState.RUNNING and row.walltime_s:
        run = f"{format_duration(row.wall_s)} of {format_duration(row.walltime_s)} at most"
        return JobProgress(job_id=plain.job_id, name=plain.name, words=words, counts=run)
    return plain


def _of_array(story: JobStory, plain: JobProgress) -> JobProgress:
    array = story.row.array
    assert array is not None, "it is an array"
    done = array.succeeded + array.failed + array.deleted
    counts = f"{done} of {array.elements} elements"
    if array.failed:
        counts += f", {array.failed} failed"
    started_s, left_s = story.row.started_s, None
    if started_s is not None and done and story.row.state != JobState.DONE:
        left_s = (story.now_s - started_s) / done * (array.elements - done)
    part = done / array.elements if array.elements else None
    return JobProgress(
        job_id=plain.job_id,
        name=plain.name,
        words=plain.words,
        part=part,
        counts=counts,
        left_s=left_s,
    )


def _of_training(story: JobStory, plain: JobProgress) -> JobProgress:
    report = story.progress
    assert report is not None, "it reports"
    part = steps = left_s = None
    if report.work_total > 0:
        part = min(1.0, report.work_done / report.work_total)
        if report.step and report.work_done > 0:
            steps = max(report.step, round(report.step * report.work_total / report.work_done))
    counts = f"step {report.step}" + ("" if steps is None else f" of about {steps}")
    if story.row.state == JobState.DONE:
        part = 1.0 if story.row.outcome and not story.row.outcome.exit_status else part
    elif steps is not None and report.step_s > 0:
        since_s = (
            max(0.0, story.now_s - report.at_s) if story.row.state == JobState.RUNNING else 0.0
        )
        left_s = max(0.0, (steps - report.step) * report.step_s - since_s)
    return JobProgress(
        job_id=plain.job_id,
        name=plain.name,
        words=plain.words,
        part=part,
        counts=counts,
        left_s=left_s,
    )


class ProgressView(Protocol):
    """Where progress is shown."""

    def show(self, jobs: Sequence[JobProgress]) -> None:
        """Show how far the jobs are now."""

    def close(self) -> None:
        """End it."""


class Lines:
    """A line for each job that has come further."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, str]] = {}

    def show(self, jobs: Sequence[JobProgress]) -> None:
        """Write the lines that have changed; a remaining time alone is no change."""
        for each in jobs:
            now = (each.words, each.counts)
            if self._last.get(each.job_id) != now:
                self._last[each.job_id] = now
                columns = map(printable, each.line.split("\t"))
                print(*columns, sep="\t", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing."""


class Bars:
    """A bar for each job, drawn anew; only on a terminal."""

    def __init__(self, out: IO[str], *, colored: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn  # late: few look at it

        from gsched.cli.show.terminal import console

        self._progress = Progress(
            TextColumn("{task.fields[job_id]}", markup=False),
            TextColumn("{task.fields[name]}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[percent]}", markup=False),
            TextColumn("{task.fields[counts]}", markup=False),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[words]}", markup=False),
            console=console(out, colored=colored),
            auto_refresh=False,
            transient=True,
        )
        self._tasks: dict[str, Any] = {}
        self._progress.start()

    def show(self, jobs: Sequence[JobProgress]) -> None:
        """Draw the bars."""
        for each in jobs:
            fields: dict[str, Any] = {
                "name": printable(each.name)[:24],
                "percent": "" if each.part is None else f"{100 * each.part:.0f} %",
                "counts": each.counts,
                "left": "" if each.left_s is None else f"{format_duration(each.left_s)} left",
                "words": printable(each.words)[:WORDS_MOST],
            }
            task = self._tasks.get(each.job_id)
            if task is None:
                task = self._progress.add_task("", total=None, job_id=each.job_id, **fields)
                self._tasks[each.job_id] = task
            known = each.part is not None
            self._progress.update(
                task, total=1.0 if known else None, completed=each.part or 0.0, **fields
            )
        self._progress.refresh()

    def close(self) -> None:
        """Take the bars away: what has become of the jobs is printed as always."""
        self._progress.stop()


def view_for(out: IO[str], *, colored: bool) -> tuple[ProgressView, float]:
    """Return bars on a terminal, else lines, and how often to look, seconds."""
    return (Bars(out, colored=colored), BARS_S) if is_terminal(out) else (Lines(), LINES_S)


def watch_progress(
    look: Callable[[Sequence[str], float], list[JobStory]],
    jobs: Sequence[str],
    *,
    view: ProgressView,
    period_s: float,
    deadline_s: float | None,
    clock: Clock,
) -> None:
    """Show how far jobs are until all of them are done, or until the deadline.

    Args:
        look: returns the stories of jobs, after so many seconds or as soon as the first is done.
        jobs: as they were written.
        view: where it is shown.
        period_s: how often, seconds.
        deadline_s: on the monotonic clock; None: there is none.
        clock: that has it.
    """
    wait_s = 0.0
    left = list(jobs)
    try:
        while left:
            stories = look(left, wait_s)
            view.show([reached_of(story) for story in stories])
            left = [
                job
                for job, story in zip(left, stories, strict=True)
                if story.row.state != JobState.DONE
            ]
            wait_s = period_s
            if deadline_s is not None:
                wait_s = min(wait_s, deadline_s - clock.monotonic_s())
                if wait_s <= 0:
                    return
    finally:
        view.close()
        sys.stderr.flush()
