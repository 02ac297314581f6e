"""What a submission brings that is stored once per content: script, environment, lines."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gsched.clock import Clock
from gsched.errors import StorageFullError
from gsched.model.units import format_size
from gsched.protocol import submissions
from gschedd.core.requests.commands import Submit
from gschedd.core.state.settings import Caller

RECOUNT_S: Final = 60.0  # between two counts of what one user has: each reads an index
MAX_COUNTED: Final = 10_000  # users whose number is kept

_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A text as it is stored, and its digest; empty for nothing."""

    data: bytes
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a job brings; ``lines`` are those of the elements of an array."""

    script: Blob
    environment: Blob
    lines: Blob

    @property
    def blobs(self) -> tuple[Blob, Blob, Blob]:
        """Return all of it."""
        return (self.script, self.environment, self.lines)


def content_of(job: submissions.SubmitJob) -> Content:
    """Return what a job brings as it is stored."""
    environment = _encoder.encode(job.environment) if job.environment else b""
    return Content(
        script=_blob(job.script.encode(errors="surrogatepass")),
        environment=_blob(environment),
        lines=_blob(job.lines.encode(errors="surrogatepass")),
    )


def brings_same(job: submissions.SubmitJob, other: submissions.SubmitJob) -> bool:
    """Return whether two jobs have the same content."""
    return (job.script, job.environment, job.lines) == (
        other.script,
        other.environment,
        other.lines,
    )


def submit_command(
    job: submissions.SubmitJob, content: Content, caller: Caller, past: Mapping[int, bool]
) -> Submit:
    """Return the command that queues a job with its content."""
    return Submit(
        caller=caller,
        submitted=job,
        digests=(content.script.digest, content.environment.digest),
        lines_digest=content.lines.digest,
        past=past,
    )


def _blob(data: bytes) -> Blob:
    return Blob(data=data, digest=hashlib.sha256(data).hexdigest() if data else "")


class TextQuota:
    """How many bytes of scripts, environments and lines the database may keep of each user.

    What a user sends is added to the last number that the database gave, also if the same text is
    there already. Only if that is too much the database counts again.

    Args:
        stored_bytes: asks the database, in a thread: a user's bytes.
        most_bytes: for each user; 0: no limit.
    """

    def __init__(
        self, stored_bytes: Callable[[int], int], *, most_bytes: int, clock: Clock
    ) -> None:
        self._stored_bytes = stored_bytes
        self.most_bytes = most_bytes
        self._clock = clock
        self._counts: dict[int, tuple[int, float]] = {}  # bytes, and when they were counted
        self._counting = asyncio.Lock()

    async def admit(self, uid: int, contents: Iterable[Content]) -> None:
        """Count what new jobs of a user bring.

        Raises:
            NoRoomError: it is too much; nothing was counted.
        """
        if not self.most_bytes:
            return
        sizes = {blob.digest: len(blob.data) for each in contents for blob in each.blobs}
        new_bytes = sum(sizes.values())
        async with self._counting:
            now_s = self._clock.monotonic_s()
            held_bytes, counted_s = self._counts.get(uid, (self.most_bytes, now_s - RECOUNT_S))
            if held_bytes + new_bytes > self.most_bytes and now_s - counted_s >= RECOUNT_S:
                held_bytes = await asyncio.to_thread(self._stored_bytes, uid)
                counted_s = now_s
                while len(self._counts) >= MAX_COUNTED:
                    del self._counts[next(iter(self._counts))]
                self._counts[uid] = (held_bytes, counted_s)
            if held_bytes + new_bytes > self.most_bytes:
                raise StorageFullError(
                    f"the head keeps {format_size(held_bytes)} of scripts and environments of your "
                    f"jobs, and {format_size(new_bytes)} more are over the limit of "
                    f"{format_size(self.most_bytes)} a user",
                    hint="submit scripts that are smaller or the same, without gsub -V; the head "
                    "removes those of the oldest finished jobs once a day",
                )
            self._counts[uid] = (held_bytes + new_bytes, counted_s)
