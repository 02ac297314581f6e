"""Whose texts, letters and numbers the q-commands use: Torque's or OpenPBS's.

The numbers are the low 8 bits of ``PBSE_*`` in Torque's ``pbs_error_db.h`` and OpenPBS's
``pbs_error.h``; the texts are those of the same tables. Programs match both.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from gsched.cli.dialect import Dialect
from gsched.errors import GschedError

TORQUE: Final = "torque"
OPENPBS: Final = "openpbs"
PERSONALITIES: Final = (TORQUE, OPENPBS)


class PbsError(NamedTuple):
    """Exit code and text of an error."""

    exit_code: int
    text: str


_TORQUE_ERRORS: Final[Mapping[str, PbsError]] = {
    "unknown_job": PbsError(153, "Unknown Job Id Error"),
    "not_permitted": PbsError(159, "Unauthorized Request "),
    "invalid_request": PbsError(156, "Invalid request"),
    "bad_state": PbsError(170, "Request invalid for state of job"),
    "unknown_queue": PbsError(172, "Unknown queue"),
    "bad_dependency": PbsError(208, "Invalid Job Dependency"),
}
_OPENPBS_ERRORS: Final[Mapping[str, PbsError]] = {
    "unknown_job": PbsError(153, "Unknown Job Id"),
    "not_permitted": PbsError(159, "Unauthorized Request "),
    "invalid_request": PbsError(156, "Invalid request"),
    "bad_state": PbsError(168, "Request invalid for state of job"),
    "unknown_queue": PbsError(170, "Unknown queue"),
    "bad_dependency": PbsError(206, "Invalid dependency specification"),
}
#: PBSE_HISTJOBID: OpenPBS keeps jobs that have finished, and refuses to change them.
_FINISHED: Final = PbsError(35, "Job has finished")
_FINISHED_JOB: Final = re.compile(r"job (\S+) has already finished")
#: A job's name begins with a digit; qstat takes other words as queues.
_NO_JOB: Final = re.compile(r"Unknown Job Id '?([^0-9\s:'][^\s:']*)")
_RESERVATION: Final = re.compile(r"[RS][1-9][0-9]*")
_NO_NUMBER: Final = PbsError(1, "illegally formed job identifier")
_HINT_ALONE: Final = frozenset({"qsub"})  # commands without operands that could be named


class PbsDialect(Dialect):
    """How the q-commands speak.

    Attributes:
        history: finished jobs are ``F``, and named only with ``-x`` or ``-H``.
    """

    starts_at_home = True
    ignores_unknown = True
    tells_submit_args = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_queues_of_reservations = name == OPENPBS
        self.refused_in_names = " /" if name == OPENPBS else " "
        self._errors = _OPENPBS_ERRORS if name == OPENPBS else _TORQUE_ERRORS

    @property
    def is_openpbs(self) -> bool:
        """Return whether OpenPBS is spoken."""
        return self.name == OPENPBS

    def exit_code(self, error: GschedError) -> int:
        """Return ``PBSE_* & 255`` where PBS has this error, else that of `gsched.errors`."""
        known = self._known(error)
        return error.exit_code if known is None else known.exit_code

    def is_queue_of_reservation(self, name: str) -> bool:
        """Return whether it is one of the names that OpenPBS has for reservations alone."""
        return self.has_queues_of_reservations and _RESERVATION.fullmatch(name) is not None

    def lines(self, error: GschedError, *, command: str, operand: str) -> tuple[str, ...] | None:
        """Return ``TEXT OPERAND`` as ``prt_job_err`` prints it, what gsched says behind MSG=."""
        known = self._known(error)
        match = _FINISHED_JOB.search(error.message)
        if known is _FINISHED and match is not None:
            return (f"{known.text} {match[1]}",)
        match = _NO_JOB.match(error.message)
        if known is _NO_NUMBER and match is not None:
            return (f"{known.text}: {operand or match[1]}",)
        if known is None:
            hint = (f"hint: {error.hint}",) if error.hint else ()
            return (*(error.message.splitlines() or [error.code]), *hint)
        if error.code == "unknown_job":
            return (self._unknown_job(error, known, operand),)
        detail = f" MSG={' '.join(error.message.split())}"
        if command == "qsub" and not self.is_openpbs:
            return (f"submit error ({known.text.rstrip()}{detail})",)
        behind = f" {operand}" if operand and command not in _HINT_ALONE else ""
        return (f"{known.text.rstrip()}{detail}{behind}",)

    def _known(self, error: GschedError) -> PbsError | None:
        if error.code == "unknown_job" and _NO_JOB.match(error.message):
            return _NO_NUMBER
        if self.is_openpbs and error.code == "bad_state":
            found = _FINISHED_JOB.search(error.message)
            return _FINISHED if found is not None else self._errors[error.code]
        return self._errors.get(error.code)

    def _unknown_job(self, error: GschedError, known: PbsError, operand: str) -> str:
        """Return the error of an unknown job: Torque names it as the user did."""
        found = re.search(r"Unknown Job Id '?([0-9]+\.[^\s':]+)", error.message)
        named = found[1] if found else operand
        return f"{known.text} {operand if operand and not self.is_openpbs else named or operand}"


def state_letter(letter: str, *, finished_as_f: bool) -> str:
    """Return a job's letter; OpenPBS's F for a finished job instead of Torque's C."""
    return "F" if finished_as_f and letter == "C" else letter
