"""How a mistake in the configuration file is told: its line, its table and key, and what to write.

msgspec says ``Expected `int` <= 65535 - at `$.head.node_port` ``. A person needs ``line 12: [head]
node_port must be from 0 to 65535, got 99999999``.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from gsched.config.units import unit_of
from gsched.config.words import BASELINES, TRAINING_POLICIES
from gsched.errors import ConfigError

Keys = tuple[str | int, ...]

_AT: Final = re.compile(r"(?P<what>.*?)(?: - at `\$?(?P<path>.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_KINDS: Final = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a string in quotation marks",
    "array": "a list in brackets",
    "object": "a table",
}
_EXPECTED: Final = re.compile(r"Expected `(?P<kind>\w+)(?: \| null)?`(?P<more>.*)", re.DOTALL)
#: Keys of versions before, and what to do.
_REMOVED: Final = {
    "key_file": "delete the line: hosts have certificates, see gsched join in gsched(1)",
    "plaintext_node_channel": "delete the line: other hosts always connect by TLS",
    "node_tunnel": "delete the line: tunnels need no permission, as they can read nothing",
}
#: Tables that this file has under another name.
_MEANT: Final = {
    **dict.fromkeys(("monitor", "metrics", "page", "prometheus"), "[web]"),
    **dict.fromkeys(("partition", "partitions"), "[[queue]]"),
}
_TABLES_MOST: Final = 4  # that a hint names
_SHOWN: Final = 60  # characters of a value in a message


def from_validation(
    error: msgspec.ValidationError, *, root: type[Struct], document: object, text: str, where: str
) -> ConfigError:
    """Return the error for a document that does not fit the types or the ranges of its keys.

    Args:
        error: of msgspec.
        root: the type of the whole file.
        document: what was read from the file.
        text: the file.
        where: its name.
    """
    match = _AT.fullmatch(str(error))
    assert match is not None  # it matches everything
    what, path = match["what"], match["path"] or ""
    keys = _keys(path)
    if found := _UNKNOWN.fullmatch(what):
        keys = (*keys, found["name"])
        return _unknown_key(keys, root=root, document=document, text=text, where=where)
    if found := _MISSING.fullmatch(what):
        hint = f"write {found['name']} = ..."
        return located((*keys, found["name"]), "is missing", hint=hint, text=text, where=where)
    value = _at(document, keys)
    info = _field(root, keys)
    if isinstance(value, str) and (wrong := _wrong_text(keys, value, info)):
        return located(keys, wrong[0], hint=wrong[1], text=text, where=where)
    info = _plain(info)
    range_ = _range(info)
    found = _EXPECTED.fullmatch(what)
    wanted = found and _KINDS.get(found["kind"], found["kind"]) + found["more"].split(",")[0]
    if "..." in path and wanted:  # of a value in a table whose keys the site chooses
        message = f": each value must be {wanted}" if path.endswith("]") else f"must be {wanted}"
    elif range_ and isinstance(value, (int, float)) and not isinstance(value, bool):
        message = f"must be {range_}, got {value}"
    elif range_ and isinstance(value, str) and (unit := unit_of(keys)):
        message = f"must be {range_} {unit}, got {_shown(value)}"
    elif isinstance(value, dict) and _struct(root, (*keys, 0)) is not None:
        name = ".".join(str(each) for each in keys)
        hint = f"write [[{name}]] for each, instead of [{name}]"
        return located(keys, "must be a list of tables", hint=hint, text=text, where=where)
    elif isinstance(value, list) and _struct(root, keys) is not None:
        name = ".".join(str(each) for each in keys)
        hint = f"write [{name}] once, instead of [[{name}]]"
        return located(keys, "must be one table", hint=hint, text=text, where=where)
    elif wanted:
        message = f"must be {wanted}, got {_shown(value)}"
    else:
        message = what.replace("`", "'")
    return located(keys, message, hint="see gsched.toml(5)", text=text, where=where)


def closest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?``, or the empty string if nothing known is like the word."""
    import difflib  # late: few words are wrong

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _wrong_text(
    keys: Keys, value: str, info: msgspec.inspect.Type | None
) -> tuple[str, str] | None:
    """Return what is wrong with a text that is no word of its key, or of another form."""
    if isinstance(info, msgspec.inspect.Metadata) and info.extra is not None:
        return str(info.extra["problem"]).format(value), str(info.extra["hint"])
    if isinstance(info, msgspec.inspect.EnumType):
        known = tuple(str(each.value) for each in info.cls)
    elif isinstance(info, msgspec.inspect.LiteralType):
        known = tuple(map(str, info.values))
    else:
        return None
    hint = closest(value, known) or f"valid: {', '.join(known)}"
    if keys[-1] != "policy":
        return f": invalid value {value!r}", hint
    if value in BASELINES:
        problem, hint = policy_problem(value, known)
        return f": {problem}", hint
    if keys[0] == "training":
        return f": {value!r} does not plan training jobs", hint
    if value in TRAINING_POLICIES:
        hint = f'for training jobs write policy = "{value}" in [training]'
    return f": unknown policy {value!r}", hint


def policy_problem(name: str, known: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong with the name of a policy, and what to do.

    Args:
        known: what may be named.
    """
    valid = f"valid: {', '.join(known)}"
    if name in BASELINES and name not in known:
        return f"{name!r} is a baseline for comparison, and not installed", valid
    near = closest(name, known)
    return f"unknown policy {name!r}", f"{near} {valid}" if near else valid


def located(keys: Keys, message: str, *, hint: str, text: str, where: str) -> ConfigError:
    """Return an error with its line, as far as that is found, and its table and key."""
    line = line_of(keys, text)
    place = f"{where}:{line}" if line else where
    name = _named(keys)
    if message.startswith(":"):  # what reads a value has said it already in a sentence of its own
        name = name.rstrip()
    return ConfigError(f"{place}: {name}{message}", hint=hint)


def _named(keys: Keys) -> str:
    """Return ``[head] node_port `` or ``[[queue]] policy ``."""
    names = [each for each in keys if isinstance(each, str)]
    if not names:
        return ""
    *before, last = keys[: keys.index(names[-1]) + 1]
    many = bool(before) and isinstance(before[-1], int)
    table, key = ".".join(names[:-1]), last
    if not table:
        return f"{key} "
    return f"[[{table}]] {key} " if many else f"[{table}] {key} "


def _unknown_key(
    keys: Keys, *, root: type[Struct], document: object, text: str, where: str
) -> ConfigError:
    """Return the error for a key that its table does not have."""
    name = str(keys[-1])
    if removed := _REMOVED.get(name):
        return located(keys, "was removed", hint=removed, text=text, where=where)
    parent = _struct(root, keys[:-1])
    known = list(parent.__struct_fields__) if parent is not None else []
    tables = [str(each) for each in keys[:-1] if isinstance(each, str)]
    is_table = not tables and isinstance(_at(document, keys), (dict, list))
    hints = [_table_like(name, root)] if is_table else []
    if not any(hints):
        hints = [closest(name, known), _table_with(name, root, most=1 if tables else _TABLES_MOST)]
    hint = " ".join(filter(None, hints)) or f"valid keys: {', '.join(known)}"
    line = line_of(keys, text) or _line_within(name, text)
    place = f"{where}:{line}" if line else where
    if not tables:
        return ConfigError(f"{place}: unknown table or key {name!r}", hint=hint)
    many = isinstance(keys[-2], int)
    table = f"[[{'.'.join(tables)}]]" if many else f"[{'.'.join(tables)}]"
    return ConfigError(f"{place}: {table} has no key {name!r}", hint=hint)


def _table_like(name: str, root: type[Struct]) -> str:
    """Return which table in another one has such a name, in words; empty: it is not known."""
    import difflib  # late: few files have a mistake

    if name in _MEANT:
        return f"use {_MEANT[name]}"
    titles = sorted((title for title, _ in _tables(root, ())), key=lambda each: "." not in each)
    last = {title.strip("[]").rpartition(".")[2]: title for title in titles}  # outer ones count
    close = difflib.get_close_matches(name, last, n=1, cutoff=0.8)
    return f"write {last[close[0]]}" if close and "." in last[close[0]] else ""


def _table_with(name: str, root: type[Struct], *, most: int) -> str:
    """Return which tables have a key of that name, in words; empty: none, or more than ``most``.

    A table within another, as one of limits, counts only if no outer one has the key.
    """
    found = [table for table, keys in _tables(root, ()) if name in keys]
    outer = [table for table in found if "." not in table] or found
    return f"{name!r} is a key of {', '.join(outer)}" if 0 < len(outer) <= most else ""


def _tables(struct: type[Struct], way: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and the keys of each table."""
    for field in msgspec.structs.fields(struct):
        inner = _struct(struct, (field.name,))
        if inner is None:
            continue
        names = (*way, field.name)
        title = ".".join(names)
        many = isinstance(field.default, tuple)
        yield (f"[[{title}]]" if many else f"[{title}]"), inner.__struct_fields__
        yield from _tables(inner, names)


# --- ways through document and types ---


def _keys(path: str) -> Keys:
    keys: list[str | int] = []
    for match in _STEP.finditer(path):
        if match["name"] is not None:
            keys.append(match["name"])
        elif match["index"] is not None:
            keys.append(int(match["index"]))
    return tuple(keys)


def _at(document: object, keys: Keys) -> object:
    for key in keys:
        if isinstance(key, int):
            inside = isinstance(document, list) and key < len(document)
        else:
            inside = isinstance(document, dict) and key in document
        if not inside:
            return None
        document = document[key]  # type: ignore[index]  # as just checked
    return document


@functools.cache  # all tables take 10 ms, and an unknown key is looked for in each of them
def _described(root: type[Struct]) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(root)


def _field(root: type[Struct], keys: Keys) -> msgspec.inspect.Type | None:
    """Return the type at the end of a way, with its form; None if it leads nowhere."""
    info = _described(root)
    for key in keys:
        if isinstance(info, msgspec.inspect.StructType):
            found = next((each.type for each in info.fields if each.name == key), None)
        elif isinstance(info, msgspec.inspect.VarTupleType):
            found = info.item_type
        else:
            found = None
        if found is None:
            return None
        info = found
    return info


def _plain(info: msgspec.inspect.Type | None) -> msgspec.inspect.Type | None:
    return info.type if isinstance(info, msgspec.inspect.Metadata) else info


def _struct(root: type[Struct], keys: Keys) -> type[Struct] | None:
    info = _field(root, keys)
    if isinstance(info, msgspec.inspect.VarTupleType):
        info = info.item_type
    return info.cls if isinstance(info, msgspec.inspect.StructType) else None


def _range(info: msgspec.inspect.Type | None) -> str:
    """Return ``from 0 to 65535``; empty for what is not a number, or has no range."""
    if not isinstance(info, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
        return ""
    low = info.ge if info.ge is not None else info.gt
    high = info.le if info.le is not None else info.lt
    kind = "an integer " if isinstance(info, msgspec.inspect.IntType) else ""
    if low is None or high is None:
        return f"{kind}of at least {low:g}" if low is not None else ""
    above = "above " if info.gt is not None else ""
    below = "below " if info.lt is not None else ""
    return f"{kind}from {above}{_number(low)} to {below}{_number(high)}"


def _number(number: float) -> str:
    return str(int(number)) if math.isfinite(number) and number == int(number) else f"{number:g}"


def _shown(value: object) -> str:
    text = repr(value).lower() if isinstance(value, bool) else repr(value)  # as TOML writes it
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- lines ---

_HEADER: Final = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?")


def line_of(keys: Keys, text: str) -> int:
    """Return the number, from 1, of the line that states a key, or its table; 0 if none is found.

    A line in a text over several lines may look like another table's. That costs a wrong number
    and nothing else.
    """
    names = [each for each in keys if isinstance(each, str)]
    for length in range(len(names), 0, -1):
        line = _line_of_name(names[:length], _entries(keys), text)
        if line:
            return line
    return 0


def _line_within(name: str, text: str) -> int:
    """Return the number of the first line that begins a table within one of that name, or 0."""
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.fullmatch(line)
        if header and header["name"].partition(".")[0].strip() == name:
            return number
    return 0


def _entries(keys: Keys) -> dict[str, int]:
    """Return which entry of each array of tables is meant, by the array's dotted name."""
    found: dict[str, int] = {}
    names: list[str] = []
    for key in keys:
        if isinstance(key, int):
            found[".".join(names)] = key
        else:
            names.append(key)
    return found


def _line_of_name(names: Sequence[str], entries: Mapping[str, int], text: str) -> int:
    wanted = ".".join(names)
    table, entry = "", 0
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.fullmatch(line)
        if header:
            table = re.sub(r"\s*\.\s*", ".", header["name"].replace('"', ""))
            entry = seen.get(table, 0)
            seen[table] = entry + 1
            full = table
        else:
            key, equals, _ = line.partition("=")
            bare = key.strip().strip('"')
            if not equals or bare.startswith("#"):
                continue
            full = f"{table}.{bare}" if table else bare
        if full == wanted and entries.get(table, entry) == entry:
            return number
    return 0
