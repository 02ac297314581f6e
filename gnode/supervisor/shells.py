"""Further shells in a running job: `gshell`, as its supervisor starts them.

Each is a child of the supervisor, in the job's control groups, with the job's environment and its
owner's rights, behind a terminal keeper of its own. So it counts as the job's in every respect: its
usage is the job's, and what ends the job ends it.
"""

import os
import re
import socket

from gnode.supervisor import child, spool, terminal
from gnode.supervisor.child import Surroundings
from gnode.supervisor.errors import reason
from gnode.supervisor.spool import Task

SHELLS_MAX = 16  # at once in one attempt's part
_REFUSING = frozenset({"", "false", "nologin", "sync"})
_SESSION = re.compile(r"[0-9a-f]{32}")


def _shell_of(task: Task) -> str:
    """Return the shell of the job's owner; some accounts have a program that refuses instead."""
    shell = task["env"].get("SHELL", "")
    return "/bin/sh" if os.path.basename(shell) in _REFUSING else shell


class Shells:
    """The shells of one attempt.

    Args:
        directory: of the attempt.
        around: see `Surroundings`.
    """

    __slots__ = ("_around", "_directory", "_pids", "_wanted")

    def __init__(self, directory: str, around: Surroundings) -> None:
        self._directory = directory
        self._around = around
        self._wanted: list[dict[str, object]] = []
        self._pids: set[int] = set()

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
        self._pids.discard(pid)

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
                    changed = task["env"] | {str(name): str(env[name]) for name in env}
                    words = argv or [_shell_of(task)]
                    own: Task = {**task, "argv": words, "env": changed}
                    self._start(own, session, float(linger_s))
                case _:
                    spool.log(f"not an order for a shell: {order!r}")

    def _start(self, task: Task, session: str, linger_s: float) -> None:
        try:
            listener = terminal.listen(self._directory, session)
        except OSError as error:  # gnode says that none has come
            spool.log(f"{self._directory}: no terminal for a shell: {reason(error)}")
            return
        with listener:
            self._fork(task, listener, linger_s)

    def _fork(self, task: Task, listener: socket.socket, linger_s: float) -> None:
        too_many = len(self._pids) >= SHELLS_MAX
        if len(self._pids) >= 2 * SHELLS_MAX:
            return  # gnode says that none has come
        try:
            pid = os.fork()
        except OSError as error:
            spool.log(f"{self._directory}: cannot fork a shell: {reason(error)}")
            return
        if pid:
            self._pids.add(pid)
            return
        if too_many:
            terminal.close_all_but(listener.fileno())
            terminal.refuse(
                listener, f"the job has {SHELLS_MAX} shells on this node, the limit: leave one"
            )
        child.become_shell(task, self._around, listener, linger_s=linger_s)
