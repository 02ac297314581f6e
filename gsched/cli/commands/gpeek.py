"""gpeek: what a job has written so far."""

import sys

import click

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    option,
    print_json,
    print_note,
)
from gsched.cli.follow import STDERR, STDOUT, follow, read_output, tail, whole
from gsched.cli.running import runner
from gsched.cli.terminal_text import TerminalOut, to_stdout
from gsched.client import HeadClient
from gsched.model.states import AttemptState

_STARTING = frozenset({AttemptState.ASSIGNED, AttemptState.STARTING})
_EPILOG = """\b
Examples:
  gpeek 12                               all of its stdout so far
  gpeek -n 20 -e 12                      the last 20 lines of its stderr
  gpeek -f 12                            follow it; Ctrl-C does not affect the job
  gpeek --raw 12                         with the job's cursor movements, if you trust it
  gpeek -e --node gpu2 12                the stderr of a distributed job on its second node
"""


@gsched_command("gpeek", epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@option("-f", "--follow", "follows", is_flag=True, help="Follow the output until the job ends.")
@option("-e", "--stderr", "errors", is_flag=True, help="Print stderr instead of stdout.")
@option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Print only the last N lines.",
)
@option(
    "--node",
    default="",
    metavar="NODE",
    help="Node whose output to print [default: the job's first].",
)
@option(
    "--raw",
    is_flag=True,
    help="Print control sequences to a terminal as they are; by default they are escaped.",
)
@connected
def gpeek(  # noqa: PLR0913 # one for each option
    head: HeadClient,
    job: str,
    lines: int | None,
    node: str,
    *,
    follows: bool,
    errors: bool,
    raw: bool,
    as_json: bool,
) -> int:
    """Print what JOB has written so far, on whichever node it runs.

    A job on several nodes has separate output files on each; --node selects the node.
    """
    stream = STDERR if errors else STDOUT
    out = to_stdout(sys.stdout, raw=raw)
    if as_json:
        print_json(read_output(head, job, stream=stream, offset=0, node=node))
        return 0
    try:
        if follows:
            follow(head, job, stream=stream, out=out, lines=lines, node=node)
        else:
            parts = whole(head, job, stream=stream, node=node)
            if lines is not None:
                parts = tail(head, job, stream=stream, lines=lines, node=node)
            written_bytes = sum(out.write(data) for data in parts)
            out.flush()
            if not written_bytes:
                _note_start(head, job)
        _note_outcome(head, job)
    except KeyboardInterrupt:
        print_note(f"detached: job {job} is not affected", command=command_name())
        raise
    finally:
        if isinstance(out, TerminalOut):
            out.close()
    return 0


def _note_start(head: HeadClient, job: str) -> None:
    """Say that a job has no output as its nodes have not reported its start."""
    story = head.job(job)
    if story.attempts and story.attempts[-1].state in _STARTING:
        nodes = ", ".join(part.node for part in story.attempts[-1].parts)
        print_note(
            f"job {job} is starting on {nodes}, it has no output yet; follow it with "
            f"gpeek -f {job}",
            command=command_name(),
        )


def _note_outcome(head: HeadClient, job: str) -> None:
    """Say what the output of a job that failed may not: why it failed."""
    outcome = head.job(job).row.outcome
    if outcome is not None and outcome.message and outcome.exit_code:
        print_note(f"job {job}: {outcome.message}", command=command_name())


main = runner(gpeek)

if __name__ == "__main__":
    main()
