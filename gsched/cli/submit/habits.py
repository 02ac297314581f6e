"""Options of qsub that mean something else here, or something only for some jobs: -k, -c, -W."""

import os
import re
from typing import Final

from msgspec import structs

from gsched.cli.submit.options import SubmitOptions
from gsched.errors import UsageError

#: What is kept on the execution host lies in the home directory, under its usual name.
KEPT: Final = "~/"
_KEEP: Final = re.compile(r"n|d?[oe]{1,2}d?|d")
_MINUTES: Final = re.compile(r"(?:.*,)?(?:c|interval)=([1-9][0-9]{0,5})(?:,.*)?")


def kept_streams(stated: str | None) -> str:
    """Return which of ``o`` and ``e`` ``-k`` keeps on the execution host.

    OpenPBS's ``d`` asks for what gsched always does: output is written straight to its files.

    Raises:
        UsageError: an unknown value.
    """
    if stated is None:
        return ""
    if not _KEEP.fullmatch(stated):
        raise UsageError(f"-k: invalid value {stated!r}", hint="valid: e, o, eo, n; d behind them")
    return "" if "d" in stated or stated == "n" else stated


def with_interval(options: SubmitOptions) -> SubmitOptions:
    """Return the options with ``-c c=MINUTES`` as the interval of an elastic job's checkpoints."""
    match = _MINUTES.fullmatch(options.checkpoint or "")
    if match is None or not options.elastic or options.checkpoint_interval is not None:
        return options
    return structs.replace(options, checkpoint_interval=f"{match[1]}m")


def notes_of(options: SubmitOptions) -> list[str]:
    """Return a sentence for each of these options that changes nothing.

    Raises:
        UsageError: ``-k`` has an unknown value.
    """
    notes = []
    kept = kept_streams(options.keep)
    for stream, option, path in (("o", "-o", options.stdout), ("e", "-e", options.stderr)):
        if stream in kept and path is not None:
            notes.append(f"{option} {path} has no effect: -k {options.keep} keeps that output in ~")
    if options.checkpoint not in {None, "n", "u", "none"} and with_interval(options) == options:
        notes.append(
            f"-c {options.checkpoint} has no effect: jobs write their own checkpoints; c=MINUTES "
            "sets the interval of --elastic jobs"
        )
    return notes


def own_group() -> str:
    """Return the name of the group that a job gets: that of this process."""
    import grp  # late: few name a group

    try:
        return grp.getgrgid(os.getgid()).gr_name
    except KeyError:
        return str(os.getgid())
