"""``gsig``: send a signal to running jobs."""

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
)
from gsched.cli.operands import (
    RUNNING,
    carry_out,
    check_only,
    jobs_argument,
    normal_ids,
    parse_signal,
)
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.protocol.actions import SignalJob

EPILOG = """\b
Examples:
  gsig -s USR1 17                     ask the job for a checkpoint
  gsig -s suspend 17                  stop its processes; -s resume continues them
"""


@gsched_command("gsig", epilog=EPILOG)
@jobs_argument
@option(
    "-s",
    "--signal",
    "signal_text",
    default="TERM",
    show_default=True,
    metavar="SIGNAL",
    help="Name with or without SIG, number, suspend (STOP), resume (CONT), or NULL (only check).",
)
@option("-a", "asynchronous", is_flag=True, help="Accepted for compatibility; gsig never waits.")
@option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@connected
def gsig(
    head: HeadClient,
    *,
    jobs: tuple[str, ...],
    signal_text: str,
    asynchronous: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Send a signal to all processes of running jobs.

    suspend stops the processes, but the job keeps its CPUs, GPUs and memory, and its walltime runs.
    To end a job use gdel, which makes sure that no process is left.
    """
    del asynchronous
    number = parse_signal(signal_text)
    if number == 0:
        return check_only(head, normal_ids(jobs), states=RUNNING, as_json=as_json)
    request = SignalJob(ids=normal_ids(jobs), signal=number, dry_run=dry_run)
    return carry_out(head, request, as_json=as_json)[1]


main = runner(gsig)

if __name__ == "__main__":
    main()
