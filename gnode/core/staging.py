"""The commands that copy a job's files to its node and away: ``-W stagein=`` and ``stageout=``.

What comes from the host of submission, or goes there, passes the head instead where the node does
not share a file system with it.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from gnode.core.task import Account, AttemptKey
from gnode.task import STAGE_WORD
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


class StagingPlace(NamedTuple):
    """Where files are staged on a node.

    Attributes:
        account: of the job's owner.
        staging: how this node copies; ``node`` is its name.
        tmp_dir: the job's TMPDIR.
        scratch: the directory in which the job starts where that of submission is not here.
        carrier: the command that stages a file in through the head.
        socket: of the node.
    """

    account: Account
    staging: Staging
    node: str
    tmp_dir: str
    scratch: str = ""
    carrier: tuple[str, ...] = ()
    socket: str = ""


class StagingPlan(NamedTuple):
    """What is copied before the start of a part, and after its end.

    Attributes:
        stage_in, stage_out: commands.
        away_in, away_out: the same on a node that lacks the directory of submission.
        leave: what returns from there through the head: see `gnode.task.AwayFiles`.
    """

    stage_in: tuple[tuple[str, ...], ...]
    stage_out: tuple[tuple[str, ...], ...]
    away_in: tuple[tuple[str, ...], ...]
    away_out: tuple[tuple[str, ...], ...]
    leave: tuple[tuple[str, str], ...]


NOTHING_STAGED = StagingPlan((), (), (), (), ())


def plan_staging(launch: Launch, place: StagingPlace) -> StagingPlan:
    """Return what is copied for a part.

    Files of ``-W`` are for the first node of a job. Those below the directory of submission are
    copied to and from each node that lacks it, and are in place on others.
    """
    spec = launch.spec
    if not (spec.stage_in or spec.stage_out):
        return NOTHING_STAGED
    bring, take, away_in, away_out, leave = [], [], [], [], []
    for number, each in enumerate(_in(place.tmp_dir, spec.stage_in)):
        if each.host and launch.rank:
            continue
        if each.host:
            bring.append(_copy(each, place, away=False))
        if _passes_head(each, place):
            key = (place.socket, AttemptKey(launch.job, launch.attempt).name, str(number))
            limit_s = f"{place.staging.timeout_s:g}"
            away_in.append((*place.carrier, STAGE_WORD, *key, limit_s, _local(each, place)))
        else:
            away_in.append(bring[-1])
    for number, each in enumerate(_in(place.tmp_dir, spec.stage_out)):
        if each.host and launch.rank:
            continue
        if each.host:
            take.append(_copy(each, place, away=True))
        if _passes_head(each, place):
            leave.append((str(number), _local(each, place)))
        else:
            away_out.append(take[-1])
    return StagingPlan(tuple(bring), tuple(take), tuple(away_in), tuple(away_out), tuple(leave))


def _passes_head(file: StagedFile, place: StagingPlace) -> bool:
    if not file.host:
        return True
    return file.is_submit_host and not _mapped(file, place)


def _local(file: StagedFile, place: StagingPlace) -> str:
    """Return the path of a file on this node."""
    top = place.account.home if file.host else place.scratch
    return posixpath.normpath(posixpath.join(top, file.local))


def _in(tmp_dir: str, files: Iterable[StagedFile]) -> Iterator[StagedFile]:
    """Yield files with paths on the node that begin with the job's TMPDIR, where they name it."""
    for each in files:
        yield structs.replace(each, local=_TMPDIR.sub(lambda _: tmp_dir, each.local))


def _copy(file: StagedFile, place: StagingPlace, *, away: bool) -> tuple[str, ...]:
    local = posixpath.join(place.account.home, file.local)
    mapped = _mapped(file, place)
    remote = mapped or f"{file.host}:{file.remote}"
    pair = (local, remote) if away else (remote, local)
    if mapped and posixpath.normpath(mapped) == posixpath.normpath(local):
        return (*_LOOK, *pair)
    return (*(_LOCAL_COPY if mapped else place.staging.copy), *pair)


def _mapped(file: StagedFile, place: StagingPlace) -> str:
    """Return where a remote file is on this node; empty: it is reached by its host only."""
    remote = posixpath.join(place.account.home, file.remote)
    host = file.host.lower().strip("[].")
    if host in {place.node.lower(), "localhost"} | place.staging.own_names:
        return remote
    for pattern, directory in place.staging.usecp:
        host, _, prefix = pattern.partition(":")
        below = f"{prefix.rstrip('/')}/"
        if fnmatch.fnmatchcase(file.host.lower(), host.lower()) and remote.startswith(below):
            return posixpath.join(directory, remote[len(below) :])
    return ""
