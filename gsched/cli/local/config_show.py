"""``gsched config show``: the configuration in effect, and where each value comes from."""

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import UNSET

from gsched import kept_settings
from gsched.cli.common import (
    option,
    print_json,
    print_note,
)
from gsched.cli.local.layout import ClusterLayout
from gsched.cli.local.options import subcommand
from gsched.cli.local.toml import value_text
from gsched.client import HeadClient
from gsched.config.cluster import Tables, is_sent, with_cluster
from gsched.config.environment import DEFAULT_CONFIG, config_path, environment
from gsched.config.keys import Setting, settings_of
from gsched.config.load import ConfigFile, load_config
from gsched.config.reload import NAMED, TakesEffect, takes_effect
from gsched.config.tables import Config
from gsched.errors import ConfigError, GschedError, HeadUnreachableError, NotPermittedError
from gsched.model.wording import counted
from gsched.protocol.running import RunningConfig, RunningSetting

#: How the running head gets a key of the file.
_HOW: Final = {
    TakesEffect.RELOAD: "gsched reload uses it",
    TakesEffect.RESTART: "restart the head to use it",
}


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


def changed_since(path: str, head: HeadClient) -> str:
    """Return that a running head has not read this file as it is now; empty: it has, or none runs.

    Args:
        path: of the file.
        head: that runs with it.
    """
    try:
        row = head.status().config
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (GschedError, OSError):
        return ""
    if row is None or row.digest == digest or not os.path.exists(row.path):
        return ""
    if not os.path.samefile(row.path, path):
        return ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.read_s))
    return f"the head read {path} at {at} and has not read it as it is now: gsched reload reads it"


class Shown(Setting, frozen=True, kw_only=True, omit_defaults=True):
    """One key as it is shown.

    Attributes:
        running: the value is that of the running head; else it is that of the file.
        changed: an operator has changed it on the running head, with gmgr.
        pending: what the head will have after a reload or a restart; UNSET: the same.
        removed: the file does not have it any more.
        added: the running head does not have it yet.
        of_head: the head has sent it to this node, and the file does not state it.
    """

    of_head: bool = False
    running: bool = False
    changed: bool = False
    pending: Any = UNSET
    removed: bool = False
    added: bool = False

    @property
    def waits(self) -> bool:
        """Return whether the file states it otherwise than the head has it."""
        return self.pending is not UNSET or self.removed or self.added

    @property
    def how(self) -> TakesEffect:
        """Return how the running head gets what the file states."""
        table = re.sub(r"\[\d+\]", "", self.table)
        is_whole = table in NAMED and (self.added or self.removed)
        return takes_effect(table, "name" if is_whole else self.key)


def with_running(rows: Sequence[Setting], running: Sequence[RunningSetting]) -> Iterator[Shown]:
    """Yield the keys with the values of the running head, and what the file says else.

    Queues, projects and QOS are the same by name; what else there can be several of by position.

    Args:
        rows: of the file.
        running: of the head.
    """
    there = dict(zip(_identities(running), running, strict=True))
    names = _identities(rows)
    tables = {row.table.partition("[")[0].partition(".")[0] for row in running}.union(NAMED)
    for name, row in zip(names, rows, strict=True):
        plain = msgspec.structs.asdict(row)
        here = there.pop(name, None)
        if here is None:
            of_head = row.table.partition("[")[0].partition(".")[0] in tables
            yield Shown(**plain, added=of_head)
            continue
        stated = _as_json(row.value)
        is_same = stated in (here.value, here.stated) or here.changed
        plain["value"] = row.value if here.value == stated else here.value
        plain["differs"] = here.value != _as_json(row.default)
        yield Shown(
            **plain, running=True, changed=here.changed, pending=UNSET if is_same else row.value
        )
    yield from (
        Shown(
            table=row.table,
            key=row.key,
            value=row.value,
            differs=True,
            running=True,
            changed=row.changed,
            removed=not row.changed,
        )
        for row in there.values()
    )


def _as_json(value: object) -> object:
    """Return a value as the head tells it: JSON has no tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _identities(rows: Sequence[Setting] | Sequence[RunningSetting]) -> list[tuple[str, str]]:
    kinds = {row.table: row.table.partition("[")[0] for row in rows if row.key == "name"}
    named = {
        row.table: f"{kinds[row.table]} {row.value}"
        for row in rows
        if row.key == "name" and kinds[row.table] in NAMED
    }
    found = []
    for row in rows:
        begin, bracket, inner = row.table.partition("]")
        found.append((named.get(begin + bracket, begin + bracket) + inner, row.key))
    return found


@subcommand("show")
@click.argument("file", required=False)
@option("--diff", is_flag=True, help="Show only what differs from the defaults or the file.")
def show(*, file: str | None, diff: bool, as_json: bool) -> int:
    """Show the configuration in effect, with the line of the file or the default of each key.

    Without FILE, shows the values of the running head, and which of them the file states
    otherwise; where no head runs, or the caller is not an operator, the file that the commands use:
    that of the gsched up cluster which $GSCHED_HEAD names, $GSCHED_CONFIG or
    /etc/gsched/gsched.toml. With FILE, shows this file. Secrets are never shown.
    """
    path, config = load_found(file)
    exists = Path(path).is_file()
    text = Path(path).read_text(encoding="utf-8") if exists else ""
    config, kept = (config, {}) if file else _with_kept(path, config, text)
    stated = list(settings_of(config, text))
    running, why_not = _ask(config) if file is None else (None, "")
    if running is None:
        rows = [
            Shown(**msgspec.structs.asdict(row), of_head=is_sent(row.table, row.key, text, kept))
            for row in stated
        ]
        note = " ".join(filter(None, (why_not, _note(path, config) if exists else "")))
    else:
        rows = list(with_running(stated, running.settings))
        note = _pending_note(rows)
        if not note and config.notify.url:  # of which a difference cannot be seen
            note = _note(path, config) if exists else ""
    rows = [each for each in rows if each.differs or each.waits or not diff]
    if as_json:
        head = None
        if running is not None:
            head = {"server": running.server, "started_s": running.started_s}
        print_json(
            {"file": path, "exists": exists, "running": head, "settings": rows, "head": note}
        )
        return 0
    if running is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(running.started_s))
        print(f"# running head {running.server}, started {at}")
    print(f"# {path}" + ("" if exists else " does not exist: all values are defaults"))
    _print(rows, is_running=running is not None)
    if diff and not rows:
        print("# nothing differs from the defaults")
    if note:
        print_note(f"note: {note}", command="gsched")
    return 0


def _print(rows: Sequence[Shown], *, is_running: bool) -> None:
    table = ""
    for each in rows:
        if each.table != table:
            table = each.table
            name = re.sub(r"\[\d+\]", "", table)
            title = f"[[{name}]]" if table.endswith("]") else f"[{name}]"
            of_file = is_running and not each.running and not each.added
            print(f"\n{title}" + ("  # of the file; gnode reads it when it starts" * of_file))
        print(f"{each.key} = {value_text(each.value)}  # {_source(each)}")


def _source(row: Shown) -> str:
    """Return where a value comes from, and how the head gets what the file states."""
    line = f"line {row.line}" if row.line else "default"
    if row.of_head:
        return "of the head"
    if row.added:
        return f"{line}; not in the running head: {_HOW[row.how]}"
    if row.removed:
        return f"not in the file: {_HOW[row.how]}"
    if row.pending is not UNSET:
        stated = f"line {row.line} of the file has" if row.line else "the default is"
        return f"running head; {stated} {value_text(row.pending)}: {_HOW[row.how]}"
    if row.changed:
        return "changed on the running head: gmgr unset takes it back"
    if row.line and row.default is not None and row.differs:
        line += f"; default {value_text(row.default)}"
    return line


def _ask(config: Config) -> tuple[RunningConfig | None, str]:
    """Return what the head has, or why it does not tell; neither: no head runs."""
    if not Path(config.head.socket).exists():
        return None, ""
    try:
        return HeadClient(config.head.socket, patience_s=0.0).running_config(), ""
    except NotPermittedError:
        return None, "these are the values of the file: the head shows its own only to operators"
    except HeadUnreachableError:
        return None, ""
    except GschedError as error:
        return None, f"these are the values of the file: the running head shows none: {error}"


def _with_kept(path: str, config: Config, text: str) -> tuple[Config, Tables]:
    """Return a configuration with what the head has sent to the node, and what that is.

    None has come where this is no node, or the configuration is of another cluster's.
    """
    if path != DEFAULT_CONFIG and not config.node.state_dir:
        return config, {}
    try:
        kept = kept_settings.read(config.node.state_dir).settings
        return with_cluster(ConfigFile(path=path, config=config, text=text), kept), kept
    except ConfigError as error:
        print_note(f"{error.message}: these are the values of the file alone", command="gsched")
        return config, {}


def _pending_note(rows: Sequence[Shown]) -> str:
    hows = [row.how for row in rows if row.waits]
    if not hows:
        return ""
    restarts = hows.count(TakesEffect.RESTART)
    return (
        f"{counted(len(hows), 'key')} of the file differ{'s' * (len(hows) == 1)} from the running "
        f"head: {len(hows) - restarts} by gsched reload, {restarts} by a restart of the head; "
        "jobs keep running"
    )


def _note(path: str, config: Config) -> str:
    if not Path(config.head.socket).exists():
        return ""
    return changed_since(path, HeadClient(config.head.socket, patience_s=0.0))
