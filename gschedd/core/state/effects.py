"""What the shell is to do after the facts are durable. Imperative; none may fail the core.

An effect for a node that is not connected is dropped: its next registration shows what is missing.
"""

from msgspec import Struct

from gsched.protocol.node import HeadMessage


class Send(Struct, frozen=True, kw_only=True):
    """Send a message to a node."""

    node: str
    message: HeadMessage


class SendLaunch(Struct, frozen=True, kw_only=True):
    """Start the attempt's part there.

    The order is made when it leaves, with the job's script from the store, if it is still wanted.
    """

    node: str
    job: int
    attempt: int


class SendPrepare(Struct, frozen=True, kw_only=True):
    """Prepare the attempt there, likewise: it is the next one of a job that migrates.

    ``yields``: its CPUs are others' until it is launched.
    """

    node: str
    job: int
    attempt: int
    yields: bool = False


class SwitchPower(Struct, frozen=True, kw_only=True):
    """Have the site's program power a node down, or up. To repeat it is harmless."""

    node: str
    up: bool


#: What is sent to a node.
NodeEffect = Send | SendLaunch | SendPrepare
AnyEffect = NodeEffect | SwitchPower
