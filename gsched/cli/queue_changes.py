"""Changes of queues, projects, users and QOS as texts, for ``gmgr`` and ``qmgr``."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import structs

from gsched.cli.local.toml import value_text
from gsched.config.objects import default_of, path_of
from gsched.config.tables import QUEUE_ATTRIBUTES, QueueConfig
from gsched.errors import BadResourceError, UsageError
from gsched.model.configuration import ObjectKind
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
_TERM: Final = re.compile(r"(?P<name>[^=+,]+?)(?P<operator>\+=|-=|=)(?P<value>.*)", re.DOTALL)
_DEFAULTS: Final = QueueConfig(name="default")
_BARE: Final = re.compile("[A-Za-z0-9_-]+")
#: Attributes of objects of one kind that differ from the defaults, by name.
Objects = Mapping[str, Mapping[str, QueueValue]]


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
        raise UsageError(
            f"{text.strip()}: {str(error).lower()}", hint="close the quotation mark"
        ) from None


def read_term(word: str) -> Term:
    """Return an assignment, or the name of an attribute.

    Raises:
        UsageError: it is neither.
    """
    match = _TERM.fullmatch(word)
    if match is None and re.fullmatch(r"[^=+,]+", word):
        return Term(word, "", "")
    if match is None:
        raise UsageError(f"syntax error: {word!r}", hint="write ATTRIBUTE=VALUE")
    return Term(match["name"], match["operator"], match["value"])


def change_of(
    queue: str, attribute: str, operator: str, text: str, kind: ObjectKind = "queue"
) -> QueueChange:
    """Return the change that an assignment states.

    Args:
        queue: the name of the object.
        attribute: see `gsched.config.objects`, or ``scheduling`` for all queues.
        operator: empty: it is unset.
        kind: of the object.

    Raises:
        UsageError: the text is no value of it, or the operator is for lists only.
    """
    if not operator:
        return QueueChange(verb="unset", kind=kind, queue=queue, attribute=attribute)
    if operator != "=" and not isinstance(default_of(kind, attribute), tuple):
        raise UsageError(f"{attribute} is no list: {operator} is not possible", hint="use =")
    value = value_of(attribute, text, kind)
    return QueueChange(
        verb=_VERBS[operator], kind=kind, queue=queue, attribute=attribute, value=value
    )


def value_of(attribute: str, text: str, kind: ObjectKind = "queue") -> QueueValue:
    """Return the value of an attribute that a text states.

    Raises:
        UsageError: it states none.
    """
    usual = True if attribute == "scheduling" else default_of(kind, attribute)
    try:
        if isinstance(usual, bool):
            return _TRUTHS[text.lower()]
        if isinstance(usual, tuple):
            return tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", text))))
        if isinstance(usual, str):
            return text
        if text == "-1" and usual in {-1, None}:
            return -1
        if attribute.endswith("_s"):
            return parse_interval_s(text, zero=True)
        if attribute.endswith("_bytes"):
            return parse_size_bytes(text)
        return float(text) if usual is None and "." in text else int(text)
    except KeyError:
        hint = "write true or false"
    except BadResourceError as error:
        raise UsageError(f"{attribute}: {error.message}", hint=error.hint) from None
    except ValueError:
        hint = "write an integer"
    raise UsageError(f"{attribute}: invalid value {text!r}", hint=hint)


def text_of(value: object, attribute: str = "_s") -> str:
    """Return a value as `value_of` reads it again; numbers of attributes in ``_s`` are times."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case float() if value > 0 and value == int(value) and attribute.endswith("_s"):
            return format_duration(value)
        case _:
            return f"{value:.10g}" if isinstance(value, float) else str(value)


def printed(rows: Iterable[QueueRow]) -> Iterator[str]:
    """Yield commands of gmgr that make these queues what they are, wherever they are given."""
    for row in rows:
        yield f"create queue {shlex.quote(row.name)}"
        terms = (f"{name}={shlex.quote(text_of(getattr(row, name)))}" for name in QUEUE_ATTRIBUTES)
        yield f"set queue {shlex.quote(row.name)} {' '.join(terms)}"


def object_terms(values: Mapping[str, QueueValue]) -> Iterator[str]:
    """Yield what sets the attributes of an object."""
    for name, value in values.items():
        yield f"{shlex.quote(name)}={shlex.quote(text_of(value, name))}"


def object_commands(kind: ObjectKind, objects: Objects) -> Iterator[str]:
    """Yield commands of gmgr that make objects what they are."""
    if kind in {"project", "qos"}:
        yield from (f"create {kind} {shlex.quote(name)}" for name in objects)
    for name, values in objects.items():
        if values:
            named = f"{kind} {shlex.quote(name)}" if name else kind
            yield f"set {named} {' '.join(object_terms(values))}"


def object_tables(kind: ObjectKind, objects: Objects) -> Iterator[str]:
    """Yield the tables of the file that state objects; of queues the rest of their tables."""
    for name, values in objects.items():
        if kind in {"project", "qos"}:
            yield f"\n[[{kind}]]\nname = {value_text(name)}"
        for attribute, value in values.items():
            path = path_of(kind, attribute)
            keys = ("user", name, *path) if kind == "user" else path
            named = ".".join(key if _BARE.fullmatch(key) else value_text(key) for key in keys)
            if attribute == "users" and isinstance(value, tuple):
                yield f"{named} = {value_text(_members(value))}"
            else:
                yield f"{named} = {value_text(value)}"


def _members(entries: Iterable[str]) -> Mapping[str, int] | Sequence[str]:
    shares = {name: int(count or 1) for name, _, count in (each.partition(":") for each in entries)}
    return shares if set(shares.values()) != {1} else tuple(shares)


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
