"""How far jobs are, as gwait --progress shows it."""

import io
from collections.abc import Sequence

import msgspec
import pytest

from gsched.cli.show.jobfields import FIELDS
from gsched.cli.show.progress import Bars, JobProgress, reached_of, watch_progress
from gsched.clock import SystemClock
from gsched.model.reports import Progress
from gsched.protocol import job_rows
from gsched.protocol.job_rows import ArrayRow
from tests.support.fake_api import make_row, make_story

NOW_S = 1000.0


def running(**changes: object) -> job_rows.JobRow:
    return msgspec.structs.replace(
        make_row(7), state="running", letter="R", reason="", started_s=900.0, **changes
    )


def reached(row: job_rows.JobRow, progress: Progress | None = None) -> JobProgress:
    return reached_of(make_story(row, progress=progress, now_s=NOW_S))


def test_a_training_has_steps_a_part_and_a_remaining_time() -> None:
    """100 of 400 samples in 25 steps: 75 more of 2 s each, 6 s of which are over."""
    said = Progress(at_s=NOW_S - 6, step=25, work_done=100, work_total=400, step_s=2.0)
    found = reached(running(), said)

    assert (found.part, found.counts, found.left_s) == (0.25, "step 25 of about 100", 144.0)
    assert found.line == "7.fake\trunning\t25.0 %\tstep 25 of about 100\t00:02:24 left"


def test_a_training_that_says_no_total_has_steps_only() -> None:
    found = reached(running(), Progress(at_s=NOW_S, step=25, step_s=2.0))
    assert (found.part, found.counts, found.left_s) == (None, "step 25", None)


def test_time_stands_still_while_a_training_does_not_run() -> None:
    said = Progress(at_s=NOW_S - 60, step=1, work_done=1, work_total=3, step_s=10.0)
    row = msgspec.structs.replace(running(), state="queued", reason="waits for 2 GPUs")
    found = reached(row, said)
    assert (found.words, found.left_s) == ("queued: waits for 2 GPUs", 20.0)


def test_an_array_has_its_elements() -> None:
    """3 of 12 in 100 s: 9 more in 300 s."""
    array = ArrayRow(indices="0-11", elements=12, succeeded=1, failed=1, deleted=1, running=2)
    found = reached(running(array=array))
    assert (found.part, found.counts, found.left_s) == (0.25, "3 of 12 elements, 1 failed", 300.0)


def test_the_elapsed_time_of_an_array_is_not_the_sum_of_its_elements() -> None:
    array = ArrayRow(indices="0-11", elements=12, succeeded=10, running=2)
    story = make_story(running(array=array, wall_s=5000.0), now_s=NOW_S)
    assert FIELDS["elapsed"].shown(story.row, story) == "00:01:40"


def test_any_other_job_has_its_run_time() -> None:
    found = reached(running(walltime_s=3600.0, wall_s=90.0))
    assert found.line == "7.fake\trunning\t\t00:01:30 of 01:00:00 at most"
    assert reached(make_row(8)).words == "queued: waits for 2 GPUs"


def test_bars_are_drawn_on_a_terminal_with_no_markup_of_users() -> None:
    out = io.StringIO()
    bars = Bars(out, colored=True)
    bars.show(
        [JobProgress(job_id="7.head", name="[red]x", words="running", part=0.5, counts="step 5")]
    )
    bars.show([JobProgress(job_id="7.head", name="[red]x", words="running", counts="step 6")])
    bars.close()

    text = out.getvalue()
    assert "[red]x" in text
    assert "50 %" in text
    assert "step 6" in text


class Seen:
    """Takes what is shown."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []
        self.closed = 0

    def show(self, jobs: Sequence[JobProgress]) -> None:
        self.shown.append([each.words for each in jobs])

    def close(self) -> None:
        self.closed += 1


def test_all_jobs_are_watched_until_the_last_has_ended() -> None:
    done = msgspec.structs.replace(make_row(7), state="done")
    answers = [[running(), running()], [done, running()], [done]]
    asked: list[tuple[tuple[str, ...], float]] = []

    def look(left: Sequence[str], wait_s: float) -> list[job_rows.JobStory]:
        asked.append((tuple(left), wait_s))
        return [make_story(row) for row in answers[len(asked) - 1]]

    seen = Seen()
    watch_progress(look, ["7", "8"], view=seen, period_s=5.0, deadline_s=None, clock=SystemClock())

    assert asked == [(("7", "8"), 0.0), (("7", "8"), 5.0), (("8",), 5.0)]
    assert seen.shown[0] == ["running", "running"]
    assert seen.closed == 1


def test_a_deadline_ends_the_watching_and_an_interrupt_closes_the_view() -> None:
    clock = SystemClock()
    seen = Seen()
    watch_progress(
        lambda _left, _wait_s: [make_story(running())],
        ["7"], view=seen, period_s=5.0, deadline_s=clock.monotonic_s(), clock=clock,
    )  # fmt: skip
    assert len(seen.shown) == 1

    def interrupted(_left: Sequence[str], _wait_s: float) -> list[job_rows.JobStory]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_progress(interrupted, ["7"], view=seen, period_s=5.0, deadline_s=None, clock=clock)
    assert seen.closed == 2
