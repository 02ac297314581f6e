"""All keys of a configuration one by one, with their values, defaults and lines. Pure."""

import functools
import tomllib
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from gsched.config.errors import Keys, line_of
from gsched.config.tables import Config

#: Keys whose values hold secrets: an URL may have a token in its path.
_SECRET = frozenset({("notify", "url")})


class Setting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key.

    Attributes:
        table: as the file writes it, ``training.sia`` or ``queue[0]``.
        value: redacted where it holds a secret.
        default: None for keys that have none, as the name of a queue.
        line: of the file; 0: the file does not state it.
        differs: from its default.
    """

    table: str
    key: str
    value: object
    default: object = None
    line: int = 0
    differs: bool = False


def settings_of(config: Config, text: str, *, with_secrets: bool = False) -> Iterator[Setting]:
    """Yield all keys of a configuration in the order of their tables.

    Args:
        config: as it is in effect.
        text: the file.
        with_secrets: their values are not redacted.
    """
    for keys, row in _of_table(config, Config(), (), tomllib.loads(text), text):
        yield row if with_secrets else structs.replace(row, value=_redacted(keys, row.value))


def _of_table(
    struct: Struct, default: Struct | None, way: Keys, document: object, text: str
) -> Iterator[tuple[Keys, Setting]]:
    inner: list[tuple[Struct, Struct | None, Keys, object]] = []
    for field in _fields(type(struct)):
        value = getattr(struct, field.name)
        keys = (*way, field.name)
        stated = _at(document, field.name)
        usual = getattr(default, field.name) if default is not None else _default_of(field)
        if isinstance(value, Struct):
            inner.append((value, usual if isinstance(usual, Struct) else None, keys, stated))
        elif isinstance(value, dict) and any(isinstance(each, Struct) for each in value.values()):
            inner += [
                (each, None, (*keys, name), _at(stated, name)) for name, each in value.items()
            ]
        elif isinstance(value, tuple) and value and isinstance(value[0], Struct):
            many = stated if isinstance(stated, list) else []
            for at, each in enumerate(value):
                own = many[at] if at < len(many) else None
                inner.append((each, None, (*keys, at), own))
        elif value is not None and (way or value != ()):  # else another key counts
            yield keys, _setting(keys, value, usual, text if stated is not None else "")
    for each, usual, keys, stated in inner:
        yield from _of_table(each, usual, keys, stated, text)


@functools.cache
def _fields(struct: type[Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def _default_of(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _at(document: object, name: str) -> object:
    return document.get(name) if isinstance(document, dict) else None


def _setting(keys: Keys, value: object, usual: object, text: str) -> Setting:
    table = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys[:-1])
    line = line_of(keys, text) if text else 0
    return Setting(
        table=table.removeprefix("."),
        key=str(keys[-1]),
        value=value,
        default=usual,
        line=line or (1 if text else 0),
        differs=value != usual,
    )


def _redacted(keys: Keys, value: object) -> object:
    if keys not in _SECRET or not value:
        return value
    parts = urlsplit(str(value))
    return f"{parts.scheme}://{parts.hostname}/..."
