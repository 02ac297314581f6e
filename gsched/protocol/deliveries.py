"""Files between the host of submission and nodes that do not share a file system with it.

A node sends the files of an attempt's outbox in pieces with `DeliverPiece`. The head decides from
its own records whose file that is, and where: it sends a `FileOrder` to the gnode of the host of
submission, which acts as the owner, and passes the answer on. Each piece can be sent again: what
the file has already is not written twice. Several pieces of a file may be on their way; the host
writes them in their order.

In the other direction an attempt's own process asks for the next piece of what it stages in, with
`StagedWanted`; the head has the host read it in the same way.
"""

from typing import Final, Literal

from msgspec import Struct

from gsched.model.numbers import Count, Number

#: Bytes of a file in one message.
DELIVERY_BYTES: Final = 1024 * 1024
#: Where a file begins is not known yet: it is opened, and nothing written.
BEGIN: Final = -1
#: Paths in a node's directory of outboxes begin so in orders to read.
OUTBOX: Final = "outbox:"
#: Begins the name of what is staged out: ``files/`` and its number in ``stage_out``.
FILES: Final = "files"

#: The last entry of a tree, as `gnode.daemon.owner_tree` packs it.
TREE_END: Final = b'{"end": true, "count": 0}\n'

#: A batch is a row of entries that are each there in full: see `gnode.daemon.owner_tree`.
Kind = Literal["file", "directory", "link", "batch"]


class DeliverPiece(Struct, frozen=True, kw_only=True, tag="deliver_piece", omit_defaults=True):
    """Node to head: a piece of a file of an attempt that has ended here, or of its output so far.

    Answered by `PieceDelivered` with the same request.

    Attributes:
        token: of the attempt.
        file: ``stdout``, ``stderr``, or `FILES`, ``/``, and a number of ``stage_out``.
        name: the path below that, if it is a directory; as the node's file system has it.
        kind: of a link ``data`` is where it leads.
        at: where the piece begins in the file at the host of submission; `BEGIN`.
        last: the file ends with it, and is to be durable.
        mode: of what is staged out.
        follows: the piece before it is on its way: it is written only where the file ends at
            ``at``, else nothing is taken.
        drops: the file is given up: what there is of it without its name is removed.
    """

    request: Count
    job: Count
    attempt: Count
    file: str
    token: str = ""
    at: Number = BEGIN
    data: bytes = b""
    last: bool = False
    mode: Count = 0
    name: bytes = b""
    kind: Kind = "file"
    follows: bool = False
    drops: bool = False


class PieceDelivered(Struct, frozen=True, kw_only=True, tag="piece_delivered", omit_defaults=True):
    """Head to node: the answer to a `DeliverPiece`.

    Attributes:
        end: where the next piece begins in the file; before where this one was to begin: the host
            has lost what was acknowledged.
        taken: bytes of the piece that the file has; 0 also where it was opened for appending. Of a
            batch the number of entries, in their order: one that has an error is the next.
        path: ``HOST:PATH`` of the file.
        error: why the piece is not there, in words; empty: it is.
        later: it may work later: the host is not connected, or its disk is full.
        is_single: the host takes no batches.
        window: so many pieces of the file may be on their way at once; 0: one.
        whole: nothing of what is staged out with it can be written.
    """

    request: Count
    end: Number = 0
    taken: Count = 0
    path: str = ""
    error: str = ""
    later: bool = False
    is_single: bool = False
    window: Count = 0
    whole: bool = False


class FileOrder(Struct, frozen=True, kw_only=True, tag="file_order", omit_defaults=True):
    """Head to a node or login host: read or write a piece of a file as its owner.

    Answered by `FileDone` with the same request.

    Attributes:
        user, uid, gid: the owner; the host refuses one that it knows by another number.
        path: absolute, or below the owner's home directory, ``~/``; to read also `OUTBOX` and a
            path in the node's directory of outboxes: ``JOB.ATTEMPT.TOKEN/stdout``.
        name: of the file, if ``path`` is a directory.
        offset, max_bytes: of the piece to read; a negative offset counts from the end.
        writes: ``data`` is written at ``at``; at `BEGIN` the file is made, and emptied unless
            ``append``.
        last, mode, kind, follows, drops: as in `DeliverPiece`; ``mode`` 0: as ``umask`` says.
        makes: directories on the way that do not exist are made, so many at most.
        temporary: of a file that gets its name when it is there in full: what tells it from others.
        below: a path below ``path``, on which no symbolic link is followed.
        tree: read what follows ``below`` in the tree of ``path``, or with an ``offset`` that is not
            `BEGIN` the file ``below`` from there: see `gnode.daemon.owner_tree`.
        lists: with ``tree``: names, kinds and sizes only.
    """

    request: Count
    user: str
    uid: Count
    gid: Count
    path: str
    name: str = ""
    offset: Number = 0
    max_bytes: Count = 0
    writes: bool = False
    append: bool = False
    at: Number = BEGIN
    data: bytes = b""
    last: bool = False
    mode: Count = 0
    umask: Count = 0o022
    follows: bool = False
    drops: bool = False
    makes: Count = 0
    below: bytes = b""
    kind: Kind = "file"
    temporary: str = ""
    tree: bool = False
    lists: bool = False


class FileDone(Struct, frozen=True, kw_only=True, tag="file_done", omit_defaults=True):
    """Node or login host to head: the answer to a `FileOrder`.

    Attributes:
        path: of the file, as it is on the host.
        offset, size_bytes, data: of what was read.
        end, taken: as in `PieceDelivered`, of what was written.
        error: in words; empty: it is done. ``errno``: the system's number of it, if it has one.
        whole: as in `PieceDelivered`.
    """

    request: Count
    path: str = ""
    offset: Number = 0
    size_bytes: Count = 0
    data: bytes = b""
    end: Number = 0
    taken: Count = 0
    error: str = ""
    errno: Count = 0
    whole: bool = False


class StagedWanted(Struct, frozen=True, kw_only=True, tag="staged_wanted", omit_defaults=True):
    """Node to head: the next piece of what an attempt that starts here stages in.

    Answered by `StagedRead` with the same request.

    Attributes:
        item: its number in ``stage_in`` of the job.
        after: the path below it that the node has, or has a part of.
        offset: of the next piece of that file; `BEGIN`: it is there in full.
        lists: what follows is only listed, so that several pieces can be requested at once.
    """

    request: Count
    job: Count
    attempt: Count
    item: Count
    after: bytes = b""
    offset: Number = BEGIN
    lists: bool = False


class StagedRead(Struct, frozen=True, kw_only=True, tag="staged_read", omit_defaults=True):
    """Head to node: the answer to a `StagedWanted`.

    Attributes:
        data: entries of the tree: see `gnode.daemon.owner_tree`.
        error: why there are none, in words; empty: they are there.
        later: it may work later, as in `PieceDelivered`.
    """

    request: Count
    data: bytes = b""
    error: str = ""
    later: bool = False
