"""gnode's orders to one attempt: stop, signal, retime, launch."""

import signal
from collections.abc import Callable, Iterable

from gnode.supervisor import spool
from gnode.supervisor.ending import Ending

_STOP_REASONS = frozenset(
    {"delete", "rerun", "move", "walltime", "peer_failed", "fenced", "node_stop", "lease"}
)


def obey(
    orders: Iterable[object],
    ending: Ending,
    now_s: float,
    handlers_of: Callable[[int], set[int]],
) -> list[tuple[int, set[int] | None]]:
    """Apply orders in turn and return the signals to send, each with its processes (None: all).

    The signal by which a job saves its state for a migration goes to those of its processes that
    have a handler for it, as it would kill the others. Where none has, it is not sent, and the job
    counts as not asked.

    An order that makes no sense is left out with a word in the log: ending the supervisor for it
    would cost the job.
    """
    signals: list[tuple[int, set[int] | None]] = []
    for order in orders:
        match order:
            case {"do": "stop", "reason": str(reason), "grace_s": int() | float() as grace_s} if (
                reason in _STOP_REASONS and grace_s >= 0
            ):
                ending.stop(reason, float(grace_s), now_s)
            case {"do": "signal", "signal": int(number), "request": int(request)} if (
                0 < number < signal.NSIG and request
            ):
                handlers = handlers_of(number)
                if not handlers:
                    spool.log(f"no process of the job handles signal {number}: it is not sent")
                elif ending.ask(request, now_s):
                    signals.append((number, handlers))
            case {"do": "signal", "signal": int(number)} if 0 < number < signal.NSIG:
                signals.append((number, None))
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
