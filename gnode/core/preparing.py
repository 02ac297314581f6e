"""Prepared attempts: their processes are started before the launch, and wait for it at a gate.

A prepared attempt is none that lives, as far as the head and its job are concerned: it owns no GPU,
does nothing that two attempts must not do both, and is not reported. Only a launch of the very same
attempt makes it one. All else ends it: the loss of the connection to the head, a restart of gnode,
a stop, the launch of a later attempt, and the limit of its time.
"""

from typing import Final

from gnode.core import orders
from gnode.core.admission import refusal_of
from gnode.core.binding import bind, bind_prepared
from gnode.core.contained import container_of
from gnode.core.effects import AcceptTask, SendToHead
from gnode.core.inputs import LaunchOrder, SpoolEntry
from gnode.core.supervisors import give, open_gate
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AttemptKey, LaunchCommand, StopCommand
from gsched.model.states import StopReason
from gsched.protocol.node import Prepared

#: How long processes wait at most: the head's patience with preparation, checkpoint and place.
LONGEST_WAIT_S: Final = 900.0


def on_launch(table: Table, order: LaunchOrder, now_s: float, wall_s: float) -> None:
    """Prepare an attempt or launch it, as ordered."""
    if order.prepare:
        prepare(table, order)
    elif is_prepared(table, order):
        launch(table, order, now_s, wall_s)
    else:
        orders.launch(table, order, now_s, wall_s)


def prepare(table: Table, order: LaunchOrder) -> None:
    """Start an attempt's processes behind a gate, if nothing is known of it.

    What cannot be prepared now is not an error: the launch will say so, or start it cold.
    """
    launch = order.launch
    key = AttemptKey(launch.job, launch.attempt)
    if key in table.attempts or launch.attempt <= table.latest.get(launch.job, 0):
        table.drop("a preparation of an attempt that is known", key)
        return
    if container_of(launch) is not None:
        table.drop("a preparation of a job in a container, which reads nothing from its node", key)
        return
    if not table.site.programs.is_empty:
        table.drop("a preparation on a node with a prolog or an epilog", key)
        return
    if table.closed or refusal_of(table, order) is not None:
        table.drop("a preparation that is not possible here", key)
        return
    assert order.account is not None, "else it is refused"
    task = bind_prepared(
        launch, order.account, table.site, limit_s=LONGEST_WAIT_S, yields=order.yields
    )
    attempt = orders.attempt_of(task)
    table.add(attempt)
    table.out.append(AcceptTask(task=task))
    orders.ask_launch(table, attempt)


def note_ready(table: Table, message: Prepared) -> None:
    """Tell the head that all processes of a prepared attempt have come to the gate."""
    attempt = table.attempts.get(AttemptKey(message.job, message.attempt))
    if attempt is None or not attempt.prepared or not attempt.live:
        return  # it was launched or ended meanwhile
    attempt.waits = True
    if table.welcomed and attempt.stop_reason is None:
        table.out.append(SendToHead(message=message))


def is_prepared(table: Table, order: LaunchOrder) -> bool:
    """Return whether a launch is of an attempt that waits for it, or was to."""
    attempt = table.attempts.get(AttemptKey(order.launch.job, order.launch.attempt))
    return attempt is not None and attempt.prepared and attempt.is_of(order.launch.token)


def launch(table: Table, order: LaunchOrder, now_s: float, wall_s: float) -> None:
    """Open the gate of a prepared attempt, under the same conditions as of any launch.

    Of one that is ending already the head hears the end, and makes another attempt.
    """
    launch = order.launch
    key = AttemptKey(launch.job, launch.attempt)
    attempt = table.attempts[key]
    if not attempt.live:
        orders.answer_state(table, attempt)
        return
    if attempt.stop_reason is not None:
        return
    if refusal_of(table, order) is not None:
        discard(table, attempt, now_s)
        return
    lease_from_s = table.leases.fresh_s(launch.lease_s, now_s) if launch.lease_s else 0.0
    if lease_from_s is None:
        table.out.extend(table.leases.hold(order, now_s))
        return
    orders.fence_older(table, key, now_s, wall_s)
    if table.live_of_job[key.job][0] != key:
        attempt.launch = launch  # an older one lives here; its end opens the gate
        attempt.account = order.account
        return
    assert order.account is not None, "else it is refused"
    cpus = table.choose_cpus(launch)
    task = bind(launch, order.account, table.site, lease_from_s=lease_from_s, gate=True, cpus=cpus)
    open_gate(table, attempt, task, now_s, wall_s)


def launch_waiting(table: Table, now_s: float, wall_s: float) -> None:
    """Open the gates of attempts whose predecessors here have just ended."""
    keys, table.launches = table.launches, []
    for key in keys:
        attempt = table.attempts[key]
        if attempt.launch is not None:
            launch(
                table,
                LaunchOrder(launch=attempt.launch, account=attempt.account),
                now_s,
                wall_s,
            )


def discard_all(table: Table, now_s: float) -> None:
    """End all prepared attempts: the head that wanted them may be gone, or have given them up."""
    for attempt in table.live():
        if attempt.prepared:
            discard(table, attempt, now_s)


def discard(table: Table, attempt: NodeAttempt, now_s: float) -> None:
    """End a prepared attempt."""
    attempt.launch = None
    command = StopCommand(reason=StopReason.FENCED, grace_s=0.0)
    orders.stop_attempt(table, attempt, command, now_s)


def found(table: Table, attempt: NodeAttempt, there: SpoolEntry, now_s: float) -> None:
    """Take up an attempt that was prepared, from the spool: launched, or to be ended.

    Whether its supervisor was told of the launch is not known; to tell it twice does no harm.
    """
    if there.launched is not None:
        task = there.launched
        give(table, attempt, LaunchCommand(at_s=now_s, walltime_s=task.walltime_s))
    elif attempt.stop_reason is None:
        discard(table, attempt, now_s)
