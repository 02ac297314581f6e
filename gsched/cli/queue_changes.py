"""Changes of queues as texts: what ``gmgr`` and ``qmgr`` read and print."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import structs

from gsched.config.tables import QUEUE_ATTRIBUTES, QueueConfig
from gsched.errors import BadResourceError, UsageError
from gsched.model.reports import made_of
from gsched.model.units import format_duration, parse_interval_s, parse_size_bytes
from gsched.protocol.api import QueueRow
from gsched.protocol.queues import QueueChange, QueueValue

_TRUTHS: Final = {
    **dict.fromkeys(("true", "t", "1", "y", "yes", "on"), True),
    **dict.fromkeys(("false", "f", "0", "n", "no", "off"), False),
}
_VERBS: Final[dict[str, Literal["set", "add", "remove"]]] = {
    "=": "set",
    "+=": "add",
    "-=": "remove",
}
_TERM: Final = re.compile(r"(?P<name>[A-Za-z_.]+)(?P<operator>\+=|-=|=)(?P<value>.*)", re.DOTALL)
_DEFAULTS: Final = QueueConfig(name="default")


class Term(NamedTuple):
    """``max_walltime_s = 2:00:00``; ``operator`` is ``=``, ``+=`` or ``-=``; or empty to unset."""

    name: str
    operator: str
    value: str


def words_of(text: str) -> list[str]:
    """Return the words of a command; blanks around operators do not count.

    Raises:
        UsageError: a quotation mark is not closed.
    """
    try:
        return shlex.split(re.sub(r"\s*(\+=|-=|=)\s*", r"\1", text), comments=True)
    except ValueError as error:
        raise UsageError(f"{text}: {error}", hint="close the quotation mark") from None


def read_term(word: str) -> Term:
    """Return an assignment, or the name of an attribute.

    Raises:
        UsageError: it is neither.
    """
    match = _TERM.fullmatch(word)
    if match is None and re.fullmatch(r"[A-Za-z_.]+", word):
        return Term(word, "", "")
    if match is None:
        raise UsageError(f"syntax error: {word!r}", hint="write ATTRIBUTE=VALUE")
    return Term(match["name"], match["operator"], match["value"])


def change_of(queue: str, attribute: str, operator: str, text: str) -> QueueChange:
    """Return the change that an assignment states.

    Args:
        attribute: as ``[[queue]]`` names it, or ``scheduling`` for all queues.
        operator: empty: it is unset.

    Raises:
        UsageError: the text is no value of it, or the operator is for lists only.
    """
    if not operator:
        return QueueChange(verb="unset", queue=queue, attribute=attribute)
    if operator != "=" and not isinstance(getattr(_DEFAULTS, attribute, None), tuple):
        raise UsageError(f"{attribute} is no list: {operator} is not possible", hint="use =")
    value = value_of(attribute, text)
    return QueueChange(verb=_VERBS[operator], queue=queue, attribute=attribute, value=value)


def value_of(attribute: str, text: str) -> QueueValue:
    """Return the value of an attribute that a text states.

    Raises:
        UsageError: it states none.
    """
    usual: object = getattr(_DEFAULTS, attribute, True)  # else it is scheduling
    try:
        if isinstance(usual, bool):
            return _TRUTHS[text.lower()]
        if isinstance(usual, tuple):
            return tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", text))))
        if isinstance(usual, str):
            return text
        if text == "-1" and usual == -1:
            return -1
        if attribute.endswith("_s"):
            return parse_interval_s(text, zero=True)
        return parse_size_bytes(text) if attribute.endswith("_bytes") else int(text)
    except KeyError:
        hint = "write true or false"
    except BadResourceError as error:
        raise UsageError(f"{attribute}: {error.message}", hint=error.hint) from None
    except ValueError:
        hint = "write an integer"
    raise UsageError(f"{attribute}: invalid value {text!r}", hint=hint)


def text_of(value: object) -> str:
    """Return a value as `value_of` reads it again."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case float() if value > 0 and value == int(value):
            return format_duration(value)
        case _:
            return f"{value:g}" if isinstance(value, float) else str(value)


def printed(rows: Iterable[QueueRow]) -> Iterator[str]:
    """Yield commands of gmgr that make these queues what they are, wherever they are given."""
    for row in rows:
        yield f"create queue {shlex.quote(row.name)}"
        terms = (f"{name}={shlex.quote(text_of(getattr(row, name)))}" for name in QUEUE_ATTRIBUTES)
        yield f"set queue {shlex.quote(row.name)} {' '.join(terms)}"


def config_of(row: QueueRow, policy: str) -> QueueConfig:
    """Return the ``[[queue]]`` that states what a queue is."""
    queue = made_of(QueueConfig, row)
    return structs.replace(queue, policy=policy) if policy else queue


def stated_attributes(row: QueueRow) -> Sequence[tuple[str, str]]:
    """Return the attributes of a queue that differ from the defaults, and whether it is open."""
    return [
        (name, text_of(value))
        for name in QUEUE_ATTRIBUTES
        if (value := getattr(row, name)) != getattr(_DEFAULTS, name)
        or name in {"enabled", "started"}
    ]
