"""How a command words its errors and which exit codes it returns.

The g-commands speak gsched's own dialect. Under the names of PBS (`gsched.cli.pbs.shim`) the same
commands speak that of Torque or OpenPBS, because programs match these texts and numbers.
"""

from typing import Final

from gsched.errors import GschedError


class Dialect:
    """gsched's own dialect: message and hint of the error, exit codes of `gsched.errors`.

    Attributes:
        name: ``gsched``, ``torque`` or ``openpbs``.
        starts_at_home: jobs without ``-d`` start in the home directory of their owner.
        refused_in_names: characters that a job's name cannot have.
        ignores_unknown: mail and attributes that gsched does not have are ignored with a warning.
        tells_submit_args: a submission has its command line with it, for lists of jobs.
        has_queues_of_reservations: a job that is moved to another queue leaves its reservation.
    """

    name: str = "gsched"
    starts_at_home: bool = False
    refused_in_names: str = " "
    ignores_unknown: bool = False
    tells_submit_args: bool = False
    has_queues_of_reservations: bool = False

    def exit_code(self, error: GschedError) -> int:
        """Return what a command that ends with this error returns."""
        return error.exit_code

    def is_queue_of_reservation(self, name: str) -> bool:
        """Return whether jobs of a queue are to start in the reservation of its name."""
        del name
        return False

    def lines(self, error: GschedError, *, command: str, operand: str) -> tuple[str, ...] | None:
        """Return the lines for an error, without the command's name; None: message and hint."""
        del error, command, operand
        return None


GSCHED: Final = Dialect()
_spoken: list[Dialect] = [GSCHED]


def speak(dialect: Dialect) -> None:
    """Use a dialect in this process from now on."""
    _spoken[0] = dialect


def spoken() -> Dialect:
    """Return the dialect of this process."""
    return _spoken[0]
