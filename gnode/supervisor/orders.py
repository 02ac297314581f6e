"""gnode's orders to one attempt: stop, signal, retime, launch."""

import signal
from collections.abc import Iterable

from gnode.supervisor import spool
from gnode.supervisor.asking import Asking
from gnode.supervisor.ending import Ending

_STOP_REASONS = frozenset(
    {
        "delete",
        "rerun",
        "move",
        "walltime",
        "peer_failed",
        "fenced",
        "node_stop",
        "shutdown",
        "lease",
    }
)


def obey(orders: Iterable[object], ending: Ending, asking: Asking, now_s: float) -> list[int]:
    """Apply orders in turn and return the signals to send to all processes of the job.

    The signal by which a job saves its state for a migration is ``asking``'s: it goes to the
    processes that handle it only.

    An order that makes no sense is left out with a word in the log: ending the supervisor for it
    would cost the job.
    """
    signals: list[int] = []
    for order in orders:
        match order:
            case {"do": "stop", "reason": str(reason), "grace_s": int() | float() as grace_s} if (
                reason in _STOP_REASONS and grace_s >= 0
            ):
                ending.stop(reason, float(grace_s), now_s)
            case {"do": "signal", "signal": int(number), "request": int(request)} if (
                0 < number < signal.NSIG and request
            ):
                asking.take(number, request, ending, now_s)
            case {"do": "signal", "signal": int(number)} if 0 < number < signal.NSIG:
                signals.append(number)
            case {"do": "retime", "walltime_s": None | int() | float() as walltime_s}:
                ending.retime(walltime_s)
            case {
                "do": "launch",
                "at_s": int() | float() as at_s,
                "walltime_s": None | int() | float() as walltime_s,
            }:
                ending.launch(float(at_s), walltime_s)
            case _:
                spool.log(f"not an order: {order!r}")
    return signals
