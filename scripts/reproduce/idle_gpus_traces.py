"""GPU use of generated jobs over time, with labels: where a GPU idles and where it only pauses.

A trace has a sample every `SAMPLE_S`, as gnode takes them: the utilisation that NVML tells is that
of the last second or less, so a GPU that works for a tenth of the time mostly shows 0 %.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

SAMPLE_S: Final = 5.0
MINUTE: Final = 60.0
HOUR: Final = 3600.0
#: The first half hour of a job is nobody's waste: what is done there is labelled as work.
GRACE_S: Final = 1800.0
#: A gap between two cells of a notebook or two requests is idle time from this length on.
GAP_S: Final = 600.0
GIB: Final = 1024**3
CONTEXT_BYTES: Final = GIB // 2

Level = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU at one moment; ``label``: ``work``, ``idle`` or ``hung``."""

    percent: float
    memory_bytes: int
    has_process: bool
    label: str


@dataclass(slots=True)
class Trace:
    """One GPU of a job."""

    kind: str
    random: random.Random
    samples: list[Sample] = field(default_factory=list)

    @property
    def passed_s(self) -> float:
        """Return how long the trace is, seconds."""
        return len(self.samples) * SAMPLE_S

    def add(
        self, seconds: float, level: Level, label: str, memory_bytes: int, *, grows: int = 0
    ) -> None:
        """Add a phase; with ``grows`` the memory grows by so much until its end."""
        count = max(1, round(seconds / SAMPLE_S))
        for at in range(count):
            is_grace = self.passed_s < GRACE_S and label == "idle"
            used_bytes = memory_bytes + grows * at // count
            said = "work" if is_grace else label
            percent = min(100.0, max(0.0, level(self.random)))
            self.samples.append(Sample(percent, used_bytes, used_bytes > 0, said))


def nothing(_: random.Random) -> float:
    """Return 0 %: no kernel runs."""
    return 0.0


def about(percent: float, spread: float = 8.0) -> Level:
    """Return a GPU that works all the time."""
    return lambda chance: chance.gauss(percent, spread)


def sometimes(part: float, percent: float = 90.0) -> Level:
    """Return a GPU that works for a part of the time, in turns that are short beside 5 s."""
    return lambda chance: chance.gauss(percent, 8.0) if chance.random() < part else 0.0


def _memory(chance: random.Random) -> int:
    return chance.randint(2, 70) * GIB


def _train(trace: Trace, until_s: float, memory: int, level: Level) -> None:
    """Train in epochs, with pauses for checkpoints, stalls of the input, and evaluation on CPUs."""
    chance = trace.random
    evaluates_s = chance.uniform(1, 12) * MINUTE if chance.random() < 0.4 else 0.0
    pauses = (chance.uniform(10, 240), evaluates_s)
    epoch_s = chance.uniform(5, 60) * MINUTE
    while trace.passed_s < until_s:
        trace.add(epoch_s, level, "work", memory)
        for pause_s in pauses:
            if pause_s:
                trace.add(pause_s, nothing, "work", memory)
        if chance.random() < 0.1:  # a file system that does not answer
            trace.add(chance.uniform(1, 8) * MINUTE, nothing, "work", memory)


def _tail(trace: Trace, part: float, memory: int) -> None:
    """Let a part of the jobs not end when they are done: the rest of the walltime is idle."""
    if trace.random.random() < part:
        trace.add(trace.random.uniform(1, 12) * HOUR, nothing, "idle", memory)


def training(trace: Trace) -> None:
    """Imports and preprocessing, training, and sometimes a script that does not end."""
    chance, memory = trace.random, _memory(trace.random)
    trace.add(chance.uniform(1, 28) * MINUTE, nothing, "work", 0)
    _train(trace, chance.uniform(2, 14) * HOUR, memory, about(chance.uniform(50, 98)))
    _tail(trace, 0.15, memory)


def input_bound(trace: Trace) -> None:
    """Training that waits for its input most of the time."""
    chance, memory = trace.random, _memory(trace.random)
    trace.add(chance.uniform(1, 10) * MINUTE, nothing, "work", 0)
    _train(trace, chance.uniform(2, 10) * HOUR, memory, sometimes(chance.uniform(0.08, 0.4)))


def small_kernels(trace: Trace) -> None:
    """Reinforcement learning: simulation on CPUs, and small kernels all the time."""
    chance = trace.random
    trace.add(5 * MINUTE, nothing, "work", CONTEXT_BYTES)
    trace.add(chance.uniform(3, 12) * HOUR, about(chance.uniform(3, 12), 2.0), "work", 2 * GIB)


def notebook(trace: Trace) -> None:
    """Cells that run for seconds to minutes, thinking between them, meetings, and the night."""
    chance, memory = trace.random, _memory(trace.random)
    end_s = chance.uniform(4, 16) * HOUR
    while trace.passed_s < end_s:
        for _ in range(chance.randint(5, 40)):
            trace.add(chance.expovariate(1 / 90), about(70, 25), "work", memory)
            gap_s = min(chance.lognormvariate(4.8, 1.1), 2 * HOUR)
            trace.add(gap_s, nothing, "idle" if gap_s >= GAP_S else "work", memory)
        trace.add(chance.uniform(0.7, 10) * HOUR, nothing, "idle", memory)


def inference(trace: Trace) -> None:
    """A server: the model is loaded, requests come in bursts by day and none by night."""
    chance, memory = trace.random, _memory(trace.random)
    trace.add(memory / GIB * chance.uniform(1, 20), nothing, "work", CONTEXT_BYTES, grows=memory)
    memory += CONTEXT_BYTES
    for _ in range(chance.randint(1, 3)):
        trace.add(
            chance.uniform(4, 10) * HOUR, sometimes(chance.uniform(0.04, 0.6)), "work", memory
        )
        trace.add(chance.uniform(1, 9) * HOUR, nothing, "idle", memory)


def loading(trace: Trace) -> None:
    """A large model comes to the GPU slowly, from a busy file system."""
    chance, memory = trace.random, trace.random.randint(40, 75) * GIB
    trace.add(chance.uniform(5, 25) * MINUTE, nothing, "work", 0)
    trace.add(chance.uniform(10, 50) * MINUTE, nothing, "work", CONTEXT_BYTES, grows=memory)
    trace.add(chance.uniform(2, 8) * HOUR, about(80), "work", memory + CONTEXT_BYTES)


def preparation(trace: Trace) -> None:
    """Preprocessing for hours before the GPU is used: idle after the first half hour."""
    chance, memory = trace.random, _memory(trace.random)
    prepares_s = chance.uniform(0.8, 4) * HOUR
    trace.add(prepares_s, nothing, "idle", chance.choice((0, CONTEXT_BYTES)))
    _train(trace, prepares_s + chance.uniform(1, 6) * HOUR, memory, about(80))


def forgotten(trace: Trace) -> None:
    """A burst of work, then a process that holds memory and does nothing."""
    chance, memory = trace.random, _memory(trace.random)
    trace.add(chance.uniform(5, 90) * MINUTE, about(80), "work", memory)
    trace.add(chance.uniform(2, 24) * HOUR, nothing, "idle", memory)


def unused(trace: Trace) -> None:
    """A GPU that its job does not use at all; sometimes a library has made a context there."""
    chance = trace.random
    trace.add(chance.uniform(2, 16) * HOUR, nothing, "idle", chance.choice((0, 0, CONTEXT_BYTES)))


def disguised(trace: Trace) -> None:
    """A program that multiplies matrices for a second or two now and then, so as not to be seen."""
    chance = trace.random
    end_s, every_s = chance.uniform(3, 12) * HOUR, chance.uniform(5, 10) * MINUTE
    while trace.passed_s < end_s:
        trace.add(SAMPLE_S, about(100, 0), "idle", CONTEXT_BYTES)
        trace.add(every_s, nothing, "idle", CONTEXT_BYTES)


def hung(trace: Trace) -> None:
    """Training whose collective operation waits for ever: its kernel keeps the GPU at 100 %."""
    chance, memory = trace.random, _memory(trace.random)
    _train(trace, chance.uniform(1, 8) * HOUR, memory, about(90))
    trace.add(chance.uniform(2, 12) * HOUR, about(100, 0), "hung", memory)


#: Kinds of jobs, how many of a hundred are of each, and their numbers of GPUs.
MIX: Final[tuple[tuple[Callable[[Trace], None], int, tuple[int, ...]], ...]] = (
    (training, 36, (1, 2, 4, 8)),
    (input_bound, 10, (1, 2)),
    (small_kernels, 6, (1,)),
    (notebook, 14, (1,)),
    (inference, 8, (1, 2)),
    (loading, 3, (1, 4)),
    (preparation, 6, (1, 2)),
    (forgotten, 6, (1,)),
    (unused, 3, (1, 2)),
    (disguised, 2, (1,)),
    (hung, 6, (2, 4)),
)
#: Of so many training jobs in a hundred only one of the GPUs works.
ONE_OF_MANY: Final = 8


def jobs(seed: int, count: int) -> Iterator[list[Trace]]:
    """Yield jobs, as the traces of their GPUs."""
    chance = random.Random(seed)
    weights = [weight for _, weight, _ in MIX]
    for number in range(count):
        make, _, sizes = chance.choices(MIX, weights)[0]
        gpus, own = chance.choice(sizes), chance.random()
        traces: list[Trace] = []
        is_lopsided = make is training and gpus > 1 and chance.random() < ONE_OF_MANY / 100
        for index in range(gpus):
            of_gpu = random.Random(f"{seed} {number} {own}")
            idles = is_lopsided and index > 0
            trace = Trace("one of many" if is_lopsided else make.__name__, of_gpu)
            if idles:
                trace.add(traces[0].passed_s, nothing, "idle", chance.choice((0, CONTEXT_BYTES)))
            else:
                make(trace)
            traces.append(trace)
        yield traces
