"""Run a head that notes for how long its event loop was busy at a stretch.

``watched_head.py FILE COMMAND...``: the command is that of a head, as tests/support/cluster.py
starts it. A turn of the loop is all that it does between two looks at its sockets: whoever sends a
request meanwhile waits for its end. FILE holds the longest turn by the clock and the longest by
the CPU time of the loop's thread, both in seconds, as two doubles, and behind them how many turns
took so many tenths of a millisecond of CPU time; whoever reads them sets them to zero.

With WATCHED_HEAD_STACKS=FILE the stack of the loop's thread is written there every 5 ms of CPU time
of a turn that has taken 20 ms by then, one line each, with the CPU time of the turn up to then, ms:
what long turns run. ``watched_head.py --stacks FILE`` sums them up.
"""

import gc
import mmap
import os
import runpy
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gschedd.daemon import garbage
from gschedd.engine import slices

STEP_S = 1e-4  # of the distribution
STEPS = 50_000
SAMPLE_S = 0.005
LONG_S = 0.02
FRAMES = 40  # of a stack, from the innermost outwards
_PAIR_BYTES = 16


class LongestTurn:
    """The turns of a loop, in a file that another process reads."""

    def __init__(self, path: Path) -> None:
        size = _PAIR_BYTES + 4 * STEPS
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as stream:
            self._memory = memoryview(mmap.mmap(stream.fileno(), size))
        self._longest = self._memory[:_PAIR_BYTES].cast("d")
        self._counts = self._memory[_PAIR_BYTES:].cast("I")

    def note(self, wall_s: float, cpu_s: float) -> None:
        """Count a turn."""
        self._counts[min(int(cpu_s / STEP_S), STEPS - 1)] += 1
        self._longest[0] = max(self._longest[0], wall_s)
        self._longest[1] = max(self._longest[1], cpu_s)

    def take(self) -> tuple[float, float]:
        """Return the longest turn by the clock and by CPU time since the last call, in seconds."""
        wall_s, cpu_s = self._longest
        self._memory[:] = bytes(len(self._memory))
        return wall_s, cpu_s

    def counts(self) -> dict[float, int]:
        """Return how many turns took how long, CPU ms, since the last `take`."""
        return {
            round(step * STEP_S * 1000, 1): count
            for step, count in enumerate(self._counts)
            if count
        }


def at_share(counts: dict[float, int], share: float) -> float:
    """Return what so many of the turns did not exceed, CPU ms."""
    left = share * sum(counts.values())
    for value, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return value
    return 0.0


def _cpu_s() -> float:
    """Return the CPU time of the loop's thread, with that of cycles that are done in slices."""
    return time.thread_time() + slices.Slices.cpu_s


class _Sampler:
    """Writes the stacks of long turns.

    The profiling timer runs with the CPU time of all threads; its signal is handled in this one.
    """

    def __init__(self, path: str) -> None:
        self._stream: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 - for good
        self.begun_s = _cpu_s()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collect_s = time.thread_time()
            return
        took_s = time.thread_time() - self._collect_s
        if took_s > SAMPLE_S:
            self._stream.write(f"{took_s * 1000:.0f} gc:generation{info['generation']}\n")
            self._stream.flush()

    def _sample(self, number: int, frame: FrameType | None) -> None:
        del number
        taken_s = _cpu_s() - self.begun_s
        if taken_s < LONG_S:
            return
        names: list[str] = []
        while frame is not None and len(names) < FRAMES:
            code = frame.f_code
            names.append(f"{Path(code.co_filename).stem}:{code.co_name}")
            frame = frame.f_back
        self._stream.write(f"{taken_s * 1000:.0f} {' '.join(names)}\n")
        self._stream.flush()


class _Selector(garbage.CollectingSelector):
    """Notes a turn when the next one begins."""

    longest: LongestTurn  # set before the first one is made

    def __init__(self) -> None:
        super().__init__()
        stacks = os.environ.get("WATCHED_HEAD_STACKS", "")
        self._sampler = _Sampler(stacks) if stacks else None
        self._wall_s, self._cpu_s = time.perf_counter(), _cpu_s()

    def look(self, timeout: float | None) -> garbage.Ready:
        cpu_s = _cpu_s() - self._cpu_s
        self.longest.note(time.perf_counter() - self._wall_s, cpu_s)
        ready = super().look(timeout)
        self._wall_s, self._cpu_s = time.perf_counter(), _cpu_s()
        if self._sampler is not None:
            self._sampler.begun_s = self._cpu_s
        return ready


# --- what long turns ran ---

#: Frames of the loop itself, and of what only calls something else: they tell nothing of a turn.
_OUTER = ("base_events", "events", "selector_events", "runners", "runpy", "watched_head", "<frozen")


def summary(lines: Iterable[str], most: int = 20) -> list[str]:
    """Return what stood on the stacks, most frequent first: functions, then innermost ones."""
    stacks = [line.split()[1:] for line in lines]
    within = Counter(name for stack in stacks for name in set(stack) if not _is_outer(name))
    inner = Counter(stack[0] for stack in stacks)
    found = [f"{len(stacks)} samples of long turns"]
    for title, counted in (("within", within), ("innermost", inner)):
        found.append(f"{title}:")
        found += [f"{count:7} {name}" for name, count in counted.most_common(most)]
    return found


def _is_outer(name: str) -> bool:
    return name.startswith(_OUTER)


def main(arguments: Sequence[str]) -> None:
    """Run the head, or sum up what its long turns ran."""
    path, *command = arguments
    if path == "--stacks":
        print("\n".join(summary(Path(command[0]).read_text().splitlines(), 60)))
        return
    _Selector.longest = LongestTurn(Path(path))
    garbage.CollectingSelector = _Selector  # type: ignore[misc] # of the loop that is made next
    sys.argv = command[command.index("-m") + 1 :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
