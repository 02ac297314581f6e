"""Messages of the node channel: one WebSocket that gnode opens; each frame holds a JSON list.

The hello, and a refusal in answer to it, are text frames, as in all versions; others are binary.

Every message about an attempt carries (job, attempt); every connection carries the head's epoch
and the node's incarnation. A receiver drops what does not fit, with a counted warning.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from gsched.model.configuration import ConfigRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult
from gsched.model.job import ExitRecord, JobSpec, LaunchFailure
from gsched.model.machine import Machine
from gsched.model.numbers import Amount, Count, Number
from gsched.model.origin import Origin
from gsched.model.reports import CheckpointReport, ProgressReport
from gsched.model.resources import Inventory, Load, Share, Usage
from gsched.model.states import PartState, StopReason
from gsched.model.training import Batching
from gsched.protocol.code import CodeRead, CodeWanted
from gsched.protocol.deliveries import (
    DeliverPiece,
    FileDone,
    FileOrder,
    PieceDelivered,
    StagedRead,
    StagedWanted,
)
from gsched.protocol.hosts import HostReport
from gsched.protocol.job_steps import StepMessage, StepReport
from gsched.protocol.joining import (
    CertificateIssued,
    CertificateState,
    CertificateWanted,
    TrustChanged,
)
from gsched.protocol.relays import RelayAnswer, RelayRequest
from gsched.protocol.sessions import OpenSession, SessionFailed
from gsched.protocol.settings import ClusterSettings, SettingsRead, SettingsWanted
from gsched.protocol.unreadable import Unreadable
from gsched.protocol.uses import Heartbeat as Heartbeat  # noqa: PLC0414 - also said here
from gsched.protocol.uses import Uses


class Probe(Struct, frozen=True, kw_only=True, tag="probe"):
    """Find out whether this node can start jobs. Answered by `Probed` with the same request.

    Sent only to nodes that have said in `Register` that they understand it.
    """

    request: Count


class Probed(Struct, frozen=True, kw_only=True, tag="probed", omit_defaults=True):
    """Whether a program that does nothing could be started here, by the way that jobs take.

    Attributes:
        message: why not, in words.
        failure: the evidence.
    """

    request: Count
    passed: bool
    message: str = ""
    failure: LaunchFailure | None = None


PROTOCOL_VERSION = 4
MAX_FRAME_BYTES = 32 * 1024 * 1024
KEEPALIVE_S = 5.0  # ping interval of the open connection: a lost peer is known in 2 of these
HEARTBEAT_S = 300.0
SAMPLE_S = 5.0

# --- handshake: who is at either end is known from TLS, or from the kernel on a Unix socket ---


class Hello(Struct, frozen=True, kw_only=True, tag="hello", omit_defaults=True):
    """Node to head, first: who I am.

    Attributes:
        session: the session that this connection is for, of a terminal or of a user's command;
            empty: it is the node channel.
    """

    version: Count
    node: str
    session: str = ""


class Challenge(Struct, frozen=True, kw_only=True, tag="challenge"):
    """Head to node: which head this is."""

    version: Count
    cluster: str
    epoch: Count
    epoch_id: str = ""


class AttemptReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt in a node's spool: its state there, and its exit record once there is one."""

    job: Count
    attempt: Count
    state: PartState
    pid: Count = 0
    started_s: Amount = 0.0
    exit: ExitRecord | None = None
    usage: Usage | None = None
    token: str = ""


class KnownAttempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a node knows of an attempt, for a head whose database may be an old copy.

    Attributes:
        origin: what its launch said; None: its task cannot be read any more.
    """

    job: Count
    attempt: Count
    state: PartState
    pid: Count = 0
    started_s: Amount = 0.0
    stdout_path: str = ""
    stderr_path: str = ""
    exit: ExitRecord | None = None
    usage: Usage | None = None
    origin: Origin | None = None

    @property
    def token(self) -> str:
        """Return the token of the attempt; empty: it is not known."""
        return self.origin.token if self.origin is not None else ""


class Register(Struct, frozen=True, kw_only=True, tag="register", omit_defaults=True):
    """Node to head: what I have, and every attempt in my spool.

    Attributes:
        identity: 32 hex digits that gnode made when its state directory was new.
        machine: marks of the machine.
        boot_id: of the machine; of the same identity and machine, another one proves that
            everything that ran before is dead.
        incarnation: a UUID of this start of gnode.
        highest_epoch: of any head this node has obeyed; a head with a lower one is an old copy.
        highest_job: number of any job this node has seen.
        probes: this node has an account by which it can probe itself.
        sharing: the runtime by which jobs share GPUs here; empty: it launches no job that does.
        problem: why the node takes no new jobs, in words; empty: it does.
        epoch_id: of the head of ``highest_epoch``: no two starts of a head have the same one.
        seq, next_job: how far the head of that epoch had come, as it said last.
        gpu_sharing: how jobs share GPUs here; None: nobody wants to share any.
        gpu_use: who is on the GPUs beside the jobs; None: that is not known.
        health: the last results of its health checks; what fails is a part of ``problem``.
        config: how it has read its configuration file; None: not told.
        cpu_binding: how jobs are bound to CPUs, and why they are not; empty: not told.
        gpu_fence: what keeps jobs from the GPUs of others, or why nothing does; empty: no GPUs.
        packs: it reads packed frames.
    """

    boot_id: str
    incarnation: str
    address: str
    gnode_version: str
    inventory: Inventory
    attempts: tuple[AttemptReport, ...]
    load: Load
    highest_epoch: Count = 0
    highest_job: Count = 0
    probes: bool = False
    problem: str = ""
    identity: str = ""
    machine: Machine = Machine()
    epoch_id: str = ""
    seq: Count = 0
    next_job: Count = 0
    sharing: str = ""
    cpu_binding: str = ""
    gpu_fence: str = ""
    gpu_sharing: GpuSharing | None = None
    gpu_use: GpuUse | None = None
    packs: bool = False
    health: tuple[HealthResult, ...] = ()
    config: ConfigRow | None = None


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome", omit_defaults=True):
    """Head to node: you are in; from now on obey this epoch.

    Attributes:
        epoch_id: of this start of the head; no other start has the same one.
        seq: of the newest event that is durable on the head.
        next_job: the id that the next job gets.
        heads: addresses of all heads of the cluster, ``host:port``; none: only this one is known.
        packs: the head reads packed frames.
    """

    cluster: str
    epoch: Count
    epoch_id: str = ""
    seq: Count = 0
    next_job: Count = 0
    heads: tuple[str, ...] = ()
    packs: bool = False


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    """Head to node: you are not, and why; ``fatal`` means do not try again."""

    message: str
    fatal: bool


# --- head to node ---


class Ping(Struct, frozen=True, kw_only=True, tag="ping"):
    """Are you still there? Answered by `Pong` with the same number, at once."""

    number: Count


class SurveyAttempts(Struct, frozen=True, kw_only=True, tag="survey", omit_defaults=True):
    """Tell what you know of these attempts, and obey nothing: my database may be an old copy.

    Sent in place of `Welcome`: a node that gets it keeps its mark, and goes on by itself. Answered
    by `KnownAttempts`.

    Attributes:
        first_unknown: jobs with this number and above may be missing in the database.
        unfinished: jobs below it that are not done there.
    """

    first_unknown: Count
    unfinished: tuple[Count, ...]


class Renewed(Struct, frozen=True, kw_only=True, tag="renewed"):
    """The answer to `Renew` with the same number: when that was sent, the head was there."""

    number: Count


class HighWater(Struct, frozen=True, kw_only=True, tag="high_water"):
    """How far the head's database has come; the node keeps it, as a witness against old copies.

    Sent before a launch or an acknowledgement that depends on it, and now and then.
    """

    seq: Count
    next_job: Count


class Launch(Struct, frozen=True, kw_only=True, tag="launch", omit_defaults=True):
    """Start this attempt's part here. Idempotent by (job, attempt).

    The job's specification and its allocation are in ``origin``; the rest is of this start.

    Attributes:
        server: the head's name, for PBS_JOBID.
        cluster: the id of the head's cluster, part of the rendezvous's.
        origin: kept by the node, so that a head on a restored database can adopt the attempt.
        rank: of this node in the allocation.
        script, environment: of the job; its specification has their digests.
        walltime_s: seconds from the start here, None for no limit.
        master_address: where rank 0 listens, at the port in ``origin``, which is free of other
            attempts.
        checkpoint_dir: where an elastic training keeps its checkpoints; empty: it is none.
        lease_s: the node ends the attempt when it has not reached the head for so long; 0: never.
        lease_grace_s: from TERM to KILL then, whatever the job's grace becomes.
        batching: how an adaptive training splits its samples here; None: it decides.
        profile_batches: an adaptive training measures its steps at several batch sizes first.
        short_number: what Slurm's commands call an element of an array; 0: it has no such number.
    """

    job: Count
    attempt: Count
    server: str
    origin: Origin
    rank: Count = 0
    cluster: str = ""
    script: str = ""
    environment: dict[str, str] = {}
    walltime_s: Amount | None = None
    master_address: str = ""
    checkpoint_dir: str = ""
    lease_s: Amount = 0.0
    lease_grace_s: Amount = 0.0
    batching: Batching | None = None
    profile_batches: bool = False
    short_number: Count = 0

    def __post_init__(self) -> None:
        """Refuse a rank that is not in the allocation.

        Raises:
            ValueError: it is not; the message counts as unreadable.
        """
        if self.rank >= len(self.origin.allocation):
            raise ValueError(f"no node of rank {self.rank} in the allocation")

    @property
    def spec(self) -> JobSpec:
        """Return what the job's user stated."""
        return self.origin.spec

    @property
    def token(self) -> str:
        """Return what tells this attempt from one of the same number in a lost history."""
        return self.origin.token

    @property
    def share(self) -> Share:
        """Return what the attempt owns here."""
        return self.origin.allocation[self.rank]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of all nodes of the allocation, in rank order."""
        return tuple(share.node for share in self.origin.allocation)

    @property
    def is_step_agent(self) -> bool:
        """Return whether the part is a step agent, and not the job's program.

        It starts tasks that programs of the job on other nodes request.
        """
        return self.rank > 0 and not self.spec.runs_everywhere


class Prepare(Struct, frozen=True, kw_only=True, tag="prepare", omit_defaults=True):
    """Start the processes of an attempt that may be launched soon, behind a closed gate.

    Answered by `Prepared` when they wait there, and by `Exited` if they end. A `Launch` of the same
    attempt opens the gate. They end with the connection, by a
    `StopAttempt`, or when their time is over.

    Attributes:
        launch: as it will be, but for what only the assignment says.
        yields: its CPUs are others' until then: it has a lower priority, where it can get the
            usual one back.
    """

    launch: Launch
    yields: bool = False


class StopAttempt(Struct, frozen=True, kw_only=True, tag="stop", omit_defaults=True):
    """End this attempt here: TERM, ``grace_s`` seconds, KILL of everything it started.

    An attempt that the node does not know gets a tombstone, so that a late Launch is refused.
    ``token`` is that of the attempt; one of another history is left alone.
    """

    job: Count
    attempt: Count
    reason: StopReason
    grace_s: Amount
    token: str = ""


class Signal(Struct, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to the job's processes."""

    job: Count
    attempt: Count
    signal: Count


class Retime(Struct, frozen=True, kw_only=True, tag="retime"):
    """The walltime of a running attempt has changed (None: no limit)."""

    job: Count
    attempt: Count
    walltime_s: Amount | None


class ExitAck(Struct, frozen=True, kw_only=True, tag="exit_ack", omit_defaults=True):
    """The exit of this attempt is durable on the head: the node may bury it."""

    job: Count
    attempt: Count
    token: str = ""


class ReadOutput(Struct, frozen=True, kw_only=True, tag="read_output", omit_defaults=True):
    """Read a running job's output, as its owner. Answered by `OutputRead` with the same id.

    With ``append`` nothing is read, and these bytes are written to its end.
    """

    request: Count
    job: Count
    attempt: Count
    stream: str
    offset: Number
    max_bytes: Count
    append: bytes = b""


class TakeCheckpoint(Struct, frozen=True, kw_only=True, tag="checkpoint"):
    """Let a training save its state, then wait for `GoOn` or its end. Idempotent by ``request``.

    Sent to the node of rank 0 only: the ranks agree on the step among themselves. Answered by
    `Checkpointed` or `CheckpointFailed` with the same ``request``.

    Attributes:
        signal: sent to the job's processes instead, on each of its nodes: it saves its state and
            ends. There is no other answer than its end.
        world_size: ranks with which it is to go on, so that it can refuse them; 0: not known.
        prepared: the processes of its next attempt wait for its checkpoint.
    """

    job: Count
    attempt: Count
    request: Count
    wait: bool = True
    signal: Count = 0
    world_size: Count = 0
    prepared: bool = False


class GoOn(Struct, frozen=True, kw_only=True, tag="go_on"):
    """The move is off: a training that waits after a checkpoint goes on where it is."""

    job: Count
    attempt: Count
    request: Count


class TuneTraining(Struct, frozen=True, kw_only=True, tag="tune"):
    """Let an adaptive training split its samples so from one of its next steps on.

    Sent to the node of rank 0 only.
    Not answered: the training's progress tells with which batch its steps were done.
    """

    job: Count
    attempt: Count
    batching: Batching


HeadMessage = (
    Challenge
    | Welcome
    | Refused
    | SurveyAttempts
    | TrustChanged
    | CertificateIssued
    | HighWater
    | Renewed
    | Launch
    | Prepare
    | StopAttempt
    | Signal
    | Retime
    | ExitAck
    | ReadOutput
    | TakeCheckpoint
    | GoOn
    | TuneTraining
    | StepMessage
    | CodeRead
    | PieceDelivered
    | StagedRead
    | FileOrder
    | Probe
    | OpenSession
    | RelayAnswer
    | ClusterSettings
    | SettingsWanted
    | Ping
)

# --- node to head ---


class Started(Struct, frozen=True, kw_only=True, tag="started", omit_defaults=True):
    """The part runs; ``stdout_path`` and ``stderr_path`` are what the files really are.

    ``warm``: its processes were prepared, and waited for the launch or were on their way to that.
    """

    job: Count
    attempt: Count
    pid: Count
    started_s: Amount
    stdout_path: str = ""
    stderr_path: str = ""
    token: str = ""
    warm: bool = False


class Prepared(Struct, frozen=True, kw_only=True, tag="prepared"):
    """All processes of an attempt that is not launched yet wait for that; answers `Prepare`."""

    job: Count
    attempt: Count


class Exited(Struct, frozen=True, kw_only=True, tag="exited", omit_defaults=True):
    """The part has ended and nothing of it is left; repeated until acknowledged."""

    record: ExitRecord
    usage: Usage
    load: Load
    token: str = ""


class KnownAttempts(Struct, frozen=True, kw_only=True, tag="known", omit_defaults=True):
    """The answer to `SurveyAttempts`, in pieces; ``done`` with the last."""

    attempts: tuple[KnownAttempt, ...]
    done: bool = False


class Pong(Struct, frozen=True, kw_only=True, tag="pong"):
    """The answer to `Ping`."""

    number: Count


class Renew(Struct, frozen=True, kw_only=True, tag="renew"):
    """Are you there? Answered by `Renewed` with the same number.

    The node counts what it has a lease for as renewed when this was sent, not when the answer
    came.
    """

    number: Count


class OutputRead(Struct, frozen=True, kw_only=True, tag="output_read", omit_defaults=True):
    """The answer to `ReadOutput`; ``error`` in words if it could not be read."""

    request: Count
    path: str = ""
    offset: Number = 0
    size_bytes: Count = 0
    data: bytes = b""
    error: str = ""


class UnknownAttempt(Struct, frozen=True, kw_only=True, tag="unknown_attempt"):
    """A Signal, Retime or ReadOutput named an attempt this node does not have."""

    job: Count
    attempt: Count


class Checkpointed(CheckpointReport, frozen=True, kw_only=True, tag="checkpointed"):
    """A training has published a checkpoint; an answer to `TakeCheckpoint`, or by itself.

    Attributes:
        world_sizes: numbers of ranks that it can run on, ascending; empty: it does not say.
    """

    job: Count
    attempt: Count
    world_sizes: tuple[Count, ...] = ()


class CheckpointFailed(Struct, frozen=True, kw_only=True, tag="checkpoint_failed"):
    """A training could not save its state, or cannot be asked; it goes on untouched."""

    job: Count
    attempt: Count
    request: Count
    message: str


class TrainingProgress(ProgressReport, frozen=True, kw_only=True, tag="progress"):
    """How far a training is."""

    job: Count
    attempt: Count


#: Reports about one attempt.
AttemptMessage = Started | Prepared | Exited | Checkpointed | CheckpointFailed | TrainingProgress
NodeMessage = (
    Hello
    | Register
    | KnownAttempts
    | CertificateState
    | CertificateWanted
    | Pong
    | Renew
    | Heartbeat
    | Uses
    | OutputRead
    | UnknownAttempt
    | Probed
    | SessionFailed
    | RelayRequest
    | HostReport
    | SettingsRead
    | AttemptMessage
    | StepReport
    | CodeWanted
    | DeliverPiece
    | StagedWanted
    | FileDone
    | Unreadable
)

_head_decoder = msgspec.json.Decoder(list[HeadMessage])
_node_decoder = msgspec.json.Decoder(list[NodeMessage])
_head_unpacker = msgspec.msgpack.Decoder(list[HeadMessage])
_node_unpacker = msgspec.msgpack.Decoder(list[NodeMessage])
_encoder = msgspec.json.Encoder()
_packer = msgspec.msgpack.Encoder()
_PACKED: Final = b"\x91"  # begins a list of one element in MessagePack, and no JSON


def encode(messages: Sequence[HeadMessage] | Sequence[NodeMessage]) -> bytes:
    """Return one frame that holds the messages in order."""
    return _encoder.encode(messages)


def encode_packed(message: Struct) -> bytes:
    """Return a packed frame of a message, in which bytes stand as they are."""
    return _packer.encode((message,))


def is_packed(frame: bytes | memoryview) -> bool:
    """Return whether a frame is packed."""
    return bytes(frame[:1]) == _PACKED


def decode_from_head(frame: bytes | memoryview | str) -> list[HeadMessage]:
    """Return the messages of a frame that the head sent.

    Raises:
        msgspec.DecodeError: the frame cannot be read, or does not follow the schema.
    """
    if isinstance(frame, str) or not is_packed(frame):
        return _head_decoder.decode(frame)
    return _head_unpacker.decode(frame)


def decode_from_node(frame: bytes | memoryview | str) -> list[NodeMessage]:
    """Return the messages of a frame that a node sent.

    Raises:
        msgspec.DecodeError: the frame cannot be read, or does not follow the schema.
    """
    if isinstance(frame, str) or not is_packed(frame):
        return _node_decoder.decode(frame)
    return _node_unpacker.decode(frame)
