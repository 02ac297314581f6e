"""What the attempts of a node use at the moment, and when the head is told of it. Pure.

The head is told only what has changed by more than people care for, so that thousands of nodes
with steady jobs say nothing; all that runs is told again once a minute.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gnode.core.task import AttemptKey
from gsched.model.resources import LiveUse, Load
from gsched.protocol.uses import Uses

#: The use of an attempt is told again after so long, also if it has not changed, seconds.
REFRESH_S: Final = 60.0
#: A load that has changed is told after so long at the earliest, seconds.
LOAD_S: Final = 10.0

#: What a figure may change by without being told: this part of it, or this much of it if that is
#: more. Cores, bytes, GPUs, bytes.
_PART: Final = 0.1
_CORES: Final = 0.1
_BYTES: Final = 16 * 1024**2
_GPUS: Final = 0.05
#: Of the load: percent of all cores, and of a GPU.
_PERCENT: Final = 5.0


@dataclass(slots=True)
class _Sent:
    use: LiveUse
    at_s: float


class LiveReports:
    """What the head was told, and so what it is to be told next."""

    def __init__(self) -> None:
        self._sent: dict[AttemptKey, _Sent] = {}
        self._load: Load | None = None
        self._load_s = 0.0

    def connected(self) -> None:
        """Begin anew: this head was told nothing yet."""
        self._sent.clear()
        self._load = None

    def due(self, uses: Mapping[AttemptKey, LiveUse], load: Load, now_s: float) -> Uses | None:
        """Return what the head is to be told now, None for nothing.

        Args:
            uses: of all attempts that were sampled; what is not among them is forgotten.
            load: of the node.
            now_s: a clock that never jumps.
        """
        self._sent = {key: sent for key, sent in self._sent.items() if key in uses}
        changed = [(key, use) for key, use in uses.items() if self._is_news(key, use, now_s)]
        for key, use in changed:
            self._sent[key] = _Sent(use, now_s)
        is_load_news = self._is_load_news(load, now_s)
        if is_load_news:
            self._load, self._load_s = load, now_s
        if not changed and not is_load_news:
            return None
        return Uses(
            uses=tuple((key.job, key.attempt, use) for key, use in changed),
            load=load if is_load_news else None,
        )

    def _is_news(self, key: AttemptKey, use: LiveUse, now_s: float) -> bool:
        sent = self._sent.get(key)
        if sent is None or now_s - sent.at_s >= REFRESH_S:
            return True
        before = sent.use
        return (
            _differs(before.cpu_cores, use.cpu_cores, _CORES)
            or _differs(before.memory_bytes, use.memory_bytes, _BYTES)
            or _differs(before.gpus, use.gpus, _GPUS)
            or _differs(before.gpu_memory_bytes, use.gpu_memory_bytes, _BYTES)
            or _idle_indices(before) != _idle_indices(use)
        )

    def _is_load_news(self, load: Load, now_s: float) -> bool:
        before = self._load
        if before is None:
            return True
        if now_s - self._load_s < LOAD_S:
            return False
        return (
            abs(before.cpu_percent - load.cpu_percent) > _PERCENT
            or _differs(before.memory_used_bytes, load.memory_used_bytes, 8 * _BYTES)
            or _any_differs(before.gpu_util_percent, load.gpu_util_percent, _PERCENT)
            or _any_differs(before.gpu_memory_used_bytes, load.gpu_memory_used_bytes, 8 * _BYTES)
        )


def _idle_indices(use: LiveUse) -> tuple[int, ...] | None:
    return None if use.gpus_idle is None else tuple(gpu.index for gpu in use.gpus_idle)


def _any_differs(before: Iterable[float], now: Iterable[float], least: float) -> bool:
    pairs = list(before), list(now)
    if len(pairs[0]) != len(pairs[1]):
        return True
    return any(_differs(one, other, least) for one, other in zip(*pairs, strict=True))


def _differs(before: float, now: float, least: float) -> bool:
    return abs(now - before) > max(least, _PART * before)
