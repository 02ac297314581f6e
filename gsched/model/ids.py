"""Job identifiers as users write and read them."""

import re

from gsched.errors import UnknownJobError

_JOB_ID = re.compile(r"(?P<number>[0-9]{1,18})(?:\.[^@\s]*)?(?:@[^\s]*)?")


def format_job_id(number: int, server: str) -> str:
    """Return ``123.server``, the identifier users see."""
    return f"{number}.{server}"


def parse_job_id(text: str) -> int:
    """Return the number of ``123``, ``123.server`` or ``123.server@host``.

    Raises:
        UnknownJobError: the text is not a job identifier.
    """
    match = _JOB_ID.fullmatch(text.strip())
    if match is None:
        raise UnknownJobError(
            f"Unknown Job Id {text}", hint="a job id looks like 123 or 123.server: see gstat"
        )
    return int(match["number"])
