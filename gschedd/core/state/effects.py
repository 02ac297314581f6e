"""What the shell is to do after the facts are durable. Imperative; none may fail the core."""

from msgspec import Struct

from gsched.model.states import StopReason
from gsched.model.training import Batching


class NodeEffect(Struct, frozen=True, kw_only=True):
    """A message about an attempt to one node.

    It is dropped if the node is not connected: its next registration says anew what is missing.
    """

    node: str
    job: int
    attempt: int


class SendLaunch(NodeEffect, frozen=True, kw_only=True):
    """Start the attempt's part there."""


class SendPrepare(NodeEffect, frozen=True, kw_only=True):
    """Prepare the attempt there: it is the next one of a job that migrates.

    ``yields``: its CPUs are others' until it is launched.
    """

    yields: bool = False


class SendStop(NodeEffect, frozen=True, kw_only=True):
    """End the attempt's part there."""

    reason: StopReason
    grace_s: float
    token: str = ""


class SendSignal(NodeEffect, frozen=True, kw_only=True):
    """Pass a signal on."""

    signal: int


class SendRetime(NodeEffect, frozen=True, kw_only=True):
    """The walltime has changed."""

    walltime_s: float | None


class SendExitAck(NodeEffect, frozen=True, kw_only=True):
    """The end of the part is durable: the node may bury it."""

    token: str = ""


class SendCheckpoint(NodeEffect, frozen=True, kw_only=True):
    """Let the training save its state and wait; with ``signal``: save its state and end.

    ``world_size`` is on how many ranks it is to go on; 0: not known.
    """

    request: int
    signal: int = 0
    world_size: int = 0


class SendGoOn(NodeEffect, frozen=True, kw_only=True):
    """The training that waits after a checkpoint goes on where it is."""

    request: int


class SendTune(NodeEffect, frozen=True, kw_only=True):
    """The adaptive training splits its samples otherwise."""

    batching: Batching


class SendStepOrder(NodeEffect, frozen=True, kw_only=True):
    """Let the attempt's step agent there connect to a program of the job on ``origin``."""

    origin: str
    step: int
    address: str
    port: int
    secret: str


class SendStepRefused(NodeEffect, frozen=True, kw_only=True):
    """Tell a program there that the step agent on ``agent`` cannot connect to it."""

    agent: str
    step: int
    message: str


class SendLoginAnswer(NodeEffect, frozen=True, kw_only=True):
    """Tell a node which attempt's step agent starts there for a login; job 0: there is none."""

    login: int


class SendProbe(Struct, frozen=True, kw_only=True):
    """Let a node find out whether it can start jobs; what is lost is asked again."""

    node: str
    request: int


AnyEffect = (
    SendProbe
    | SendLaunch
    | SendPrepare
    | SendStop
    | SendSignal
    | SendRetime
    | SendExitAck
    | SendCheckpoint
    | SendGoOn
    | SendTune
    | SendStepOrder
    | SendStepRefused
    | SendLoginAnswer
)
