"""Write a configuration as TOML: the standard library reads it but cannot write it."""

import json
import os
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from gsched.config.errors import Keys, line_of
from gsched.config.nodes import GpuConfig, NodeConfig
from gsched.config.tables import HeadConfig, QueueConfig
from gsched.errors import CannotWriteError, ConfigError

_NO_NEW_PRIVILEGES = "no_new_privileges = true\n"
_ABOUT_PRIVILEGES = "# sudo, ping, newgrp and mount.fuse fail in jobs; false lets them work\n"


def head_toml(head: HeadConfig, queues: tuple[QueueConfig, ...]) -> str:
    """Return a configuration file of a head; keys that have their default are left out."""
    sections = ["# Made by gsched; see gsched.toml(5).", _table("[head]", head)]
    sections.extend(_table("[[queue]]", queue) for queue in queues)
    return "\n".join(sections)


def queue_toml(queue: QueueConfig) -> str:
    """Return the table of a queue; keys that have their default are left out."""
    return _table("[[queue]]", queue)


def node_toml(node: NodeConfig) -> str:
    """Return a configuration file of a node; keys that have their default are left out."""
    plain = msgspec.structs.replace(node, gpu=(), resources={})
    table = _table("[node]", plain)
    if node.no_new_privileges:
        table = table.replace(_NO_NEW_PRIVILEGES, _ABOUT_PRIVILEGES + _NO_NEW_PRIVILEGES)
    sections = ["# Made by gsched; see gsched.toml(5).", table]
    if node.resources:
        rows = [f"{value_text(name)} = {count}" for name, count in sorted(node.resources.items())]
        sections.append("\n".join(["[node.resources]", *rows, ""]))
    sections.extend(_table("[[node.gpu]]", gpu) for gpu in node.gpu)
    return "\n".join(sections)


def _table(heading: str, struct: HeadConfig | QueueConfig | NodeConfig | GpuConfig) -> str:
    lines = [heading]
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.required or value != field.default:
            if isinstance(value, Struct) or (value == {} and field.default is msgspec.NODEFAULT):
                continue
            lines.append(f"{field.name} = {value_text(value)}")
    return "\n".join([*lines, ""])


def value_text(value: object) -> str:
    """Return one TOML value. JSON's strings are TOML basic strings, except for DEL."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple() | list():
            return "[" + ", ".join(value_text(item) for item in value) + "]"
        case dict():
            rows = (f"{value_text(str(name))} = {value_text(item)}" for name, item in value.items())
            return "{ " + ", ".join(rows) + " }" if value else "{}"
        case _:
            raise TypeError(f"no TOML for {value!r}")


def with_value(text: str, keys: Keys, value: object, *, where: str) -> str:
    """Return a configuration file in which one key has another value; all else stays as it is.

    Args:
        text: the file.
        keys: the way to the key, as ``("training", "policy")`` or ``("queue", 0, "policy")``; its
            table is added at the end if the file does not have it.
        value: what the key is to have.
        where: the name of the file, for errors.

    Raises:
        ConfigError: the key is stated in a way that is not looked through, as in an inline table.
    """
    names = [key for key in keys if isinstance(key, str)]
    row = f"{names[-1]} = {value_text(value)}"
    lines = text.splitlines()
    number = line_of(keys, text)
    if not number:
        brackets = ("[[", "]]") if len(names) < len(keys) else ("[", "]")
        header = f"{brackets[0]}{'.'.join(names[:-1])}{brackets[1]}"
        lines += ["", header, row]
    elif lines[number - 1].lstrip().startswith("["):  # the table; the key is not stated
        lines.insert(number, row)
    else:
        key, _, _ = lines[number - 1].partition("=")
        if key.strip().rpartition(".")[2].strip().strip('"') != names[-1]:
            raise ConfigError(
                f"{where}:{number}: {key.strip()} is stated in a form that gsched does not change",
                hint=f"write [{'.'.join(names[:-1])}] as a table of its own, or edit it by hand",
            )
        lines[number - 1] = f"{key.rstrip()} = {value_text(value)}"
    return "\n".join([*lines, ""])


def write_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace ``path`` in one step, so that a crash leaves the old file or the new one.

    Raises:
        CannotWriteError: the directory cannot be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise CannotWriteError(
            f"{path}: cannot be written: {error.strerror or error}",
            hint="check the directory's owner, mode and free space",
        ) from error
