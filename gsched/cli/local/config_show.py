"""``gsched config show``: the configuration in effect, and where each value comes from."""

import hashlib
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import UNSET, Struct

from gsched.cli.common import print_json, print_note
from gsched.cli.local.layout import ClusterLayout
from gsched.cli.local.options import subcommand
from gsched.cli.local.toml import value_text
from gsched.client import Head
from gsched.config import Config, config_path, environment, load_config
from gsched.config_errors import Keys, line_of
from gsched.errors import GschedError

#: Keys whose values hold secrets: an URL may have a token in its path.
_SECRET = frozenset({("notify", "url")})


class Setting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key.

    Attributes:
        table: as the file writes it, ``training.sia`` or ``queue[0]``.
        value: redacted where it holds a secret.
        default: None for keys that have none, as the name of a queue.
        line: of the file; 0: the file does not state it.
    """

    table: str
    key: str
    value: object
    default: object = None
    line: int = 0
    differs: bool = False


def found_file(given: str | None) -> str:
    """Return the file that is meant: of a ``gsched up`` cluster that commands talk to, too."""
    if given or environment("GSCHED_CONFIG"):
        return config_path(given)
    socket = environment("GSCHED_HEAD").removeprefix("unix:").removeprefix("//")
    layout = ClusterLayout(directory=Path(socket).parent)
    if socket and "://" not in socket and str(layout.socket) == socket and layout.exists:
        return str(layout.config)
    return config_path(None)


def load_found(given: str | None) -> tuple[str, Config]:
    """Return the file that is meant, and what it states; without a default file the defaults.

    Raises:
        ConfigError: it cannot be used.
    """
    path = found_file(given)
    is_usual = path == config_path(None) and not environment("GSCHED_CONFIG")
    return path, load_config(None if is_usual and not given else path)


def settings_of(config: Config, text: str) -> Iterator[Setting]:
    """Yield all keys of a configuration in the order of their tables.

    Args:
        config: as it is in effect.
        text: the file.
    """
    yield from _of_table(config, Config(), (), tomllib.loads(text), text)


def _of_table(
    struct: Struct, default: Struct | None, way: Keys, document: object, text: str
) -> Iterator[Setting]:
    inner: list[tuple[Struct, Struct | None, Keys, object]] = []
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        if value is UNSET:  # a deprecated table: its keys are those of its new name
            continue
        keys = (*way, field.name)
        stated = _at(document, field.name)
        usual = getattr(default, field.name) if default is not None else _default_of(field)
        if isinstance(value, Struct):
            inner.append((value, usual if isinstance(usual, Struct) else None, keys, stated))
        elif isinstance(value, tuple) and value and isinstance(value[0], Struct):
            many = stated if isinstance(stated, list) else []
            for at, each in enumerate(value):
                own = many[at] if at < len(many) else None
                inner.append((each, None, (*keys, at), own))
        else:
            yield _setting(keys, value, usual, text if stated is not None else "")
    for each, usual, keys, stated in inner:
        yield from _of_table(each, usual, keys, stated, text)


def _default_of(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _at(document: object, name: str) -> object:
    found = document.get(name) if isinstance(document, dict) else None
    if found is None and name == "training" and isinstance(document, dict):
        return document.get("deadline")  # the deprecated name of the table
    return found


def _setting(keys: Keys, value: object, usual: object, text: str) -> Setting:
    table = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys[:-1])
    line = 0
    if text:
        line = line_of(keys, text) or line_of(("deadline", *keys[1:]), text)
    return Setting(
        table=table.removeprefix("."),
        key=str(keys[-1]),
        value=_redacted(keys, value),
        default=usual,
        line=line or (1 if text else 0),
        differs=value != usual,
    )


def _redacted(keys: Keys, value: object) -> object:
    if keys not in _SECRET or not value:
        return value
    parts = urlsplit(str(value))
    return f"{parts.scheme}://{parts.hostname}/..."


def changed_since(path: str, head: Head) -> str:
    """Return that a running head has not read this file as it is now; empty: it has, or none runs.

    Args:
        path: of the file.
        head: that runs with it.
    """
    try:
        started_s = head.status().started_s
        content = Path(path).read_bytes()
        modified_s = Path(path).stat().st_mtime
    except (GschedError, OSError):
        return ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started_s))
    words = (
        f"the running head, started {at}, has not read the file as it is now: restart the head "
        "for the changes to take effect; jobs keep running"
    )
    try:  # of a cluster of gsched up, which writes the file while the head runs
        read = Path(f"{path}.read").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return words if modified_s > started_s else ""
    return words if read != hashlib.sha256(content).hexdigest() else ""


@subcommand("show")
@click.argument("file", required=False)
@click.option("--diff", is_flag=True, help="Show only what differs from the defaults.")
def show(*, file: str | None, diff: bool, as_json: bool) -> int:
    """Show the configuration in effect, with the line of the file or the default of each key.

    Without FILE, shows the file that the commands use: that of the gsched up cluster which
    $GSCHED_HEAD names, $GSCHED_CONFIG or /etc/gsched/gsched.toml.
    """
    path, config = load_found(file)
    exists = Path(path).is_file()
    text = Path(path).read_text(encoding="utf-8") if exists else ""
    rows = [each for each in settings_of(config, text) if each.differs or not diff]
    note = _note(path, config) if exists else ""
    if as_json:
        print_json({"file": path, "exists": exists, "settings": rows, "head": note})
        return 0
    print(f"# {path}" + ("" if exists else " does not exist: all values are defaults"))
    table = ""
    for each in rows:
        if each.table != table:
            table = each.table
            name, bracket, _ = table.partition("[")
            print(f"\n[[{name}]]" if bracket else f"\n[{name}]")
        source = f"line {each.line}" if each.line else "default"
        if each.line and each.default is not None and each.differs:
            source += f"; default {value_text(each.default)}"
        print(f"{each.key} = {value_text(each.value)}  # {source}")
    if diff and not rows:
        print("# nothing differs from the defaults")
    if note:
        print_note(f"note: {note}", command="gsched")
    return 0


def _note(path: str, config: Config) -> str:
    if not Path(config.head.socket).exists():
        return ""
    return changed_since(path, Head(config.head.socket, patience_s=0.0))
