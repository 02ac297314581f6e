"""Actions on jobs and on nodes: what a client sends is the very value that the core carries out.

The bodies of ``POST /v1/jobs/actions`` and ``POST /v1/nodes/actions``: one type for each action,
told apart by the field ``action``. `gschedd.core.requests.commands` adds who asks and of which job
or node, `gschedd.core.requests.actions` is the one place that tells the types apart.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final, cast, get_args

from msgspec import Struct

from gsched.model.numbers import Amount, Count, Number


class Alteration(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What ``galter`` changes; what is None stays.

    Attributes:
        deadline_s: the new deadline; 0 takes it away.
        deadline_after_s: the same, counted from now on the head's clock.
        urgency: instead of both, counted from now.
        depends: the new dependencies, as after ``-W depend=``; empty: none.
    """

    name: str | None = None
    resources: tuple[str, ...] | None = None
    priority: Number | None = None
    account: str | None = None
    qos: str | None = None
    comment: str | None = None
    start_after_s: Amount | None = None
    rerunnable: bool | None = None
    stdout_path: str | None = None
    stderr_path: str | None = None
    join: str | None = None
    queue: str | None = None
    shell: str | None = None
    mail_points: str | None = None
    mail_to: str | None = None
    notify_url: str | None = None
    grace_s: Amount | None = None
    holds: tuple[str, ...] | None = None
    deadline_s: Amount | None = None
    deadline_after_s: Amount | None = None
    urgency: str | None = None
    depends: tuple[str, ...] | None = None
    reservation: str | None = None


class _ActionRecord(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="action",
):
    """What all actions share."""

    @property
    def action(self) -> str:
        """Return the action's name on the wire: ``delete``."""
        return name_of(type(self))


def name_of(kind: type[_ActionRecord]) -> str:
    """Return the name of a type of action on the wire: ``confirm-dead``."""
    return str(kind.__struct_config__.tag)


# --- on jobs ---


class JobAction(
    _ActionRecord, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The same action on many jobs, each by itself, in order.

    Attributes:
        ids: as the user wrote them; ``all`` stands for all of the caller's jobs.
        dry_run: only say what would be done.
    """

    ids: tuple[str, ...] = ()
    dry_run: bool = False

    #: Said of a job when it is done.
    done: ClassVar[str]

    def done_words(self) -> str:
        """Return what is said of each job when it is done."""
        return self.done


class DeleteJob(JobAction, tag="delete", frozen=True, kw_only=True, omit_defaults=True):
    """End the job for good; ``grace_s`` from TERM to KILL, None: the job's own."""

    done: ClassVar[str] = "cancelled"

    message: str = ""
    grace_s: Amount | None = None


class HoldJob(JobAction, tag="hold", frozen=True, kw_only=True, omit_defaults=True):
    """Keep the job from starting; ``holds`` are kinds of hold."""

    done: ClassVar[str] = "held"

    holds: tuple[str, ...] = ("user",)


class ReleaseJob(JobAction, tag="release", frozen=True, kw_only=True, omit_defaults=True):
    """Take holds off."""

    done: ClassVar[str] = "released"

    holds: tuple[str, ...] = ("user",)


class SignalJob(JobAction, tag="signal", frozen=True, kw_only=True, omit_defaults=True):
    """Send a signal to the running job, by its number."""

    signal: Count = 0

    def done_words(self) -> str:
        """Return what is said of each job when it is done."""
        return f"signal {self.signal} sent"


class RerunJob(JobAction, tag="rerun", frozen=True, kw_only=True, omit_defaults=True):
    """Stop the running job and queue it again.

    Attributes:
        force: also a job that says it is not rerunnable.
        grace_s: TERM to KILL; None: the job's own.
    """

    done: ClassVar[str] = "will run again"

    message: str = ""
    force: bool = False
    grace_s: Amount | None = None


class MigrateJob(JobAction, tag="migrate", frozen=True, kw_only=True, omit_defaults=True):
    """Migrate the running job.

    Attributes:
        nodes: to these; empty: to any other ones.
        gpus: on so many; 0: on as many as it has.
    """

    done: ClassVar[str] = "migration requested"

    message: str = ""
    nodes: tuple[str, ...] = ()
    gpus: Count = 0


class AlterJob(JobAction, tag="alter", frozen=True, kw_only=True, omit_defaults=True):
    """Change what the job says of itself."""

    done: ClassVar[str] = "altered"

    alteration: Alteration


AnyJobAction = DeleteJob | HoldJob | ReleaseJob | SignalJob | RerunJob | MigrateJob | AlterJob
#: For decoding: a union is a type to msgspec and none to mypy.
JOB_ACTION: Final = cast("type[AnyJobAction]", AnyJobAction)
JOB_ACTIONS: Final[tuple[type[JobAction], ...]] = get_args(AnyJobAction)


# --- on nodes ---


class NodeAction(
    _ActionRecord, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The same action on nodes, for operators.

    ``reason`` is kept with a drain, which needs one; with other actions it is accepted and dropped.
    """

    nodes: tuple[str, ...] = ()
    reason: str = ""

    #: Said of a node when it is done.
    done: ClassVar[str]


class DrainNode(NodeAction, tag="drain", frozen=True, kw_only=True, omit_defaults=True):
    """Give the node no new jobs; with ``migrate`` its jobs migrate as far as they can."""

    done: ClassVar[str] = "drained"

    migrate: bool = False


class ResumeNode(NodeAction, tag="resume", frozen=True, kw_only=True, omit_defaults=True):
    """Give the node new jobs again."""

    done: ClassVar[str] = "resumed"


class MaintainNode(NodeAction, tag="maintenance", frozen=True, kw_only=True, omit_defaults=True):
    """Let no job run on the node in a window of time, or cancel one.

    Attributes:
        from_s, to_s: seconds since the epoch.
        cancel: the number of the window to be cancelled; 0: one is ordered.
    """

    done: ClassVar[str] = "maintenance"

    from_s: Amount = 0.0
    to_s: Amount = 0.0
    cancel: Count = 0


class PowerNode(NodeAction, tag="power", frozen=True, kw_only=True, omit_defaults=True):
    """Power the node down, or up, by the site's programs."""

    done: ClassVar[str] = "power"

    up: bool = False


class ConfirmDead(NodeAction, tag="confirm-dead", frozen=True, kw_only=True, omit_defaults=True):
    """Vouch that nothing runs on an unreachable node any more."""

    done: ClassVar[str] = "confirmed dead"


class RemoveNode(NodeAction, tag="remove", frozen=True, kw_only=True, omit_defaults=True):
    """Forget a node that will not come back."""

    done: ClassVar[str] = "removed"


class ReplaceNode(NodeAction, tag="replace", frozen=True, kw_only=True, omit_defaults=True):
    """Take the gnode that was refused for the node from now on.

    ``identity`` is the beginning of its identity, where several were refused; empty: there is one.
    """

    done: ClassVar[str] = "replaced"

    identity: str = ""


AnyNodeAction = (
    DrainNode | ResumeNode | MaintainNode | PowerNode | ConfirmDead | RemoveNode | ReplaceNode
)
NODE_ACTION: Final = cast("type[AnyNodeAction]", AnyNodeAction)
NODE_ACTIONS: Final[Mapping[str, type[AnyNodeAction]]] = MappingProxyType(
    {name_of(kind): kind for kind in get_args(AnyNodeAction)}
)
