"""Wishes: imperative, each may be refused. Who wishes is known from the kernel."""

from msgspec import Struct

from gsched.model.states import HoldKind
from gsched.protocol.api import Alteration, SubmitJob
from gschedd.core.settings import Caller


class Command(Struct, frozen=True, kw_only=True):
    """What somebody wants."""

    caller: Caller


class Submit(Command, frozen=True, kw_only=True):
    """Queue a job; ``digests`` are of its script and environment as the store keeps them."""

    asked: SubmitJob
    digests: tuple[str, str]


class JobCommand(Command, frozen=True, kw_only=True):
    """A wish about one job."""

    job: int


class DeleteJob(JobCommand, frozen=True, kw_only=True):
    """End the job for good."""

    message: str = ""
    grace_s: float | None = None


class HoldJob(JobCommand, frozen=True, kw_only=True):
    """Keep the job from starting."""

    holds: tuple[HoldKind, ...]


class ReleaseJob(JobCommand, frozen=True, kw_only=True):
    """Take holds off."""

    holds: tuple[HoldKind, ...]


class SignalJob(JobCommand, frozen=True, kw_only=True):
    """Send a signal to the running job."""

    signal: int


class RerunJob(JobCommand, frozen=True, kw_only=True):
    """Stop the running job and queue it again."""

    message: str = ""
    force: bool = False
    grace_s: float | None = None


class MigrateJob(JobCommand, frozen=True, kw_only=True):
    """Let the running job go on elsewhere.

    Attributes:
        nodes: on these; empty: on any other ones.
        gpus: on so many; 0: on as many as it has.
    """

    nodes: tuple[str, ...] = ()
    gpus: int = 0
    message: str = ""


class AlterJob(JobCommand, frozen=True, kw_only=True):
    """Change what the job says of itself."""

    alteration: Alteration


class NodeCommand(Command, frozen=True, kw_only=True):
    """A wish about one node; for operators."""

    node: str


class DrainNode(NodeCommand, frozen=True, kw_only=True):
    """Give the node no new work; with ``migrate`` its jobs go on elsewhere as far as they can."""

    reason: str
    migrate: bool = False


class ResumeNode(NodeCommand, frozen=True, kw_only=True):
    """Give the node new work again."""


class ConfirmDead(NodeCommand, frozen=True, kw_only=True):
    """An operator vouches that nothing runs on an unreachable node any more."""


class RemoveNode(NodeCommand, frozen=True, kw_only=True):
    """Forget a node that will not come back."""


class ReplaceNode(NodeCommand, frozen=True, kw_only=True):
    """Take the gnode that was refused for the node from now on.

    ``identity`` is the beginning of its identity, where several were refused; empty: there is one.
    """

    identity: str = ""


AnyCommand = (
    Submit
    | DeleteJob
    | HoldJob
    | ReleaseJob
    | SignalJob
    | RerunJob
    | MigrateJob
    | AlterJob
    | DrainNode
    | ResumeNode
    | ConfirmDead
    | RemoveNode
    | ReplaceNode
)
