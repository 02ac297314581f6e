"""What a submission brings that is stored once per content: script, environment, lines."""

import hashlib
from dataclasses import dataclass

import msgspec

from gsched.protocol import api

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


def content_of(job: api.SubmitJob) -> Content:
    """Return what a job brings as it is stored."""
    environment = _encoder.encode(job.environment) if job.environment else b""
    return Content(
        script=_blob(job.script.encode(errors="surrogatepass")),
        environment=_blob(environment),
        lines=_blob(job.lines.encode(errors="surrogatepass")),
    )


def _blob(data: bytes) -> Blob:
    return Blob(data=data, digest=hashlib.sha256(data).hexdigest() if data else "")
