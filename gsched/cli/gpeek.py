"""gpeek: what a job has written so far."""

import os
import sys
from collections.abc import Iterator

import click

from gsched.cli.common import command_name, connected, gsched_command, print_json, print_note, run
from gsched.cli.follow import STDERR, STDOUT, follow, tail, whole
from gsched.client import Head
from gsched.errors import GschedError, HeadUnreachableError, NotPermittedError, UnknownJobError

_READ_BYTES = 256 * 1024

_EPILOG = """\b
Examples:
  gpeek 12                               all of its stdout so far
  gpeek -n 20 -e 12                      the last 20 lines of its stderr
  gpeek -f 12                            as it comes; Ctrl-C leaves the job alone
"""


@gsched_command("gpeek", epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on as more comes, to the end.")
@click.option("-e", "--stderr", "errors", is_flag=True, help="Its stderr instead of its stdout.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Only N last lines.",
)
@connected
def gpeek(
    head: Head, job: str, lines: int | None, *, follows: bool, errors: bool, as_json: bool
) -> int:
    """Print what JOB has written so far, wherever it runs."""
    stream = STDERR if errors else STDOUT
    out = sys.stdout.buffer
    if as_json:
        chunk = head.output(job, stream=stream)
        print_json(chunk)
        return 0
    try:
        if follows:
            follow(head, job, stream=stream, out=out, lines=lines)
            return 0
        for data in _read(head, job, stream=stream, lines=lines):
            out.write(data)
    except KeyboardInterrupt:
        print_note(f"detached: job {job} is not touched", command=command_name())
        raise
    return 0


def _read(head: Head, job: str, *, stream: str, lines: int | None) -> Iterator[bytes]:
    """Yield the output, from the node, or from the file if the node cannot and we can."""
    parts = whole(head, job, stream=stream)
    if lines is not None:
        parts = tail(head, job, stream=stream, lines=lines)
    try:
        first = next(parts, b"")
    except (HeadUnreachableError, NotPermittedError, UnknownJobError):
        raise
    except GschedError as error:
        path = _local_path(head, job, stream=stream)
        if not path:
            raise
        print_note(f"{error.message}; reading {path} here", command=command_name())
        parts = _read_local(path, lines)
        first = next(parts, b"")
    yield first
    yield from parts


def _local_path(head: Head, job: str, *, stream: str) -> str:
    story = head.job(job)
    path = story.stderr_path if stream == STDERR else story.stdout_path
    return path if os.path.isfile(path) and os.access(path, os.R_OK) else ""


def _read_local(path: str, lines: int | None) -> Iterator[bytes]:
    with open(path, "rb") as file:
        if lines is not None:
            from collections import deque

            yield b"".join(deque(file, maxlen=lines))
            return
        while data := file.read(_READ_BYTES):
            yield data


def main() -> None:
    """Run gpeek."""
    run(gpeek)


if __name__ == "__main__":
    main()
