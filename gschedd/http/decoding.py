"""Decoding large requests in pieces, so that nobody waits for all of one.

JSON is decoded on the thread that serves everybody. A thread of its own would not help, as the
decoder keeps Python's lock. What costs is the number of objects, not the number of bytes: so a
large body is looked through before it is decoded, which refuses most of the worst; then its jobs
are decoded one after the other, and the fields of a large job one after the other.
"""

from typing import Final, TypeVar

import msgspec
from msgspec import NODEFAULT, Raw, Struct, structs

from gsched.errors import InvalidRequestError
from gsched.model.limits import (
    MAX_ARGUMENTS,
    MAX_DRY_RUN_JOBS,
    MAX_ENVIRONMENT_BYTES,
    MAX_FIELD_BYTES,
    MAX_JOBS_PER_REQUEST,
    MAX_REQUEST_BYTES,
    MAX_REQUEST_TEXTS,
    MAX_SUBMIT_BYTES,
    MAX_SUBMIT_TEXTS,
    MAX_VARIABLES,
    MIB,
)
from gsched.protocol import submissions
from gschedd.http.answers import TooLargeError
from gschedd.http.pace import Pace

T = TypeVar("T")
Body = bytes | bytearray | memoryview

DIRECT_BYTES: Final = 8 * 1024  # what is not larger is decoded in one piece, within 1 ms
_JOB_BYTES: Final = 64 * 1024  # the same of a job in a large request: within 4 ms
_SLICE_BYTES: Final = MIB
#: Half as much again as they may hold, as JSON escapes some of it.
_TEXTS_BYTES: Final = MAX_ENVIRONMENT_BYTES * 3 // 2

#: The fields of a job that can become many objects, or one large one: bytes, and texts.
_FIELDS: Final = {
    "script": (MAX_SUBMIT_BYTES, 1),
    "arguments": (_TEXTS_BYTES, MAX_ARGUMENTS),
    "environment": (_TEXTS_BYTES, 2 * MAX_VARIABLES),
    "resources": (MAX_FIELD_BYTES, MAX_FIELD_BYTES),
    "holds": (MAX_FIELD_BYTES, MAX_FIELD_BYTES),
    "training": (MAX_FIELD_BYTES, MAX_FIELD_BYTES),
}


def _large_job() -> type[Struct]:
    """Return `submissions.SubmitJob` with the fields of `_FIELDS` as they stand there."""
    fields: list[tuple[str, object, object] | tuple[str, object]] = []
    for each in structs.fields(submissions.SubmitJob):
        if each.name in _FIELDS:
            fields.append((each.name, Raw, Raw(b"")))
        elif each.default is NODEFAULT:
            fields.append((each.name, each.type))
        else:
            fields.append((each.name, each.type, each.default))
    return msgspec.defstruct(
        "_LargeJob",
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


_LargeJob = _large_job()
_TYPES: Final = {each.name: each.type for each in structs.fields(submissions.SubmitJob)}


class _Counted(Struct, gc=False):
    """A job, to be counted; what is no job has no ``workdir``."""

    workdir: Raw


class _Count(Struct, forbid_unknown_fields=True):
    jobs: tuple[_Counted, ...]
    dry_run: bool = False


class _Jobs(Struct):
    jobs: tuple[Raw, ...]


class _OneJob(Struct, forbid_unknown_fields=True):
    jobs: tuple[_LargeJob]  # type: ignore[valid-type] # made above
    dry_run: bool = False


def check_count(jobs: int, *, dry_run: bool) -> None:
    """Check the number of jobs in a submission.

    Raises:
        InvalidRequestError: there is none, or there are too many.
    """
    most = MAX_DRY_RUN_JOBS if dry_run else MAX_JOBS_PER_REQUEST
    if not 1 <= jobs <= most:
        where = "a dry run" if dry_run else "one request"
        raise InvalidRequestError(f"{jobs} jobs in {where}", hint=f"send 1 to {most}")


def decoded(where: str, body: Body | Raw, kind: type[T], *, path: str = "") -> T:
    """Return what JSON says.

    Args:
        where: method and path of the request, for the error.
        body: the JSON, all of the request or a part of it.
        kind: what it should be.
        path: of that part in the request: ``.jobs[3]``.

    Raises:
        InvalidRequestError: it is no JSON or does not follow the schema; says where.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error)
        if path:
            head, at, tail = text.partition(" - at `$")
            text = f"{head} - at `${path}{tail if at else '`'}"
        raise InvalidRequestError(f"{where}: {text}", hint="see /v1/openapi.json") from None


async def decode(where: str, body: Body, kind: type[T], pace: Pace) -> T:
    """Return a large request that is no submission.

    Raises:
        TooLargeError: it holds more texts than any such request.
        InvalidRequestError: as `decoded`.
    """
    await _check_texts("the request", body, MAX_REQUEST_TEXTS, pace)
    return decoded(where, body, kind)


async def decode_submission(where: str, body: Body, pace: Pace) -> submissions.SubmitRequest:
    """Return a large submission. One beyond `MAX_REQUEST_BYTES` holds one job, with a large script.

    Raises:
        TooLargeError: a job is larger than it may be, or several are that large together.
        InvalidRequestError: as `decoded` and `check_count`.
    """
    if len(body) > MAX_REQUEST_BYTES:
        return await _decode_one_job(where, body, pace)
    count = decoded(where, body, _Count)
    check_count(len(count.jobs), dry_run=count.dry_run)
    await pace.rest()
    jobs: list[submissions.SubmitJob] = []
    for number, raw in enumerate(decoded(where, body, _Jobs).jobs):
        path = f".jobs[{number}]"
        if len(memoryview(raw)) <= _JOB_BYTES:
            jobs.append(decoded(where, raw, submissions.SubmitJob, path=path))
        else:
            large = decoded(where, raw, _LargeJob, path=path)
            jobs.append(await _decode_fields(where, large, path, pace))
        await pace.keep()
    return submissions.SubmitRequest(jobs=tuple(jobs), dry_run=count.dry_run)


async def _decode_one_job(where: str, body: Body, pace: Pace) -> submissions.SubmitRequest:
    await _check_texts("the request", body, MAX_SUBMIT_TEXTS, pace)
    try:
        submission = decoded(where, body, _OneJob)
    except InvalidRequestError as error:
        if "`array` of length 1" not in error.message:
            raise
        raise TooLargeError(
            f"{len(body)} bytes with several jobs, {MAX_REQUEST_BYTES} are the limit",
            hint="send fewer jobs at once; one job alone may have a large script",
        ) from None
    large = submission.jobs[0]
    held = sum(len(memoryview(getattr(large, name))) for name in _FIELDS)
    _check_size("the rest of it", len(body) - held, _TEXTS_BYTES)
    await pace.rest()
    job = await _decode_fields(where, large, ".jobs[0]", pace)
    return submissions.SubmitRequest(jobs=(job,), dry_run=submission.dry_run)


async def _decode_fields(where: str, large: Struct, path: str, pace: Pace) -> submissions.SubmitJob:
    """Return a job whose large fields are still JSON."""
    fields: dict[str, object] = structs.asdict(large)
    for name, (most_bytes, most_texts) in _FIELDS.items():
        raw = memoryview(fields.pop(name))  # type: ignore[arg-type] # they are Raw
        if not raw:
            continue
        _check_size(name, len(raw), most_bytes)
        if name == "script":
            fields[name] = await _decode_text(where, raw, f"{path}.{name}", pace)
        else:
            await _check_texts(name, raw, most_texts, pace)
            fields[name] = decoded(where, raw, _TYPES[name], path=f"{path}.{name}")
        await pace.keep()
    return submissions.SubmitJob(**fields)  # type: ignore[arg-type] # each was decoded as its type


async def _decode_text(where: str, raw: memoryview, path: str, pace: Pace) -> str:
    """Return a large text, slice by slice."""
    if len(raw) <= _SLICE_BYTES or raw[0] != ord('"'):
        return decoded(where, raw, str, path=path)
    text = bytes(raw[1:-1])
    parts: list[str] = []
    begin = 0
    while begin < len(text):
        end = cut(text, begin, begin + _SLICE_BYTES)
        parts.append(decoded(where, b'"' + text[begin:end] + b'"', str, path=path))
        begin = end
        await pace.keep()
    return "".join(parts)


def cut(text: bytes, begin: int, at: int) -> int:
    """Return where a text in JSON, without its quotes, can be cut: between two characters.

    Args:
        text: all of it.
        begin: where a character begins, at least 16 bytes before ``at``.
        at: where to cut, or somewhat before.
    """
    if at >= len(text):
        return len(text)
    for _ in range(3):
        if text[at] & 0xC0 != 0x80:
            break
        at -= 1  # within a character of several bytes
    start = text.rfind(b"\\", max(begin, at - 5), at)
    if start >= 0 and _is_escape(text, begin, start):
        length = 6 if text[start + 1 : start + 2] == b"u" else 2
        if start + length > at:
            at = start
    high = text[at - 6 : at]
    is_high = high[:2] == b"\\u" and high[2:3] in b"dD" and high[3:4] in b"89abAB"
    if is_high and at - 6 > begin and _is_escape(text, begin, at - 6):
        at -= 6  # the first half of a character
    return at


def _is_escape(text: bytes, begin: int, at: int) -> bool:
    """Return whether a backslash begins an escape: one that is escaped itself does not."""
    before = text[begin:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


async def _check_texts(name: str, body: Body, most: int, pace: Pace) -> None:
    """Check how many texts there are at least: half the quotes that are certainly not escaped.

    Raises:
        TooLargeError: there are more.
    """
    quotes = 0
    for begin in range(0, len(body), _SLICE_BYTES):
        part = bytes(body[begin : begin + _SLICE_BYTES])
        quotes += part.count(b'"') - part.count(b'\\"')
        if quotes // 2 > most:
            raise TooLargeError(
                f"{name} has more than {most} texts, the limit", hint="send less at once"
            )
        await pace.keep()


def _check_size(name: str, size: int, most: int) -> None:
    if size > most:
        raise TooLargeError(
            f"{name} has {size} bytes, {most} are the limit", hint="put data into files"
        )
