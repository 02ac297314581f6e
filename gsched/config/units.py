"""Times and sizes with units in the configuration file: ``"90m"``, ``"4:00:00"``, ``"2gb"``.

The name of a key states the unit of a number (``_s``, ``_days``, ``_bytes``), so a text with a unit
becomes that number before the types of all keys are checked. The parsers are those of the commands.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gsched.errors import BadResourceError
from gsched.model.units import parse_interval_s, parse_size_bytes

DAY_S: Final = 86400.0
_TIME_HINT: Final = 'write a number, or a time with a unit: "90m", "4:00:00", "1d"'
#: Unit of a number by the end of its key, in words.
_UNITS: Final = {"_s": "seconds", "_days": "days", "_bytes": "bytes"}
#: Keys that hold a size as text; an integer is a number of bytes.
_SIZES: Final = ("memory", "least_spool", "context_memory", "context_reserve")
#: Keys that hold a time or something else as text; a number is one of seconds.
_TIMES: Final = ("walltime_extension",)


class BadValueError(Exception):
    """A value that a key cannot have; `gsched.config.load` adds the place in the file.

    Attributes:
        keys: the way to the key, ``("queue", 1, "policy")``.
        message: what is wrong; begins with a verb or a colon, as the key is put before it.
        hint: what to do.
    """

    def __init__(self, keys: Sequence[str | int], message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.keys = tuple(keys)
        self.message = message
        self.hint = hint


def unit_of(keys: Sequence[str | int]) -> str:
    """Return the unit of a number at this key in words, as ``seconds``; empty: it has none."""
    name = str(keys[-1]) if keys else ""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def plain_numbers(document: dict[str, Any], root: type[Struct]) -> dict[str, Any]:
    """Return a document whose times and sizes are as the types of their keys want them.

    Args:
        document: what was read from the file; it stays as it is.
        root: the type of the whole file.

    Raises:
        BadValueError: a text is no time, or no size.
    """
    if not any(_is_other(name, value) for name, value in _values(document)):
        return document  # most files: nothing of the types has to be looked at
    return _table(document, msgspec.inspect.type_info(root), ())


def _is_other(name: str, value: object) -> bool:
    if isinstance(value, str):
        return bool(unit_of((name,)))
    return name in (*_SIZES, *_TIMES) and _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _values(document: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield all values of a document with the last part of their keys."""
    for name, value in document.items():
        yield name, value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _values(inner)


def _table(
    table: dict[str, Any], info: msgspec.inspect.Type, way: tuple[str | int, ...]
) -> dict[str, Any]:
    """Return one table of the document; what its type does not have is left to the check of types.

    Raises:
        BadValueError: as `plain_numbers`.
    """
    if isinstance(info, msgspec.inspect.DictType):
        return {name: _value(value, info.value_type, (*way, name)) for name, value in table.items()}
    if not isinstance(info, msgspec.inspect.StructType):
        return table
    types = {field.name: field.type for field in info.fields}
    return {
        name: _value(value, types[name], (*way, name)) if name in types else value
        for name, value in table.items()
    }


def _value(value: object, info: msgspec.inspect.Type, way: tuple[str | int, ...]) -> object:
    if isinstance(value, dict):
        return _table(value, info, way)
    if isinstance(value, list) and isinstance(info, msgspec.inspect.VarTupleType):
        return [_value(each, info.item_type, (*way, at)) for at, each in enumerate(value)]
    name = str(way[-1])
    if isinstance(info, msgspec.inspect.StrType):
        whole = isinstance(value, int) or name in _TIMES
        other = name in (*_SIZES, *_TIMES) and whole and _is_number(value)
        return str(value) if other else value
    if not isinstance(value, str):
        return value
    match unit_of(way):
        case "seconds":
            return _read(value, _seconds, way, hint=_TIME_HINT)
        case "days":
            return _read(value, _days, way, hint=_TIME_HINT)
        case "bytes":
            return _read(value, parse_size_bytes, way)
        case _:
            return value


def _seconds(text: str) -> float:
    return parse_interval_s(text, zero=True)


def _days(text: str) -> float:
    """Return the days of a text; one without a unit states days, as a number does."""
    seconds = parse_interval_s(text, zero=True)
    return seconds if text.strip().replace(".", "", 1).isdigit() else seconds / DAY_S


def _read(
    text: str, parse: Callable[[str], float], way: tuple[str | int, ...], *, hint: str = ""
) -> float:
    try:
        return parse(text)
    except BadResourceError as error:
        raise BadValueError(way, f": {error.message}", hint=hint or error.hint) from None
