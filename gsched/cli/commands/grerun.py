"""``grerun``: stop running jobs and queue them again; submit failed ones again."""

from typing import TYPE_CHECKING, Final

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    option,
    print_json,
    print_note,
    report_errors,
)
from gsched.cli.operands import (
    ALL,
    carry_out,
    grace_option,
    jobs_argument,
    normal_ids,
    parse_grace_s,
)
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.errors import GschedError, HeadUnreachableError, UsageError
from gsched.head_calls import body_of
from gsched.model.ids import format_array_id, format_job_id
from gsched.protocol.actions import RerunJob
from gsched.protocol.api import ErrorBody

if TYPE_CHECKING:
    from gsched.protocol.rerun import RerunReply

EPILOG = """\b
Examples:
  grerun 17                           stop it, queue it again
  grerun -W 300 -m "new driver" 17    five minutes between TERM and KILL
  grerun --failed '56[]'              submit the failed elements again, as a new array
  grerun --failed --dry-run '56[]'    show which these are
"""
NOTHING_FAILED: Final = 1  # the exit code where no job has failed, so that none was submitted
_SHOWN: Final = 200  # characters of a list of indices beside the new id


@gsched_command("grerun", epilog=EPILOG)
@jobs_argument
@option(
    "--failed",
    is_flag=True,
    help="Submit the elements of the array JOB that have failed again, as a new array; or the "
    "failed job.",
)
@option("-f", "--force", is_flag=True, help="Also rerun jobs that are marked as not rerunnable.")
@option("-m", "--message", default="", metavar="MSG", help="Message for the job's history.")
@grace_option
@option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@connected
def grerun(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    *,
    jobs: tuple[str, ...],
    failed: bool,
    force: bool,
    message: str,
    grace: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Stop running jobs and queue them again, under the same id.

    The next attempt starts after all processes of this one have ended; its GSCHED_RESTART_COUNT is
    one higher. With --failed, what has failed is submitted again under a new id, which is printed;
    no job is stopped.
    """
    if failed:
        _check_failed(jobs, (("-f", force), ("-m", bool(message)), ("-W", bool(grace))))
        return _submit_again(head, jobs, dry_run=dry_run, as_json=as_json)
    request = RerunJob(
        ids=normal_ids(jobs),
        message=message,
        grace_s=parse_grace_s(grace),
        force=force,
        dry_run=dry_run,
    )
    return carry_out(head, request, as_json=as_json)[1]


def _check_failed(jobs: tuple[str, ...], others: tuple[tuple[str, bool], ...]) -> None:
    """Refuse what makes no sense beside ``--failed``.

    Raises:
        UsageError: there is something.
    """
    for other, is_given in others:
        if is_given:
            raise UsageError(
                f"--failed and {other} are mutually exclusive",
                hint=f"omit {other}: --failed submits finished jobs again and stops none",
            )
    if ALL in normal_ids(jobs):
        raise UsageError(
            "--failed and all are mutually exclusive: all means unfinished jobs",
            hint="name jobs; ghist --failed lists those that have failed",
        )


def _submit_again(head: HeadClient, jobs: tuple[str, ...], *, dry_run: bool, as_json: bool) -> int:
    """Submit what has failed of each job, and tell of it; return the exit code."""
    replies: list[RerunReply | ErrorBody] = []
    unreachable: ErrorBody | None = None
    for job in jobs:
        if unreachable is not None:
            replies.append(unreachable)
            continue
        try:
            reply = head.rerun_failed(job, dry_run=dry_run)
        except GschedError as error:
            replies.append(body_of(error))
            if isinstance(error, HeadUnreachableError):
                unreachable = body_of(error)
            continue
        replies.append(reply)
        if not as_json:
            _tell(job, reply, dry_run=dry_run)
    pairs = list(zip(jobs, replies, strict=True))
    if as_json:
        print_json({"results": [_document(job, reply) for job, reply in pairs]})
    errors = [(job, reply) for job, reply in pairs if isinstance(reply, ErrorBody)]
    status = report_errors(errors, as_json=as_json)
    some = any(not isinstance(reply, ErrorBody) and reply.count for reply in replies)
    return status or (0 if some else NOTHING_FAILED)


def _new_id(reply: "RerunReply") -> str:
    if not reply.id:
        return ""
    return (format_array_id if reply.elements else format_job_id)(reply.id, reply.server)


def _tell(job: str, reply: "RerunReply", *, dry_run: bool) -> None:
    """Print the new id, and beside it what that is; or what would be submitted."""
    from gsched.cli.times import local_times  # late: most reruns are of running jobs

    command = command_name()
    for text in reply.warnings:
        print_note(f"warning: {local_times(text)}", command=command)
    if reply.nothing:
        print_note(f"{reply.nothing}; nothing was submitted", command=command)
        return
    what = f"{_counted(reply.count, 'failed element')} of job {job}"
    what, list_ = (what, f": {reply.elements}") if reply.elements else (f"failed job {job}", "")
    if dry_run:
        print(f"{what} would be submitted again{list_}", flush=True)
    else:
        print(_new_id(reply), flush=True)
        was = "was" if reply.count == 1 else "were"
        short = list_ if len(list_) <= _SHOWN else f"{list_[:_SHOWN]}..."
        print_note(f"{what} {was} submitted again as {_new_id(reply)}{short}", command=command)
    if reply.unfinished:
        have = "has not finished; it is" if reply.unfinished == 1 else "have not finished; they are"
        left = _counted(reply.unfinished, "element")
        print_note(f"{left} of job {job} {have} not part of this", command=command)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _document(job: str, reply: "RerunReply | ErrorBody") -> dict[str, object]:
    """Return what ``--json`` tells of an operand."""
    result: dict[str, object] = {"operand": job, "id": 0, "job_id": "", "elements": "", "count": 0}
    result |= {"unfinished": 0, "nothing": "", "warnings": [], "error": None}
    if isinstance(reply, ErrorBody):
        return result | {"error": reply}
    values = {name: getattr(reply, name) for name in result if hasattr(reply, name)}
    return result | values | {"job_id": _new_id(reply)}


main = runner(grerun)

if __name__ == "__main__":
    main()
