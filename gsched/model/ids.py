"""Job identifiers as users write and read them: the one grammar, for commands and head alike.

A command that guessed what an operand means could act on the wrong job. So an identifier is
``123``, ``123.server`` or ``123.server@server`` and nothing else, and the head compares the server
with its own name.
"""

import re
from typing import NamedTuple

from gsched.errors import UnknownJobError

_NAME = r"[^@\s,/\[\].][^@\s,/\[\]]*"  # of a head: 21..22 is not job 21 of a head ".22"
_DIGITS = 18  # of a number, at most
_JOB_ID = re.compile(
    rf"(?P<number>[1-9][0-9]{{0,{_DIGITS - 1}}})(?:\.(?P<server>{_NAME}))?(?:@(?P<host>{_NAME}))?"
)
_RANGE = re.compile(r"(?P<first>[0-9]+)(?:\.\.+|-|:)(?P<last>[0-9]+)(?:\.[^,\s]*)?")
_LIST = re.compile(r"[0-9][^,\s]*(?:,[0-9][^,\s]*)+,?")
_ARRAY = re.compile(r"[0-9]+\[.*", re.DOTALL)
_ZEROS = re.compile(r"0+(?P<rest>[1-9][0-9]*)(?P<server>\..*)?")
_SHOWN = 60  # characters of an operand in a message


class JobId(NamedTuple):
    """An identifier that was read.

    Attributes:
        number: of the job, at least 1.
        server: the head's name behind the dot; empty if there is none.
        host: Torque's name of a server behind ``@``; empty if there is none.
    """

    number: int
    server: str = ""
    host: str = ""

    def __str__(self) -> str:
        """Return the identifier as it is written."""
        server = f".{self.server}" if self.server else ""
        return f"{self.number}{server}" + (f"@{self.host}" if self.host else "")


def format_job_id(number: int, server: str) -> str:
    """Return ``123.server``, the identifier users see."""
    return f"{number}.{server}"


def read_job_id(text: str) -> JobId:
    """Return what ``123``, ``123.server`` or ``123.server@server`` says.

    Raises:
        UnknownJobError: the text is not a job identifier; the message says what to write.
    """
    match = _JOB_ID.fullmatch(text)
    if match is None:
        raise _refusal(text)
    return JobId(int(match["number"]), match["server"] or "", match["host"] or "")


def own_job_number(text: str, *, server: str) -> int:
    """Return the number of a job of the head whose name is ``server``.

    Raises:
        UnknownJobError: as `read_job_id`; or the identifier names another head.
    """
    if len(text) <= _DIGITS and text.isascii() and text.isdecimal() and text[0] != "0":
        return int(text)  # nearly all are, and a request may name 10,000
    job = read_job_id(text)
    for name in (job.server, job.host):
        if name and name.lower() != server.lower():
            raise UnknownJobError(
                f"job {job.number} belongs to {name!r}; this head is {server!r}",
                hint=f"ask that head with --head, or write {job.number} or "
                f"{format_job_id(job.number, server)} for the job of this head",
            )
    return job.number


def _refusal(text: str) -> UnknownJobError:
    """Return why a text is not an identifier, and what to write instead."""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    if not text:
        return UnknownJobError("the job id is empty", hint="is a shell variable unset?")
    if any(each.isspace() for each in text):
        return UnknownJobError(
            f"Unknown Job Id {shown!r}: it contains blanks",
            hint="give each job id as a separate operand, without quotation marks",
        )
    if not text.isascii():
        return UnknownJobError(
            f"Unknown Job Id {shown!r}: it contains non-ASCII characters",
            hint="write the number with the digits 0 to 9: see gstat",
        )
    if match := _RANGE.fullmatch(text):
        first, last = match["first"], match["last"]
        return UnknownJobError(
            f"{shown} is a range; ranges of job ids are not supported",
            hint=f"write {first} {last}, or $(seq {first} {last}) for all job ids in between",
        )
    if _ARRAY.fullmatch(text):
        return UnknownJobError(
            f"{shown} names a job array; job arrays are not supported yet",
            hint="each job has its own id: see gstat",
        )
    if _LIST.fullmatch(text):
        return UnknownJobError(
            f"{shown} is a list; give each job id as a separate operand",
            hint=f"separate them with blanks: {' '.join(filter(None, text.split(',')))[:_SHOWN]}",
        )
    if match := _ZEROS.fullmatch(text):
        return UnknownJobError(
            f"Unknown Job Id {shown}: it starts with 0",
            hint=f"write {match['rest'][:_SHOWN]}{match['server'] or ''}",
        )
    return UnknownJobError(
        f"Unknown Job Id {shown}", hint="a job id looks like 123 or 123.server: see gstat"
    )
