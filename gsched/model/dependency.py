"""Which jobs a job waits for: the grammar of ``-W depend=`` and ``--dependency``. Pure."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.errors import BadDependencyError
from gsched.model.ids import own_job_number, short_job_id
from gsched.model.numbers import Amount, Count

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
    """One dependency: ``jobs`` by number, or ``count`` of ``on``.

    ``delay_s``: of ``after``, from the start of those jobs to that of this one at least.
    """

    kind: DependencyKind
    jobs: tuple[Count, ...] = ()
    count: Count = 0
    delay_s: Amount = 0.0


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
    found = [each for item in items if item for each in _dependencies(item, server)]
    if sum(len(each.jobs) for each in found) > MAX_DEPENDENCIES:
        raise BadDependencyError(f"more than {MAX_DEPENDENCIES} jobs in the dependencies")
    return tuple(found)


def _dependencies(item: str, server: str) -> Iterator[Dependency]:
    """Yield what ``after:12:13+5`` says: one dependency for each delay."""
    word, colon, rest = item.partition(":")
    name = _SYNONYMS.get(word.lower(), word.lower())
    _check_type(item, word, name)
    kind = DependencyKind(name)
    if kind is DependencyKind.SINGLETON:
        if colon:
            raise BadDependencyError("singleton has no job ids", hint="write singleton")
        yield Dependency(kind=kind)
        return
    if kind is DependencyKind.ON:
        if not re.fullmatch(r"[0-9]{1,4}", rest) or not 1 <= int(rest) <= MAX_DEPENDENCIES:
            raise BadDependencyError(f"{item}: the number of jobs is missing", hint="write on:2")
        yield Dependency(kind=kind, count=int(rest))
        return
    counted = word.lower().endswith("array")
    numbers: dict[float, dict[int, None]] = {}
    for each in filter(None, rest.split(":")):
        text, plus, minutes = each.partition("+")
        delay_s = _delay_s(kind, each, minutes) if plus else 0.0
        text = re.sub(r"\[[0-9]*\]" if counted else r"\[\]", "", text)
        numbers.setdefault(delay_s, {})[own_job_number(text, server=server)] = None
    if not numbers:
        raise BadDependencyError(f"{item}: no job id", hint=f"write {word}:JOB[:JOB...]")
    for delay_s, jobs in numbers.items():
        yield Dependency(kind=kind, jobs=tuple(jobs), delay_s=delay_s)


def _check_type(item: str, word: str, name: str) -> None:
    """Refuse types that are unknown or not supported.

    Raises:
        BadDependencyError: as it says.
    """
    if "?" in item:
        raise BadDependencyError(
            f"{item!r}: alternatives with ? are not supported", hint="all dependencies must be met"
        )
    if name in _TOGETHER:
        raise BadDependencyError(
            f"{word} is not supported: jobs are not started together",
            hint="request all nodes in one job (nodes=2) and start both programs there, or let one "
            "job start the other: after:JOB",
        )
    if name not in set(DependencyKind):
        close = difflib.get_close_matches(name[:40], list(DependencyKind), n=1)
        meant = f"did you mean {str(close[0])!r}? " if close else ""
        raise BadDependencyError(
            f"unknown dependency type {word[:40]!r}",
            hint=f"{meant}valid: {', '.join(DependencyKind)}",
        )


def _delay_s(kind: DependencyKind, text: str, minutes: str) -> float:
    """Return the seconds of Slurm's ``+minutes`` behind a job id.

    Raises:
        BadDependencyError: no number, or behind a job of another type than ``after``.
    """
    if kind is not DependencyKind.AFTER:
        raise BadDependencyError(
            f"{kind}:{text}: only after has a delay", hint=f"write {kind}:JOB, or after:JOB+MINUTES"
        )
    if not re.fullmatch(r"[0-9]{1,6}", minutes):
        raise BadDependencyError(
            f"{kind}:{text}: invalid number of minutes", hint="write after:JOB+MINUTES"
        )
    return 60.0 * int(minutes)


def format_dependencies(dependencies: Sequence[Dependency]) -> str:
    """Return what `parse_dependencies` reads: ``afterok:12:13,on:2``."""
    return ",".join(
        ":".join(
            [
                each.kind.value,
                *(_with_delay(job, each.delay_s) for job in each.jobs),
                *([str(each.count)] if each.count else []),
            ]
        )
        for each in dependencies
    )


def _with_delay(job: int, delay_s: float) -> str:
    return short_job_id(job) + (f"+{round(delay_s / 60)}" if delay_s else "")
