"""Time limits of tests, without the time for which the test itself has waited for a processor.

A test that only computes takes minutes beside fifty busy programs, and is not stuck. A limit that
ends in the middle of Hypothesis's search is also shown badly, as a group of exceptions of which the
last says that the data is inconsistent.
"""

import signal
from pathlib import Path
from types import FrameType
from typing import Final

#: Seconds of waiting that are worth a longer limit.
LEAST_S: Final = 0.1


def waited_s() -> float:
    """Return for how long the main thread was runnable and had no processor; 0: not known."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def leave_out_waits() -> None:
    """Have the limit that pytest-timeout has just set with a signal count no waits from now on."""
    told = signal.getsignal(signal.SIGALRM)
    if not callable(told):
        return  # there is none, or it is a thread's
    seen_s = waited_s()

    def on_alarm(number: int, frame: FrameType | None) -> None:
        nonlocal seen_s
        now_s = waited_s()
        more_s, seen_s = now_s - seen_s, now_s
        if more_s > LEAST_S:
            signal.setitimer(signal.ITIMER_REAL, more_s)
        else:
            told(number, frame)

    signal.signal(signal.SIGALRM, on_alarm)
