"""gsub: the signal before the walltime ends, from --signal. Imported only where it is given."""

from gsched.cli.operands import parse_signal
from gsched.cli.times import read_duration_s
from gsched.errors import UsageError
from gsched.model.job import EarlySignal

MOST_S = 65_535.0  # Slurm's limit


def early_signal(text: str) -> EarlySignal:
    """Return what ``USR1``, ``B:USR1@120`` or ``10@5m`` says.

    Raises:
        UsageError: an unknown signal, or a time that cannot be.
    """
    head, colon, rest = text.rpartition(":")
    letters = set(head.upper())
    if (colon and not letters) or letters - {"B", "R"}:
        raise UsageError(f"--signal: invalid value {text!r}", hint="write [B:]SIGNAL[@TIME]")
    name, at, time = rest.partition("@")
    number = parse_signal(name, "--signal")
    if not number:
        raise UsageError("--signal: signal 0 is never sent", hint="write USR1, for example")
    before_s = read_duration_s("--signal", time) if at else 60.0
    if before_s > MOST_S:
        raise UsageError(f"--signal: {time} is too long", hint="at most 65535 seconds")
    return EarlySignal(signal=number, before_s=before_s, script_only="B" in letters)
