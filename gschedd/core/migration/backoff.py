"""Jobs that could not be moved when they were to be: they are left alone for a while."""

from typing import Final

from gschedd.core.state import State

#: Until a job that could not be moved is asked again, seconds: why it could not may pass.
ASK_AGAIN_S: Final = 600.0


def is_left_alone(state: State, job: int, now_s: float) -> bool:
    """Return whether a job could not be moved just now; else it would be asked without a pause."""
    since_s = state.volatile.stuck.get(job)
    return since_s is not None and now_s < since_s + ASK_AGAIN_S


def next_asked_again_s(state: State) -> float | None:
    """Return when a job that could not be moved is asked again, seconds since the epoch."""
    return min(state.volatile.stuck.values()) + ASK_AGAIN_S if state.volatile.stuck else None


def ask_again(state: State, now_s: float) -> None:
    """Forget that jobs could not be moved, where that is long ago; all is decided anew then."""
    for number in [n for n, at_s in state.volatile.stuck.items() if at_s + ASK_AGAIN_S <= now_s]:
        del state.volatile.stuck[number]
        state.dirty.mark_all()
