"""What is asked of a supervisor: the task that gnode has accepted, and orders in the journal."""

from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from gnode.task import Task, TaskRecord
from gsched.errors import InvalidRequestError
from gsched.model.origin import Origin
from gsched.model.resources import GpuShare
from gsched.model.states import StopReason

#: So that msgspec and `dataclasses.replace` know them: supervisors import nothing for that.
for _record in (*TaskRecord.__subclasses__(), Task):
    dataclass(kw_only=True)(_record)


class Account(Struct, frozen=True, kw_only=True):
    """A user as this machine knows him."""

    user: str
    uid: int
    gid: int
    home: str
    shell: str


class AttemptKey(NamedTuple):
    """Identity of one attempt: the job's number and which of its starts this is."""

    job: int
    attempt: int

    @property
    def name(self) -> str:
        """Return ``JOB.ATTEMPT``, the name of its directories and control groups."""
        return f"{self.job}.{self.attempt}"


def parse_key(name: str) -> AttemptKey:
    """Return the key that ``JOB.ATTEMPT`` names.

    Raises:
        InvalidRequestError: the text is no such name.
    """
    job, _, attempt = name.partition(".")
    if not (job.isascii() and job.isdigit() and attempt.isascii() and attempt.isdigit()):
        raise InvalidRequestError(f"{name!r} is not the name of an attempt (JOB.ATTEMPT)")
    return AttemptKey(int(job), int(attempt))


def parse_outbox(name: str) -> tuple[AttemptKey, str]:
    """Return the attempt and the token of an outbox.

    Raises:
        InvalidRequestError: the text is no such name.
    """
    job, _, rest = name.partition(".")
    attempt, _, token = rest.partition(".")
    return parse_key(f"{job}.{attempt}"), token


@dataclass(kw_only=True)
class AcceptedTask(Task):
    """A task with what gnode alone reads of it.

    Attributes:
        boot_id: of the machine's start in which this was accepted; another one proves death.
        gpu_indices, gpu_shares: what the attempt owns here, so that a restarted gnode knows it.
        origin: where it comes from, so that a head on a restored database can adopt it.
    """

    boot_id: str = ""
    gpu_indices: tuple[int, ...] = ()
    gpu_shares: tuple[GpuShare, ...] = ()
    origin: Origin | None = None

    @property
    def key(self) -> AttemptKey:
        """Return the attempt's identity."""
        return AttemptKey(self.job, self.attempt)

    @property
    def is_confined(self) -> bool:
        """Return whether no program that its supervisor starts may gain rights.

        Programs of the site may: ``no_new_privileges`` is for what runs as the owner.
        """
        return self.no_new_privileges and self.programs is None

    def without_program(self) -> "AcceptedTask":
        """Return the task without program, environment and files: large, and of no more use."""
        left = object.__new__(AcceptedTask)  # copy() takes ten times as long
        left.__dict__.update(self.__dict__, argv=(), env={}, files=())
        return left


class StopCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="stop"):
    """End the job: TERM, ``grace_s`` seconds, KILL of everything."""

    reason: StopReason
    grace_s: float


class SignalCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="signal"):
    """Send a signal to the job's processes.

    Attributes:
        request: the move for which it is to save its state; 0: none. Repeated ones are left out.
    """

    signal: int
    request: int = 0


class RetimeCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="retime"):
    """The limit is now ``walltime_s`` from the start, None for none."""

    walltime_s: float | None


class LaunchCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="launch"):
    """Open the gate of a prepared task: ``at_s`` (CLOCK_BOOTTIME) its attempt was launched.

    The limit is ``walltime_s`` from then on, None for none.
    """

    at_s: float
    walltime_s: float | None


class ShellCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="shell"):
    """Start a further shell of the job on a terminal.

    Attributes:
        session: 32 hex digits that name its terminal.
        argv: what it runs; none: its user's shell.
        env: variables beside those of the job.
        linger_s: how long it waits for its user when the connection is lost.
        forward: instead of a program it relays connections to ports of the node.
    """

    session: str
    argv: tuple[str, ...]
    env: dict[str, str]
    linger_s: float
    forward: bool = False


Command = StopCommand | SignalCommand | RetimeCommand | LaunchCommand | ShellCommand
