"""Messages of the node channel about terminal sessions, and what a session's own connections say.

A session has a connection of its own: the node opens it to ``/v1/session`` of the head's node port
when it is told to. Its first frame is a `Hello` with the session's number, answered by a sealed
`Challenge` as on the node channel; the node's first sealed frame is `READY`. All later frames are
sealed frames of `gsched.terminal`, or pieces of a user's connection (`gsched.protocol.relays`).
"""

from typing import Final

from msgspec import Struct

from gsched.model.numbers import Count
from gsched.protocol.relays import PIECE_BYTES
from gsched.terminal import MAX_FRAME_BYTES

#: Content of the node's first sealed frame on a session's connection.
READY: Final = b"ready"
#: Of a WebSocket message of a session, sealed.
MAX_MESSAGE_BYTES: Final = max(MAX_FRAME_BYTES, PIECE_BYTES) + 64
#: What gnode and the head pass on of a session in each direction.
RATE_BYTES_PER_S: Final = 4 * 1024 * 1024


class OpenSession(Struct, frozen=True, kw_only=True, tag="open_session", omit_defaults=True):
    """Head to node: connect a terminal of this attempt with a connection of your own to me.

    Answered by that connection, or by `SessionFailed`. Sent only to nodes that have said in
    `Register` that they understand it.

    Attributes:
        session: 32 hex digits, which nobody else knows.
        terminal: of the attempt: empty for that of an interactive job, else 32 hex digits that
            name a further shell.
        start: start that shell; else it is there.
        forward: it is no shell but relays connections to ports of the node: see
            `gsched.forwarding`.
        arguments: what it runs; none: its user's shell.
        variables: beside those of the job.
    """

    session: str
    job: Count
    attempt: Count
    token: str = ""
    terminal: str = ""
    start: bool = False
    forward: bool = False
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}


class SessionFailed(Struct, frozen=True, kw_only=True, tag="session_failed"):
    """Node to head: there is no such terminal, or it cannot be reached; the message says why."""

    session: str
    message: str


class SessionNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Head to client: a text message on a session's WebSocket; frames of the terminal are binary.

    Attributes:
        what: ``waiting`` (for ``reason``), ``ready`` (the client attaches now), ``ended`` (the job
            is over), ``lost`` (the way to the terminal is broken for ``reason``; it may be there
            still) or ``refused`` (with an error's code, message and hint).
        node: where the terminal is.
    """

    what: str
    reason: str = ""
    node: str = ""
    code: str = ""
    hint: str = ""
