"""What head and worker say to each other beside questions and answers, each after its length."""

import struct
from typing import Final

from msgspec import Struct

from gschedd.plan.compose import Composed

#: Length of the message that follows, bytes; the message is a pickle.
HEADER: Final = struct.Struct("!Q")
#: What a worker says when it can answer.
READY: Final = "ready"


class Begin(Struct, frozen=True, kw_only=True):
    """The first message.

    Attributes:
        policy: that is to be asked.
        time_limit_s: after which the head kills this process.
        head: the process that has started this one.
    """

    policy: Composed
    time_limit_s: float
    head: int
