"""What the core takes from the configuration and from this machine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig
from gsched.config.tables import Config, QueueConfig
from gsched.model.job import Owner
from gsched.protocol.tokens import Scope
from gschedd.plan.limits import LimitRules
from gschedd.plan.training import Fabric

#: Of a site that states nothing of priorities; each turn of the head compares with it.
_NO_TERMS: Final = PriorityConfig()


class QueueLimits(Struct, frozen=True, kw_only=True):
    """What counts for the jobs of one queue: its own numbers, or the site's where it has none.

    Attributes:
        max_interactive_walltime_s, max_detach_timeout_s, default_memory_per_cpu_bytes,
            default_memory_per_gpu_bytes: as in ``[limits]``.
        where_walltime, where_detach: whose limit that is, for messages: ``here`` or ``in queue x``.
    """

    max_interactive_walltime_s: float
    max_detach_timeout_s: float
    default_memory_per_cpu_bytes: int
    default_memory_per_gpu_bytes: int
    where_walltime: str
    where_detach: str


class Privileged(Struct, frozen=True, kw_only=True):
    """Accounts with a privilege.

    Attributes:
        uids: of all of them.
        names: of those that the configuration names, by uid: a uid that was given to another user
            since has no privilege.
    """

    uids: frozenset[int] = frozenset({0})
    names: Mapping[int, str] = MappingProxyType({})

    def has(self, uid: int, name: str) -> bool:
        """Return whether a user has the privilege."""
        return uid in self.uids and self.names.get(uid, name) == name


class Settings(Struct, frozen=True, kw_only=True):
    """The configuration, with what this machine and operators add to it.

    Attributes:
        server: the part of a job id behind the dot.
        config: as the file states it; of the queues counts what is below.
        queues: by name, with what operators have changed; the first is the default one.
        projects, qos: likewise, by name.
        scheduling: jobs are started; an operator has stopped that else.
        operators: they change jobs of others, and nodes; root is always among them.
        administrators: operators who change queues and the configuration, too.
        min_uid: users below it, but root, are system accounts and may not submit.
        only_uid: the one user who may submit, or None for all.
        fabric: how nodes are connected, and how fast their GPUs are.
        lease_margin_s: for killing and for clocks that drift, beyond lease and grace.
        master_port_begin: a number that other clusters hardly have, where ports begin.
    """

    server: str
    config: Config = Config()
    queues: Mapping[str, QueueConfig]
    projects: Mapping[str, ProjectConfig] = MappingProxyType({})
    qos: Mapping[str, QosConfig] = MappingProxyType({})
    scheduling: bool = True
    operators: Privileged = Privileged()
    administrators: Privileged = Privileged()
    min_uid: int = 0
    only_uid: int | None = None
    fabric: Fabric = Fabric()
    lease_margin_s: float = 30.0
    master_port_begin: int = 0

    @property
    def default_queue(self) -> str:
        """Return the queue of jobs that name none."""
        return next(iter(self.queues))

    @property
    def orders_by_terms(self) -> bool:
        """Return whether the terms of ``[priority]`` order waiting jobs."""
        config = self.config
        by_share = "share" in config.preemption.by
        return bool(self.projects or self.qos or by_share) or config.priority != _NO_TERMS

    def has_operators(self, host: str) -> bool:
        """Return whether operators are some on a host (empty: the head's machine)."""
        return not host or host in self.config.head.operator_hosts

    def limit_rules(self) -> LimitRules:
        """Return the limits of users and queues."""
        refuses = self.config.shares.over_budget == "refuse"
        return LimitRules(
            *(self.config.limits, self.queues, self.projects, self.qos),
            refuses_over_budget=refuses,
        )

    def limits_of(self, queue: str) -> QueueLimits:
        """Return what counts for the jobs of a queue; for an unknown one the site's numbers."""
        own, site = self.queues.get(queue, QueueConfig(name=queue)), self.config.limits
        own_walltime = own.max_interactive_walltime_s >= 0
        own_detach = own.max_detach_timeout_s >= 0
        own_cpu = own.default_memory_per_cpu_bytes >= 0
        own_gpu = own.default_memory_per_gpu_bytes >= 0
        return QueueLimits(
            max_interactive_walltime_s=(own if own_walltime else site).max_interactive_walltime_s,
            max_detach_timeout_s=(own if own_detach else site).max_detach_timeout_s,
            default_memory_per_cpu_bytes=(own if own_cpu else site).default_memory_per_cpu_bytes,
            default_memory_per_gpu_bytes=(own if own_gpu else site).default_memory_per_gpu_bytes,
            where_walltime=f"in queue {queue}" if own_walltime else "here",
            where_detach=f"in queue {queue}" if own_detach else "here",
        )


class Caller(Struct, frozen=True, kw_only=True):
    """A user who requests something, as the kernel names them.

    Attributes:
        groups: by name, where a queue has some.
        host: the node or login host whose kernel it is; empty: the head's machine.
        token: number of the token that names the user instead of a kernel; empty: there is none.
        scope: what that token allows.
        is_private: sees jobs of others without names and details, where the site wants that.
    """

    user: str
    uid: int
    gid: int
    operator: bool = False
    administrator: bool = False
    groups: frozenset[str] = frozenset()
    host: str = ""
    token: str = ""
    scope: Scope = "operate"
    is_private: bool = False

    def owns(self, owner: Owner) -> bool:
        """Return whether the caller is that owner: by uid and name.

        A uid alone would give the jobs of a deleted user to whoever gets the number next.
        """
        return self.uid == owner.uid and self.user == owner.user

    @property
    def is_nameless(self) -> bool:
        """Return whether the head's machine knows no user with this uid now."""
        return self.user == str(self.uid)
