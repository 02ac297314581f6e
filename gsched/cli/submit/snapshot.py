"""gsub --snapshot: the code as it is at submission, as one archive.

In a Git working tree it is all tracked files and all untracked ones that are not ignored, as they
are on disk; elsewhere all files below the directory. `.gschedignore` leaves out further ones. The
archive depends on names, modes and contents only, so that the same code has the same digest.
"""

import fnmatch
import gzip
import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from msgspec import structs

from gsched.client import HeadClient
from gsched.errors import BadStateError, UsageError
from gsched.model.job import CodeSnapshot
from gsched.model.states import LaunchKind
from gsched.model.units import format_size
from gsched.protocol.submissions import SubmitJob

IGNORE_FILE = ".gschedignore"
#: Of every file: when it was written is no part of what it says. Some tools refuse earlier ones.
_MTIME_S = 1_000_000_000
_GIT_TIMEOUT_S = 120.0
_LARGEST_SHOWN = 3


class SnapshotLimits(NamedTuple):
    """What the head takes at most: bytes of all files together, and their number."""

    size_bytes: int
    files: int


class Code(NamedTuple):
    """An archive of code: what the job says of it, and the open file that holds it."""

    snapshot: CodeSnapshot
    archive: IO[bytes]
    notes: tuple[str, ...]


class _Rule(NamedTuple):
    """A line of .gschedignore."""

    pattern: str
    anchored: bool
    directories: bool
    keeps: bool


def with_snapshot(
    job: SubmitJob, head: HeadClient, *, dry_run: bool
) -> tuple[SubmitJob, tuple[str, ...]]:
    """Return a job that starts in the code of its working directory, and what is left out of it.

    The head gets the archive unless it has it, or it is a dry run.

    Raises:
        GschedError: the code is too large, or cannot be read or sent.
    """
    most = head.code_limits()
    code = take_snapshot(job.workdir, SnapshotLimits(most.size_bytes_most, most.files_most))
    with code.archive as archive:
        if not dry_run:
            head.send_code(code.snapshot, archive)
    job = structs.replace(job, snapshot=code.snapshot)
    if job.launch == LaunchKind.TORCHRUN and job.arguments and job.arguments[0] != "-m":
        script = _inside(job.arguments[0], job.workdir, code.snapshot.root)
        job = structs.replace(job, arguments=(script, *job.arguments[1:]))
    return job, code.notes


def _inside(path: str, workdir: str, root: str) -> str:
    """Return the path of a training script from the job's directory, if it is in the snapshot."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if not real.startswith(f"{os.path.realpath(root)}/"):
        return path
    return os.path.relpath(real, os.path.realpath(workdir))


def take_snapshot(directory: str, limits: SnapshotLimits) -> Code:
    """Return the code of the working tree that holds ``directory``.

    Raises:
        UsageError: it is too large, or holds nothing.
        BadStateError: a file or the state of Git cannot be read.
    """
    root = _git_root(directory)
    commit, dirty = _commit(root) if root else ("", False)
    top = root or directory
    rules = list(_rules(top))
    names = [name for name in _names(top, is_git=bool(root)) if not _is_ignored(name, rules)]
    if not names:
        raise UsageError(
            f"--snapshot: {top} holds no files", hint=f"look at {IGNORE_FILE} and .gitignore"
        )
    notes: list[str] = []
    _check(top, names, limits)
    archive, count = _archive(top, names, limits, notes)
    prefix = os.path.relpath(os.path.realpath(directory), os.path.realpath(top))
    snapshot = CodeSnapshot(
        digest=_digest(archive),
        size_bytes=archive.seek(0, os.SEEK_END),
        files=count,
        directory="" if prefix == "." else prefix,
        root=top,
        commit=commit,
        dirty=dirty,
    )
    return Code(snapshot, archive, tuple(notes))


# --- Git ---


def _git(top: str, *words: str) -> bytes:
    """Return what a command of Git prints.

    Raises:
        BadStateError: it failed.
    """
    try:
        ran = subprocess.run(
            ["git", "-C", top, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadStateError(f"--snapshot: git: {error}", hint="submit without it") from None
    if ran.returncode:
        output = ran.stderr.decode(errors="replace").strip()
        raise BadStateError(f"--snapshot: git {words[0]} failed: {output}", hint="try it by hand")
    return ran.stdout


def _git_root(directory: str) -> str:
    """Return the top of the Git working tree that holds a directory; empty: there is none."""
    try:
        ran = subprocess.run(
            ["git", "-C", directory, "rev-parse", "--show-toplevel"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # Git is not installed
    return os.fsdecode(ran.stdout.rstrip(b"\n")) if ran.returncode == 0 else ""


def _commit(root: str) -> tuple[str, bool]:
    """Return the commit that is checked out, and whether any file differs from it."""
    try:
        commit = _git(root, "rev-parse", "--verify", "HEAD").decode().strip()
    except BadStateError:
        return "", True  # there is no commit yet
    return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=normal"))


# --- files ---


def _names(top: str, *, is_git: bool) -> Iterator[str]:
    """Yield the names of all files below a directory, relative to it, in order."""
    found = sorted(set(_git_names(top) if is_git else _walked(top)))
    yield from found


def _git_names(top: str) -> Iterator[str]:
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for raw in listed.split(b"\0"):
        name = os.fsdecode(raw)
        path = os.path.join(top, name)
        if not name or not os.path.lexists(path):
            continue  # deleted, and not committed yet
        if os.path.isdir(path) and not os.path.islink(path):  # a submodule
            yield from (f"{name.rstrip('/')}/{each}" for each in _git_names(path))
        else:
            yield name


def _walked(top: str) -> Iterator[str]:
    for place, directories, files in os.walk(top):
        directories[:] = [each for each in directories if each not in {".git", "__pycache__"}]
        links = [each for each in directories if os.path.islink(os.path.join(place, each))]
        for name in [*files, *links]:
            yield os.path.relpath(os.path.join(place, name), top)


def _rules(top: str) -> Iterator[_Rule]:
    try:
        with open(os.path.join(top, IGNORE_FILE), encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise BadStateError(f"--snapshot: cannot read {IGNORE_FILE}: {error}") from None
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        keeps = text.startswith("!")
        text = text.removeprefix("!")
        pattern = text.strip("/")
        if pattern:
            yield _Rule(pattern, "/" in text.rstrip("/"), text.endswith("/"), keeps)


def _is_ignored(name: str, rules: Sequence[_Rule]) -> bool:
    """Return whether the last rule that fits a file, or a directory above it, leaves it out."""
    ignored = False
    parts = name.split("/")
    for rule in rules:
        for depth in range(1, len(parts) + 1):
            if rule.directories and depth == len(parts):
                break
            text = "/".join(parts[:depth]) if rule.anchored else parts[depth - 1]
            if fnmatch.fnmatchcase(text, rule.pattern):
                ignored = not rule.keeps
                break
    return ignored


def _check(top: str, names: Sequence[str], limits: SnapshotLimits) -> None:
    """Refuse what is too much before any of it is read.

    Raises:
        UsageError: it is.
    """
    if len(names) > limits.files:
        raise UsageError(
            f"--snapshot: {top} has {len(names)} files; the limit is {limits.files}",
            hint=f"list data and results in {IGNORE_FILE} or .gitignore",
        )
    sizes = [(os.lstat(os.path.join(top, name)).st_size, name) for name in names]
    total_bytes = sum(size for size, _ in sizes)
    if total_bytes > limits.size_bytes:
        largest = ", ".join(
            f"{name} ({format_size(size)})"
            for size, name in sorted(sizes, reverse=True)[:_LARGEST_SHOWN]
        )
        raise UsageError(
            f"--snapshot: the files of {top} have {format_size(total_bytes)}; the limit is "
            f"{format_size(limits.size_bytes)}. The largest: {largest}",
            hint=f"list data and results in {IGNORE_FILE} or .gitignore",
        )


def _archive(
    top: str, names: Sequence[str], limits: SnapshotLimits, notes: list[str]
) -> tuple[IO[bytes], int]:
    """Return the archive of files, and how many are in it."""
    archive: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    count = left = 0
    with (
        gzip.GzipFile(fileobj=archive, mode="wb", compresslevel=6, mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        left = limits.size_bytes
        for name in names:
            member, data = _member(os.path.join(top, name), name, left)
            if member is None:
                notes.append(f"--snapshot leaves out {name}: it is no file and no link")
                continue
            left -= member.size
            tar.addfile(member, io.BytesIO(data))
            count += 1
    return archive, count


def _member(path: str, name: str, most_bytes: int) -> tuple[tarfile.TarInfo | None, bytes]:
    member = tarfile.TarInfo(name)
    member.mtime = _MTIME_S
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            return member, b""
        if not stat.S_ISREG(mode):
            return None, b""
        with open(path, "rb") as stream:
            data = stream.read(most_bytes + 1)
    except OSError as error:
        raise BadStateError(f"--snapshot: cannot read {path}: {error.strerror}") from None
    if len(data) > most_bytes:
        raise UsageError(f"--snapshot: {path} grows while it is read", hint="submit again")
    member.size, member.mode = len(data), 0o755 if mode & 0o100 else 0o644
    return member, data


def _digest(archive: IO[bytes]) -> str:
    archive.seek(0)
    return hashlib.file_digest(archive, "sha256").hexdigest()  # type: ignore[arg-type] # it is one
