"""What the configuration says to the core, checked and ready to use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.model.job import Owner
from gsched.model.training import Profiling
from gschedd.plan.training import Fabric


class QueueSettings(Struct, frozen=True, kw_only=True):
    """One queue: see `gsched.config_queues.QueueConfig` for the meaning of each.

    Attributes:
        extension_s, extension_part: by how much users can extend a running job, seconds or a part
            of its walltime; None: by any time.
    """

    priority: int = 0
    max_walltime_s: float = 0.0
    default_walltime_s: float = 0.0
    enabled: bool = True
    started: bool = True
    extension_s: float | None = None
    extension_part: float | None = None
    extensions_per_user: int = 0
    detach_timeout_s: float = -1.0
    max_interactive_walltime_s: float = -1.0
    max_detach_timeout_s: float = -1.0
    default_memory_per_cpu_bytes: int = -1
    default_memory_per_gpu_bytes: int = -1


class QueueLimits(Struct, frozen=True, kw_only=True):
    """What counts for the jobs of one queue: its own numbers, or the site's where it has none.

    Attributes:
        max_interactive_walltime_s, max_detach_timeout_s, default_memory_per_cpu_bytes,
            default_memory_per_gpu_bytes: as in `Settings`.
        where_walltime, where_detach: whose limit that is, for messages: ``here`` or ``in queue x``.
    """

    max_interactive_walltime_s: float
    max_detach_timeout_s: float
    default_memory_per_cpu_bytes: int
    default_memory_per_gpu_bytes: int
    where_walltime: str
    where_detach: str


_NO_QUEUE: Final = QueueSettings()


class NotifySettings(Struct, frozen=True, kw_only=True):
    """Who can be told of jobs: see `gsched.config_notify.NotifyConfig` for the meaning of each."""

    mail: bool = False
    hook: bool = False
    recipient_domains: frozenset[str] = frozenset()
    mail_domain: str = ""
    urls: frozenset[str] = frozenset()


class Settings(Struct, frozen=True, kw_only=True):
    """Limits and permissions of this cluster.

    Attributes:
        server: the part of a job id behind the dot.
        queues: by name; the first is the default one.
        scheduling: jobs are started; an operator has stopped that else.
        operator_uids: who may do everything; root is always among them.
        operator_names: the names of those that the configuration names, by uid: a uid that was
            given to another user since is no operator's.
        min_uid: users below it, but root, are system accounts and may not submit.
        only_uid: the one user who may submit, or None for all.
        node_timeout_s: silence after which a node is unreachable.
        default_walltime_s: of jobs that state none, for planning only; 0: unknown.
        predicted_times: jobs are planned to run as long as their kind did before.
        max_queued_per_user: unfinished jobs of one user.
        max_array_elements: of one array.
        max_user_priority: the highest priority that users can give their own jobs.
        fabric: how nodes are connected, and how fast their GPUs are.
        move_s: from the order to move a training to its first further step, where nothing was
            measured; seconds.
        checkpoint_timeout_s: a training that has not saved its state so long after it was asked
            is not moved, and goes on where it is; one whose new place is not free so long after it
            left goes to its queue; seconds.
        warm: the next attempts of jobs that migrate are prepared where that is possible.
        prepare_timeout_s: a job is not kept from migrating any longer by that, seconds.
        max_moves: so many jobs move at once when nodes are drained or a policy wants it.
        master_port_begin: a number that other clusters hardly have, where ports begin.
        profiling: which elastic trainings run on their fewest GPUs until their steps are measured.
        lease_s: of rerunnable jobs that say nothing of a lease; 0: none.
        keep_unsatisfiable: a job whose dependency can never be satisfied stays on hold; else it is
            cancelled.
        lease_margin_s: for killing and for clocks that drift, beyond lease and grace.
        detach_timeout_s: of interactive jobs that say nothing of it; 0: none.
        max_detach_timeout_s: of interactive jobs; 0: they may have none.
        max_interactive_walltime_s: of interactive jobs, and of those that state none; 0: no limit.
        default_memory_per_cpu_bytes, default_memory_per_gpu_bytes: of chunks that state no memory,
            for each CPU, or for each GPU where they have some; 0: no limit.
        operators_enter_jobs: operators other than root may have a terminal in others' jobs.
        refuse_impossible: deadlines that an idle cluster could not meet are not taken.
        notify: who can be told of jobs.
        images: what the names of images must begin with, one of these; empty: any image.
    """

    server: str
    queues: Mapping[str, QueueSettings]
    scheduling: bool = True
    operator_uids: frozenset[int] = frozenset({0})
    operator_names: Mapping[int, str] = MappingProxyType({})
    min_uid: int = 0
    allow_root_jobs: bool = False
    only_uid: int | None = None
    warn_unknown_resource: bool = False
    node_timeout_s: float = 15.0
    default_walltime_s: float = 0.0
    predicted_times: bool = True
    max_queued_per_user: int = 1_000_000
    max_array_elements: int = 100_000
    max_user_priority: int = 1023
    fabric: Fabric = Fabric()
    move_s: float = 30.0
    refuse_impossible: bool = True
    profiling: Profiling = Profiling.AUTO
    checkpoint_timeout_s: float = 300.0
    warm: bool = False
    prepare_timeout_s: float = 60.0
    max_moves: int = 4
    lease_s: float = 0.0
    keep_unsatisfiable: bool = False
    lease_margin_s: float = 30.0
    detach_timeout_s: float = 3600.0
    max_detach_timeout_s: float = 0.0
    max_interactive_walltime_s: float = 0.0
    default_memory_per_cpu_bytes: int = 0
    default_memory_per_gpu_bytes: int = 0
    operators_enter_jobs: bool = False
    master_port_first: int = 20000
    master_port_last: int = 29999
    master_port_begin: int = 0
    notify: NotifySettings = NotifySettings()
    images: tuple[str, ...] = ()

    @property
    def default_queue(self) -> str:
        """Return the queue of jobs that name none."""
        return next(iter(self.queues))

    def limits_of(self, queue: str) -> QueueLimits:
        """Return what counts for the jobs of a queue; for an unknown one the site's numbers."""
        own = self.queues.get(queue, _NO_QUEUE)
        own_walltime = own.max_interactive_walltime_s >= 0
        own_detach = own.max_detach_timeout_s >= 0
        own_cpu = own.default_memory_per_cpu_bytes >= 0
        own_gpu = own.default_memory_per_gpu_bytes >= 0
        return QueueLimits(
            max_interactive_walltime_s=(own if own_walltime else self).max_interactive_walltime_s,
            max_detach_timeout_s=(own if own_detach else self).max_detach_timeout_s,
            default_memory_per_cpu_bytes=(own if own_cpu else self).default_memory_per_cpu_bytes,
            default_memory_per_gpu_bytes=(own if own_gpu else self).default_memory_per_gpu_bytes,
            where_walltime=f"in queue {queue}" if own_walltime else "here",
            where_detach=f"in queue {queue}" if own_detach else "here",
        )


class Caller(Struct, frozen=True, kw_only=True):
    """Who asks, as the kernel told the head."""

    user: str
    uid: int
    gid: int
    operator: bool = False

    def owns(self, owner: Owner) -> bool:
        """Return whether the caller is that owner: by uid and name.

        A uid alone would give the jobs of a deleted user to whoever gets the number next.
        """
        return self.uid == owner.uid and self.user == owner.user

    @property
    def is_nameless(self) -> bool:
        """Return whether the head's machine knows no user with this uid now."""
        return self.user == str(self.uid)
