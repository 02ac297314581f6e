"""The heads of the cluster, of which one rules: where this host connects.

The addresses are those of the configuration, then those that a head has sent, which are kept in a
file: a host knows a second head also when only one was there when it joined.
"""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from gnode.daemon.peer import socket_path
from gsched.files import replace_file

log = logging.getLogger(__name__)


class Heads:
    """The addresses, and the one that is tried or used now.

    Args:
        configured: ``head`` in ``[node]``.
        path: of the file.

    Attributes:
        socket: path of the Unix socket of a head on this machine; empty: heads are reached by TCP.
        current: address of the present or next connection, ``host:port`` or ``unix:/path``.
    """

    def __init__(self, configured: str, path: Path) -> None:
        self._path = path
        self._configured = tuple(filter(None, (part.strip() for part in configured.split(","))))
        self.socket = socket_path(self._configured[0])
        self._tried = 0
        self._all = self._configured
        if not self.socket:
            with contextlib.suppress(OSError, UnicodeDecodeError):  # no head has sent any
                self._take(tuple(path.read_text(encoding="utf-8").split()))
        self.current = self._all[0]

    @property
    def are_several(self) -> bool:
        """Return whether there is more than one."""
        return len(self._all) > 1

    def _take(self, greeted: tuple[str, ...]) -> None:
        self._all = tuple(dict.fromkeys((*self._configured, *greeted)))

    def turn(self) -> bool:
        """Turn to the next head; return whether all have been tried since the last `stay`."""
        at = self._all.index(self.current) if self.current in self._all else -1
        self.current = self._all[(at + 1) % len(self._all)]
        self._tried += 1
        if self._tried < len(self._all):
            return False
        self._tried = 0
        return True

    def stay(self, greeted: Sequence[str]) -> None:
        """Take in that the present head has let this host in, and which heads there are."""
        self._tried = 0
        if self.socket or not greeted:
            return
        before = self._all
        self._take(tuple(greeted))
        if self._all == before:
            return
        log.info("heads of this cluster: %s", ", ".join(self._all))
        try:
            replace_file(str(self._path), "".join(f"{each}\n" for each in greeted).encode())
        except OSError as error:
            log.warning("%s is not written: %s", self._path, error.strerror)
