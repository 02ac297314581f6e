"""The floor under every launcher of programs: bare ``posix_spawn``, nothing kept, nothing said."""

import os
import time
from collections.abc import Sequence

#: What each no-op job runs, of every system.
NOOP = ("/bin/sh", "-c", ":")


def spawn_seconds(jobs: int, parallel: int, command: Sequence[str]) -> float:
    """Return how long ``jobs`` spawns of ``command`` take, at most ``parallel`` at a time."""
    started_s = time.monotonic()
    running = 0
    for _ in range(jobs):
        os.posix_spawn(command[0], command, {})
        running += 1
        if running == parallel:
            os.wait()
            running -= 1
    for _ in range(running):
        os.wait()
    return time.monotonic() - started_s
