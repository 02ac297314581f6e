"""What ``gsched doctor`` says about one thing it has looked at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import ParamSpec

_P = ParamSpec("_P")


class Level(StrEnum):
    """How bad it is. The word itself is printed: colour is never the only mark."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        subject: what was looked at, in one or two words.
        text: what is so.
        todo: what to do about it; never empty unless all is well.
    """

    level: Level
    subject: str
    text: str
    todo: str = ""

    def __post_init__(self) -> None:
        if self.level is not Level.OK and not self.todo:
            raise ValueError(f"{self.subject}: a finding that is not ok says what to do")


def ok(subject: str, text: str) -> Finding:
    """Return that all is well with ``subject``."""
    return Finding(level=Level.OK, subject=subject, text=text)


def warn(subject: str, text: str, todo: str) -> Finding:
    """Return that ``subject`` works, but not as well as it could."""
    return Finding(level=Level.WARN, subject=subject, text=text, todo=todo)


def fail(subject: str, text: str, todo: str) -> Finding:
    """Return that ``subject`` is broken."""
    return Finding(level=Level.FAIL, subject=subject, text=text, todo=todo)


def collected(check: Callable[_P, Iterator[Finding]]) -> Callable[_P, list[Finding]]:
    """Return a check whose findings are a list."""

    @wraps(check)
    def collect(*args: _P.args, **kwargs: _P.kwargs) -> list[Finding]:
        return list(check(*args, **kwargs))

    return collect
