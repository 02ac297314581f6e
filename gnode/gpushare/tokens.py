"""What the token daemon says of itself, as the head and people get it: pure."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from gnode.core.task import parse_key
from gsched.model.gpu_tokens import MAX_TOKEN_ROWS, GpuSharing, TokenGpu, TokenUse
from gsched.model.numbers import MAX_NUMBER

Row = Mapping[str, Any]


class Tokens:
    """The daemon's metrics.

    Args:
        metrics: as `TokenDaemon.metrics` returns them.
        restarts: how often the daemon was started again.
    """

    def __init__(self, metrics: Mapping[str, object], restarts: int) -> None:
        self._metrics = metrics
        self._restarts = restarts

    def demoted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the jobs that were demoted, with their processes."""
        for group, row in self._rows("groups").items():
            if row["demoted"]:
                yield group, tuple(row["pids"])

    def held_s(self) -> dict[str, float]:
        """Return for how long each job has held its token, seconds."""
        return {group: float(row["held_s"]) for group, row in self._rows("groups").items()}

    def report(self, words: str, indices: Mapping[str, int]) -> GpuSharing:
        """Return what the head is told.

        Args:
            words: how jobs share GPUs here.
            indices: of the GPUs of this node, by the names that the daemon knows them by.
        """
        gpus = [
            TokenGpu(
                index=indices[name],
                holder=parse_key(row["holder"]).job if row["holder"] else 0,
                switches=_count(row["grants"]),
                preemptions=_count(row["preemptions"]),
                drains=_count(row["drains"]),
                drain_s_max=row["drain_s_max"],
                drain_s_sum=row["drain_s_sum"],
                overlaps=_count(row["overlaps"]),
            )
            for name, row in self._rows("gpus").items()
            if name in indices
        ]
        jobs = [
            _use(group, row, indices[row["gpu"]])
            for group, row in self._rows("groups").items()
            if row["gpu"] in indices
        ]
        return GpuSharing(
            words=words,
            gpus=tuple(gpus[:MAX_TOKEN_ROWS]),
            jobs=tuple(jobs[:MAX_TOKEN_ROWS]),
            unhooked_symbols=_count(self._metrics["unhooked_symbols"]),
            restarts=self._restarts,
        )

    def _rows(self, name: str) -> Mapping[str, Row]:
        return cast("Mapping[str, Row]", self._metrics[name])


def _count(number: object) -> int:
    """Return a counter of the daemon, which may be an older one, as far as the head can read it."""
    return min(MAX_NUMBER, cast("int", number))


def _use(group: str, row: Row, index: int) -> TokenUse:
    key = parse_key(group)
    return TokenUse(
        job=key.job,
        attempt=key.attempt,
        index=index,
        held_s=row["held_s"],
        launches=_count(row["launches"]),
        overlaps=_count(row["overlaps"]),
        memory_bytes=_count(row["used_bytes"]),
        refused=_count(row["refused_allocations"]),
        demoted=row["demoted"],
    )
