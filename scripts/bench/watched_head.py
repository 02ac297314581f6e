"""Run a head that notes for how long its event loop was busy at a stretch.

``watched_head.py FILE COMMAND...``: the command is that of a head, as tests/support/cluster.py
starts it. A turn of the loop is all that it does between two looks at its sockets: whoever sends a
request meanwhile waits for its end. FILE holds the longest turn by the clock and the longest by
the CPU time of the loop's thread, both in seconds, as two doubles; whoever reads them sets them
to zero.
"""

import asyncio
import mmap
import runpy
import selectors
import struct
import sys
import time
from pathlib import Path

_PAIR = struct.Struct("dd")


class LongestTurn:
    """The longest turn of a loop, in a file that another process reads."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_PAIR.size))
        with path.open("r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), _PAIR.size)

    def note(self, wall_s: float, cpu_s: float) -> None:
        """Keep what is longer than all before."""
        wall_max_s, cpu_max_s = _PAIR.unpack(self._memory[:])
        if wall_s > wall_max_s or cpu_s > cpu_max_s:
            self._memory[:] = _PAIR.pack(max(wall_s, wall_max_s), max(cpu_s, cpu_max_s))

    def take(self) -> tuple[float, float]:
        """Return the longest turn by the clock and by CPU time since the last call, in seconds."""
        wall_s, cpu_s = _PAIR.unpack(self._memory[:])
        self._memory[:] = bytes(_PAIR.size)
        return wall_s, cpu_s


class _Selector(selectors.EpollSelector):
    """Notes a turn when the next one begins."""

    def __init__(self, longest: LongestTurn) -> None:
        super().__init__()
        self._longest = longest
        self._wall_s, self._cpu_s = time.perf_counter(), time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        cpu_s = time.thread_time() - self._cpu_s
        self._longest.note(time.perf_counter() - self._wall_s, cpu_s)
        ready = super().select(timeout)
        self._wall_s, self._cpu_s = time.perf_counter(), time.thread_time()
        return ready


class _Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, longest: LongestTurn) -> None:
        super().__init__()
        self._longest = longest

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self._longest))


def main() -> None:
    """Run the head."""
    path, *command = sys.argv[1:]
    asyncio.set_event_loop_policy(_Policy(LongestTurn(Path(path))))
    sys.argv = command[command.index("-m") + 1 :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
