"""gwait: wait for jobs to end."""

import sys
from collections.abc import Sequence

import click

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    is_terminal,
    print_error,
    print_json,
    print_note,
    run,
    wants_color,
)
from gsched.cli.follow import ending_words, exit_status, report_failure
from gsched.cli.times import local_times, read_duration_s
from gsched.client import Head
from gsched.clock import SystemClock
from gsched.errors import UnknownJobError
from gsched.model.ids import array_of, short_job_id
from gsched.model.states import HoldKind, JobState
from gsched.protocol.api import ErrorBody, JobStory

EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_HELD = 125
HELD_LOOK_S = 10.0  # how often it is looked whether a job is held

_EPILOG = """\b
Examples:
  gwait 12 && gsub next.sh               submit the second job only if the first succeeded
  gwait --timeout 1h 12 13 14
  gwait --progress 12 '15[]'              steps of a training job, elements of an array
  gwait $(gsub train.sh)
  gwait --fail-held 21                    do not wait for a job that is held
"""


@gsched_command("gwait", epilog=_EPILOG)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--timeout", default=None, metavar="TIME", help="Give up after TIME and exit with 124."
)
@click.option(
    "--progress",
    is_flag=True,
    help="Show on stderr how far the jobs are: bars on a terminal, else lines.",
)
@click.option(
    "--fail-held",
    is_flag=True,
    help="Do not wait for a held job: exit with 125 when JOB is or becomes held.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about the jobs.")
@connected
def gwait(  # noqa: PLR0913 - one parameter for each option
    head: Head,
    jobs: tuple[str, ...],
    timeout: str | None,
    *,
    progress: bool,
    fail_held: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Wait until all JOBs have ended; exit with the code of the first JOB given that failed.

    The code of a job that was killed by a signal is 128 plus the signal number.
    """
    clock = SystemClock()
    timeout_s = None if timeout is None else read_duration_s("--timeout", timeout)
    deadline_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    errors = _unknown(head, jobs, as_json=as_json)
    status = 0
    stories: list[JobStory] = []
    try:
        if progress:
            _show_progress(head, [job for job in jobs if job not in errors], deadline_s, clock)
        for job in jobs:
            if job in errors:
                status = status or UnknownJobError.exit_code
                continue
            tell = _Teller(head, silent=quiet or as_json)
            story = _wait(head, job, deadline_s, tell, fail_held=fail_held)
            stories.append(story)
            if fail_held and tell.held and story.row.state != JobState.DONE:
                status = status or EXIT_HELD
                continue
            ended = _report(head, story, quiet=quiet, as_json=as_json, timeout=timeout)
            status = status or ended
    except KeyboardInterrupt:
        print_note("no longer waiting; the jobs continue", command=command_name())
        raise
    if as_json:
        print_json({"exit_status": status, "jobs": stories, "errors": errors})
    return status


def _show_progress(
    head: Head, jobs: list[str], deadline_s: float | None, clock: SystemClock
) -> None:
    """Show how far the jobs are until they have ended."""
    from gsched.cli.show.progress import view_for, watch_progress  # late: most only wait

    def look(left: Sequence[str], wait_s: float) -> list[JobStory]:
        if wait_s:
            head.wait(left[:1], timeout_s=wait_s)
        return head.wait(left, timeout_s=0.0)

    view, period_s = view_for(sys.stderr, colored=wants_color("auto", sys.stderr))
    watch_progress(look, jobs, view=view, period_s=period_s, deadline_s=deadline_s, clock=clock)


class _Teller:
    """Says on stderr why a job does not go on: once for each state of the matter.

    Attributes:
        held: the job, or some elements of it, were held at the last look.
    """

    def __init__(self, head: Head, *, silent: bool) -> None:
        self.held = False
        self._head = head
        self._silent = silent
        self._told = ""

    def look(self, story: JobStory) -> None:
        """Look at a job, and say what is new."""
        row = story.row
        words = ""
        self.held = row.state == JobState.HELD and set(story.holds) != {HoldKind.DEPENDENCY}
        if self.held:
            words = f"job {short_job_id(row.id)} is {row.reason}"
        elif row.next_try_s is not None:
            words = f"job {short_job_id(row.id)} waits: {row.reason}"
        elif row.array is not None and row.state != JobState.DONE:
            words = self._of_elements(row.id)
            self.held = bool(words)
        kind = words.partition("; next try")[0]
        if words and kind != self._told and not self._silent:
            print_note(local_times(words), command=command_name())
        self._told = kind

    def _of_elements(self, array: int) -> str:
        """Return that elements of an array are held, in words: the first of them."""
        rows = self._head.jobs(states=[JobState.HELD], elements=True).jobs
        held = [row for row in rows if array_of(row.id) == array]
        if not held:
            return ""
        more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
        return f"job {short_job_id(held[0].id)}{more} is {held[0].reason}"


def _wait(
    head: Head, job: str, deadline_s: float | None, tell: _Teller, *, fail_held: bool
) -> JobStory:
    """Return the story of a job when it has ended, at the deadline, or as soon as it is held."""
    clock = SystemClock()
    look_s = 0.0  # at first what is so now
    while True:
        left_s = None if deadline_s is None else max(0.0, deadline_s - clock.monotonic_s())
        story = head.wait([job], timeout_s=look_s if left_s is None else min(left_s, look_s))[0]
        if story.row.state == JobState.DONE:
            return story
        tell.look(story)
        if (fail_held and tell.held) or (left_s is not None and left_s <= look_s):
            return story
        look_s = HELD_LOOK_S


def _unknown(head: Head, jobs: tuple[str, ...], *, as_json: bool) -> dict[str, ErrorBody]:
    """Say at once which ids are none, instead of after hours of waiting for the others."""
    errors = head.jobs(jobs).errors
    for error in errors.values():
        print_error(error, command=command_name(), as_json=as_json)
    return errors


def _report(head: Head, story: JobStory, *, quiet: bool, as_json: bool, timeout: str | None) -> int:
    silent = quiet or as_json
    job_id = story.row.shown_id(story.server)
    if story.row.state != JobState.DONE:
        if not silent:
            reason = f": {local_times(story.row.reason)}" if story.row.reason else ""
            print_note(
                f"job {job_id} is still {story.row.state} after --timeout {timeout}{reason}",
                command=command_name(),
            )
        return EXIT_TIMEOUT
    status = exit_status(story)
    if not silent:
        print(f"{job_id}\t{status}\t{ending_words(story)}", flush=True)
        if status:
            report_failure(head, story, told=is_terminal(sys.stdout) and is_terminal(sys.stderr))
    return status


def main() -> None:
    """Run gwait."""
    run(gwait)


if __name__ == "__main__":
    main()
