"""Reading a batch script, from a file or stdin, as the head shall run it."""

import os
import sys

from gsched.errors import BadScriptError, UnreadableScriptError
from gsched.model.limits import MAX_SCRIPT_BYTES

STDIN_NAME = "STDIN"  # the job's name when its script came from there, as POSIX has it
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Script:
    """A script as it is now; later changes of its file do not reach the job.

    Attributes:
        text: with newlines only.
        where: its file as the user wrote it, or ``STDIN``.
        warnings: what was put right.
        has_dos_lines: its lines ended with CR LF.
    """

    __slots__ = ("has_dos_lines", "text", "warnings", "where")

    def __init__(
        self, text: str, where: str, warnings: tuple[str, ...], *, has_dos_lines: bool = False
    ):
        self.has_dos_lines = has_dos_lines
        self.text = text
        self.where = where
        self.warnings = warnings


def read_script(operand: str) -> Script:
    """Return the script that ``operand`` names; empty or ``-`` is stdin.

    Raises:
        UnreadableScriptError: missing, a directory, or not to be read.
        BadScriptError: empty, binary, not UTF-8, or larger than the head takes.
    """
    if operand in {"", "-"}:
        return _checked(sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1), STDIN_NAME)
    try:
        with open(operand, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except FileNotFoundError:
        looked = "" if operand.startswith("/") else f" (looked in {os.getcwd()})"
        raise UnreadableScriptError(
            f"script {operand!r} does not exist{looked}",
            hint="give the path of a script; to run a command, write: gsub -- COMMAND ARGUMENTS",
        ) from None
    except IsADirectoryError:
        raise UnreadableScriptError(
            f"script {operand!r} is a directory", hint="give the path of a script"
        ) from None
    except OSError as error:
        raise UnreadableScriptError(
            f"script {operand!r} cannot be read: {(error.strerror or str(error)).lower()}",
            hint="you need read permission for it, and search permission for its directory",
        ) from None
    return _checked(data, operand)


def _checked(data: bytes, where: str) -> Script:
    if len(data) > MAX_SCRIPT_BYTES:
        raise BadScriptError(
            f"{where} is larger than {MAX_SCRIPT_BYTES // 1024**2} MiB",
            hint="keep data in a separate file and let the script read it",
        )
    if b"\0" in data:
        raise BadScriptError(
            f"{where} is binary: it contains a zero byte at offset {data.index(0)}",
            hint=f"to run a program, write: gsub -- {where if '/' in where else './' + where}"
            if where != STDIN_NAME
            else "a script must be text",
        )
    warnings: list[str] = []
    if data.startswith(_BYTE_ORDER_MARK):
        data = data.removeprefix(_BYTE_ORDER_MARK)
        warnings.append(f"{where} starts with a byte order mark: removed")
    has_dos_lines = b"\r\n" in data
    if has_dos_lines:
        data = data.replace(b"\r\n", b"\n")
        warnings.append(f"{where} has DOS line ends (CR LF): changed to LF for the job")
    if not data.strip():
        raise BadScriptError(f"{where} is empty", hint="a script needs at least one command")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadScriptError(
            f"{where} is not UTF-8 text: byte {data[error.start]:#04x} at offset {error.start}",
            hint="convert it, for example with: iconv -f latin1 -t utf-8",
        ) from None
    return Script(text, where, tuple(warnings), has_dos_lines=has_dos_lines)
