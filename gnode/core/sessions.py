"""Terminal sessions: whether an attempt has a terminal here; who may have it, the head decides."""

from gnode.core.effects import ConnectTerminal, Send
from gnode.core.supervisors import give
from gnode.core.table import Table
from gnode.core.task import AttemptKey, ShellCommand
from gnode.core.transitions import Phase
from gsched.protocol.sessions import OpenSession, SessionFailed

#: How long a further shell waits for its user when the connection is lost: a restart of the head
#: or of gnode takes some seconds.
LINGER_S = 60.0


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
                linger_s=LINGER_S,
            )
            give(table, attempt, command)
        table.out.append(ConnectTerminal(key=key, order=order))


def _refuse(table: Table, order: OpenSession, message: str) -> None:
    table.out.append(Send(message=SessionFailed(session=order.session, message=message)))
