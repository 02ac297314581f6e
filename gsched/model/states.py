"""The closed sets: states of jobs, attempts, parts and nodes, kinds of holds and outcomes."""

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """Where a job is in its life. Torque's letters are a rendering of it."""

    QUEUED = "queued"
    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    MIGRATING = "migrating"
    EXITING = "exiting"
    DONE = "done"

    @property
    def letter(self) -> str:
        """Return Torque's one-letter state."""
        return _LETTERS[self]


_LETTERS = {
    JobState.QUEUED: "Q",
    JobState.HELD: "H",
    JobState.WAITING: "W",
    JobState.RUNNING: "R",
    JobState.MIGRATING: "T",
    JobState.EXITING: "E",
    JobState.DONE: "C",
}


class AttemptState(StrEnum):
    """Where one placement of a job is in its life."""

    ASSIGNED = "assigned"
    STARTING = "starting"
    RUNNING = "running"
    EXITING = "exiting"
    ENDED = "ended"


class PartState(StrEnum):
    """Where an attempt is on one of its nodes."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    PASSIVE = "passive"  # resources only: a plain script runs on the first node


class NodeState(StrEnum):
    """Whether the head can talk to a node. Draining is a separate flag."""

    UP = "up"
    UNREACHABLE = "unreachable"


class PowerState(StrEnum):
    """Whether a node's machine is on, as far as the site's programs of ``[power]`` switch it."""

    ON = "on"
    POWERING_DOWN = "powering_down"
    POWERED_DOWN = "powered_down"
    POWERING_UP = "powering_up"

    @property
    def words(self) -> str:
        """Return it as people write it: ``powered down``."""
        return self.value.replace("_", " ")


class HoldKind(StrEnum):
    """Who holds a job: its user, an operator, gsched itself, or the jobs that it depends on."""

    USER = "user"
    OPERATOR = "operator"
    SYSTEM = "system"
    DEPENDENCY = "dependency"  # until the jobs that it depends on have come to that


#: Holds that people put on jobs and take off.
STATED_HOLDS: Final = frozenset(HoldKind) - {HoldKind.DEPENDENCY}


class OutcomeKind(StrEnum):
    """How an attempt or a job ended; each has exactly one."""

    EXITED = "exited"  # the program ended by itself: see exit_code
    SIGNALLED = "signalled"  # a signal that gsched did not send ended it
    CANCELLED = "cancelled"  # somebody asked for it
    WALLTIME = "walltime"  # it reached its walltime
    OOM = "oom"  # it was killed for memory
    LAUNCH_FAILED = "launch_failed"  # it never ran
    NODE_LOST = "node_lost"  # its node died or forgot it
    SUPERVISOR_LOST = "supervisor_lost"  # its supervisor was killed and the outcome with it
    RERUN = "rerun"  # stopped to be requeued, or killed at its checkpoint signal
    MOVED = "moved"  # stopped at a checkpoint, to migrate


class LaunchStage(StrEnum):
    """The step of a start that failed."""

    MESSAGE = "message"  # the order itself: the node cannot read it
    ORDER = "order"  # the order does not fit what this node is or does now
    ACCOUNT = "account"  # who the owner is on this node
    HOME = "home"  # the owner's home directory, which holds the working directory
    SPOOL = "spool"  # gnode's own records of the attempt
    FORK = "fork"  # a process for it
    GROUP = "group"  # its control groups
    IDENTITY = "identity"  # its process becoming the owner
    FILES = "files"  # the script and node file in its own directory
    WORKDIR = "workdir"
    OUTPUT = "output"
    PROGRAM = "program"
    DEVICE = "device"  # a GPU that it was given
    HEALTH = "health"  # a health check of the node before a job
    PROLOG = "prolog"  # the site's program before a job
    PROLOG_USER = "prolog_user"  # its part that runs as the job's owner


class Subject(StrEnum):
    """Whose thing a step of a start failed on; see `gschedd.core.attempts.blame`."""

    NODE = "node"  # no user can make it fail: a fork, a control group, gnode's own records
    USER = "user"  # the owner's account on this node
    JOB = "job"  # what the job names or its user can touch: directory, output, program


class StopReason(StrEnum):
    """Why the head or a supervisor stops an attempt."""

    DELETE = "delete"
    RERUN = "rerun"
    MOVE = "move"  # it migrates, from its checkpoint
    WALLTIME = "walltime"
    PEER_FAILED = "peer_failed"  # another node's part of the same attempt ended
    FENCED = "fenced"  # the head gave this attempt up
    NODE_STOP = "node_stop"  # the node daemon was told to end its jobs
    SHUTDOWN = "shutdown"  # its machine shuts down: a node's own reason, recorded as a lost node
    LEASE = "lease"  # the node has not reached the head for as long as the job's lease lasts


class Join(StrEnum):
    """Whether stdout and stderr go to one file (qsub -j)."""

    NO = "n"
    INTO_OUT = "oe"
    INTO_ERR = "eo"


class Placement(StrEnum):
    """How the chunks of a request may be laid over nodes."""

    SCATTER = "scatter"  # every chunk on a node of its own: Torque's nodes=N
    FREE = "free"  # chunks may share nodes
    PACK = "pack"  # all chunks on one node


class ShareClass(StrEnum):
    """How important a job is on a GPU that it shares; at most one job on a GPU is ``high``."""

    HIGH = "high"  # keeps its speed, whoever else is on the GPU
    LOW = "low"  # uses what a high one leaves


class LaunchKind(StrEnum):
    """What is started on the nodes."""

    SCRIPT = "script"
    COMMAND = "command"
    TORCHRUN = "torchrun"
