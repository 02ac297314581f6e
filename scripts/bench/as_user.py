"""A client of the head with the ids of another user: its jobs are that user's."""

import functools
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ClientOf:
    """A client of the head whose calls are made with a user's effective ids, which the head sees.

    Args:
        head: the client, of a head with which it is not connected yet.
        user: whose ids; this process is root's.
        directory: of the cluster, below which the socket is; everybody can pass through from now
            on.
    """

    def __init__(self, head: Any, user: str, directory: Path) -> None:
        self._head = head
        self._account = pwd.getpwnam(user)
        for place in (directory, directory.parent):
            place.chmod(0o711)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, getattr(self._head, name))

    def _call(self, method: Callable[..., Any], *values: Any, **named: Any) -> Any:
        os.setegid(self._account.pw_gid)
        os.seteuid(self._account.pw_uid)
        try:
            return method(*values, **named)
        finally:
            os.seteuid(0)
            os.setegid(0)
