"""Projects, QOS and limits as operators and coordinators have changed them on a running head. Pure.

What was set is laid over the configuration, an attribute at a time, and counts until it is unset.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Struct, ValidationError, convert, structs

from gsched.config.limits import LimitTables, ResourceLimits
from gsched.config.objects import (
    KINDS,
    attributes,
    default_of,
    limits_of,
    path_of,
    plain_attributes,
)
from gsched.config.shares import ProjectConfig, QosConfig, check_shares
from gsched.config.tables import QueueConfig
from gsched.config.units import BadValueError
from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.configuration import ObjectKind
from gsched.model.limits import shown
from gsched.model.wording import counted
from gsched.protocol.queues import QueueChange, QueueValue
from gschedd.core.requests.projects import coordinates
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: Projects and QOS that operators can create beside those of the configuration, of each kind.
MAX_CREATED: Final = 100_000
#: What coordinators may change of their own projects, and of the projects below these.
_OWN: Final = frozenset({"users", "each_user", "user"})
_BELOW: Final = _OWN | {"shares", "total", "enabled", "description", "coordinators"}
_CREATED: Final[frozenset[ObjectKind]] = frozenset({"project", "qos"})


class ObjectOverride(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was changed of one object.

    Attributes:
        created: it is not in the configuration.
        values: by attribute.
    """

    created: bool = False
    values: dict[str, QueueValue] = {}


_Tree = dict[str, object]
_Object = TypeVar("_Object", bound=Struct)
#: By kind and name; the server has the empty name.
ObjectOverrides = dict[str, dict[str, ObjectOverride]]


# --- what counts ---


def overlaid(settings: Settings, overrides: ObjectOverrides) -> Settings:
    """Return the settings with what was changed.

    Raises:
        ValidationError: an attribute cannot have its value.
    """
    if not overrides:
        return settings
    projects, qos = dict(settings.projects), dict(settings.qos)
    queues, limits = dict(settings.queues), settings.config.limits
    for name, each in overrides.get("project", {}).items():
        if each.created or name in projects:
            project = projects.get(name) or ProjectConfig(name=name)
            projects[name] = _laid_over("project", project, each.values)
    for name, each in overrides.get("qos", {}).items():
        if each.created or name in qos:
            qos[name] = _laid_over("qos", qos.get(name) or QosConfig(name=name), each.values)
    for name, each in overrides.get("queue", {}).items():
        if name in queues:
            queues[name] = _laid_over("queue", queues[name], each.values)
    for each in overrides.get("server", {}).values():
        limits = _laid_over("server", limits, each.values)
    users = dict(limits.user)
    for name, each in overrides.get("user", {}).items():
        users[name] = _laid_over("user", users.get(name, ResourceLimits()), each.values)
    config = structs.replace(settings.config, limits=structs.replace(limits, user=users))
    return structs.replace(settings, config=config, projects=projects, qos=qos, queues=queues)


def _laid_over(kind: ObjectKind, config: _Object, values: Mapping[str, QueueValue]) -> _Object:
    """Return an object with other values of attributes."""
    tree: _Tree = msgspec.to_builtins(config)
    for attribute, value in values.items():
        *tables, key = path_of(kind, attribute) or (attribute,)
        table = tree
        for name in tables:
            table = cast("_Tree", table.setdefault(name, {}))
        is_members = kind == "project" and attribute == "users"
        table[key] = _members(value) if is_members else value
    return convert(tree, type(config))


def _members(entries: object) -> dict[str, object]:
    """Return the shares of users that entries such as ``alice`` and ``bob:3`` state."""
    found: dict[str, object] = {}
    for entry in entries if isinstance(entries, tuple | list) else (str(entries),):
        name, _, shares = str(entry).partition(":")
        found[name] = int(shares) if shares.isdecimal() else shares or 1
    return found


def _entries(project: ProjectConfig) -> tuple[str, ...]:
    """Return the users of a project as `_members` reads them."""
    return tuple(
        name if shares == 1 else f"{name}:{shares}" for name, shares in project.user_shares.items()
    )


def object_values(settings: Settings) -> dict[str, dict[str, dict[str, QueueValue]]]:
    """Return all attributes that differ from the defaults, by kind and name."""
    limits = settings.config.limits
    users = {name: dict(limits_of(each)) for name, each in limits.user.items()}
    of_site = {name: each for name, each in limits_of(limits) if not name.startswith("user.")}
    named: dict[ObjectKind, Mapping[str, ProjectConfig | QosConfig | QueueConfig]] = {
        "project": settings.projects,
        "qos": settings.qos,
        "queue": settings.queues,
    }
    found: dict[str, dict[str, dict[str, QueueValue]]] = {"server": {"": dict(of_site)}}
    found["user"] = {name: dict(each) for name, each in users.items()}
    for kind, objects in named.items():
        found[kind] = {name: dict(_values(kind, each)) for name, each in objects.items()}
    return found


def shown_objects(settings: Settings, only: str) -> dict[str, dict[str, dict[str, QueueValue]]]:
    """Return the same for a user who sees nothing of other users; empty: of one who sees all."""
    objects = object_values(settings)
    if not only:
        return objects
    objects["user"] = {name: each for name, each in objects["user"].items() if name == only}
    for name, config in settings.projects.items():
        own = tuple(each for each in _entries(config) if each.partition(":")[0] == only)
        objects["project"][name]["users"] = own
    for of_kind in objects.values():
        for name, values in of_kind.items():
            of_kind[name] = {
                key: value
                for key, value in values.items()
                if not key.startswith("user.") or key.startswith(f"user.{only}.")
            }
    return objects


def _values(kind: ObjectKind, config: LimitTables) -> Iterator[tuple[str, QueueValue]]:
    for name in plain_attributes(kind):
        value = getattr(config, name)
        if name == "users" and isinstance(config, ProjectConfig):
            value = _entries(config)
        if value != default_of(kind, name):
            yield name, value
    yield from limits_of(config)


# --- changes ---


def changed_object(
    overrides: ObjectOverrides, change: QueueChange, *, configured: Settings, state: State
) -> ObjectOverrides:
    """Return what was changed, with one change more.

    Raises:
        InvalidRequestError: it cannot be changed so.
    """
    kind, name = change.kind, change.queue
    before = overrides.get(kind, {}).get(name, ObjectOverride())
    if change.verb in {"create", "delete"}:
        return _made(overrides, change, configured, state)
    values = object_values(overlaid(configured, overrides))[kind]
    if name not in values and kind != "user":
        raise _unknown(kind, name, values)
    if not path_of(kind, change.attribute):
        valid = ", ".join(attributes(kind))
        raise InvalidRequestError(
            f"{shown(change.attribute)}: not an attribute of a {kind}", hint=f"valid: {valid}"
        )
    after = {key: value for key, value in before.values.items() if key != change.attribute}
    if change.verb != "unset":
        has = values.get(name, {}).get(change.attribute, default_of(kind, change.attribute))
        after[change.attribute] = _value(change, has)
    override = structs.replace(before, values=after)
    found = _with(overrides, kind, name, override)
    try:
        overlaid(configured, found)
    except ValidationError as error:
        why = str(error).partition(" - at")[0].replace("`", "'")
        raise InvalidRequestError(
            f"{kind} {name}: {change.attribute} = {change.value}: {why}",
            hint="see gsched.toml(5)",
        ) from None
    return found


def _value(change: QueueChange, has: object) -> QueueValue:
    if change.verb == "set":
        return change.value
    if not isinstance(has, tuple) or not isinstance(change.value, tuple):
        raise InvalidRequestError(f"{change.attribute} is no list", hint="set it")
    named = {entry.partition(":")[0] for entry in change.value}
    others = tuple(str(entry) for entry in has if str(entry).partition(":")[0] not in named)
    return others + change.value if change.verb == "add" else others


def _made(
    overrides: ObjectOverrides, change: QueueChange, configured: Settings, state: State
) -> ObjectOverrides:
    """Return what was changed, with an object more or less."""
    kind, name = change.kind, change.queue
    if kind not in _CREATED:
        raise InvalidRequestError(
            f"{change.verb} {kind} is not possible", hint="set or unset its limits"
        )
    in_file = name in (configured.projects if kind == "project" else configured.qos)
    made = overrides.get(kind, {})
    if change.verb == "create":
        if in_file or (name in made and made[name].created):
            raise InvalidRequestError(f"{kind} {name} exists already", hint="see gmgr list")
        if len(made) >= MAX_CREATED:
            raise InvalidRequestError(f"{MAX_CREATED} of {kind} were created", hint="delete some")
        return _with(overrides, kind, name, ObjectOverride(created=True))
    if in_file:
        raise InvalidRequestError(
            f"{kind} {name} is configured: a running head cannot delete it",
            hint=f"remove its [[{kind}]] from gsched.toml, or: set {kind} {name} enabled=false",
        )
    if name not in made:
        raise _unknown(kind, name, object_values(overlaid(configured, overrides))[kind])
    specs = [job.spec for job in state.jobs.values()]
    jobs = sum(name == (spec.account if kind == "project" else spec.qos) for spec in specs)
    if jobs:
        option = "-A" if kind == "project" else "--qos"
        raise InvalidRequestError(
            f"{kind} {name} has {counted(jobs, 'unfinished job')}",
            hint=f"set {kind} {name} enabled=false, or give the jobs to another {kind} with "
            f"galter {option}",
        )
    projects = overlaid(configured, overrides).projects.values() if kind == "project" else ()
    below = [each.name for each in projects if each.parent == name]
    if below:
        raise InvalidRequestError(
            f"project {name} has projects below it: {', '.join(below)}",
            hint="delete these first, or give them another parent",
        )
    return without_object(overrides, kind, name)


def _with(
    overrides: ObjectOverrides, kind: ObjectKind, name: str, override: ObjectOverride
) -> ObjectOverrides:
    found = without_object(overrides, kind, name)
    if override == ObjectOverride():
        return found
    return found | {kind: {**found.get(kind, {}), name: override}}


def without_object(overrides: ObjectOverrides, kind: ObjectKind, name: str) -> ObjectOverrides:
    """Return what was changed of all other objects."""
    objects = {key: each for key, each in overrides.get(kind, {}).items() if key != name}
    found = {key: each for key, each in overrides.items() if key != kind}
    return found | {kind: objects} if objects else found


def _unknown(kind: ObjectKind, name: str, known: Mapping[str, object]) -> InvalidRequestError:
    return InvalidRequestError(
        f"unknown {kind} {shown(name)}", hint=f"known: {', '.join(known) or 'none'}"
    )


def check_objects(settings: Settings) -> None:
    """Check that projects are a tree, and that what names them names some.

    Raises:
        InvalidRequestError: the first rule that is broken.
    """
    projects, qos = tuple(settings.projects.values()), tuple(settings.qos.values())
    try:
        check_shares(projects, qos, settings.config.shares)
    except BadValueError as error:
        table, at, *keys = error.keys
        objects: tuple[ProjectConfig | QosConfig, ...] = projects if table == "project" else qos
        name = objects[at].name if isinstance(at, int) else at
        where = " ".join(map(str, (table, name, *keys[:1])))
        blank = "" if error.message.startswith(":") else " "
        raise InvalidRequestError(f"{where}{blank}{error.message}", hint=error.hint) from None


def check_coordinator(change: QueueChange, user: str, settings: Settings) -> None:
    """Check that a user may change an object as the coordinator of a project.

    Raises:
        NotPermittedError: the user may not.
    """
    name = change.queue
    project = settings.projects.get(name)
    is_own = change.kind == "project" and project is not None and coordinates(user, name, settings)
    if project is None or not is_own or change.verb in {"create", "delete"}:
        raise NotPermittedError(
            "only an operator can change queues, projects, users and QOS",
            hint="coordinators change users and limits of their projects",
        )
    is_below = coordinates(user, project.parent, settings)
    allowed = _BELOW if is_below else _OWN
    if change.attribute.partition(".")[0] not in allowed:
        raise NotPermittedError(
            f"a coordinator of {name} cannot change its {shown(change.attribute)}",
            hint=f"valid: {', '.join(sorted(allowed))}; ask an operator, "
            "or a coordinator of the project above",
        )


def hidden_objects(before: Settings, after: Settings, overrides: ObjectOverrides) -> Iterator[str]:
    """Yield the attributes that a configuration changes, and that are as an operator set them."""
    old, new = object_values(before), object_values(after)
    for kind in KINDS:
        for name, override in overrides.get(kind, {}).items():
            was, becomes = old[kind].get(name, {}), new[kind].get(name, {})
            for key in override.values:
                if was.get(key) != becomes.get(key):
                    yield f"{kind} {name}: {key}".replace("  ", " ")
