"""Jobs that could not be moved when they were to be: they are left alone for a while.

Each time longer than the time before, since a job that can never be moved, such as one that does
not handle its signal, would otherwise reserve another place every ten minutes for nothing.
"""

from typing import Final

from gschedd.core.state.state import State

#: Until a job that could not be moved is asked again, seconds: why it could not may pass. Doubled
#: each time in a row, up to the second.
ASK_AGAIN_S: Final = 600.0
ASK_AGAIN_S_MAX: Final = 9600.0


def leave_alone(state: State, job: int, now_s: float) -> None:
    """Note that a job could not be moved."""
    volatile = state.volatile
    pause_s = min(ASK_AGAIN_S * 2.0 ** min(volatile.refusals[job], 10), ASK_AGAIN_S_MAX)
    volatile.refusals[job] += 1
    volatile.stuck[job] = now_s + pause_s


def forget_refusals(state: State, job: int) -> None:
    """Note that a job has migrated, or its attempt has ended: of the next one nothing is known."""
    state.volatile.stuck.pop(job, None)
    state.volatile.refusals.pop(job, None)


def is_left_alone(state: State, job: int, now_s: float) -> bool:
    """Return whether a job could not be moved just now; else it would be asked without a pause."""
    until_s = state.volatile.stuck.get(job)
    return until_s is not None and now_s < until_s


def next_retry_s(state: State) -> float | None:
    """Return when a job that could not be moved is asked again, seconds since the epoch."""
    return min(state.volatile.stuck.values()) if state.volatile.stuck else None


def ask_again(state: State, now_s: float) -> None:
    """Forget that jobs could not be moved, where that is long ago; all is decided anew then."""
    for number in [n for n, until_s in state.volatile.stuck.items() if until_s <= now_s]:
        del state.volatile.stuck[number]
        state.dirty.mark_all()
