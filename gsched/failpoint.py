"""Named points between two side effects, where a test can kill, stop or break a daemon.

``GSCHED_FAIL=name[:nth]:action`` arms one point, several are separated by commas. ``action`` is
``kill`` (SIGKILL to this process), ``kill-once=FILE`` (the same, for the first of all processes
that comes by and makes the file), ``raise`` (`FailpointError`) or ``sleep=SECONDS``; ``nth`` counts
the passes of one process, from 1. Standard library only: the supervisor uses it too.
"""

import os
import signal
import time

#: Every failpoint there is; the sweep in tests/system walks this list; others are refused.
FAILPOINTS: tuple[str, ...] = (
    "head.submit.before_commit",
    "head.submit.after_commit",
    "head.submit.after_ack",
    "head.cycle.before",
    "head.assign.after_commit",
    "head.launch.after_send",
    "head.launch.between_nodes",
    "head.exit.before_commit",
    "head.exit.after_commit",
    "head.exit.after_ack",
    "head.delete.after_commit",
    "head.move.before_commit",
    "head.move.after_commit",
    "head.mark.before_write",
    "head.migrate.before_commit",
    "head.replicated.before_commit",
    "head.replicated.after_lease",
    "join.before_commit",
    "join.after_commit",
    "authority.after_note",
    "authority.after_files",
    "notify.after_delivery",
    "backup.before_check",
    "backup.before_rename",
    "restore.before_removal",
    "restore.before_database",
    "delivery.node.after_answer",
    "delivery.node.before_removal",
    "delivery.head.after_host",
    "delivery.host.after_write",
    "staging.node.after_answer",
    "staging.node.after_entry",
    "staging.head.after_host",
    "staging.host.after_read",
    "node.launch.received",
    "node.launch.after_accepted",
    "node.launch.after_spawn",
    "node.launch.after_report",
    "node.exit.before_keep",
    "node.exit.half_kept",
    "node.exit.before_flush",
    "node.exit.after_flush",
    "node.exit.before_report",
    "node.exit.after_report",
    "node.exit.after_ack",
    "supervisor.start.before_fork",
    "supervisor.start.after_fork",
    "supervisor.exit.before_groups",
    "supervisor.exit.before_record",
    "supervisor.exit.half_record",
    "supervisor.exit.after_record",
    "training.save.before_data",
    "training.save.before_manifest",
    "training.save.before_publish",
    "training.save.after_publish",
    "training.copy.before",
    "training.copy.complete",
    "training.wait",
    "training.flush.before",
    "training.flush.before_mark",
    "training.restore.before_load",
    "training.restore.after_load",
)


class FailpointError(RuntimeError):
    """Raised by a failpoint armed with ``raise``."""


_armed: dict[str, tuple[int, str]] = {}
_passes: dict[str, int] = {}


def arm(text: str) -> None:
    """Arm the failpoints of ``text`` (the value of ``GSCHED_FAIL``), replacing earlier ones.

    Raises:
        ValueError: an unknown name, or a text that is not ``name[:nth]:action``.
    """
    _armed.clear()
    _passes.clear()
    for item in filter(None, text.split(",")):
        name, _, rest = item.partition(":")
        nth, _, action = rest.partition(":") if ":" in rest else ("1", "", rest)
        if name not in FAILPOINTS or not nth.isdigit() or not action:
            raise ValueError(f"GSCHED_FAIL: {item!r} is not name[:nth]:action of a known failpoint")
        _armed[name] = (int(nth), action)


def is_armed(name: str) -> bool:
    """Return whether this point is armed: for work that is done in pieces only for its sake."""
    return name in _armed


def failpoint(name: str) -> None:
    """Do nothing, unless this point is armed and it is its turn."""
    if not _armed:
        return
    if name not in FAILPOINTS:
        raise ValueError(f"failpoint {name!r} is not in FAILPOINTS")
    if name not in _armed:
        return
    _passes[name] = _passes.get(name, 0) + 1
    nth, action = _armed[name]
    if _passes[name] != nth:
        return
    if action == "kill" or (action.startswith("kill-once=") and _is_first(action)):
        os.kill(os.getpid(), signal.SIGKILL)
    elif action.startswith("kill-once="):
        return
    elif action == "raise":
        raise FailpointError(name)
    elif action.startswith("sleep="):
        time.sleep(float(action.removeprefix("sleep=")))
    else:
        raise ValueError(f"failpoint {name!r}: unknown action {action!r}")


def _is_first(action: str) -> bool:
    """Return whether no process has been killed by this action yet; from now on one has."""
    try:
        os.close(os.open(action.removeprefix("kill-once="), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


arm(os.environ.get("GSCHED_FAIL", ""))
