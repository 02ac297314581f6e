"""How ``ghist --predictions`` and ``gnodes --predictions`` show what was predicted and measured."""

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from gsched.cli.common import is_terminal, print_note
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.model.ids import format_job_id
from gsched.model.units import format_duration, format_size
from gsched.protocol.predictions import (
    NodePredictionRow,
    PredictionRow,
    PredictionsReply,
    SpreadRow,
    UseRow,
)

NOT_LEARNING = "this head does not learn what jobs use: see history.learn in gsched.toml(5)"

PAST = (
    Column("Job ID", style="bold"),
    Column("Try", right=True, drop=1),
    Column("Node", least=8),
    Column("Name", least=8, drop=6),
    Column("Basis", drop=8),
    Column("Runs", right=True, drop=5),
    Column("CPUs pred", right=True, drop=9),
    Column("CPUs", right=True, drop=10),
    Column("CPU err", right=True),
    Column("Mem pred", right=True, drop=7),
    Column("Memory", right=True, drop=11),
    Column("Mem err", right=True),
    Column("GPUs pred", right=True, drop=2),
    Column("GPUs", right=True, drop=3),
    Column("GPU err", right=True, drop=4),
    Column("Time pred", right=True),
    Column("Time", right=True),
    Column("Time err", right=True),
)

#: What fits into 100 characters; --json has the rest.
NODES = (
    Column("Node", style="bold"),
    Column("Jobs", right=True),
    Column("CPUs pred", right=True),
    Column("CPUs", right=True),
    Column("Mem pred", right=True),
    Column("Memory", right=True),
    Column("GPUs pred", right=True, drop=1),
    Column("GPUs", right=True, drop=2),
    Column("CPU err", right=True, drop=3),
    Column("Time err", right=True, drop=4),
)


def print_predictions(reply: PredictionsReply, *, color: str) -> None:
    """Print a line for each attempt and node, newest first, and how large the errors are.

    In a pipe the last goes to stderr.
    """
    print_table(PAST, [_past_line(reply, row) for row in reply.rows], color=color)
    totals = describe_errors(reply)
    if is_terminal(sys.stdout):
        print(f"\n{totals}")
    else:
        print_note(totals, command="ghist")


def _past_line(reply: PredictionsReply, row: PredictionRow) -> Sequence[str]:
    measured, predicted, errors = row.measured, row.predicted, row.errors
    wall_s = predicted.wall_s if predicted is not None else None
    pred_cpus, pred_memory, pred_gpus, _ = _cells(predicted.use if predicted is not None else None)
    cpus, memory, gpus, _ = _cells(measured.use)
    return (
        format_job_id(row.job, reply.server),
        str(row.attempt),
        row.node,
        row.name,
        row.basis,
        str(row.records) if row.basis else "",
        pred_cpus,
        cpus,
        _error(errors.cpu),
        pred_memory,
        memory,
        _error(errors.memory),
        pred_gpus,
        gpus,
        _error(errors.gpu),
        "" if wall_s is None else format_duration(wall_s),
        format_duration(measured.wall_s),
        _error(errors.wall),
    )


def describe_errors(reply: PredictionsReply) -> str:
    """Return how many runs matched, and how far their predictions were off."""
    if not reply.total_runs and not reply.learns:
        return NOT_LEARNING
    cut = f" (showing the newest {len(reply.rows)}: see --limit)" if reply.more else ""
    runs = "1 run" if reply.total_runs == 1 else f"{reply.total_runs} runs"
    named = (
        ("CPU", reply.errors.cpu),
        ("memory", reply.errors.memory),
        ("GPU", reply.errors.gpu),
        ("GPU memory", reply.errors.gpu_memory),
        ("run time", reply.errors.wall),
    )
    parts = [f"{name} {_spread(spread)}" for name, spread in named if spread is not None]
    if not parts:
        return f"{runs}{cut}, nothing to compare yet"
    return f"{runs}{cut}; prediction error (median/90th percentile): {', '.join(parts)}"


def print_node_predictions(rows: Iterable[NodePredictionRow], *, learns: bool, color: str) -> None:
    """Print a line for each node: what runs there, predicted and measured, and past errors."""
    print_table(NODES, [_node_line(row) for row in rows], color=color)
    if not learns:
        print_note(NOT_LEARNING, command="gnodes")


def _node_line(row: NodePredictionRow) -> Sequence[str]:
    pred_cpus, pred_memory, pred_gpus, _ = _cells(row.predicted)
    cpus, memory, gpus, _ = _cells(row.measured)
    all_cpus, all_memory, all_gpus, _ = _cells(row.has)
    return (
        row.name,
        str(row.jobs),
        f"{pred_cpus}/{all_cpus}",
        cpus,
        f"{pred_memory}/{all_memory}",
        memory,
        *((f"{pred_gpus}/{all_gpus}", gpus) if row.has.gpus else ("", "")),
        _enough(row.errors.cpu),
        _enough(row.errors.wall),
    )


def _cells(use: UseRow | None) -> tuple[str, str, str, str]:
    """Return CPUs, memory, GPUs and their memory; nothing where nothing is known."""
    if use is None:
        return ("",) * 4
    sizes = (_size(use.memory_bytes), _size(use.gpu_memory_bytes))
    return _count(use.cpu_cores), sizes[0], _count(use.gpus), sizes[1]


#: Runs from which on the errors of a node are shown.
ENOUGH_RUNS: Final = 5
#: Next to nothing was measured, as of the memory of a declared GPU: by how much says no more.
_LARGE = 10.0


def _count(value: float) -> str:
    """Return cores or GPUs: ``0.98``, ``12``."""
    return f"{value:.2f}".removesuffix(".00")


def _size(value: float) -> str:
    return format_size(round(value)) if value >= 1 else "0"


def _error(error: float | None) -> str:
    """Return ``+12%``: more was predicted than measured."""
    if error is not None and error > _LARGE:  # it is never below -100%
        return f">{_LARGE:+.0%}"
    return "" if error is None else f"{error:+.0%}"


def _spread(spread: SpreadRow | None) -> str:
    return "" if spread is None else f"{_share(spread.median)}/{_share(spread.p90)}"


def _enough(spread: SpreadRow | None) -> str:
    """Return the same of a node; of few runs a median and a percentile say nothing."""
    return "-" if spread is None or spread.runs < ENOUGH_RUNS else _spread(spread)


def _share(error: float) -> str:
    return f">{_LARGE:.0%}" if error > _LARGE else f"{error:.0%}"
