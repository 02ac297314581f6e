"""Which keys a running daemon takes from a changed file, and how two configurations differ. Pure.

`RELOADED` is the one table of it: the daemons, ``gsched config show`` and a test of gsched.toml(5)
read it. A key that is not in it counts after a restart of its daemon.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import structs

from gsched.config.idle_gpus import IdleGpusConfig
from gsched.config.keys import settings_of
from gsched.config.nodes import OutsideConfig, StagingConfig
from gsched.config.notify import NotifyConfig
from gsched.config.preemption import PreemptionConfig
from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig, SharesConfig
from gsched.config.tables import Config, LimitsConfig, PowerConfig, QueueConfig
from gsched.config.tasks import TasksConfig
from gsched.config.web import WebConfig
from gsched.model.configuration import ConfigChange

Daemon = Literal["gschedd", "gnode"]


class TakesEffect(StrEnum):
    """When a changed key counts."""

    RELOAD = "reload"
    RESTART = "restart"
    LOGIN = "login"


#: Keys of ``[idle_gpus]`` that gnode reads.
IDLE_KEYS_OF_NODES: Final = ("window_s", "busy_percent", "grace_s")
#: Keys that a reload applies, by daemon and table. All others of the daemon need a restart.
RELOADED: Final[Mapping[Daemon, Mapping[str, tuple[str, ...]]]] = {
    "gschedd": {
        "head": (
            "addresses",
            "administrators",
            "allow_root_jobs",
            "default_walltime_s",
            "detach_timeout_s",
            "lease_s",
            "master_port_first",
            "master_port_last",
            "max_array_elements",
            "max_queued_per_user",
            "max_user_priority",
            "min_uid",
            "operator_hosts",
            "operators",
            "operators_enter_jobs",
            "private",
            "single_user",
            "unknown_resource",
            "unsatisfiable",
        ),
        "queue": tuple(name for name in QueueConfig.__struct_fields__ if name != "policy"),
        "project": ProjectConfig.__struct_fields__,
        "qos": QosConfig.__struct_fields__,
        "shares": SharesConfig.__struct_fields__,
        "priority": PriorityConfig.__struct_fields__,
        "preemption": PreemptionConfig.__struct_fields__,
        "history": (
            *("keep_days", "keep_rows", "keep_jobs_days", "keep_jobs_per_user", "accounting"),
        ),
        "balance": ("predicted_times",),
        "fabric": ("inside", "between", "inside_of", "gpu_speeds", "link"),
        "training": ("refuse_impossible", "move_s", "profile"),
        "tasks": TasksConfig.__struct_fields__,
        "web": WebConfig.__struct_fields__,
        "notify": NotifyConfig.__struct_fields__,
        "moves": ("at_once", "checkpoint_timeout_s", "warm", "prepare_timeout_s"),
        "power": PowerConfig.__struct_fields__,
        "containers": ("allowed",),
        "idle_gpus": tuple(
            key for key in IdleGpusConfig.__struct_fields__ if key not in IDLE_KEYS_OF_NODES
        ),
        "limits": LimitsConfig.__struct_fields__,
    },
    "gnode": {
        "node": (
            *("directory_wait_s", "enforce_memory", "heartbeat_s", "job_open_files", "least_spool"),
            *("login_shell", "no_new_privileges", "sample_s"),
            *("prolog", "prolog_user", "prolog_timeout_s"),
            *("epilog", "epilog_user", "epilog_timeout_s"),
            *("health_check", "gpu_check_interval_s"),
        ),
        "containers": ("mount_home", "mounts"),
        "staging": StagingConfig.__struct_fields__,
        "outside_gpu_use": OutsideConfig.__struct_fields__,
    },
}
#: Keys that only gnode reads, of tables that both daemons read.
_KEYS_OF_NODES: Final = {
    "containers": ("mount_home", "mounts"),
    "idle_gpus": IDLE_KEYS_OF_NODES,
    "gpu_share": (
        *("runtime", "driver", "fail", "patience_s", "drain_max_s", "overlaps_max"),
        *("opportunistic_percent", "overlap_action", "watchdog_s", "context_memory"),
        *("context_reserve", "mps_pipe_dir", "hami_library", "hami_sm_limit", "mig", "options"),
    ),
}
#: Lists of tables that are the same by their names, not by their places.
NAMED: Final = ("queue", "project", "qos")
#: Tables that the head does not read.
TABLES_OF_NODES: Final = ("node", "staging", "outside_gpu_use", "login")


def takes_effect(table: str, key: str) -> TakesEffect:
    """Return when a changed key counts.

    Args:
        table: ``head``, ``queue``, ``training.sia``.
        key: in it.
    """
    if table == "login":
        return TakesEffect.LOGIN
    tables = RELOADED[daemon_of(table, key)]
    parts = (*table.split("."), key)
    above = ((".".join(parts[:at]), parts[at]) for at in range(1, len(parts)))
    is_reloaded = any(name in tables.get(parent, ()) for parent, name in above)
    return TakesEffect.RELOAD if is_reloaded else TakesEffect.RESTART


def daemon_of(table: str, key: str) -> Daemon:
    """Return which daemon reads a key; of ``[login]`` it is neither."""
    name = table.partition(".")[0]
    is_of_node = name in TABLES_OF_NODES or key in _KEYS_OF_NODES.get(name, ())
    return "gnode" if is_of_node or table == "gpu_share.mig" else "gschedd"


def reloaded(running: Config, wanted: Config, daemon: Daemon) -> Config:
    """Return what a daemon runs with after a reload: its keys that need a restart stay as they are.

    Args:
        running: what it runs with.
        wanted: of the file.
    """
    tables: dict[str, object] = {}
    for table, keys in RELOADED[daemon].items():
        if table == "queue":
            policy = running.queue[0].policy
            tables[table] = tuple(structs.replace(each, policy=policy) for each in wanted.queue)
        elif table in NAMED:
            tables[table] = getattr(wanted, table)
        else:
            source = getattr(wanted, table)
            taken = {key: getattr(source, key) for key in keys}
            tables[table] = structs.replace(getattr(running, table), **taken)
    return structs.replace(running, **tables)


def differences(before: Config, after: Config, daemon: Daemon) -> Iterator[ConfigChange]:
    """Yield the keys of a daemon that differ; queues, projects and QOS are the same by name.

    A value that holds a secret is redacted; it is compared as it is.
    """
    if before == after:  # as at most welcomes of a node: no lists of all keys
        return
    old, new = _values(before, daemon), _values(after, daemon)
    for kind in NAMED if daemon == "gschedd" else ():
        names = [[each.name for each in getattr(config, kind)] for config in (before, after)]
        for name in dict.fromkeys([*names[0], *names[1]]):
            if name not in names[0] or name not in names[1]:
                there = {"before": name} if name in names[0] else {"after": name}
                yield ConfigChange(table=f"{kind} {name}", **there)
    tables = {table for table, _ in old} & {table for table, _ in new}
    for table, key in dict.fromkeys([*old, *new]):
        value, shown = old.get((table, key), (None, ""))
        wanted, shown_wanted = new.get((table, key), (None, ""))
        is_named = table.partition(" ")[0] in NAMED
        if (value, shown) != (wanted, shown_wanted) and (table in tables or not is_named):
            yield ConfigChange(table=table, key=key, before=shown, after=shown_wanted)
    first = [config.queue[0].name for config in (before, after)]
    if daemon == "gschedd" and first[0] != first[1]:
        yield ConfigChange(
            table="queue", key="default", before=f'"{first[0]}"', after=f'"{first[1]}"'
        )


def _values(config: Config, daemon: Daemon) -> dict[tuple[str, str], tuple[object, str]]:
    """Return the value of each key, as it is and as it is shown, by table and key."""
    found: dict[tuple[str, str], tuple[object, str]] = {}
    full = settings_of(config, "", with_secrets=True)
    for row, value in zip(settings_of(config, ""), (each.value for each in full), strict=True):
        name, _, rest = row.table.partition("[")
        table = row.table
        if name in NAMED:
            at, _, inner = rest.partition("]")
            table = f"{name} {getattr(config, name)[int(at)].name}{inner}"
            if row.key == "name" and not inner:
                continue
        if name != "login" and daemon_of(name, row.key) == daemon:
            found[table, row.key] = (value, msgspec.json.encode(row.value).decode())
    return found
