"""Who is calling: from the kernel (SO_PEERCRED), never from a message."""

import pwd
import socket
import struct
from collections.abc import Callable

from aiohttp import web

from gsched.errors import NotPermittedError
from gschedd.core.settings import Caller

_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)
MAX_NAMES = 10_000


class Callers:
    """Turns connections into callers; remembers user names."""

    def __init__(
        self, *, operator_uids: frozenset[int], name_of: Callable[[int], str] | None = None
    ) -> None:
        self._operator_uids = operator_uids
        self._name_of = name_of or user_name
        self._names: dict[int, str] = {}

    def of(self, request: web.Request) -> Caller:
        """Return who is at the other end of a request's Unix socket.

        Raises:
            NotPermittedError: the kernel does not say (not a Unix socket).
        """
        transport = request.transport
        peer = None if transport is None else transport.get_extra_info("socket")
        if peer is None or peer.family != socket.AF_UNIX:
            raise NotPermittedError("commands are taken on the Unix socket only")
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _, uid, gid = _UCRED.unpack(raw)
        return Caller(user=self._name(uid), uid=uid, gid=gid, operator=uid in self._operator_uids)

    def _name(self, uid: int) -> str:
        name = self._names.get(uid)
        if name is None:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            name = self._names[uid] = self._name_of(uid)
        return name


def user_name(uid: int) -> str:
    """Return the name of a user, or the number as text if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
