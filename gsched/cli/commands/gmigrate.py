"""``gmigrate``: migrate a running job, or change its number of GPUs."""

from collections.abc import Iterator, Sequence

import click
from msgspec import Struct, structs

from gsched.cli.common import (
    command_name,
    connected,
    gsched_command,
    option,
    print_json,
    print_note,
    printable,
    report_results,
)
from gsched.cli.operands import ALL, normal_ids
from gsched.cli.running import runner
from gsched.cli.times import local_times
from gsched.client import HeadClient
from gsched.errors import BadStateError, UsageError
from gsched.model.ids import short_job_id
from gsched.model.signals import describe_signal
from gsched.model.states import AttemptState, JobState
from gsched.model.units import format_size
from gsched.protocol.actions import MigrateJob
from gsched.protocol.api import ActionResult
from gsched.protocol.job_rows import EventRow, JobStory, MoveRow
from gsched.transport import pause

_LOOK_S = 0.25  # the phases of a move take from a tenth of a second to minutes
_WAITING = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING})
_RESTARTED = "restarted"
_REQUESTED, _ABANDONED, _REQUEUED = "MigrationRequested", "MigrationAbandoned", "JobRequeued"
_RESUMED, _ENDED = "TrainingResumed", "JobEnded"
_PHASES = ("requested", "prepared", "checkpointed", "stopped", "placed", "starting", "first step")

EPILOG = """\b
Examples:
  gmigrate 17                    migrate to any other node
  gmigrate 17 --to n2 --wait     migrate to n2; print each phase
  gmigrate 17 --gpus 4           resize to four GPUs
  gmigrate 17 --to n2 --dry-run  only check whether it is possible
"""


@gsched_command("gmigrate", epilog=EPILOG)
@click.argument("job", metavar="JOB")
@option("--to", "nodes", default="", metavar="NODE[,NODE]", help="Target nodes.")
@option(
    "--gpus",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Number of GPUs after the migration.",
)
@option("-m", "--message", default="", metavar="MSG", help="Message for the job's history.")
@option("--wait", "waits", is_flag=True, help="Wait for the first step after it; print each phase.")
@option("--dry-run", is_flag=True, help="Show the target, without migrating.")
@connected
def gmigrate(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    *,
    job: str,
    nodes: str,
    gpus: int | None,
    message: str,
    waits: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Migrate a running job to other nodes, or to another number of GPUs.

    The target is reserved first, and the job keeps running until it has saved a checkpoint. A job
    that cannot save one stays where it is.
    """
    request = MigrateJob(
        ids=normal_ids((job,)),
        nodes=tuple(filter(None, (name.strip() for name in nodes.split(",")))),
        gpus=gpus or 0,
        message=message,
        dry_run=dry_run,
    )
    follows = waits and not dry_run
    if follows and job.lower() == ALL:
        raise UsageError(
            "--wait needs a single job, not 'all'", hint="name the job, or omit --wait"
        )
    before, results = _requested(head, job, request, follows=follows)
    if not as_json:
        results = tuple(structs.replace(each, text=f"{each.id}: {each.text}") for each in results)
    course, refused = None, results[0].error
    if before is not None and refused is None:
        course = _Migration(results[0].migration, before.row.attempt)
    elif before is not None and refused is not None and refused.code == BadStateError.code:
        course = _under_way(head.job(job), request)
    if course is None:
        status = report_results(results, as_json=as_json, show_text=True)
        if not (dry_run or as_json) and any(each.error is None for each in results):
            print_note(
                f"gstat -f {job if job.lower() != ALL else 'JOB'} shows the result; "
                "--wait waits for it",
                command=command_name(),
            )
        return status
    if refused is not None:
        print_note(f"{refused.message}; waiting for that migration", command=command_name())
    elif not as_json:
        print(printable(results[0].text), flush=True)
    story = _follow(head, job, course, quiet=as_json)
    if as_json:
        move = story.move if story.moves_requested == course.number else None
        print_json({"job": story.row, "move": move, "moves": story.row.moves})
    return 0


def _requested(
    head: HeadClient, job: str, request: MigrateJob, *, follows: bool
) -> tuple[JobStory | None, Sequence[ActionResult]]:
    """Request a migration: of a job that is still starting once it has started, if it is followed.

    Returns:
        The job's story from before the request, None if it is not followed; and the results.
    """
    noted = False
    try:
        while True:
            before = head.job(job) if follows else None
            results = head.act(request).results
            error = results[0].error
            if before is None or error is None or not _is_starting(before):
                return before, results
            if not noted:
                print_note(f"{error.message}; waiting for its start", command=command_name())
            noted = True
            pause(_LOOK_S)
    except KeyboardInterrupt:
        if noted:
            print_note("no longer waiting; no migration was requested", command=command_name())
        raise


def _is_starting(story: JobStory) -> bool:
    """Return whether a job runs whose program has not been started yet."""
    last = story.attempts[-1] if story.attempts else None
    starting = {AttemptState.ASSIGNED, AttemptState.STARTING}
    return story.row.state == JobState.RUNNING and last is not None and last.state in starting


class _Migration(Struct, frozen=True):
    """The migration that is waited for.

    Attributes:
        number: among those of its job.
        from_attempt: with which the job began it.
    """

    number: int
    from_attempt: int


def _under_way(story: JobStory, request: MigrateJob) -> _Migration | None:
    """Return the migration that a job does already, if it leads where it was requested."""
    move = story.move
    if move is None or move.resumed_s is not None:
        return None
    nodes, gpus = (move.to, move.gpus) if move.to else (story.row.nodes, story.row.gpus)
    if request.nodes and set(request.nodes) != set(nodes):
        return None
    if request.gpus and request.gpus != gpus:
        return None
    begun = move.placed_s is not None
    return _Migration(story.moves_requested, story.row.attempt - begun)


def _follow(head: HeadClient, job: str, course: _Migration, *, quiet: bool) -> JobStory:
    """Tell the phases of a migration as they come; return the job's story when it is complete.

    Raises:
        BadStateError: the job does not migrate after all; the message says why.
    """
    shown = 0
    try:
        while True:
            story = head.job(job)
            if story.moves_requested > course.number:
                _tell_past(story, course.number, quiet=quiet)
                return story
            phases = list(_phases(story, course.from_attempt))
            if not quiet:
                for words in phases[shown:]:
                    print(words, flush=True)
            shown = max(shown, len(phases))
            if story.move is not None and story.move.resumed_s is not None:
                _check_state_kept(story, story.move)
                return story
            check_moves(story, course.from_attempt)
            pause(_LOOK_S)
    except KeyboardInterrupt:
        print_note("no longer waiting; the migration continues", command=command_name())
        raise


def _tell_past(story: JobStory, number: int, *, quiet: bool) -> None:
    """Tell how a migration ended after which another one was requested.

    Raises:
        BadStateError: the job has not migrated; the message says why.
    """
    events = events_of(story, number)
    job_id = story.row.shown_id(story.server)
    *_, newest = [event for event in story.events if event.kind == _REQUESTED]
    since = f"since then: {local_times(newest.text)}; see gstat -f {short_job_id(story.row.id)}"
    for event in events:
        text = local_times(event.text)
        if event.kind in {_ABANDONED, _REQUEUED, _ENDED} or "restarted from" in text:
            raise BadStateError(f"job {job_id}: {text}", hint=since)
        if event.kind == _RESUMED:
            if not quiet:
                after_s = max(0.0, event.at_s - events[0].at_s)
                print(f"{job_id}  {'complete':<13}{after_s:8.1f} s  {text}", flush=True)
            print_note(since, command=command_name())
            return
    raise BadStateError(f"job {job_id}: the result of the migration is not known", hint=since)


def events_of(story: JobStory, number: int) -> Sequence[EventRow]:
    """Return what happened from the request of a migration to that of the next one."""
    starts = [at for at, event in enumerate(story.events) if event.kind == _REQUESTED]
    place = len(starts) - 1 - (story.moves_requested - number)
    if not 0 <= place < len(starts):
        return ()
    end = starts[place + 1] if place + 1 < len(starts) else len(story.events)
    return story.events[starts[place] : end]


def _phases(story: JobStory, from_attempt: int) -> Iterator[str]:
    """Yield a line for each phase that is over, in order; one that was passed over is left out."""
    move = story.move
    if move is None:
        return
    job_id = story.row.shown_id(story.server)
    starting = [
        each.started_s
        for each in story.attempts
        if each.attempt > from_attempt and each.state != AttemptState.ASSIGNED
    ]
    moments = (
        move.requested_s,
        move.prepared_s,
        move.saved_s,
        move.left_s,
        move.placed_s,
        starting[-1] if starting else None,
        move.resumed_s,
    )
    for name, at_s in zip(_PHASES, moments, strict=True):
        if at_s is not None:
            after = f"{max(0.0, at_s - move.requested_s):8.1f} s"
            if name == _PHASES[-1] and story.checkpoint_signal:
                name = _RESTARTED  # noqa: PLW2901 # such a job tells no steps
            yield f"{job_id}  {name:<13}{after}{_note(name, story, move)}".rstrip()


def _note(phase: str, story: JobStory, move: MoveRow) -> str:
    """Return what else there is to say of a phase."""
    match phase:
        case "starting":
            return f"  {move.start}" if move.start else ""
        case "checkpointed":
            size = f", {format_size(move.size_bytes)}" if move.size_bytes else ""
            step = story.checkpoint.step if story.checkpoint is not None else 0
            return f"  step {step}{size}, written in {move.save_s:.1f} s"
        case "placed":
            return f"  on {printable(', '.join(story.row.nodes))}"
        case "stopped":
            return f"  {printable(move.lost)}" if move.lost else ""
        case "restarted" if not move.lost:
            return "  gsched cannot see when the job makes progress again"
        case "first step":
            read = f", checkpoint read in {move.restore_s:.1f} s" if move.restore_s else ""
            return f"  {move.cost_s or 0.0:.1f} s without progress{read}"
        case _:
            return ""


def _check_state_kept(story: JobStory, move: MoveRow) -> None:
    """Raise if a job was killed at its checkpoint signal and has restarted.

    Raises:
        BadStateError: with what happened to it.
    """
    if move.lost:
        job_id, where = story.row.shown_id(story.server), ", ".join(story.row.nodes)
        signal = describe_signal(story.checkpoint_signal)
        raise BadStateError(
            f"job {job_id} was not migrated but restarted on {printable(where)}: {move.lost}",
            hint=f"let the program handle signal {signal} itself: save its state, then exit",
        )


def check_moves(story: JobStory, from_attempt: int) -> None:
    """Raise if a job does not move any more.

    Raises:
        BadStateError: with the reason.
    """
    state, job_id = story.row.state, story.row.shown_id(story.server)
    if state == JobState.DONE:
        raise BadStateError(
            f"job {job_id} ended during the migration", hint=f"ghist {short_job_id(story.row.id)}"
        )
    if state in _WAITING:
        why = _last(story, _REQUEUED).removeprefix("requeued: ")
        raise BadStateError(
            f"job {job_id} was requeued: {why}", hint=f"gstat --why {short_job_id(story.row.id)}"
        )
    if story.move is None and story.row.attempt == from_attempt:
        why = _last(story, _ABANDONED)
        raise BadStateError(f"job {job_id}: {why}", hint="the job keeps running where it was")
    if story.move is None:
        why = _last(story, _REQUEUED).removeprefix("requeued: ")
        raise BadStateError(
            f"job {job_id} was requeued: {why}",
            hint=f"it restarted from its checkpoint: see gstat -f {short_job_id(story.row.id)}",
        )


def _last(story: JobStory, kind: str) -> str:
    """Return the words of the last event of a kind."""
    texts = [local_times(event.text) for event in story.events if event.kind == kind]
    return texts[-1] if texts else "no reason was recorded"


main = runner(gmigrate)

if __name__ == "__main__":
    main()
