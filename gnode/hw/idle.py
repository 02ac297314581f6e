"""Whether a GPU of an attempt is idle: its use in a sliding window over the samples. Pure.

A burst and then nothing is idle as soon as the burst is a small enough part of the window, and a
pause that is shorter than the window is not. GPU memory that grows is work: a program that copies
data or a model to its GPU runs no kernel.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from gsched.config.idle_gpus import IdleGpusConfig
from gsched.model.gpu_idle import IdleGpu

#: A window has so many samples at least.
LEAST_SAMPLES: Final = 10
#: In so many pieces the window slides.
_PIECES: Final = 60
#: A window with a gap of more than this part of it, as after a suspend, begins anew; a gap of so
#: many seconds never matters.
_GAP: Final = 0.25
_GAP_S: Final = 5.0
#: GPU memory that grows by so much is work, bytes.
GREW_BYTES: Final = 256 * 1024**2


def with_samples(config: IdleGpusConfig, sample_s: float) -> IdleGpusConfig:
    """Return a configuration whose window is long enough for GPUs that are sampled so rarely."""
    if not config.window_s:
        return config
    return structs.replace(config, window_s=max(config.window_s, LEAST_SAMPLES * sample_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuActivity:
    """What an attempt does on one of its GPUs at the moment.

    Attributes:
        util_percent: of the GPU, its own part of a shared one; None: the GPU does not tell.
        memory_bytes: that the attempt holds.
        has_process: a process of the attempt is on it.
    """

    util_percent: float | None
    memory_bytes: int
    has_process: bool


@dataclass(slots=True)
class _Piece:
    begin_s: float
    samples: int = 0
    percent: float = 0.0
    has_process: bool = False


class GpuWindow:
    """The window of one GPU of an attempt.

    Times are those since the start of the attempt.

    Attributes:
        known: the window is full: only then it is known whether the GPU is idle.
        idle_since_s: since when it is; None: it is not, or that is not known.
        idle_sum_s: for how long it was idle in all.
    """

    __slots__ = (
        "_config",
        "_least_bytes",
        "_pieces",
        "_sampled_s",
        "_sum",
        "_worked_s",
        "idle_since_s",
        "idle_sum_s",
        "known",
    )

    def __init__(self, config: IdleGpusConfig) -> None:
        self._config = config
        self.idle_sum_s = 0.0
        self._sampled_s = 0.0
        self._restart()

    def _restart(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._sum = _Piece(0.0)  # of all of them
        self._least_bytes: int | None = None
        self._worked_s = 0.0
        self.known = False
        self.idle_since_s: float | None = None

    def note(self, activity: GpuActivity, now_s: float) -> None:
        """Take in one sample; samples of the grace period do not count."""
        if now_s < self._config.grace_s:
            return
        passed_s = now_s - self._sampled_s
        if self._pieces and not 0 <= passed_s <= max(self._config.window_s * _GAP, _GAP_S):
            self._restart()
        self._sampled_s = now_s
        percent = self._percent(activity)
        is_busy = percent >= self._config.busy_percent
        if is_busy:
            self._worked_s = now_s
        self._slide(percent, now_s, has_process=activity.has_process)
        first_s = self._pieces[0].begin_s
        self.known = self.known or now_s - first_s >= self._config.window_s
        was_idle = self.idle_since_s is not None
        mean_percent = self._sum.percent / self._sum.samples
        if not self.known or mean_percent >= self._config.busy_percent:
            self.idle_since_s = None
        elif not was_idle:
            self.idle_since_s = max(first_s, self._worked_s)
            self.idle_sum_s += now_s - self.idle_since_s
        elif not is_busy:
            self.idle_sum_s += passed_s

    def _percent(self, activity: GpuActivity) -> float:
        """Return for which part of the time the GPU works for the attempt, percent.

        Of a GPU that does not tell, a process on it counts as work.
        """
        used_bytes = activity.memory_bytes
        least_bytes = used_bytes if self._least_bytes is None else self._least_bytes
        has_grown = used_bytes - least_bytes >= GREW_BYTES
        self._least_bytes = used_bytes if has_grown else min(least_bytes, used_bytes)
        if has_grown or (activity.util_percent is None and activity.has_process):
            return 100.0
        return activity.util_percent or 0.0

    def _slide(self, percent: float, now_s: float, *, has_process: bool) -> None:
        pieces, window_s = self._pieces, self._config.window_s
        if not pieces or now_s - pieces[-1].begin_s >= window_s / _PIECES:
            pieces.append(_Piece(now_s))
        for piece in (pieces[-1], self._sum):
            piece.samples += 1
            piece.percent += percent
        pieces[-1].has_process |= has_process
        while len(pieces) > 1 and pieces[1].begin_s <= now_s - window_s:
            oldest = pieces.popleft()
            self._sum.samples -= oldest.samples
            self._sum.percent -= oldest.percent

    def idle(self, index: int) -> IdleGpu | None:
        """Return that the GPU with this index is idle; None: it is not, or that is not known."""
        if self.idle_since_s is None:
            return None
        return IdleGpu(
            index=index,
            idle_s=self._sampled_s - self.idle_since_s,
            held=any(piece.has_process for piece in self._pieces),
        )
