"""gsub: the elements of an array, from -t and --each-line. Imported only where one is submitted."""

import os
import stat

from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import InvalidRequestError, UsageError
from gsched.model.arrays import read_array
from gsched.model.ids import INDICES
from gsched.model.limits import MAX_LINES_BYTES


def indices_of(stated: StatedOptions) -> str:
    """Return the indices of an array; without any in ``-t`` there is one for each line.

    Raises:
        UsageError: they cannot be.
    """
    text: str = stated["array"] or ""
    if "each_line" in stated and (not text or text.startswith("%")):
        text = f"0-{stated['each_line'].count(chr(10)) - 1}{text}"
    return checked_array(text)


def checked_array(text: str) -> str:
    """Return the indices of an array as the head takes them.

    Raises:
        UsageError: they cannot be.
    """
    try:
        return str(read_array(text, most=INDICES))
    except InvalidRequestError as error:
        raise UsageError(f"-t: {error.message}", hint=error.hint) from None


def read_lines(path: str, place: SubmitContext) -> str:
    """Return the lines of a file, each with its end.

    Raises:
        UsageError: it cannot be read, is too large, has no line, or is not text.
    """
    full = absolute(path, place)
    try:
        with open(full, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"--each-line: {path} is not a file", hint="name a text file")
            data = file.read(MAX_LINES_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--each-line: {path}: {error.strerror}", hint="name a file") from None
    if len(data) > MAX_LINES_BYTES:
        raise UsageError(
            f"--each-line: {path} has more than {MAX_LINES_BYTES} bytes",
            hint="submit it in parts, or pass names of files in the lines",
        )
    if not data:
        raise UsageError(f"--each-line: {path} is empty", hint="write a line for each element")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"--each-line: {path} is not UTF-8 text", hint="convert it") from None
    if "\0" in text:
        raise UsageError(f"--each-line: {path} holds a NUL byte", hint="name a text file")
    return text if text.endswith("\n") else f"{text}\n"
