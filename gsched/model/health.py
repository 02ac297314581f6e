"""Results of a node's health checks."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from gsched.model.numbers import Amount

#: Results of one node that a head keeps, and characters of each.
MAX_CHECKS: Final = 32
MAX_TEXT: Final = 200


class HealthResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last result of a health check.

    Attributes:
        text: the first line of its output, or what went wrong.
        at_s: when it ended, seconds since the epoch.
    """

    name: str
    passed: bool
    at_s: Amount
    text: str = ""


def health_problem(results: Iterable[HealthResult]) -> str:
    """Return why a node is not fit for jobs, in words; empty: no check has failed."""
    failed = [f"{each.name}: {each.text}" for each in results if not each.passed]
    return f"health: {'; '.join(failed)}" if failed else ""
