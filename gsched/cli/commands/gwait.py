"""gwait: wait for jobs to end."""

import sys

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
)
from gsched.cli.follow import ending_words, exit_status, report_failure
from gsched.cli.times import local_times, read_duration_s
from gsched.client import Head
from gsched.clock import SystemClock
from gsched.errors import UnknownJobError
from gsched.model.states import JobState
from gsched.protocol.api import ErrorBody, JobStory

EXIT_TIMEOUT = 124  # as timeout(1)

_EPILOG = """\b
Examples:
  gwait 12 && gsub next.sh               submit the second job only if the first succeeded
  gwait --timeout 1h 12 13 14
  gwait $(gsub train.sh)
"""


@gsched_command("gwait", epilog=_EPILOG)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--timeout", default=None, metavar="TIME", help="Give up after TIME and exit with 124."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about the jobs.")
@connected
def gwait(
    head: Head, jobs: tuple[str, ...], timeout: str | None, *, quiet: bool, as_json: bool
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
        for job in jobs:
            if job in errors:
                status = status or UnknownJobError.exit_code
                continue
            left_s = None if deadline_s is None else max(0.0, deadline_s - clock.monotonic_s())
            story = head.wait([job], timeout_s=left_s)[0]
            stories.append(story)
            ended = _report(head, story, quiet=quiet, as_json=as_json, timeout=timeout)
            status = status or ended
    except KeyboardInterrupt:
        print_note("no longer waiting; the jobs continue", command=command_name())
        raise
    if as_json:
        print_json({"exit_status": status, "jobs": stories, "errors": errors})
    return status


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
