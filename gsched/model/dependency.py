"""Which jobs a job waits for: the grammar of ``-W depend=`` and ``--dependency``. Pure."""

import difflib
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.errors import BadDependencyError
from gsched.model.ids import own_job_number, short_job_id
from gsched.model.numbers import Count

#: Jobs that one job may name; each is looked at when one of them ends.
MAX_DEPENDENCIES: Final = 1000
MAX_TEXT: Final = 32 * 1024


class DependencyKind(StrEnum):
    """What must have happened to another job before this one may start."""

    AFTER = "after"  # it has started, or has ended without a start
    AFTER_OK = "afterok"  # it has ended with exit code 0
    AFTER_NOT_OK = "afternotok"  # it has ended in any other way
    AFTER_ANY = "afterany"  # it has ended
    BEFORE = "before"  # the other way round: the jobs named wait for this one
    BEFORE_OK = "beforeok"
    BEFORE_NOT_OK = "beforenotok"
    BEFORE_ANY = "beforeany"
    ON = "on"  # so many jobs with a dependency before* on this one
    SINGLETON = "singleton"  # no earlier job of this user with this name is unfinished


#: What the jobs named by ``before*`` get.
REVERSED: Final[Mapping[DependencyKind, DependencyKind]] = MappingProxyType(
    {
        DependencyKind.BEFORE: DependencyKind.AFTER,
        DependencyKind.BEFORE_OK: DependencyKind.AFTER_OK,
        DependencyKind.BEFORE_NOT_OK: DependencyKind.AFTER_NOT_OK,
        DependencyKind.BEFORE_ANY: DependencyKind.AFTER_ANY,
    }
)
#: Torque's words for arrays, and Slurm's: the same here, as an array has one id.
_SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "afterstartarray": "after",
        "afterokarray": "afterok",
        "afternotokarray": "afternotok",
        "afteranyarray": "afterany",
        "aftercorr": "afterok",
    }
)
_TOGETHER: Final = frozenset({"synccount", "syncwith"})


class Dependency(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One dependency: ``jobs`` by number, or ``count`` of ``on``."""

    kind: DependencyKind
    jobs: tuple[Count, ...] = ()
    count: Count = 0


def parse_dependencies(texts: Sequence[str], *, server: str) -> tuple[Dependency, ...]:
    """Return what ``afterok:12:13,afterany:14.head`` and the like say.

    Args:
        texts: each a list with commas.
        server: of this head; ids may name it.

    Raises:
        BadDependencyError: a type that is unknown or not supported, or too many jobs.
        UnknownJobError: an id that is none, or of another head.
    """
    if sum(map(len, texts)) > MAX_TEXT:
        raise BadDependencyError(f"the dependencies have more than {MAX_TEXT} characters")
    items = (part.strip() for text in texts for part in text.split(","))
    found = [_dependency(item, server) for item in items if item]
    if sum(len(each.jobs) for each in found) > MAX_DEPENDENCIES:
        raise BadDependencyError(f"more than {MAX_DEPENDENCIES} jobs in the dependencies")
    return tuple(found)


def _dependency(item: str, server: str) -> Dependency:
    word, colon, rest = item.partition(":")
    name = _SYNONYMS.get(word.lower(), word.lower())
    if "?" in item:
        raise BadDependencyError(
            f"{item!r}: alternatives with ? are not supported", hint="all dependencies must be met"
        )
    if name in _TOGETHER:
        raise BadDependencyError(
            f"{word} is not supported: jobs are not started together",
            hint="request all nodes in one job: nodes=2",
        )
    if name not in set(DependencyKind):
        close = difflib.get_close_matches(name[:40], list(DependencyKind), n=1)
        meant = f"did you mean {str(close[0])!r}? " if close else ""
        raise BadDependencyError(
            f"unknown dependency type {word[:40]!r}",
            hint=f"{meant}valid: {', '.join(DependencyKind)}",
        )
    kind = DependencyKind(name)
    if kind is DependencyKind.SINGLETON:
        if colon:
            raise BadDependencyError("singleton has no job ids", hint="write singleton")
        return Dependency(kind=kind)
    if kind is DependencyKind.ON:
        if not re.fullmatch(r"[0-9]{1,4}", rest) or not 1 <= int(rest) <= MAX_DEPENDENCIES:
            raise BadDependencyError(f"{item}: the number of jobs is missing", hint="write on:2")
        return Dependency(kind=kind, count=int(rest))
    counted = word.lower().endswith("array")
    ids = [_plain_id(each, kind, counted=counted) for each in rest.split(":") if each]
    if not ids:
        raise BadDependencyError(f"{item}: no job id", hint=f"write {word}:JOB[:JOB...]")
    numbers = dict.fromkeys(own_job_number(each, server=server) for each in ids)
    return Dependency(kind=kind, jobs=tuple(numbers))


def _plain_id(text: str, kind: DependencyKind, *, counted: bool) -> str:
    """Return an id without ``[]``, or Torque's ``[count]`` where that is one, behind it.

    Slurm's ``+minutes`` are refused.
    """
    if "+" in text:
        raise BadDependencyError(
            f"{kind}:{text}: a delay after a start is not supported", hint=f"write {kind}:JOB"
        )
    return re.sub(r"\[[0-9]*\]" if counted else r"\[\]", "", text)


def format_dependencies(dependencies: Sequence[Dependency]) -> str:
    """Return what `parse_dependencies` reads: ``afterok:12:13,on:2``."""
    return ",".join(
        ":".join(
            [
                each.kind.value,
                *map(short_job_id, each.jobs),
                *([str(each.count)] if each.count else []),
            ]
        )
        for each in dependencies
    )
