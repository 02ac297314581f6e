"""``gmsg``: write a message into the output files of running jobs."""

import os
import stat

import click

from gsched.cli.common import connected, gsched_command, report_results, run
from gsched.cli.operands import RUNNING, jobs_argument
from gsched.client import Head, body_of
from gsched.errors import (
    BadStateError,
    CannotWriteError,
    GschedError,
    NotPermittedError,
    UsageError,
)
from gsched.model.ids import format_job_id
from gsched.protocol.api import ActionResult, JobStory

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK

EPILOG = """\b
Examples:
  gmsg "second phase begins" 17       into its error file
  gmsg -O "second phase begins" 17    into its output file
"""


@gsched_command("gmsg", epilog=EPILOG)
@click.argument("message", metavar="MESSAGE")
@jobs_argument
@click.option("-E", "to_stderr", is_flag=True, help="Write to the standard error: the default.")
@click.option("-O", "to_stdout", is_flag=True, help="Write to the standard output.")
@connected
def gmsg(
    head: Head,
    *,
    message: str,
    jobs: tuple[str, ...],
    to_stderr: bool,
    to_stdout: bool,
    as_json: bool,
) -> int:
    """Append MESSAGE as a line to the files of your running jobs; -E -O: to both files.

    The files are written from here, with your rights, so they must be on a file system that this
    machine shares with the nodes.
    """
    if not message.strip() or "\0" in message:
        raise UsageError("the message is empty", hint="gmsg TEXT JOB...")
    line = f"{message}\n".encode("utf-8", "surrogateescape")
    results = []
    for job in jobs:
        try:
            story = head.job(job)
            _check(story)
            paths = [story.stdout_path] if to_stdout else []
            paths += [story.stderr_path] if to_stderr or not to_stdout else []
            for path in dict.fromkeys(paths):
                _append(path, line, story)
            results.append(ActionResult(id=job))
        except GschedError as error:
            results.append(ActionResult(id=job, error=body_of(error)))
    return report_results(results, as_json=as_json)


def _check(story: JobStory) -> None:
    """Refuse jobs that do not run, and those of others: root follows no links of users.

    Raises:
        GschedError: the job does not run, or belongs to another user.
    """
    import pwd  # late: most commands ask the head who the user is

    name = format_job_id(story.row.id, story.server)
    if story.row.state not in RUNNING:
        raise BadStateError(f"job {name} is {story.row.state}, not running")
    if pwd.getpwuid(os.getuid()).pw_name != story.row.user:
        raise NotPermittedError(f"job {name} belongs to {story.row.user}")


def _append(path: str, line: bytes, story: JobStory) -> None:
    if not path.startswith("/"):
        raise BadStateError(f"the files of job {story.row.id} are not known yet")
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        raise CannotWriteError(
            f"cannot write {path}: {error.strerror}",
            hint="run gmsg on a machine that shares the file system with the nodes",
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CannotWriteError(f"{path} is not a regular file")
        os.write(fd, line)
    finally:
        os.close(fd)


def main() -> None:
    """Run the command."""
    run(gmsg)


if __name__ == "__main__":
    main()
