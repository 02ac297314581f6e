"""Files that pass the head between a host of submission and a node. Pure."""

from msgspec import Struct

from gsched.model.units import format_size


class Passage(Struct, kw_only=True):
    """Files of an attempt that are on their way.

    Attributes:
        attempt: its number.
        node, host: between which they are; ``returns``: to the host of submission.
        size_bytes: of what has arrived.
        error: why the last piece has not.
        at_s: of that piece.
        is_over: all that is staged in has been read.
    """

    attempt: int
    node: str
    host: str
    returns: bool
    size_bytes: int = 0
    error: str = ""
    at_s: float = 0.0
    is_over: bool = False

    @property
    def words(self) -> str:
        """Return how far it is."""
        what = "output and files return" if self.returns else "files are staged in"
        way = (self.node, self.host) if self.returns else (self.host, self.node)
        done = f"{what} from {way[0]} to {way[1]}: {format_size(self.size_bytes)} so far"
        return f"{done}; waits: {self.error}" if self.error else done

    @property
    def short(self) -> str:
        """Return it for a line of a list."""
        return "output returns" if self.returns else "stages files in"
