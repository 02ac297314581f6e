"""Directives in a batch script: ``#PBS -l walltime=1:00:00`` and the like. Pure.

The scan follows POSIX qsub and Torque: a first line that starts with ``#!`` or ``:`` is skipped;
then come directives, comments and blank lines; the first other line ends the scan.
"""

from collections.abc import Sequence

from gsched.errors import BadScriptError

DEFAULT_PREFIXES = ("#PBS", "#GSUB", "#GSCHED")


class Directive:
    """The words of one directive.

    Attributes:
        line: its number in the script, from 1 (the first one, if it is continued).
        words: its options, split as a shell would.
    """

    __slots__ = ("line", "words")

    def __init__(self, line: int, words: list[str]):
        self.line = line
        self.words = words


class Scan:
    """What was found in a script.

    Attributes:
        directives: in order.
        late_line: number of the first directive behind the first command, which does not count;
            0 if there is none. Users want to hear of it.
    """

    __slots__ = ("directives", "late_line")

    def __init__(self, directives: list[Directive], late_line: int):
        self.directives = directives
        self.late_line = late_line


def prefixes_for(option: str | None, from_environment: str) -> tuple[str, ...]:
    """Return the prefixes that mark a directive.

    Args:
        option: of ``-C``; the empty text means "do not scan", None that it was not given.
        from_environment: ``$PBS_DPREFIX``, or empty.
    """
    if option is not None:
        return (option,) if option else ()
    return (from_environment,) if from_environment else DEFAULT_PREFIXES


def scan(script: str, *, prefixes: Sequence[str], where: str) -> Scan:
    """Return the directives of ``script``.

    Raises:
        BadScriptError: one that cannot be split into words; ``where`` and the line are named.
    """
    found: list[Directive] = []
    lines = script.split("\n")
    at = 1 if lines[0].startswith(("#!", ":")) else 0
    while prefixes and at < len(lines):
        text = _directive_text(lines[at], prefixes)
        if text is None:
            bare = lines[at].strip()
            if bare and not bare.startswith("#"):
                break
            at += 1
            continue
        first = at
        while text.endswith("\\") and at + 1 < len(lines):
            at += 1
            more = _directive_text(lines[at], prefixes)
            text = text[:-1] + " " + (lines[at] if more is None else more).strip()
        found.append(Directive(first + 1, split_words(text, where=f"{where}:{first + 1}")))
        at += 1
    return Scan(found, _late_line(lines, at, prefixes))


def _directive_text(line: str, prefixes: Sequence[str]) -> str | None:
    """Return what follows the prefix, or None if the line is no directive."""
    bare = line.strip()
    for prefix in prefixes:
        if bare.startswith(prefix):
            rest = bare[len(prefix) :]
            if not rest or rest[0] in " \t-":
                return rest.strip()
    return None


def _late_line(lines: Sequence[str], start: int, prefixes: Sequence[str]) -> int:
    for at in range(start, len(lines)):
        text = _directive_text(lines[at], prefixes)
        if text is not None and text.startswith("-"):
            return at + 1
    return 0


def split_words(text: str, *, where: str) -> list[str]:
    """Return the words of a directive as a shell splits them; ``#`` at a word's start ends them.

    Raises:
        BadScriptError: a quotation mark without its partner; ``where`` starts the message.
    """
    import shlex  # late: only scripts with directives need it

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadScriptError(
            f"{where}: the directive cannot be read: {str(error).lower()}: {text!r}",
            hint="put the value into a pair of quotation marks",
        ) from None
    for index, word in enumerate(words):
        if word.startswith("#"):
            return words[:index]
    return words
