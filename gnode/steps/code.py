"""Starts a job's program in its code snapshot: fetches the archive, unpacks it, and becomes it.

``code.py DIGEST SIZE DIRECTORY -- PROGRAM [ARGUMENT]...`` runs as the job's owner, as the first
process of the job's part on each node. The archive comes from the head by gnode's socket. It is
unpacked below $GSCHED_JOB_DIR, which gnode removes after the job. It uses the standard library
only.
"""

import base64
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tarfile
import time
from typing import IO, NoReturn

from gnode.steps.agent import connect_unix

VERSION = 1
#: A head or gnode that is being restarted is waited for; the job's walltime goes on.
PATIENCE_S = 600.0
PAUSE_S = 1.0
_CONNECT_S = 20.0
_ANSWER_S = 60.0
_FAILED = 126


class CodeError(Exception):
    """The code cannot be had; the message says why."""


def main() -> None:
    """Unpack the code and run the program."""
    digest, size, prefix, separator, *argv = sys.argv[1:]
    assert separator == "--", sys.argv
    try:
        _enter(digest, int(size), prefix)
    except (CodeError, OSError, tarfile.TarError) as error:
        _fail(f"cannot unpack the job's code snapshot: {error}")
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - looked for along the job's PATH
    except OSError as error:
        _fail(f"cannot run {argv[0]}: {error.strerror}")


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"gsched: {message}\n")
    sys.exit(_FAILED)


def _enter(digest: str, size_bytes: int, prefix: str) -> None:
    directory = os.environ["GSCHED_SNAPSHOT_DIR"]
    shutil.rmtree(directory, ignore_errors=True)  # of a start that was interrupted
    archive = f"{directory}.tar.gz"
    with open(archive, "wb+") as stream:
        _fetch(stream, size_bytes)
        stream.seek(0)
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise CodeError("it was damaged on its way")
        stream.seek(0)
        os.makedirs(directory, 0o700)
        with tarfile.open(fileobj=stream, mode="r:gz") as tar:
            # It is the job owner's own archive, and unpacked with the owner's rights.
            tar.extraction_filter = lambda member, _path: member
            tar.extractall(directory)  # noqa: S202 - as above
    os.unlink(archive)
    place = os.path.join(directory, prefix)
    os.makedirs(place, exist_ok=True)  # it may hold no files
    os.chdir(place)
    os.environ["PWD"] = place


def _fetch(stream: IO[bytes], size_bytes: int) -> None:
    """Write the archive to a file, piece by piece.

    Raises:
        CodeError: it cannot be had.
    """
    end_s = time.monotonic() + PATIENCE_S
    while stream.tell() < size_bytes:
        before = stream.tell()
        try:
            _fetch_some(stream, size_bytes)
        except (OSError, ValueError) as error:
            if time.monotonic() > end_s:
                raise CodeError(f"gnode or the head does not answer: {error}") from None
            stream.truncate()
            if stream.tell() == before:
                time.sleep(PAUSE_S)


def _fetch_some(stream: IO[bytes], size_bytes: int) -> None:
    job, _, attempt = os.environ["GSCHED_ATTEMPT_KEY"].partition(".")
    hello = {"version": VERSION, "job": int(job), "attempt": int(attempt)}
    with (
        contextlib.closing(connect_unix(os.environ["GSCHED_NODE_SOCKET"], _CONNECT_S)) as channel,
        channel.makefile("rwb") as messages,
    ):
        channel.settimeout(_ANSWER_S)
        messages.write(json.dumps({"code": hello}).encode() + b"\n")
        while stream.tell() < size_bytes:
            messages.write(json.dumps({"read": {"offset": stream.tell()}}).encode() + b"\n")
            messages.flush()
            line = messages.readline()
            if not line:
                raise ConnectionError("gnode has closed the connection")
            answer = json.loads(line)
            if "later" in answer or "refused" in answer:
                raise ConnectionError(str(answer))
            if "error" in answer:
                raise CodeError(answer["error"])
            data = base64.b64decode(answer["data"])
            if not data or stream.tell() + len(data) > size_bytes:
                raise CodeError("the head has another archive")
            stream.write(data)


if __name__ == "__main__":
    main()
