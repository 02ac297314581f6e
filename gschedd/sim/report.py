"""The report for people: policies side by side, and their curves in a line of text each."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from gschedd.sim.recorder import SLOWDOWN_BOUND_S, OverTime, Summary
from gschedd.sim.savings import Savings

CURVE_WIDTH: Final = 60
WIDEST: Final = 1000  # a table, in characters
BLOCKS: Final = " ▁▂▃▄▅▆▇█"
PLAIN_BLOCKS: Final = " .:-=+*#@"

Row = tuple[str, Callable[[Summary], str]]


def print_report(summaries: Sequence[Summary], console: Console) -> None:
    """Print one column for each policy, then the curves."""
    table = Table(title=None, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for summary in summaries:
        table.add_column(summary.policy, justify="right", no_wrap=True)
    for name, value in (*ROWS, *_outcome_rows(summaries)):
        cells = [value(summary) for summary in summaries]
        if any(cells):
            table.add_row(name, *cells)
    if any(summary.done for summary in summaries):
        for name, value in OF_JOBS_DONE:
            cells = [value(summary) if summary.done else "-" for summary in summaries]
            if any(cells):
                table.add_row(name, *cells)
    # a table that is too wide for the terminal is of more use than numbers that are cut
    width, console.width = console.width, max(console.width, WIDEST)
    console.print(table)
    console.width = width
    for summary in summaries:
        _print_curves(summary, console)
    for summary in summaries:
        for text, count in sorted(summary.refused.items(), key=lambda item: (-item[1], item[0]))[
            :5
        ]:
            console.print(f"{summary.policy}: refused {count}: {text}", highlight=False)


def _print_curves(summary: Summary, console: Console) -> None:
    over = summary.over_time
    steps = len(over.cpu)
    if not steps or not summary.done:
        return
    span = duration(summary.makespan_s)
    console.print(f"\n{summary.policy}: over {span}", highlight=False, style="bold")
    unicode = console.encoding.lower().startswith("utf")
    for name, values, is_share in _curves(over):
        top = max(values, default=0.0)
        if top > 0:
            text = curve(values, most=1.0 if is_share else top, unicode=unicode)
            label = "100 %" if is_share else f"{top:.4g}"
            console.print(f"  {name:<14}|{text}| {label}", highlight=False)


def _curves(over: OverTime) -> list[tuple[str, list[float], bool]]:
    """Return what is drawn: its name, its values, and whether it is a share of all there is."""
    return [
        ("CPU used", over.cpu, True),
        ("memory used", over.memory, True),
        ("GPUs used", over.gpu, True),
        ("CPU imbalance", over.cpu_imbalance, False),
        ("jobs waiting", over.waiting, False),
        ("jobs running", over.running, False),
    ]


def curve(values: Sequence[float], *, most: float, unicode: bool) -> str:
    """Return values as a line of at most `CURVE_WIDTH` characters, 0 to ``most`` high."""
    blocks = BLOCKS if unicode else PLAIN_BLOCKS
    width = min(CURVE_WIDTH, len(values))
    text = ""
    for column in range(width):
        begin, end = column * len(values) // width, (column + 1) * len(values) // width
        mean = sum(values[begin:end]) / (end - begin)
        level = min(1.0, max(0.0, mean / most))
        text += blocks[round(level * (len(blocks) - 1))]
    return text


def duration(seconds: float) -> str:
    """Return a time for people, in the unit that suits it."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.1f} d"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.1f} s"


def _signed(seconds: float) -> str:
    """Return a difference of two times, with its sign."""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _outcome_rows(summaries: Sequence[Summary]) -> list[Row]:
    """Return a row for each way in which jobs ended, but the usual one if all did so."""
    kinds = sorted({kind for summary in summaries for kind in summary.outcomes})
    if kinds == ["exited"]:
        return []

    def row(kind: str) -> Row:
        return f"  {kind}", lambda summary: f"{summary.outcomes.get(kind, 0)}"

    return [row(kind) for kind in kinds]


_BOUND: Final = f" (bound {SLOWDOWN_BOUND_S:g} s)"
ROWS: Final[tuple[Row, ...]] = (
    ("jobs done", lambda s: f"{s.done}"),
    ("refused", lambda s: f"{sum(s.refused.values())}" if s.refused else ""),
    ("unfinished", lambda s: f"{s.unfinished}" if s.unfinished else ""),
)
_SAVINGS: Final[tuple[tuple[str, Callable[[Savings], str]], ...]] = (
    ("waiting added, mean", lambda s: _signed(s.wait_added_s)),
    (
        "node-hours powered off",
        lambda s: f"{s.off_node_h:.1f}" if s.power_ups or s.off_node_h else "",
    ),
    ("energy saved", lambda s: "" if s.energy_kwh is None else f"{s.energy_kwh:.1f} kWh"),
    ("nodes powered up", lambda s: f"{s.power_ups}" if s.power_ups or s.off_node_h else ""),
    ("GPU-hours held idle", lambda s: f"{s.idle_gpu_h:.1f}" if s.idle_gpu_h else ""),
    ("GPU-hours given back", lambda s: f"{s.returned_gpu_h:.1f}" if s.ended_jobs else ""),
    ("  of it of use later", lambda s: f"{s.lost_gpu_h:.1f}" if s.ended_jobs else ""),
    ("jobs warned, ended", lambda s: f"{s.warned_jobs}, {s.ended_jobs}" if s.warned_jobs else ""),
)
OF_JOBS_DONE: Final[tuple[Row, ...]] = (
    ("makespan", lambda s: duration(s.makespan_s)),
    ("waiting, mean", lambda s: duration(s.waiting_s.mean)),
    ("waiting, median", lambda s: duration(s.waiting_s.median)),
    ("waiting, 90th percentile", lambda s: duration(s.waiting_s.p90)),
    ("waiting, longest", lambda s: duration(s.waiting_s.maximum)),
    ("completion, mean", lambda s: duration(s.completion_s.mean)),
    ("completion, 90th percentile", lambda s: duration(s.completion_s.p90)),
    (f"slowdown{_BOUND}, mean", lambda s: f"{s.slowdown.mean:.2f}"),
    (f"slowdown{_BOUND}, 90th percentile", lambda s: f"{s.slowdown.p90:.2f}"),
    ("CPU used", lambda s: _percent(s.cpu.utilisation)),
    ("memory used", lambda s: _percent(s.memory.utilisation) if s.memory.utilisation else ""),
    ("GPUs used", lambda s: _percent(s.gpu.utilisation) if s.gpu.utilisation else ""),
    ("imbalance of CPU", lambda s: f"{s.cpu.imbalance:.3f}"),
    ("imbalance of memory", lambda s: f"{s.memory.imbalance:.3f}" if s.memory.imbalance else ""),
    ("imbalance of GPUs", lambda s: f"{s.gpu.imbalance:.3f}" if s.gpu.imbalance else ""),
    ("fairness over users (Jain)", lambda s: f"{s.fairness:.3f}" if s.users > 1 else ""),
    ("deadlines met", lambda s: "" if s.deadline_rate is None else _percent(s.deadline_rate)),
    ("migrations", lambda s: f"{s.migrations}" if s.migrations else ""),
    ("requeues", lambda s: f"{s.requeues}" if s.requeues else ""),
    ("scheduling cycles", lambda s: f"{s.cycles}"),
    *(
        (label, lambda s, text=text: "" if s.savings is None else text(s.savings))
        for label, text in _SAVINGS
    ),
)
