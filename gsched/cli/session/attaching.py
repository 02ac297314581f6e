"""The terminal of an interactive job: gsub -I from its submission on, and gattach."""

from typing import TYPE_CHECKING, Final

from gsched.cli.common import command_name, print_note
from gsched.cli.follow import ending_words, exit_status
from gsched.cli.session.console import Console
from gsched.client import HeadClient
from gsched.config.environment import full_environment
from gsched.errors import BadStateError, HeadUnreachableError
from gsched.head_calls import error_from
from gsched.model.states import JobState
from gsched.protocol.actions import DeleteJob
from gsched.protocol.job_rows import JobStory

if TYPE_CHECKING:
    from gsched.cli.session.client import SessionEnd

#: What the user's terminal is; programs in the job have to know.
TERMINAL_VARIABLES: Final = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE")
HELP: Final = (
    "~.  delete the job",
    "~d  detach: the job continues; gattach reattaches",
    "~~  send a tilde",
    "~?  this list (each at the beginning of a line)",
)
_TAKEN: Final = "another client has attached to the session"


def terminal_variables() -> dict[str, str]:
    """Return what a job has to know of the user's terminal."""
    variables = full_environment()
    return {name: variables[name] for name in TERMINAL_VARIABLES if name in variables}


def attach(head: HeadClient, job: int | str, *, shown: str, is_own: bool) -> int:
    """Have the user sit at a job's terminal; return the exit code.

    Args:
        head: where to ask.
        job: which one; it may still wait.
        shown: the id of the job, for messages.
        is_own: it was just submitted: whoever leaves before its start deletes it.
    """
    # late: aiohttp takes 0.2 s
    from gsched.cli.session.client import How, SessionTarget, run_session

    name = command_name()
    if is_own:
        print_note(f"waiting for job {shown} to start", command=name)
    target = SessionTarget(job=str(job), shown=shown, command=name, help=HELP, announced=is_own)
    ending = run_session(head.transport.address, target, Console())
    match ending.how:
        case How.PROGRAM_ENDED | How.JOB_ENDED:
            return _report(head.wait([job])[0], begun=ending.begun, is_own=is_own)
        case How.ABORTED:
            head.act(DeleteJob(ids=(str(job),), message="aborted by ~."))
            print_note(f"job {shown} is cancelled", command=name)
            return exit_status(head.wait([job])[0])
        case How.INTERRUPTED:
            return _interrupted(head, job, ending, shown=shown, is_own=is_own)
        case How.DETACHED:
            note = f"detached: job {shown} continues; reattach with gattach {_short(shown)}"
            print_note(note, command=name)
            return 128 + ending.signal if ending.signal else 0
        case How.TAKEN:
            print_note(_TAKEN, command=name)
            return 1
        case How.REFUSED:
            return _refused(head, job, ending, is_own=is_own)
        case How.LOST:
            raise HeadUnreachableError(
                f"the terminal of job {shown} cannot be reached: {ending.reason}",
                hint=f"the job may continue: try gattach {_short(shown)} later",
            )


def _short(shown: str) -> str:
    return shown.partition(".")[0]


def _report(story: JobStory, *, begun: bool, is_own: bool) -> int:
    """Say how a job has ended, unless that was by itself, and return its exit code.

    Raises:
        BadStateError: it had ended before anybody attached.
    """
    shown = story.row.shown_id(story.server)
    words = ending_words(story)
    if not begun and not is_own:
        raise BadStateError(f"job {shown} has ended: {words}", hint=f"see ghist {_short(shown)}")
    outcome = story.row.outcome
    if begun and outcome is not None and outcome.kind == "exited":
        print_note(f"job {shown} completed", command=command_name())
    else:
        print_note(f"job {shown}: {words}", command=command_name())
    return exit_status(story)


def _interrupted(
    head: HeadClient, job: int | str, ending: "SessionEnd", *, shown: str, is_own: bool
) -> int:
    """Leave before the start: a job that nobody waits for is not wanted."""
    if is_own:
        head.act(DeleteJob(ids=(str(job),), message="interrupted before it started"))
        print_note(f"job {shown} is cancelled: it had not started", command=command_name())
    return 128 + ending.signal


def _refused(head: HeadClient, job: int | str, ending: "SessionEnd", *, is_own: bool) -> int:
    """Raise why there is no terminal; that of a job that has just ended is no error."""
    assert ending.error is not None, "a refusal has a reason"
    if ending.begun:
        story = head.job(job)
        if story.row.state in {JobState.DONE, JobState.EXITING}:
            return _report(head.wait([job])[0], begun=True, is_own=is_own)
    raise error_from(ending.error)


def job_of(head: HeadClient, text: str) -> tuple[int, str]:
    """Return the number of a job and its id for messages.

    Raises:
        UnknownJobError: there is no such job.
    """
    story = head.job(text)
    return story.row.id, story.row.shown_id(story.server)
