"""Figures of a run as PNG and SVG; needs matplotlib (the extra ``figures``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gschedd.sim.recorder import Summary

PANELS: Final = (
    ("cpu", "CPU used (share)"),
    ("gpu", "GPUs used (share)"),
    ("cpu_imbalance", "imbalance of CPU"),
    ("waiting", "jobs waiting"),
)
FORMATS: Final = ("png", "svg")


def draw(summaries: Sequence[Summary], directory: Path) -> list[Path]:
    """Draw one curve for each policy in each panel; return the files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "gsched"  # the same figures give the same bytes
    figure = Figure(figsize=(9, 2.2 * len(PANELS)), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for (name, label), panel in zip(PANELS, axes, strict=True):
        for summary in summaries:
            values = getattr(summary.over_time, name)
            step_h = summary.over_time.step_s / 3600
            hours = [index * step_h for index in range(len(values))]
            panel.step(hours, values, where="post", label=summary.policy, linewidth=1)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
    axes[0].legend(loc="upper right")
    axes[-1].set_xlabel("hours")
    paths = [directory / f"over-time.{suffix}" for suffix in FORMATS]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": "gsched"}
        figure.savefig(path, metadata=metadata)
    return paths
