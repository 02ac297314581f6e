"""What operators have changed on a running head, beside the configuration, and of queues. Pure.

The configuration says how queues are; what an operator changes counts until it is changed again or
unset, also after a restart, whatever the configuration says then.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct, ValidationError, convert, structs

from gsched.config.tables import QUEUE_ATTRIBUTES, QueueConfig
from gsched.errors import InvalidRequestError, UnknownQueueError
from gsched.model.limits import MAX_WORD
from gsched.model.wording import counted
from gsched.protocol.queues import QueueChange
from gschedd.core.requests.objects import (
    ObjectOverrides,
    changed_object,
    check_objects,
    hidden_objects,
    overlaid,
    without_object,
)
from gschedd.core.state.indexing import relimit, reprioritize
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: Queues that operators can create beside those of the configuration.
MAX_CREATED = 1000


class QueueOverride(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was changed of one queue, by the keys of ``[[queue]]``; None: it is as configured.

    Attributes:
        created: it is not in the configuration.
    """

    enabled: bool | None = None
    started: bool | None = None
    priority: int | None = None
    preempt_mode: str | None = None
    preempt_min_run_s: float | None = None
    max_walltime_s: float | None = None
    default_walltime_s: float | None = None
    walltime_extension: str | None = None
    walltime_extensions_per_user: int | None = None
    allow_users: tuple[str, ...] | None = None
    allow_groups: tuple[str, ...] | None = None
    deny_users: tuple[str, ...] | None = None
    detach_timeout_s: float | None = None
    max_interactive_walltime_s: float | None = None
    max_detach_timeout_s: float | None = None
    default_memory_per_cpu_bytes: int | None = None
    default_memory_per_gpu_bytes: int | None = None
    created: bool = False


class Overrides(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that operators have changed."""

    scheduling: bool = True
    queues: dict[str, QueueOverride] = {}
    objects: ObjectOverrides = {}


def overridden(configured: Settings, overrides: Overrides) -> Settings:
    """Return the settings with what operators have changed.

    Raises:
        ValidationError: an attribute of an object cannot have its value any more.
    """
    queues = dict(configured.queues)
    for name, each in overrides.queues.items():
        queue = queues.get(name)
        if queue is None:
            if not each.created:
                continue  # it is no longer configured
            policy = next(iter(configured.queues.values())).policy  # the same for all queues
            queue = QueueConfig(name=name, policy=policy, enabled=False, started=False)
        changes = {n: getattr(each, n) for n in QUEUE_ATTRIBUTES}
        queues[name] = structs.replace(
            queue, **{name: value for name, value in changes.items() if value is not None}
        )
    settings = structs.replace(configured, queues=queues, scheduling=overrides.scheduling)
    return overlaid(settings, overrides.objects)


def in_force(configured: Settings, overrides: Overrides) -> Settings:
    """Return the settings with what operators have changed, which fits together.

    Raises:
        InvalidRequestError: it does not.
    """
    settings = overridden(configured, overrides)
    check_objects(settings)
    return settings


def changed(
    overrides: Overrides, change: QueueChange, *, configured: Settings, state: State
) -> Overrides:
    """Return what operators have changed, with one change more.

    Raises:
        UnknownQueueError: there is no such queue.
        InvalidRequestError: it cannot be changed so.
    """
    if change.kind != "queue" or "." in change.attribute:
        before = structs.replace(overrides, objects={})
        objects = changed_object(
            overrides.objects, change, configured=overridden(configured, before), state=state
        )
        return structs.replace(overrides, objects=objects)
    if not change.queue:
        return _with_scheduling(overrides, change)
    match change.verb:
        case "create":
            return _created(overrides, change.queue, configured)
        case "delete":
            return _deleted(overrides, change.queue, configured, state)
        case _:
            return _altered(overrides, change, configured)


def hidden_changes(before: Settings, after: Settings, overrides: Overrides) -> Iterator[str]:
    """Yield the keys that a configuration changes, and that are as an operator has set them."""
    for name, override in overrides.queues.items():
        old, new = before.queues.get(name), after.queues.get(name)
        for attribute in QUEUE_ATTRIBUTES if old is not None and new is not None else ():
            is_set = getattr(override, attribute) is not None
            if is_set and getattr(old, attribute) != getattr(new, attribute):
                yield f"queue {name}: {attribute}"
    yield from hidden_objects(before, after, overrides.objects)


def orphans(state: State, settings: Settings) -> Iterator[str]:
    """Yield of which projects and QOS there are unfinished jobs, but no table any more."""
    for kind, jobs, known, option in _named_by_jobs(state, settings):
        for gone in sorted(jobs.keys() - known.keys() - {""}) if known else ():
            yield (
                f"{kind} {gone} has {counted(jobs[gone], 'unfinished job')}, and does not exist: "
                f"nothing limits them there; add its [[{kind}]] with enabled = false, or give the "
                f"jobs to another {kind} with galter {option}"
            )


def _named_by_jobs(
    state: State, settings: Settings
) -> Iterator[tuple[str, Counter[str], Mapping[str, object], str]]:
    """Yield the projects and QOS of unfinished jobs, those that there are, and galter's option."""
    yield (
        "project",
        Counter(job.spec.account for job in state.jobs.values()),
        settings.projects,
        "-A",
    )
    yield "qos", Counter(job.spec.qos for job in state.jobs.values()), settings.qos, "--qos"


def reconfigure(state: State, settings: Settings, before: Settings) -> None:
    """Prepare the state for other settings: what jobs have got stays theirs, all are looked at.

    Raises:
        InvalidRequestError: a queue, project or QOS with unfinished jobs is not there any more.
    """
    for kind, jobs, known, option in _named_by_jobs(state, settings):
        old = (before.projects if kind == "project" else before.qos).keys()
        for gone in (old & jobs.keys()) - known.keys():
            raise InvalidRequestError(
                f"{kind} {gone} has {counted(jobs[gone], 'unfinished job')}, and would not exist",
                hint=f"keep its [[{kind}]] with enabled = false, or give the jobs to another "
                f"{kind} with galter {option}",
            )
    used = {queue for queue, _ in state.counts}
    for gone in (state.queue_priorities.keys() & used) - settings.queues.keys():
        raise InvalidRequestError(
            f"queue {gone} has {counted(state.jobs_in(gone), 'unfinished job')}, "
            "and would not exist",
            hint="keep its [[queue]] with enabled = false, or move or delete the jobs first: "
            f"gselect -q {gone}",
        )
    reprioritize(state, {name: queue.priority for name, queue in settings.queues.items()})
    state.usage.configure(settings.config.shares)
    relimit(state, settings.limit_rules())
    state.caches.sizes.clear()
    state.dirty.mark_all()


def _with_scheduling(overrides: Overrides, change: QueueChange) -> Overrides:
    if change.attribute != "scheduling" or change.verb not in {"set", "unset"}:
        raise InvalidRequestError(
            f"{change.verb} {change.attribute or 'server'}: not possible on a running head",
            hint="only scheduling can be set; all else is in gsched.toml(5)",
        )
    value = True if change.verb == "unset" else _flag(change)
    return structs.replace(overrides, scheduling=value)


def _created(overrides: Overrides, name: str, configured: Settings) -> Overrides:
    if name in configured.queues or name in overrides.queues:
        raise InvalidRequestError(f"queue {name} exists already", hint="see gstat -Q")
    if not name.replace("-", "").replace("_", "").isalnum() or len(name) > MAX_WORD:
        raise InvalidRequestError(
            f"queue name {name[:50]!r} is not possible", hint="use letters, digits, - and _"
        )
    if sum(each.created for each in overrides.queues.values()) >= MAX_CREATED:
        raise InvalidRequestError(f"{MAX_CREATED} queues were created", hint="delete some first")
    return _with_queue(overrides, name, QueueOverride(created=True))


def _deleted(overrides: Overrides, name: str, configured: Settings, state: State) -> Overrides:
    if name in configured.queues:
        raise InvalidRequestError(
            f"queue {name} is configured: a running head cannot delete it",
            hint=f"remove its [[queue]] from gsched.toml, or: set queue {name} enabled = False",
        )
    if name not in overrides.queues:
        raise _unknown(name)
    jobs = state.jobs_in(name)
    if jobs:
        raise InvalidRequestError(
            f"queue {name} has {jobs} unfinished jobs", hint="move them with gmove, or delete them"
        )
    queues = {other: each for other, each in overrides.queues.items() if other != name}
    objects = without_object(overrides.objects, "queue", name)
    return structs.replace(overrides, queues=queues, objects=objects)


def _altered(overrides: Overrides, change: QueueChange, configured: Settings) -> Overrides:
    name, attribute = change.queue, change.attribute
    before = overridden(configured, overrides).queues.get(name)
    if before is None:
        raise _unknown(name)
    if attribute not in QUEUE_ATTRIBUTES:
        raise InvalidRequestError(
            f"{attribute}: not an attribute that a running head can change",
            hint=f"valid: {', '.join(QUEUE_ATTRIBUTES)}; all else is in gsched.toml(5), [[queue]]",
        )
    value = None if change.verb == "unset" else _value(before, change)
    override = overrides.queues.get(name, QueueOverride())
    return _with_queue(overrides, name, structs.replace(override, **{attribute: value}))


def _value(before: QueueConfig, change: QueueChange) -> object:
    """Return the new value of an attribute, of its type.

    Raises:
        InvalidRequestError: it cannot have this value.
    """
    value: object = change.value
    old = getattr(before, change.attribute)
    if change.verb in {"add", "remove"}:
        if not isinstance(old, tuple) or not isinstance(value, tuple):
            raise InvalidRequestError(f"{change.attribute} is no list", hint="set it")
        others = tuple(each for each in old if each not in value)
        value = others + value if change.verb == "add" else others
    fields = {name: getattr(before, name) for name in QueueConfig.__struct_fields__}
    try:
        made = convert(fields | {change.attribute: value}, QueueConfig)
    except ValidationError as error:
        why = str(error).partition(" - at")[0].replace("`", "'")
        raise InvalidRequestError(
            f"queue {before.name}: {change.attribute} = {change.value}: {why}",
            hint="see gsched.toml(5), [[queue]]",
        ) from None
    return getattr(made, change.attribute)


def _with_queue(overrides: Overrides, name: str, override: QueueOverride) -> Overrides:
    queues = dict(overrides.queues)
    if override == QueueOverride():
        queues.pop(name, None)
    else:
        queues[name] = override
    return structs.replace(overrides, queues=queues)


def _flag(change: QueueChange) -> bool:
    if not isinstance(change.value, bool):
        raise InvalidRequestError(f"{change.attribute} is true or false, not {change.value}")
    return change.value


def _unknown(name: str) -> UnknownQueueError:
    return UnknownQueueError(f"unknown queue {name[:100]!r}", hint="see gstat -Q")
