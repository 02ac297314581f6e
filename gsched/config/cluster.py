"""Which keys of nodes belong to the cluster: the head's file states them for all nodes. Pure.

`OF_CLUSTER` is the one table of it: head, nodes, ``gsched config show`` and a test of
gsched.toml(5) read it. A key that is not in it is the host's own, and a head cannot set it.
"""

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from gsched.config.errors import from_validation, located
from gsched.config.keys import settings_of
from gsched.config.load import ConfigFile
from gsched.config.nodes import LoginConfig
from gsched.config.reload import IDLE_KEYS_OF_NODES, RELOADED, TABLES_OF_NODES, daemon_of
from gsched.config.rules import check
from gsched.config.tables import Config
from gsched.config.units import BadValueError, plain_numbers
from gsched.errors import ConfigError
from gsched.model.configuration import SettingOrigin, SettingRow

#: Values by table and key, as JSON has them.
Tables = Mapping[str, Mapping[str, Any]]

#: Keys that the head states for its nodes, unless the node's own file states them.
OF_CLUSTER: Final[Mapping[str, tuple[str, ...]]] = {
    "node": (
        *RELOADED["gnode"]["node"],
        *("container_runtimes", "job_processes", "metrics_labels", "private_tmp"),
    ),
    "containers": RELOADED["gnode"]["containers"],
    "gpu_share": (
        *("fail", "patience_s", "drain_max_s", "overlaps_max", "opportunistic_percent"),
        *("overlap_action", "watchdog_s", "context_memory", "context_reserve"),
    ),
    "outside_gpu_use": RELOADED["gnode"]["outside_gpu_use"],
    "idle_gpus": IDLE_KEYS_OF_NODES,
    "staging": RELOADED["gnode"]["staging"],
    "login": LoginConfig.__struct_fields__,
}
#: How errors name what comes from the head.
WHERE: Final = "settings of the head"
#: Programs that gnode's user, root, runs: a head may name only those that the host has for it.
_PROGRAMS: Final = ("prolog", "epilog")


def is_sent(table: str, key: str, own: str, settings: Tables) -> bool:
    """Return whether a value is of the head.

    Args:
        table: as the file writes it, ``node.health_check[0]``.
        key: in it.
        own: the file of the host.
        settings: of the head.
    """
    return _origin(table, key, _document(own), settings) == "head"


def stated(file: ConfigFile) -> dict[str, dict[str, str]]:
    """Return what a head's file, which has been checked, states for nodes; values as JSON."""
    document = _document(file.text)
    found = {
        table: {
            key: msgspec.json.encode(document[table][key]).decode()
            for key in keys
            if key in document.get(table, {})
        }
        for table, keys in OF_CLUSTER.items()
    }
    return {table: values for table, values in found.items() if values}


def read_sent(settings: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Return the values of settings as they are sent.

    Raises:
        ConfigError: one is no JSON.
    """
    try:
        return {
            table: {key: msgspec.json.decode(value) for key, value in values.items()}
            for table, values in settings.items()
        }
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{WHERE}: they cannot be read: {error}", hint="see its log") from None


def digest_of(settings: Mapping[str, Mapping[str, str]]) -> str:
    """Return what tells settings from others: SHA-256 of their JSON."""
    return hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()


def with_cluster(own: ConfigFile, settings: Tables) -> Config:
    """Return the configuration of a host: its own file, and what it does not state by the head.

    What a head must not set, or this version does not know, is left out.

    Raises:
        ConfigError: a value of the head is wrong, here or together with the file; the message says
            that it is of the head.
    """
    if not settings:
        return own.config
    document = _document(own.text)
    merged = dict(document)
    for table, keys in OF_CLUSTER.items():
        sent, states = settings.get(table, {}), document.get(table, {})
        new = {key: sent[key] for key in keys if key in sent and key not in states}
        _check_programs(new, os.path.dirname(os.path.abspath(own.path)))
        if new:
            merged[table] = {**new, **states}
    try:
        config = msgspec.convert(merged, Config)
        check(config)
    except BadValueError as bad:
        raise located(bad.keys, bad.message, hint=bad.hint, text="", where=WHERE) from None
    except msgspec.ValidationError as error:
        raise from_validation(error, root=Config, document=merged, text="", where=WHERE) from None
    return config


def overridden(own: ConfigFile, settings: Tables) -> Iterator[str]:
    """Yield the keys for which a host's own file states another value than the head."""
    document = _document(own.text)
    for table, keys in OF_CLUSTER.items():
        sent, states = settings.get(table, {}), document.get(table, {})
        yield from (
            f"[{table}] {key}"
            for key in keys
            if key in sent and key in states and sent[key] != states[key]
        )


def node_settings(
    running: Config,
    wanted: Config,
    own: ConfigFile,
    settings: Tables,
    unused: Mapping[str, str],
) -> Iterator[SettingRow]:
    """Yield all keys that a node reads, with their values and origins.

    Args:
        running: with which the node runs.
        wanted: by its file and the head's settings; what differs needs a restart.
        own: its file.
        settings: of the head.
        unused: keys of ``[node]`` that have no effect on this host, with the reasons.
    """
    document = _document(own.text)
    running = structs.replace(running, login=wanted.login)  # read at each login, not by gnode
    values = [
        {
            (row.table, row.key): msgspec.json.encode(row.value).decode()
            for row in settings_of(config, "")
            if _is_of_node(row.table, row.key)
        }
        for config in (running, wanted)
    ]
    now, then = values
    for table, key in dict.fromkeys([*now, *then]):
        value, pending = now.get((table, key), ""), then.get((table, key), "null")
        yield SettingRow(
            table=table,
            key=key,
            value=value,
            origin=_origin(table, key, document, settings),
            pending=pending if pending != value else "",
            unused=unused.get(key, "") if table == "node" else "",
        )


def _is_of_node(table: str, key: str) -> bool:
    name = table.partition("[")[0]
    return name.partition(".")[0] in TABLES_OF_NODES or daemon_of(name, key) == "gnode"


def _origin(table: str, key: str, document: Tables, settings: Tables) -> SettingOrigin:
    name, *inner = table.partition("[")[0].split(".")
    outer = inner[0] if inner else key
    if outer in document.get(name, {}):
        return "own"
    has_come = outer in OF_CLUSTER.get(name, ()) and outer in settings.get(name, {})
    return "head" if has_come else "default"


def _document(text: str | None) -> dict[str, Any]:
    return plain_numbers(tomllib.loads(text or ""), Config)


def _check_programs(values: Mapping[str, Any], directory: str) -> None:
    """Refuse programs for root that are not in the directory of the host's configuration.

    Who may have jobs run as users, a head, does not get root on a node by naming a shell.

    Raises:
        ConfigError: one is elsewhere.
    """
    named = [(f"[node] {key}", values[key]) for key in _PROGRAMS if values.get(key)]
    checks = values.get("health_check", ())
    named += [
        (f"[[node.health_check]] {each.get('name')}: program", each.get("program"))
        for each in (checks if isinstance(checks, list) else ())
        if isinstance(each, dict)
    ]
    for place, path in named:
        if isinstance(path, str) and not os.path.normpath(path).startswith(f"{directory}/"):
            raise ConfigError(
                f"{WHERE}: {place} = {path!r} is not in {directory} of this host",
                hint=f"a head names programs of root only in {directory}: put it there, or state "
                "the key in the file of this host",
            )
