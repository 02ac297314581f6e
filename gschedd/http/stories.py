"""What is known of jobs at one moment: their state in memory, and their past in the database."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

import msgspec
from msgspec import Struct

from gsched.errors import StorageError
from gsched.model.limits import MAX_PATH, SUBMIT_ARGS
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job
from gschedd.http.shown import ShownHead
from gschedd.store.reader import Reader

_environment_decoder = msgspec.json.Decoder(dict[str, str])
READS = 10  # of a job that changes whenever its events are read


def origin_of(environment: bytes) -> dict[str, str]:
    """Return what an environment, as it is stored, says of where a job was submitted."""
    variables = _environment_decoder.decode(environment)
    return {
        name: value
        for name, value in variables.items()
        if (name.startswith("PBS_O_") or name == SUBMIT_ARGS) and len(value) <= MAX_PATH
    }


class Recorded(Struct, frozen=True):
    """What the database has of a job.

    Attributes:
        events: with their numbers.
        origin: where it was submitted; empty if the caller may not know, or it is lost.
    """

    attempts: Sequence[Attempt] = ()
    events: Sequence[tuple[int, f.AnyFact]] = ()
    origin: Mapping[str, str] = {}


def present(job: Job) -> Recorded:
    """Return what the state has of a job: its present attempt."""
    return Recorded([job.attempt] if job.attempt is not None else [])


def recorded(reader: Reader, job: Job, *, with_origin: bool) -> Recorded:
    """Return the attempts, the events and, if wanted, the origin of a job."""
    origin: dict[str, str] = {}
    digest = job.spec.environment_digest
    if with_origin and digest:
        with suppress(StorageError):  # it is lost, or damaged
            origin = origin_of(reader.blob(digest))
    return Recorded(reader.attempts(job.id), reader.events(job.id), origin)


async def at_one_moment(
    engine: ShownHead,
    find: Callable[[], Awaitable[Job]],
    read: Callable[[Job], Awaitable[Recorded]],
) -> tuple[Job, Recorded]:
    """Return a job and its past, which is read again if the job changes meanwhile.

    Whoever shows the job must do so before anything else is awaited.

    Args:
        find: returns the job.
        read: returns its past.
    """
    reads = 0
    while True:
        await engine.shown()
        job = await find()
        with engine.watches.of(job.id) as watch:
            await engine.shown()
            past = await read(job)
        reads += 1
        if not watch.changed or reads == READS:
            return job, past


async def all_at_one_moment(
    engine: ShownHead,
    find: Callable[[], Mapping[int, Job]],
    read: Callable[[Sequence[Job]], Awaitable[Mapping[int, Recorded]]],
) -> dict[int, Recorded]:
    """Return the past of some jobs, of which what changes meanwhile is read again.

    Whoever shows the jobs must do so before anything else is awaited.

    Args:
        find: returns the jobs, by id.
        read: returns the past of some of them, by id.
    """
    jobs = find()
    wanted = list(jobs.values())
    past: dict[int, Recorded] = {}
    for _ in range(READS):
        with ExitStack() as stack:
            watches = {job: stack.enter_context(engine.watches.of(job)) for job in jobs}
            await engine.shown()
            past.update(await read(wanted))
        wanted = [jobs[job] for job, watch in watches.items() if watch.changed]
        if not wanted:
            break
    return past
