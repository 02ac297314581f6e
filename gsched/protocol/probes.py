"""Messages of the node channel about probes: whether a node can start jobs at all."""

from msgspec import Struct

from gsched.model.job import LaunchFailure
from gsched.model.numbers import Count


class Probe(Struct, frozen=True, kw_only=True, tag="probe"):
    """Find out whether this node can start jobs. Answered by `Probed` with the same request.

    Sent only to nodes that have said in `Register` that they understand it.
    """

    request: Count


class Probed(Struct, frozen=True, kw_only=True, tag="probed", omit_defaults=True):
    """Whether a program that does nothing could be started here, by the way that jobs take.

    Attributes:
        message: why not, in words.
        failure: the evidence.
    """

    request: Count
    passed: bool
    message: str = ""
    failure: LaunchFailure | None = None
