"""Jobs that could not be moved when they were to be: they are left alone for a while."""

from typing import Final

from gschedd.core.state import State

#: Until a job that could not be moved is asked again, seconds: why it could not may pass.
ASK_AGAIN_S: Final = 600.0


def is_left_alone(state: State, job: int, now_s: float) -> bool:
    """Return whether a job could not be moved just now; else it would be asked without a pause."""
    since_s = state.stuck.get(job)
    return since_s is not None and now_s < since_s + ASK_AGAIN_S
