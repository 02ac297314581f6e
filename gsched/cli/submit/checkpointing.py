"""What gsub's options say of checkpoints, and of starting anew after a death."""

import re

from msgspec import structs

from gsched.cli.operands import parse_signal
from gsched.cli.submit.options import SubmitOptions
from gsched.cli.submit.place import Place, absolute
from gsched.cli.times import read_duration_s
from gsched.errors import UsageError
from gsched.protocol.api import SubmitJob


def with_saving(job: SubmitJob, options: SubmitOptions, place: Place) -> SubmitJob:
    """Return a job with what the options say of its checkpoints and of starting anew.

    Raises:
        GschedError: a value that cannot be; the message names the option.
    """
    interval, signal = options.checkpoint_interval, options.checkpoint_signal
    word, limit = _requeue_on(options.requeue_on)
    return structs.replace(
        job,
        checkpoint_dir=absolute(options.checkpoint_dir, place) if options.checkpoint_dir else "",
        checkpoint_interval_s=(
            None if interval is None else read_duration_s("--checkpoint-interval", interval)
        ),
        checkpoint_signal=0 if signal is None else parse_signal(signal, "--checkpoint-signal"),
        requeue_on=word,
        requeue_limit=limit,
        lease_s=_lease_s(options.lease),
    )


def _lease_s(stated: str | None) -> float | None:
    """Return a lease in seconds, 0 for none; None: nothing is said."""
    if stated is None:
        return None
    return 0.0 if stated == "none" else read_duration_s("--lease", stated)


def _requeue_on(stated: str | None) -> tuple[str, int | None]:
    """Return the word and the number of ``node-failure:5``."""
    if stated is None:
        return "", None
    word, colon, limit = stated.partition(":")
    if word != "node-failure" or (colon and not re.fullmatch("[1-9][0-9]{0,3}", limit)):
        raise UsageError(
            f"--requeue-on: invalid value {stated!r}",
            hint="write node-failure, or node-failure:5 for at most five restarts in a row",
        )
    return word, int(limit) if colon else None
