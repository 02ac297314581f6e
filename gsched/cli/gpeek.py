"""gpeek: what a job has written so far."""

import sys

import click

from gsched.cli.common import command_name, connected, gsched_command, print_json, print_note, run
from gsched.cli.follow import STDERR, STDOUT, follow, read_output, tail, whole
from gsched.client import Head

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
        print_json(read_output(head, job, stream=stream, offset=0))
        return 0
    try:
        if follows:
            follow(head, job, stream=stream, out=out, lines=lines)
            return 0
        parts = whole(head, job, stream=stream)
        if lines is not None:
            parts = tail(head, job, stream=stream, lines=lines)
        for data in parts:
            out.write(data)
    except KeyboardInterrupt:
        print_note(f"detached: job {job} is not touched", command=command_name())
        raise
    return 0


def main() -> None:
    """Run gpeek."""
    run(gpeek)


if __name__ == "__main__":
    main()
