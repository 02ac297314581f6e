"""The commands that copy a job's files to its node and away: ``-W stagein=`` and ``stageout=``."""

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec import structs

from gnode.core.task import Account
from gsched.model.job import StagedFile
from gsched.protocol.node import Launch

#: A symbolic link that the user names is followed, as by scp; those in a directory are copied.
_LOCAL_COPY = ("cp", "-rpHT", "--")
#: Of a file whose two names are one path: it is in place, but a missing one is an error.
_LOOK = ("stat", "-L", "-c", "", "--")
_TMPDIR = re.compile(r"\A\$(?:TMPDIR|\{TMPDIR\})(?=/|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """How this node copies: the table ``[staging]``.

    Attributes:
        usecp: pairs of ``HOST:PREFIX``, where HOST may have wildcards, and the directory here that
            is the same as PREFIX there: what lies below is copied without a network.
        copy: the command for everything else; source and target follow.
        timeout_s: of all copies of a job before its start together, and of all after its end.
        own_names: names and addresses of this machine, in small letters: what is there is copied
            without a network, too.
    """

    usecp: tuple[tuple[str, str], ...] = ()
    copy: tuple[str, ...] = ("scp", "-Brp")
    timeout_s: float = 600.0
    own_names: frozenset[str] = frozenset()


DEFAULT_STAGING = Staging()


def staging_commands(
    launch: Launch, account: Account, staging: Staging, node: str, tmp_dir: str
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """Return the commands before the start of a job's first part, and after its end.

    Args:
        launch: of the part.
        account: of the job's owner.
        staging: how this node copies.
        node: its name.
        tmp_dir: the job's TMPDIR.
    """
    spec = launch.spec
    if launch.rank:
        return (), ()
    return (
        tuple(
            _copy(each, account, staging, node, away=False) for each in _in(tmp_dir, spec.stage_in)
        ),
        tuple(
            _copy(each, account, staging, node, away=True) for each in _in(tmp_dir, spec.stage_out)
        ),
    )


def _in(tmp_dir: str, files: Iterable[StagedFile]) -> Iterator[StagedFile]:
    """Yield files with paths on the node that begin with the job's TMPDIR, where they name it."""
    for each in files:
        yield structs.replace(each, local=_TMPDIR.sub(lambda _: tmp_dir, each.local))


def _copy(
    file: StagedFile, account: Account, staging: Staging, node: str, *, away: bool
) -> tuple[str, ...]:
    local = posixpath.join(account.home, file.local)
    mapped = _mapped(file, account, staging, node)
    remote = mapped or f"{file.host}:{file.remote}"
    pair = (local, remote) if away else (remote, local)
    if mapped and posixpath.normpath(mapped) == posixpath.normpath(local):
        return (*_LOOK, *pair)
    return (*(_LOCAL_COPY if mapped else staging.copy), *pair)


def _mapped(file: StagedFile, account: Account, staging: Staging, node: str) -> str:
    """Return where a remote file is on this node; empty: it is reached by its host only."""
    remote = posixpath.join(account.home, file.remote)
    host = file.host.lower().strip("[].")
    if host in {node.lower(), "localhost"} | staging.own_names:
        return remote
    for pattern, place in staging.usecp:
        host, _, prefix = pattern.partition(":")
        below = f"{prefix.rstrip('/')}/"
        if fnmatch.fnmatchcase(file.host.lower(), host.lower()) and remote.startswith(below):
            return posixpath.join(place, remote[len(below) :])
    return ""
