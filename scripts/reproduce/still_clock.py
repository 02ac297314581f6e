"""Runs a daemon of gsched with a clock that stands still: ``still_clock.py FILE MODULE ARGUMENTS``.

The wall clock shows what FILE says, seconds since the epoch, until somebody writes another moment
there. Intervals (time-outs, retries) are still those of the machine.
"""

import runpy
import sys
from pathlib import Path

from gsched.clock import SystemClock


def main() -> None:
    """Put the clock into place and run the module as its own program."""
    _, file, module, *arguments = sys.argv
    moment = Path(file)

    def wall_s(_: SystemClock) -> float:
        return float(moment.read_text(encoding="ascii"))

    SystemClock.wall_s = wall_s  # type: ignore[method-assign]  # the one place where it stands still
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
