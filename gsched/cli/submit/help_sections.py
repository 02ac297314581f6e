"""The order of gsub's options in its help: by what they are about, the most used first."""

from collections.abc import Iterable
from typing import Final

import click

#: Options by heading; each is named by one of its names.
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Options": (
        *("-N", "-q", "-A", "-P", "-p", "-a", "-h", "-r", "-u", "-z", "--kind", "--comment"),
        *("--dry-run", "--wait", "--watch", "--json", "--head", "--version", "--help"),
    ),
    "Resources": (
        *("-l", "--walltime", "--nodes", "--cpus", "--gpus", "--mem", "--exclusive"),
        *("--gpu-share", "--share-class", "--every-node"),
    ),
    "Script, code and environment": (
        *("-F", "-S", "-C", "-d", "-v", "-V", "--snapshot", "--container", "--container-mount"),
        *("--container-workdir", "--container-runtime"),
    ),
    "Output and mail": ("-o", "-e", "-j", "-k", "--open-mode", "-m", "-M", "--notify"),
    "Interactive jobs": ("-I", "-x", "--detach-timeout"),
    "Arrays and dependencies": ("-t", "--each-line", "--dependency", "-W"),
    "Signals and failures": ("--grace", "--signal", "--requeue-on", "--lease"),
    "Distributed and elastic training": (
        *("--torchrun", "--python", "--elastic", "--checkpoint-dir", "--checkpoint-interval"),
        *("--checkpoint-signal", "-c", "--profile"),
    ),
    "Deadlines": (
        *("--deadline", "--urgency", "--reject-if-late", "--training", "--params", "--samples"),
        *("--batch", "--epochs", "--step-time"),
    ),
    "Adaptive training and inference": (
        *("--adaptive", "--batch-max", "--batch-per-gpu-max", "--gpu-types", "--scaling"),
        *("--replica-gpus", "--non-preemptible", "--inference", "--latency", "--requests"),
    ),
}
OTHERS: Final = "Other options"


def write_options(
    parameters: Iterable[click.Parameter], context: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the options below headings; those that no heading has come last."""
    rows: dict[str, tuple[str, str]] = {}
    names: dict[str, str] = {}
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            rows[parameter.opts[0]] = record
            names |= dict.fromkeys(parameter.opts, parameter.opts[0])
    for heading, options in SECTIONS.items():
        found = [rows.pop(names[option], None) for option in options if option in names]
        _write(formatter, heading, [row for row in found if row is not None])
    _write(formatter, OTHERS, list(rows.values()))


def _write(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)
