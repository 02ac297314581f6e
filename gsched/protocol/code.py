"""How a code snapshot gets to the head and from there to nodes: piece by piece."""

from msgspec import Struct

from gsched.model.numbers import Count


class CodeWanted(Struct, frozen=True, kw_only=True, tag="code_wanted"):
    """Node to head: the next piece of an attempt's code snapshot. Answered by `CodeRead`."""

    request: Count
    job: Count
    attempt: Count
    offset: Count


class CodeRead(Struct, frozen=True, kw_only=True, tag="code_read", omit_defaults=True):
    """Head to node: a piece of a snapshot of ``size_bytes``; ``error`` in words if there is none.

    Sent only for a `CodeWanted`, so a node gets one piece at a time for each of its attempts.
    """

    request: Count
    size_bytes: Count = 0
    data: bytes = b""
    error: str = ""


class CodePiece(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/code``: a piece of the archive of a code snapshot.

    Attributes:
        digest: SHA-256 of the archive, hex; empty: only the limits are requested.
        size_bytes: of the whole archive.
        offset: of the piece; the reply says which one is next.
    """

    digest: str = ""
    size_bytes: int = 0
    offset: int = 0
    data: bytes = b""


class CodeReply(Struct, frozen=True, kw_only=True):
    """How much of an archive the head has; ``size_bytes_most`` and ``files_most`` are limits."""

    received_bytes: int
    size_bytes_most: int
    files_most: int
