"""Messages of the node channel about commands that users run on a node or a login host.

gnode serves the commands' Unix socket on its host. For each connection there it sends a
`RelayRequest` with what its kernel says of the user. If the head agrees, gnode opens a connection
of its own with the session's number of the answer, as for a terminal (see
`gsched.protocol.sessions`), on which the bytes of the user's connection pass in both directions.
"""

from typing import Final

from msgspec import Struct

from gsched.model.numbers import Count

#: Bytes of a user's connection in one frame.
PIECE_BYTES: Final = 64 * 1024


class RelayRequest(Struct, frozen=True, kw_only=True, tag="relay_request"):
    """Node to head: a user of this host connects to the commands' socket.

    Answered by `RelayAnswer` with the same number.

    Attributes:
        number: of the request on this node.
        uid, gid: of the connecting process, by the kernel of this host.
        user: the name of that uid on this host; empty: it has none.
    """

    number: Count
    uid: Count
    gid: Count
    user: str


class RelayAnswer(Struct, frozen=True, kw_only=True, tag="relay_answer", omit_defaults=True):
    """Head to node: connect with this session's number, or tell the user why not.

    Attributes:
        session: 32 hex digits, which nobody else knows; empty: refused.
        code, message, hint: of the error, where refused.
    """

    number: Count
    session: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""
