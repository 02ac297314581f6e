"""Values of the options of sbatch, salloc and srun that Slurm refuses, in its words. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from gsched.cli.slurm.errors import UNREADABLE, SlurmError, invalid
from gsched.cli.submit.foreign import NO_LIMIT, TIME, Words, meaning_of
from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.rows import ROWS
from gsched.cli.submit.slurm_request import slurm_size
from gsched.errors import GschedError
from gsched.model.mail import points_of_slurm

#: Of Slurm; some have no mail point here.
_MAIL: Final = frozenset(
    {
        *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
        *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
    }
)
_COUNTS: Final = (
    *("--ntasks", "--cpus-per-task", "--ntasks-per-node", "--ntasks-per-core", "--mincpus"),
    *("--ntasks-per-socket", "--ntasks-per-gpu", "--cpus-per-gpu", "--cores-per-socket"),
    *("--sockets-per-node", "--threads-per-core"),
)


def check_values(options: Mapping[str, str]) -> None:
    """Refuse what cannot be read in the options of a submission.

    Raises:
        SlurmError: the first such value.
    """
    for name, value in options.items():
        check = _CHECKS.get(name)
        if check is not None and value:
            check(name, value)


def _count(name: str, value: str) -> None:
    if not re.fullmatch(r"[0-9]{1,9}", value) or not int(value):
        raise SlurmError(f'Invalid numeric value "{value}" for {name}.')


def _time(name: str, value: str) -> None:
    if value.lower() not in NO_LIMIT and TIME.fullmatch(value) is None:
        raise invalid(name)


def _size(name: str, value: str) -> None:
    try:
        slurm_size(name, value)
    except GschedError:
        raise invalid(name) from None


def _nodes(_name: str, value: str) -> None:
    if not re.fullmatch(r"[0-9]{1,7}[km]?(-[0-9]{1,7}[km]?)?(:[0-9]+)?", value):
        raise SlurmError(f'"{value}" is not a valid node count', status=UNREADABLE)


def _begin(name: str, value: str) -> None:
    if not isinstance(meaning_of("#SBATCH", name, value), Words):
        message = f"{invalid(name).message}\nwrite now+2hours, 16:30 or 2030-01-02T16:30"
        raise SlurmError(message, status=UNREADABLE)


def _mail(name: str, value: str) -> None:
    _, unknown = points_of_slurm(value)
    if set(unknown) - _MAIL:
        raise invalid(name)


def _of_gsub(name: str, value: str) -> None:
    """Refuse what gsub's option with the same value refuses."""
    row = next(row for row in ROWS if name in row.slurm.split())
    assert row.read is not None, "no text that is taken as it is"
    try:
        row.read(value, SubmitContext(cwd="/", environment={}, now_s=0.0, umask=0))
    except GschedError:
        raise invalid(name) from None


_CHECKS: Final[Mapping[str, Callable[[str, str], None]]] = {
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(("--time", "--time-min"), _time),
    **dict.fromkeys(("--mem", "--mem-per-cpu", "--mem-per-gpu"), _size),
    "--nodes": _nodes,
    "--begin": _begin,
    "--mail-type": _mail,
    "--signal": _of_gsub,
}
