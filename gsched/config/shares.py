"""The tables ``[[project]]``, ``[[qos]]``, ``[shares]`` and ``[priority]``, and their rules."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from gsched.config.limits import LimitTables, SharedLimitTables
from gsched.config.preemption import OwnMinRun, OwnPreemptMode
from gsched.config.units import BadValueError
from gsched.config.words import MAX_WEIGHT, Seconds, Weight

#: The top of the tree of projects; no project has this name.
ROOT: Final = "root"
_MAX_SHARES: Final = 1_000_000
_NAME: Final = 64  # characters
Shares = Annotated[int, msgspec.Meta(ge=1, le=_MAX_SHARES)]


class ProjectConfig(LimitTables, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[project]]``: users who share resources, and how much of them is theirs.

    Attributes:
        name: what users write after ``-A``.
        parent: the project that it is a part of; ``root``: none.
        shares: in proportion to those of the other projects and users of its parent.
        users: who may submit for it, and their shares; a list gives each of them one.
        coordinators: users who may hold, release and delete its jobs and those of all projects
            below it.
        description: for people.
        enabled: whether it accepts jobs.
    """

    name: str
    parent: str = ROOT
    shares: Shares = 1
    users: dict[str, Shares] | tuple[str, ...] = ()
    coordinators: tuple[str, ...] = ()
    description: str = ""
    enabled: bool = True

    @property
    def user_shares(self) -> Mapping[str, int]:
        """Return the shares of each user."""
        return self.users if isinstance(self.users, dict) else dict.fromkeys(self.users, 1)


class QosConfig(SharedLimitTables, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[qos]]``: a quality of service.

    Attributes:
        name: what users write after ``--qos``.
        priority: of its jobs; ``[priority] qos`` weighs it.
        preempts: other QOS whose jobs give way to its jobs, with ``qos`` in ``[preemption] by``.
        preempt_mode, preempt_min_run_s: as ``mode`` and ``min_run_s`` of ``[preemption]``, for its
            jobs; empty and -1: these.
        allow_users, allow_projects: whose jobs may have it; both empty: all.
        enabled: whether it accepts jobs.
    """

    name: str
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    preempts: tuple[str, ...] = ()
    preempt_mode: OwnPreemptMode = ""
    preempt_min_run_s: OwnMinRun = -1.0
    allow_users: tuple[str, ...] = ()
    allow_projects: tuple[str, ...] = ()
    enabled: bool = True


class SharesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[shares]``: how usage is counted, and what users without a project may do.

    Attributes:
        half_life_s: usage counts half after this time; 0: it is never forgotten.
        cpu, memory_gb, gpu: the weight of a CPU, a GB of memory and a GPU for a second.
        gpus: of GPUs of some types, instead of ``gpu``.
        combine: a job is charged for the largest of the three (``max``) or for all (``sum``).
        default_project: of jobs that name none, of users who are in no project; empty: none.
        enforce: jobs of users who are in no project are refused, unless there is a default one.
        over_budget: what becomes of a job for which a budget of GPU-hours has too little left: it
            waits for the next period (``wait``), or is refused (``refuse``).
    """

    half_life_s: Seconds = 604800.0
    cpu: Weight = 1.0
    memory_gb: Weight = 0.125
    gpu: Weight = 16.0
    gpus: dict[str, Weight] = {}
    combine: Literal["max", "sum"] = "max"
    default_project: str = ""
    enforce: bool = False
    over_budget: Literal["wait", "refuse"] = "wait"


class PriorityConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[priority]``: what a waiting job's priority is the sum of, each by its weight.

    Attributes:
        fair_share: 1 for the user whose usage is lowest for its shares, 0 for the highest.
        age: how long the job waits, 1 from ``max_age_s`` on.
        size: the largest part of the CPUs, memory or GPUs of all nodes that the job requests.
        queue: the priority of its queue.
        qos: the priority of its QOS.
        own: its own, which ``[head] max_user_priority`` limits.
        recompute_s: so often, at most, all priorities are computed again.
    """

    fair_share: Weight = 1000.0
    age: Weight = 0.0
    max_age_s: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 604800.0
    size: Annotated[float, msgspec.Meta(ge=-MAX_WEIGHT, le=MAX_WEIGHT)] = 0.0
    queue: Weight = 1.0
    qos: Weight = 1.0
    own: Weight = 1.0
    recompute_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0


def check_shares(
    projects: Sequence[ProjectConfig], qos: Sequence[QosConfig], shares: SharesConfig
) -> None:
    """Check that the projects are a tree, and that what names them names some.

    Raises:
        BadValueError: the first rule that is broken.
    """
    _check_names("project", [each.name for each in projects])
    _check_names("qos", [each.name for each in qos])
    _check_preempts(qos)
    names = {each.name: each for each in projects}
    _check_parents(projects, names)
    for at, project in enumerate(projects):
        _check_users(at, project)
    users = {user for project in projects for user in project.user_shares}
    for at, project in enumerate(projects):
        for name in project.coordinators:
            if name not in users:
                raise BadValueError(
                    ("project", at, "coordinators"),
                    f": {name!r} is a user of no project",
                    hint="add the user to users of a project, or remove the coordinator",
                )
    named = [(("qos", at, "allow_projects"), each.allow_projects) for at, each in enumerate(qos)]
    default = (shares.default_project,) if shares.default_project else ()
    for keys, mentioned in (*named, (("shares", "default_project"), default)):
        _check_known(keys, mentioned, names)


def _check_preempts(qos: Sequence[QosConfig]) -> None:
    """Check that no QOS preempts itself, or one that it gives way to."""
    below = {each.name: set(each.preempts) for each in qos}
    for at, each in enumerate(qos):
        for name in each.preempts:
            if name not in below:
                problem, hint = f": unknown QOS {name!r}", "name a [[qos]]"
            elif name == each.name or each.name in _preempted(below, name):
                problem = f": {name!r} is {each.name!r} itself, or preempts it"
                hint = "let only one of two QOS give way to the other"
            else:
                continue
            raise BadValueError(("qos", at, "preempts"), problem, hint=hint)


def _preempted(below: Mapping[str, set[str]], name: str) -> set[str]:
    """Return the QOS that one preempts, and that those preempt."""
    found: set[str] = set()
    rest = [name]
    while rest:
        more = below.get(rest.pop(), set()) - found
        found |= more
        rest += more
    return found


def _check_parents(projects: Sequence[ProjectConfig], names: Mapping[str, ProjectConfig]) -> None:
    for at, project in enumerate(projects):
        if project.parent != ROOT:
            _check_known(("project", at, "parent"), (project.parent,), names)
    for at, project in enumerate(projects):
        way = [each.name for each in ancestry(names, project.name)]
        if names[way[-1]].parent != ROOT:
            circle = way[way.index(names[way[-1]].parent) :]
            raise BadValueError(
                ("project", at, "parent"),
                f"makes a circle: {' is below '.join([*circle, circle[0]])}",
                hint=f'give one of them another parent, or "{ROOT}"',
            )


def _check_known(
    keys: tuple[str | int, ...], mentioned: Sequence[str], names: Collection[str]
) -> None:
    for name in mentioned:
        if name not in names:
            hint = "name a [[project]]" + (f', or "{ROOT}" for none' if "parent" in keys else "")
            raise BadValueError(keys, f": unknown project {name!r}", hint=hint)


def ancestry(projects: Mapping[str, ProjectConfig], name: str) -> Iterator[ProjectConfig]:
    """Yield a project, its parent, and so on, each once."""
    seen: set[str] = set()
    while name in projects and name not in seen:
        seen.add(name)
        yield projects[name]
        name = projects[name].parent


def _check_names(table: str, names: Sequence[str]) -> None:
    for at, name in enumerate(names):
        plain = name.replace("-", "").replace("_", "").replace(".", "")
        if not plain.isalnum() or len(name) > _NAME:
            raise BadValueError(
                (table, at, "name"),
                f": invalid name {name[:_NAME]!r}",
                hint=f"use letters, digits, '-', '_' and '.', at most {_NAME}",
            )
        if name == ROOT and table == "project":
            raise BadValueError(
                (table, at, "name"), f": {ROOT!r} is the top of the tree", hint="use another name"
            )
        if name in names[:at]:
            raise BadValueError(
                (table, at, "name"), f": duplicate name {name!r}", hint="remove one of them"
            )


def _check_users(at: int, project: ProjectConfig) -> None:
    for key, names in (("users", project.users), ("coordinators", project.coordinators)):
        seen: set[str] = set()
        for name in names:
            if not name or not name.isprintable() or set(name) & set(" ,:="):
                raise BadValueError(
                    ("project", at, key),
                    f": invalid user name {name!r}",
                    hint="write the names of users",
                )
            if name in seen:
                raise BadValueError(
                    ("project", at, key),
                    f": user {name!r} is named twice",
                    hint="name each user once",
                )
            seen.add(name)
