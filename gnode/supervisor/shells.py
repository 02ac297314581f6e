"""Further shells in a running job: `gshell`, as its supervisor starts them.

Each is a child of the supervisor, in the job's control groups, with the job's environment and its
owner's rights, behind a terminal keeper of its own. So it counts as the job's in every respect: its
usage is the job's, and what ends the job ends it.
"""

import contextlib
import os
import re
import socket

from gnode.supervisor import child, spool, terminal
from gnode.supervisor.child import Surroundings
from gnode.supervisor.errors import reason
from gnode.task import Task

SHELLS_MAX = 16  # at once in one attempt's part
_REFUSING = frozenset({"", "false", "nologin", "sync"})
_SESSION = re.compile(r"[0-9a-f]{32}")


def _shell_of(task: Task) -> str:
    """Return the shell of the job's owner; some accounts have a program that refuses instead."""
    shell = task.env.get("SHELL", "")
    return "/bin/sh" if os.path.basename(shell) in _REFUSING else shell


class Shells:
    """The shells of one attempt.

    Args:
        directory: of the attempt.
        around: see `Surroundings`.
    """

    __slots__ = ("_around", "_directory", "_sessions", "_wanted")

    def __init__(self, directory: str, around: Surroundings) -> None:
        self._directory = directory
        self._around = around
        self._wanted: list[dict[str, object]] = []
        self._sessions: dict[int, str] = {}  # by pid

    def take(self, orders: list[object]) -> list[object]:
        """Take the orders that are for shells, and return the others."""
        others: list[object] = []
        for order in orders:
            if isinstance(order, dict) and order.get("do") == "shell":
                self._wanted.append(order)
            else:
                others.append(order)
        return others

    def reaped(self, pid: int) -> None:
        """Note that a process of the job has ended."""
        session = self._sessions.pop(pid, "")
        if session:
            self._forget(session)

    def _forget(self, session: str) -> None:
        """Remove the socket of a shell: its keeper has no right to."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self._directory}/{terminal.socket_name(session)}")

    def start(self, task: Task) -> None:
        """Start the shells that were ordered."""
        wanted, self._wanted = self._wanted, []
        for order in wanted:
            match order:
                case {
                    "session": str(session),
                    "argv": list(argv),
                    "env": dict(env),
                    "linger_s": int() | float() as linger_s,
                } if _SESSION.fullmatch(session) and all(isinstance(each, str) for each in argv):
                    changed = task.env | {str(name): str(env[name]) for name in env}
                    words = tuple(argv) or (_shell_of(task),)
                    own = Task(**vars(task) | {"argv": words, "env": changed})
                    relays = order.get("forward") is True
                    self._start(own, session, float(linger_s), relays=relays)
                case _:
                    spool.log(f"not an order for a shell: {order!r}")

    def _start(self, task: Task, session: str, linger_s: float, *, relays: bool) -> None:
        try:
            listener = terminal.listen(self._directory, session)
        except OSError as error:  # gnode says that none has come
            spool.log(f"{self._directory}: no terminal for a shell: {reason(error)}")
            return
        with listener:
            pid = self._fork(task, listener, linger_s, relays=relays)
        if pid:
            self._sessions[pid] = session
        else:  # gnode says that none has come
            self._forget(session)

    def _fork(self, task: Task, listener: socket.socket, linger_s: float, *, relays: bool) -> int:
        """Return the process of a further shell, or that refuses it; 0: there is none."""
        too_many = len(self._sessions) >= SHELLS_MAX
        if len(self._sessions) >= 2 * SHELLS_MAX:
            return 0
        try:
            pid = os.fork()
        except OSError as error:
            spool.log(f"{self._directory}: cannot fork a shell: {reason(error)}")
            return 0
        if pid == 0 and too_many:
            terminal.close_all_but(listener.fileno())
            terminal.refuse(
                listener, f"the job has {SHELLS_MAX} shells on this node, the limit: leave one"
            )
        if pid == 0:
            child.become_shell(task, self._around, listener, linger_s=linger_s, relays=relays)
        return pid
