"""The job as its user stated it, and how it ended."""

from typing import Final

from msgspec import Struct

from gsched.model.arrays import Array
from gsched.model.container import Container
from gsched.model.dependency import Dependency
from gsched.model.numbers import Amount, Count, Number
from gsched.model.resources import Request
from gsched.model.states import (
    HoldKind,
    Join,
    LaunchKind,
    LaunchStage,
    OutcomeKind,
    StopReason,
    Subject,
)
from gsched.model.training import Adaptive, Training, Urgency

DEFAULT_GRACE_S = (
    30.0  # Torque's kill_delay default is 2 s, Slurm's KillWait 30 s: training needs it
)


class Owner(Struct, frozen=True, kw_only=True):
    """Whose job it is, as the kernel told the head."""

    user: str
    uid: Number
    gid: Number
    host: str = ""


class Interactive(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What makes a job interactive: its program has a terminal instead of output files.

    Attributes:
        detach_timeout_s: it is hung up when nobody was attached for so long, seconds; 0: never;
            None: as its queue or the head says.
    """

    detach_timeout_s: Amount | None = None


class Labels(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user writes on a job for people and their accounts.

    The account is the project, where the head has projects; it and ``qos`` decide about the order.

    A field here is an option of its own name that ``galter`` can change at any time: it gets from
    the command line to the job and into every reply.
    """

    account: str = ""
    comment: str = ""
    qos: str = ""


class EarlySignal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal some time before the walltime ends, so that the job can save its state.

    Attributes:
        before_s: seconds before the end of the walltime.
        script_only: it goes to the job's own process only; else to those of its other processes
            that have a handler for it.
    """

    signal: Count
    before_s: Amount = 60.0
    script_only: bool = False


class CodeSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The code of a job as it was at its submission: an archive that the head keeps.

    Attributes:
        digest: SHA-256 of the archive, a gzipped tar file.
        size_bytes: of the archive.
        files: in it.
        directory: in it, where the job starts; empty: at its top.
        root: the directory that was archived, on the submitting machine.
        commit: that was checked out, in a Git working tree; empty: it is none, or has none.
        dirty: files differed from the commit.
    """

    digest: str
    size_bytes: Count
    files: Count
    directory: str = ""
    root: str = ""
    commit: str = ""
    dirty: bool = False


#: In `SubmitPlace.kept`.
AT_END: Final = "n"


class SubmitPlace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The directory of submission, so that a node can tell whether it has the same one.

    Attributes:
        mark: of the directory: see `gsched.directories`.
        host: whose gnode has passed the submission on, as the head knows it; empty: the head's
            machine.
        kept: ``o`` and ``e``: output files that stay on the node; `AT_END`: the others return when
            the job has ended, and not while it runs.
    """

    mark: str
    host: str = ""
    kept: str = ""


class StagedFile(Struct, frozen=True, kw_only=True):
    """A file or directory that is copied for a job.

    Attributes:
        local: on the job's first node; from its owner's home directory.
        host, remote: where it comes from or goes to. With an empty ``host`` both paths are the
            same one below the directory of submission: copied to and from each node without it.
        is_submit_host: ``host`` is the host of submission.
    """

    local: str
    host: str
    remote: str
    is_submit_host: bool = False

    @property
    def passes_head(self) -> bool:
        """Return whether it is copied through the head where there is no shared file system."""
        return self.is_submit_host or not self.host


class Stated(Labels, frozen=True, kw_only=True, omit_defaults=True):
    """What a user states of a job and what stays as it was said: on the wire, in replies.

    Attributes:
        arguments: the command (LaunchKind.COMMAND), the script's arguments (SCRIPT), or the
            training script and its arguments (TORCHRUN).
        every_node: run the script or command once on every node instead of on the first only.
        stdout_path: may hold ``$PBS_JOBID``; a directory if it ends in ``/`` or is one.
        python: the interpreter whose torch runs a TORCHRUN job.
        kind: of work, for predictions.
        submit_dir: where it was submitted; empty: unknown.
        mail_points: letters of ``-m``; empty: nothing is stated. ``mail_to`` are the recipients.
        notify_url: to which its events are posted; empty: to none.
        profile: it runs on its fewest GPUs until it is known what its steps take.
        adaptive: its batch and GPUs may be chosen for the best goodput; None: they may not.
        early_signal: sent before the walltime ends; None: there is none.
        append: write behind what the output files hold already.
        interactive: its program has a terminal; a command without arguments is its user's shell.
        snapshot: the code in which the job starts; None: in its working directory.
        container: in which it runs; None: directly on its nodes.
        stage_in, stage_out: copied to the first node before the start, and from there at the end.
        reservation: it starts in that one only; empty: in none, unless that takes it unasked.
    """

    rerunnable: bool = True
    stdout_path: str = ""
    stderr_path: str = ""
    shell: str = ""
    arguments: tuple[str, ...] = ()
    every_node: bool = False
    python: str = ""
    mail_points: str = ""
    mail_to: str = ""
    notify_url: str = ""
    kind: str = ""
    submit_dir: str = ""
    profile: bool = False
    adaptive: Adaptive | None = None
    early_signal: EarlySignal | None = None
    append: bool = False
    interactive: Interactive | None = None
    snapshot: CodeSnapshot | None = None
    container: Container | None = None
    stage_in: tuple[StagedFile, ...] = ()
    stage_out: tuple[StagedFile, ...] = ()
    reservation: str = ""


def labels_of(source: Labels) -> dict[str, object]:
    """Return what a record holds of `Labels`, by name."""
    return {name: getattr(source, name) for name in Labels.__struct_fields__}


def stated_of(source: Stated) -> dict[str, object]:
    """Return what a record holds of `Stated`, by name."""
    return {name: getattr(source, name) for name in Stated.__struct_fields__}


class JobSpec(Stated, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the user stated at submission, after defaults.

    Script text and environment are kept once per content in the store; here are their digests.

    Attributes:
        walltime_s: the limit in seconds, or None for the queue's default of "no limit".
        extended_s: by how much of it users have extended the job while it ran.
        start_after_s: seconds since the epoch before which the job does not start; 0 if any.
        client_key: the client's own id of this submission, so that a retry gives the same job.
        deadline_s: by when it is to be done, seconds since the epoch; 0: there is no deadline.
        urgency: from which the deadline was computed, if it was.
        training: what its user said of its size.
        movable: it can migrate: stop at a checkpoint and resume on other nodes.
        checkpoint_dir: where it keeps its checkpoints, absolute; empty: the usual place.
        checkpoint_interval_s: between those that it makes by itself; None: it chooses.
        checkpoint_signal: by which it is asked to save its state and end; 0: over its socket.
        restarts_max: how often in a row, without a checkpoint in between, it is restarted after
            a node or a rank of it has died; 0: what is rerunnable is, after the loss of a node.
        lease_s: how long it may run on a node that does not reach the head, seconds; 0: for ever.
        depends: on which jobs it still depends; what has come about is left out.
        array: its elements, if it is an array: it is never started itself.
        lines_digest: of the text of which each element of the array has one line, by its index.
        rerun_of: the finished job, or the array, of which it is the rerun; 0: of none.
        place: the directory of submission; None: every node is taken to have the same one.
    """

    owner: Owner
    name: str
    queue: str
    request: Request
    workdir: str
    walltime_s: Amount | None = None
    extended_s: Amount = 0.0
    priority: Number = 0
    start_after_s: Amount = 0.0
    join: Join = Join.NO
    umask: Number = 0o022
    launch: LaunchKind = LaunchKind.SCRIPT
    grace_s: Amount = DEFAULT_GRACE_S
    script_digest: str = ""
    environment_digest: str = ""
    client_key: str = ""
    holds: tuple[HoldKind, ...] = ()
    deadline_s: Amount = 0.0
    urgency: Urgency | None = None
    training: Training | None = None
    movable: bool = False
    checkpoint_dir: str = ""
    checkpoint_interval_s: Amount | None = None
    checkpoint_signal: Number = 0
    restarts_max: Number = 0
    lease_s: Amount = 0.0
    depends: tuple[Dependency, ...] = ()
    array: Array | None = None
    lines_digest: str = ""
    rerun_of: Count = 0
    place: SubmitPlace | None = None

    @property
    def runs_everywhere(self) -> bool:
        """Return whether the job's own program runs on each of its nodes, not on the first only."""
        return self.launch is LaunchKind.TORCHRUN or self.every_node

    @property
    def is_training(self) -> bool:
        """Return whether its run time and deadline are planned: anything of them was said."""
        return not self.reservation and self.states_training  # there it runs on its fewest GPUs

    @property
    def states_training(self) -> bool:
        """Return whether anything of run time and deadline was said; an array has elements."""
        if self.array is not None:
            return False
        if self.training is not None or self.adaptive is not None:
            return True
        return self.deadline_s > 0 or self.request.places_max > 0


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt or a job ended.

    Attributes:
        exit_code: of the program, 0..255, when it ended by itself.
        signal: that ended it.
        node: where the first failure happened.
        rank: the first failing rank of a torchrun job.
        message: for people.
    """

    kind: OutcomeKind
    exit_code: int | None = None
    signal: int | None = None
    node: str = ""
    rank: int | None = None
    message: str = ""

    @property
    def pbs_status(self) -> int:
        """Return Torque's exit status: 0..255, 256+n for a signal, negative for a limit."""
        match self.kind:
            case OutcomeKind.WALLTIME:
                return -11
            case OutcomeKind.OOM:
                return -10
            case OutcomeKind.LAUNCH_FAILED:
                return -1
            case OutcomeKind.NODE_LOST | OutcomeKind.SUPERVISOR_LOST:
                return -4
            case _:
                if self.signal is not None:
                    return 256 + self.signal
                return self.exit_code if self.exit_code is not None else 271

    @property
    def shell_status(self) -> int:
        """Return what a shell would say: the exit code, 128 + the signal, 126 if it never ran."""
        if self.exit_code is not None:
            return self.exit_code
        if self.kind is OutcomeKind.LAUNCH_FAILED:
            return 126  # as a shell says of what cannot be executed
        return 128 + (self.signal if self.signal is not None else 15)

    @property
    def succeeded(self) -> bool:
        """Return whether the program ended by itself with code 0."""
        return self.kind is OutcomeKind.EXITED and self.exit_code == 0


class LaunchFailure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence of a start that failed: which step, on whose thing, with which error.

    It says what was seen, not whose fault that is: `gschedd.core.attempts.blame` decides.

    Attributes:
        errno: Linux's number of the error; 0: no system call failed.
        missing: the working or output directory that does not exist, which somebody may make yet;
            empty: it failed for another reason.
    """

    stage: LaunchStage
    subject: Subject
    errno: Number = 0
    missing: str = ""


class ExitRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one part of an attempt ended on one node: a line of its journal.

    Attributes:
        kind: EXITED, SIGNALLED, OOM, LAUNCH_FAILED or SUPERVISOR_LOST: what the process did.
        stop_reason: why gsched stopped it, if it did; the head makes the outcome from both.
        failure: for LAUNCH_FAILED: the evidence; None: nothing is known.
        port_taken: for LAUNCH_FAILED: its rendezvous port is taken there; the next attempt has
            another one.
        started_s, ended_s: seconds since the epoch on the node's clock.
        work_done: of a training over all its attempts, as its last checkpoint has it, in the unit
            of its speed; None: there is none.
        requested: the last migration for which it got its `JobSpec.checkpoint_signal`; 0: none.
        requested_s: when that was, seconds since the epoch on the node's clock.
        unhandled: the last move for which it was not sent, as no process of the part handled it.
        epilog: what went wrong in the epilog of the node, which is not the job's; empty: nothing.
        undelivered: where output or staged files are that could not return, and why;
            empty: it has.
    """

    job: Count
    attempt: Count
    kind: OutcomeKind
    exit_code: Number | None = None
    signal: Number | None = None
    stop_reason: StopReason | None = None
    failure: LaunchFailure | None = None
    port_taken: bool = False
    message: str = ""
    rank: Number | None = None
    failed_s: Amount | None = None
    started_s: Amount = 0.0
    ended_s: Amount = 0.0
    wall_s: Amount = 0.0
    cpu_s: Amount = 0.0
    memory_peak_bytes: Count = 0
    work_done: Amount | None = None
    requested: Count = 0
    requested_s: Amount = 0.0
    unhandled: Count = 0
    epilog: str = ""
    undelivered: str = ""

    def outcome(self, node: str = "") -> Outcome:
        """Return how the part ended, on ``node`` where that is to be said."""
        return Outcome(
            kind=self.kind,
            exit_code=self.exit_code,
            signal=self.signal,
            node=node,
            rank=self.rank,
            message=self.message,
        )
