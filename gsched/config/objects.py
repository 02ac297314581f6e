"""What operators can change on a running head, and by which names: objects and their attributes.

An attribute is a key of the object's table, or a limit with its table: ``shares``,
``total.max_gpus``, ``each_user.max_gpus_of.h100``, ``user.alice.max_running``.
"""

from collections.abc import Iterator, Mapping
from typing import Final, get_args

import msgspec

from gsched.config.limits import LimitTables, ResourceLimits, SharedLimitTables
from gsched.config.shares import ProjectConfig, QosConfig
from gsched.config.tables import QUEUE_ATTRIBUTES, QueueConfig
from gsched.model.configuration import ObjectKind

KINDS: Final[tuple[ObjectKind, ...]] = get_args(ObjectKind)

#: The limit of which each type of GPU has its own.
BY_TYPE: Final = "max_gpus_of"
_USER: Final = "user"
#: What the attributes of each kind have by default; of server and users there are only limits.
DEFAULTS: Final[Mapping[ObjectKind, msgspec.Struct]] = {
    "server": SharedLimitTables(),
    "queue": QueueConfig(name="default"),
    "project": ProjectConfig(name="default"),
    "user": ResourceLimits(),
    "qos": QosConfig(name="default"),
}


def plain_attributes(kind: ObjectKind) -> tuple[str, ...]:
    """Return the attributes of a kind that are no limits."""
    if kind == "queue":
        return QUEUE_ATTRIBUTES
    tables = {"name", *SharedLimitTables.__struct_fields__, *ResourceLimits.__struct_fields__}
    return tuple(name for name in DEFAULTS[kind].__struct_fields__ if name not in tables)


def limit_tables(kind: ObjectKind) -> tuple[str, ...]:
    """Return the tables of limits of a kind; of users none, as each is one."""
    tables = SharedLimitTables.__struct_fields__
    return tuple(name for name in tables if name in DEFAULTS[kind].__struct_fields__)


def attributes(kind: ObjectKind) -> tuple[str, ...]:
    """Return all attributes of a kind, as messages name them."""
    tables = [f"{_USER}.NAME" if table == _USER else table for table in limit_tables(kind)]
    limits = [each + ".NAME" * (each == BY_TYPE) for each in ResourceLimits.__struct_fields__]
    if kind == "user":
        return tuple(limits)
    within = (f"{table}.{limit}" for table in tables for limit in limits)
    return (*plain_attributes(kind), *within)


def path_of(kind: ObjectKind, attribute: str) -> tuple[str, ...]:
    """Return the keys on the way to an attribute; nothing: there is no such one."""
    if attribute in plain_attributes(kind):
        return (attribute,)
    table, _, rest = attribute.partition(".")
    if kind == "user":
        return _limit_path(attribute)
    if table not in limit_tables(kind):
        return ()
    if table != _USER:
        path = _limit_path(rest)
        return (table, *path) if path else ()
    name, by_type, gpu_type = rest.partition(f".{BY_TYPE}.")
    if by_type:
        return (table, name, BY_TYPE, gpu_type) if name and gpu_type else ()
    name, _, limit = rest.rpartition(".")
    path = _limit_path(limit)
    return (table, name, *path) if name and path else ()


def _limit_path(limit: str) -> tuple[str, ...]:
    table, _, gpu_type = limit.partition(".")
    if table == BY_TYPE:
        return (table, gpu_type) if gpu_type else ()
    return (limit,) if limit in ResourceLimits.__struct_fields__ else ()


def default_of(kind: ObjectKind, attribute: str) -> object:
    """Return the default of an attribute; None: it is a limit."""
    is_plain = attribute in plain_attributes(kind)
    return getattr(DEFAULTS[kind], attribute) if is_plain else None


def limits_of(tables: LimitTables | ResourceLimits) -> Iterator[tuple[str, float]]:
    """Yield all limits that are stated, by attribute."""
    if isinstance(tables, ResourceLimits):
        yield from _flat((), msgspec.to_builtins(tables))
        return
    names = (name for name in SharedLimitTables.__struct_fields__ if hasattr(tables, name))
    for name in names:
        yield from _flat((name,), msgspec.to_builtins(getattr(tables, name)))


def _flat(keys: tuple[str, ...], value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat((*keys, key), each)
    elif isinstance(value, (int, float)):
        yield ".".join(keys), value
