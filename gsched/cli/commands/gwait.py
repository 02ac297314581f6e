"""gwait: wait for jobs to end."""

import sys
from collections.abc import Sequence

import click

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    is_terminal,
    option,
    print_error,
    print_json,
    print_note,
    wants_color,
)
from gsched.cli.follow import (
    Teller,
    ending_words,
    exit_status,
    report_failure,
    wait_and_report,
    wait_for_head,
)
from gsched.cli.running import runner
from gsched.cli.times import local_times, read_duration_s
from gsched.client import HeadClient, outlast
from gsched.clock import SystemClock
from gsched.errors import UnknownJobError
from gsched.model.states import JobState
from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import JobStory

EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_HELD = 125

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
@option("--timeout", default=None, metavar="TIME", help="Give up after TIME and exit with 124.")
@option(
    "--progress",
    is_flag=True,
    help="Show on stderr how far the jobs are: bars on a terminal, else lines.",
)
@option(
    "--fail-held",
    is_flag=True,
    help="Do not wait for a held job: exit with 125 when JOB is or becomes held.",
)
@option("-q", "--quiet", is_flag=True, help="Print nothing about the jobs.")
@connected
def gwait(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
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
            tell = Teller(head, silent=quiet or as_json)
            story = wait_and_report(head, job, tell, deadline_s=deadline_s, fail_held=fail_held)
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
    head: HeadClient, jobs: list[str], deadline_s: float | None, clock: SystemClock
) -> None:
    """Show how far the jobs are until they have ended."""
    from gsched.cli.show.progress import view_for, watch_progress  # late: most only wait

    def look(left: Sequence[str], wait_s: float) -> list[JobStory]:
        if wait_s:
            outlast(lambda: head.wait(left[:1], timeout_s=wait_s), until_s=deadline_s)
        return outlast(lambda: head.wait(left, timeout_s=0.0), until_s=deadline_s)

    wait_for_head(head)
    view, period_s = view_for(sys.stderr, colored=wants_color("auto", sys.stderr))
    watch_progress(look, jobs, view=view, period_s=period_s, deadline_s=deadline_s, clock=clock)


def _unknown(head: HeadClient, jobs: tuple[str, ...], *, as_json: bool) -> dict[str, ErrorBody]:
    """Say at once which ids are none, instead of after hours of waiting for the others."""
    errors = head.jobs(jobs).errors
    for error in errors.values():
        print_error(error, command=command_name(), as_json=as_json)
    return errors


def _report(
    head: HeadClient, story: JobStory, *, quiet: bool, as_json: bool, timeout: str | None
) -> int:
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
            report_failure(
                head, story, is_reported=is_terminal(sys.stdout) and is_terminal(sys.stderr)
            )
    return status


main = runner(gwait)

if __name__ == "__main__":
    main()
