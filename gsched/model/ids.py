"""Job identifiers as users write and read them: the one grammar, for commands and head alike.

A command that guessed what an operand means could act on the wrong job. So an identifier is
``123``, ``123.server`` or ``123.server@server`` and nothing else, and the head compares the server
with its own name. Of an array, ``123[]`` is the whole, ``123[7]`` one element, and ``123[5-10]``
several; the server follows.

An element of an array has a number as any job has, which follows from the array's number and the
element's index. `short_job_id` and `format_job_id` write every number as users know it.
"""

import re
from typing import Final, NamedTuple

from gsched.errors import UnknownJobError
from gsched.model.patterns import pattern

_NAME = r"[^@\s,/\[\].][^@\s,/\[\]]*"  # of a head: 21..22 is not job 21 of a head ".22"
_DIGITS = 18  # of a number, at most
_INDEX = r"(?:0|[1-9][0-9]{0,6})"
_TERM = rf"{_INDEX}(?:-{_INDEX}(?::[1-9][0-9]{{0,6}})?)?"
_JOB_ID = pattern(
    rf"(?P<number>[1-9][0-9]{{0,{_DIGITS - 1}}})(?P<elements>\[(?:{_TERM}(?:,{_TERM})*)?\])?"
    rf"(?:\.(?P<server>{_NAME}))?(?:@(?P<host>{_NAME}))?"
)

#: Numbers from here on are those of elements of arrays; all are exact in JSON (below 2**53).
ELEMENT_BASE: Final = 2**40
#: Elements that the numbers of one array can name: indices 0 to this, exclusive.
INDICES: Final = 2**20
#: Arrays have numbers below this, so that those of their elements stay below 2**53.
ARRAYS_END: Final = (2**53 - ELEMENT_BASE) // INDICES
_RANGE = pattern(r"(?P<first>[0-9]+)(?:\.\.+|-|:)(?P<last>[0-9]+)(?:\.[^,\s]*)?")
_LIST = pattern(r"[0-9][^,\s]*(?:,[0-9][^,\s]*)+,?")
_BRACKETS = pattern(r"[0-9]+\[.*", re.DOTALL)
_ZEROS = pattern(r"0+(?P<rest>[1-9][0-9]*)(?P<server>\..*)?")
_SHOWN = 60  # characters of an operand in a message


class JobId(NamedTuple):
    """An identifier that was read.

    Attributes:
        number: of the job, at least 1; of an array where ``elements`` is not empty.
        elements: ``[]``, ``[7]`` or ``[5-10,12]`` of an array, as it is written; else empty.
        server: the head's name behind the dot; empty if there is none.
        host: Torque's name of a server behind ``@``; empty if there is none.
    """

    number: int
    server: str = ""
    host: str = ""
    elements: str = ""

    def __str__(self) -> str:
        """Return the identifier as it is written."""
        server = f".{self.server}" if self.server else ""
        return f"{self.number}{self.elements}{server}" + (f"@{self.host}" if self.host else "")

    @property
    def element(self) -> int | None:
        """Return the index of the one element that is named; None: none, all or several are."""
        inner = self.elements[1:-1]
        return int(inner) if inner.isdecimal() else None


def job_number(job: JobId) -> int:
    """Return the number of the one job that an identifier names: of ``123[]`` the array's."""
    return job.number if job.element is None else element_number(job.number, job.element)


def element_number(array: int, index: int) -> int:
    """Return the number of an element of an array."""
    if not (0 < array < ARRAYS_END and 0 <= index < INDICES):
        raise ValueError(f"array {array} has no element {index}")
    return ELEMENT_BASE + array * INDICES + index


def array_of(number: int) -> int:
    """Return the number of the array that a job is an element of; 0: of none."""
    return (number - ELEMENT_BASE) // INDICES if number >= ELEMENT_BASE else 0


def index_of(number: int) -> int:
    """Return the index of an element of an array.

    Raises:
        ValueError: the number is that of no element.
    """
    if not array_of(number):
        raise ValueError(f"job {number} is no element of an array")
    return number % INDICES


def submitted_number(number: int) -> int:
    """Return the number that the submission of a job got: of an element that of its array."""
    return array_of(number) or number


def short_job_id(number: int) -> str:
    """Return ``123``, or ``123[7]`` for an element of an array: the identifier in messages."""
    array = array_of(number)
    return f"{array}[{number % INDICES}]" if array else str(number)


def format_array_id(number: int, server: str, elements: str = "") -> str:
    """Return ``123[].server``, the identifier of a whole array, or of some of its elements."""
    return f"{number}[{elements}].{server}"


def job_file_suffix(number: int) -> str:
    """Return ``123``, or ``123-7`` for an element of an array, as Torque names output files."""
    array = array_of(number)
    return f"{array}-{number % INDICES}" if array else str(number)


def format_job_id(number: int, server: str) -> str:
    """Return ``123.server`` or ``123[7].server``, the identifier users see."""
    return f"{short_job_id(number)}.{server}"


def read_job_id(text: str) -> JobId:
    """Return what ``123``, ``123.server``, ``123[7]`` or ``123[].server@server`` says.

    Raises:
        UnknownJobError: the text is not a job identifier; the message says what to write.
    """
    match = _JOB_ID.fullmatch(text)
    if match is None:
        raise _refusal(text)
    number, elements = int(match["number"]), match["elements"] or ""
    job = JobId(number, match["server"] or "", match["host"] or "", elements)
    is_possible = number < ARRAYS_END and (job.element is None or job.element < INDICES)
    if elements and not is_possible:
        raise _refusal(text)
    return job


def own_job_number(text: str, *, server: str) -> int:
    """Return the number of a job of the head whose name is ``server``; of ``123[]`` the array's.

    Raises:
        UnknownJobError: as `own_job`; or the identifier names several elements of an array.
    """
    job = own_job(text, server=server)
    if job.element is not None:
        return element_number(job.number, job.element)
    if job.elements not in {"", "[]"}:
        raise UnknownJobError(
            f"{text[:_SHOWN]} names several elements of an array",
            hint=f"name one of them, such as {job.number}[7], or the whole array, {job.number}[]",
        )
    return job.number


def own_job(text: str, *, server: str) -> JobId:
    """Return the identifier of a job of the head whose name is ``server``, or of elements there.

    Raises:
        UnknownJobError: as `read_job_id`; or the identifier names another head.
    """
    if len(text) <= _DIGITS and text.isascii() and text.isdecimal() and text[0] != "0":
        return JobId(int(text))  # nearly all are, and a request may name 10,000
    job = read_job_id(text)
    for name in (job.server, job.host):
        if name and name.lower() != server.lower():
            raise UnknownJobError(
                f"job {job.number}{job.elements} belongs to {name!r}; this head is {server!r}",
                hint=f"ask that head with --head, or write {job.number}{job.elements} or "
                f"{job.number}{job.elements}.{server} for the job of this head",
            )
    return job


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
    if _BRACKETS.fullmatch(text):
        return UnknownJobError(
            f"Unknown Job Id {shown}: between the brackets there are no indices from 0 to "
            f"{INDICES - 1}",
            hint="write 123[7] for an element of an array, 123[5-10] for several, 123[] for all",
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
