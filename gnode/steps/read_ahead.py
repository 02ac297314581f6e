"""Which pieces of a tree follow, so that several of them can be requested at once.

The rule by which `gnode.daemon.owner_tree` fills a piece is repeated here on a listing of the tree.
A prediction that is wrong, as files have changed, costs a request; what is taken is always the
piece that follows. It uses the standard library only.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from gnode.daemon.owner_tree import BEGIN, ENTRIES_MAX, entry_cost

PIECE_BYTES = 1024 * 1024  # as gsched.protocol.deliveries.DELIVERY_BYTES


class TreeCursor(NamedTuple):
    """How far a copy is: the last entry, and how much of that file there is; `BEGIN`: all of it."""

    name: str
    offset: int


class _Entry(NamedTuple):
    name: str
    size: int
    is_file: bool


class ReadAhead:
    """The pieces after one that was requested.

    Args:
        cursor: after which that one begins.
        size: of the file that the cursor is in, bytes.

    Attributes:
        is_whole: the listing goes to the end of the tree.
    """

    def __init__(self, cursor: TreeCursor, size: int) -> None:
        self._entries = [_Entry(cursor.name, size, is_file=True)]
        self._place = (0, cursor.offset) if cursor.offset != BEGIN else (1, 0)
        self.is_whole = not cursor.name  # a file, of which nothing follows

    @property
    def last(self) -> str:
        """The name of the last entry that is known."""
        return self._entries[-1].name

    def take(self, listing: Iterable[dict[str, Any]]) -> None:
        """Take what follows `last` in the tree; a host of an older version sends a piece."""
        for header in listing:
            if "end" in header or "at" in header or "size" not in header:
                self.is_whole = True
                return
            name, kind = str(header["name"]), header["kind"]
            self._entries.append(_Entry(name, int(header["size"]), is_file=kind == "file"))

    def following(self) -> TreeCursor | None:
        """Return the cursor of the next piece; None: there is none, unless the listing goes on."""
        (number, at), left, count = self._place, PIECE_BYTES, 0
        while number < len(self._entries):
            name, size, is_file = self._entries[number]
            if left <= 0 or count >= ENTRIES_MAX:
                before = self._entries[number - 1].name
                self._place = (number, 0)
                return TreeCursor(before, BEGIN)
            length = min(left, max(0, size - at)) if is_file else size
            if is_file and at + length < size:
                self._place = (number, at + length)
                return TreeCursor(name, at + length)
            left -= entry_cost(name, length)
            number, at, count = number + 1, 0, count + 1
        return None
