"""Terminal sessions: whether an attempt has a terminal here; who may have it, the head decides."""

import msgspec

from gnode.core.effects import ConnectTerminal, SendToHead
from gnode.core.supervisors import give
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AttemptKey, ShellCommand
from gnode.core.transitions import Phase
from gsched.model.limits import MAX_SHELLS_BYTES, MAX_USER_SHELLS_BYTES
from gsched.model.units import format_size
from gsched.protocol.sessions import OpenSession, SessionFailed

#: How long a further shell waits for its user when the connection is lost: a restart of the head
#: or of gnode takes some seconds.
LINGER_S = 60.0
#: The same of a relay of ports: a client that is lost begins a new one.
RELAY_LINGER_S = 10.0


def open_session(table: Table, order: OpenSession) -> None:
    """Have a terminal connected with the head; start the shell on it first, if it is a new one."""
    key = AttemptKey(order.job, order.attempt)
    attempt = table.attempts.get(key)
    node = table.site.node
    if attempt is None or not attempt.is_of(order.token):
        _refuse(table, order, f"node {node} does not know attempt {key.name}")
    elif attempt.phase is not Phase.RUNNING or attempt.prepared:
        _refuse(table, order, f"attempt {key.name} does not run on node {node}")
    elif order.start and attempt.stop_reason is not None:
        _refuse(table, order, f"attempt {key.name} is being stopped")
    else:
        if order.start:
            command = ShellCommand(
                session=order.terminal,
                argv=order.arguments,
                env={**order.variables, "PBS_ENVIRONMENT": "PBS_INTERACTIVE"},
                linger_s=min(LINGER_S, RELAY_LINGER_S) if order.forward else LINGER_S,
                forward=order.forward,
            )
            size = len(msgspec.json.encode(command))
            full = _full(table, attempt, size)
            if full:
                _refuse(table, order, full)
                return
            attempt.shell_bytes += size
            give(table, attempt, command)
        table.out.append(ConnectTerminal(key=key, order=order))


def _full(table: Table, attempt: NodeAttempt, size: int) -> str:
    """Return why the spool takes no further shell of an attempt; empty: it does."""
    node = table.site.node
    if attempt.shell_bytes + size > MAX_SHELLS_BYTES:
        return (
            f"attempt {attempt.key.name} has started so many shells on node {node} that their "
            f"records take {format_size(MAX_SHELLS_BYTES)}, the limit: use one shell for more"
        )
    task = attempt.task
    of_user = sum(
        each.shell_bytes
        for each in table.attempts.values()
        if task is not None and each.task is not None and each.task.uid == task.uid
    )
    if task is not None and of_user + size > MAX_USER_SHELLS_BYTES:
        return (
            f"jobs of {task.user} have started so many shells on node {node} that their records "
            f"take {format_size(MAX_USER_SHELLS_BYTES)}, the limit: wait until one of the jobs has "
            "ended"
        )
    return ""


def _refuse(table: Table, order: OpenSession, message: str) -> None:
    table.out.append(SendToHead(message=SessionFailed(session=order.session, message=message)))
