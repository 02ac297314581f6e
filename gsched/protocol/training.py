"""What gnode and an elastic training say to each other: JSON lines over a Unix socket.

Each line is one object with one key that says what it is. Unknown keys are ignored by both sides,
so that either may be newer. Nothing that a training says is believed beyond its own attempt.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gsched.model.limits import MAX_PATH
from gsched.model.numbers import Number
from gsched.model.reports import CheckpointReport, ProgressReport, Sizes, Text, made_of
from gsched.protocol import node as n
from gsched.protocol.deliveries import BEGIN

VERSION = 1
MAX_LINE_BYTES = 64 * 1024
SOCKET_NAME = "elastic.sock"  # in gnode's state directory

_Count = Annotated[int, Meta(ge=0, le=2**53)]


class CheckpointFailure(Struct, frozen=True, kw_only=True):
    """What was requested could not be saved; the training goes on."""

    request: _Count
    message: Text = ""


class TrainingHello(Struct, frozen=True, kw_only=True):
    """The first line: which attempt this is, and what it said last of a checkpoint.

    ``world_size`` is its number of ranks, ``world_sizes`` are those that it can run on, ascending;
    empty: it does not say.
    """

    version: _Count
    job: _Count
    attempt: _Count
    world_size: _Count = 0
    world_sizes: Sizes = ()
    saved: CheckpointReport | None = None


class Ready(Struct, frozen=True, kw_only=True):
    """All ranks of an attempt that is not launched yet wait at their gates on this node.

    Said by the agent that has started them, in place of the hello: it says nothing else.
    """

    version: _Count
    job: _Count
    attempt: _Count


class StepCall(Struct, frozen=True, kw_only=True):
    """A program of an attempt wants the step agents of these nodes to connect to it.

    It says nothing else, and closes when they have, or when it has given up. It is answered by a
    line ``failed`` for each node where that is not possible.
    """

    version: _Count
    job: _Count
    attempt: _Count
    nodes: Annotated[tuple[Text, ...], Meta(max_length=10_000)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    secret: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class StepAgentHello(Struct, frozen=True, kw_only=True):
    """The first line of a step agent. It gets a line ``step`` for each program that wants it."""

    version: _Count
    job: _Count
    attempt: _Count


class StepAgentFailed(Struct, frozen=True, kw_only=True):
    """A step agent cannot connect to a program."""

    origin: Text
    step: _Count
    message: Text = ""


class LoginCall(Struct, frozen=True, kw_only=True):
    """PAM asks for a part of a job on this node for a user who logs in; only root may.

    Answered by a line ``login`` with ``job`` and ``attempt``, 0 if there is none, or by a refusal.
    """

    version: _Count
    uid: _Count
    address: Text = ""


class CodeHello(Struct, frozen=True, kw_only=True):
    """The first line of the program that unpacks an attempt's code snapshot on this node.

    Each further line is ``read``, and answered by a line with ``size_bytes`` and ``data``, with
    ``error``, or with ``later``.
    """

    version: _Count
    job: _Count
    attempt: _Count


class ReadCode(Struct, frozen=True, kw_only=True):
    """The piece of the archive from ``offset`` on is wanted."""

    offset: _Count


class StageHello(Struct, frozen=True, kw_only=True):
    """The first line of the program that stages files in for an attempt on this node.

    Each further line is ``fetch``. It may come before the line before it is answered. The answers
    come in order: a line with ``error`` or ``later``, or with the ``count`` of bytes that follow
    it; with ``data`` where ``raw`` was not requested.
    """

    version: _Count
    job: _Count
    attempt: _Count


class FetchStaged(Struct, frozen=True, kw_only=True):
    """The next piece of an item is wanted: see `gsched.protocol.deliveries.StagedWanted`."""

    item: _Count
    after: Annotated[bytes, Meta(max_length=MAX_PATH)] = b""
    offset: Number = BEGIN
    lists: bool = False
    raw: bool = False


class TrainingLine(Struct, frozen=True, kw_only=True):
    """One line of a training, of a program that starts tasks, or of a step agent."""

    hello: TrainingHello | None = None
    ready: Ready | None = None
    checkpointed: CheckpointReport | None = None
    checkpoint_failed: CheckpointFailure | None = None
    progress: ProgressReport | None = None
    step: StepCall | None = None
    agent: StepAgentHello | None = None
    failed: StepAgentFailed | None = None
    login: LoginCall | None = None
    code: CodeHello | None = None
    read: ReadCode | None = None
    stage: StageHello | None = None
    fetch: FetchStaged | None = None


class BadLineError(Exception):
    """A line cannot be read; the message says why."""


_decoder = msgspec.json.Decoder(TrainingLine)
_encoder = msgspec.json.Encoder()


def decode_line(line: bytes) -> TrainingLine:
    """Return what a training said.

    Raises:
        BadLineError: it is no JSON, or not of this schema.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadLineError(str(error)) from error


def encode_order(order: n.TakeCheckpoint | n.GoOn | n.TuneTraining) -> bytes:
    """Return an order as the line that a training gets."""
    if isinstance(order, n.TakeCheckpoint):
        values: dict[str, int | bool] = {"request": order.request, "wait": order.wait}
        if order.world_size:
            values["world_size"] = order.world_size
        if order.prepared:
            values["prepared"] = True
        return _encoder.encode({"checkpoint": values}) + b"\n"
    if isinstance(order, n.TuneTraining):
        return _encoder.encode({"tune": order.batching}) + b"\n"
    return _encoder.encode({"go_on": {"request": order.request}}) + b"\n"


def encode_refusal(message: str) -> bytes:
    """Return the last line that somebody gets with whom gnode does not talk."""
    return _encoder.encode({"refused": {"message": message}}) + b"\n"


def checkpointed(
    job: int, attempt: int, report: CheckpointReport, world_sizes: tuple[int, ...] = ()
) -> n.Checkpointed:
    """Return the report of an attempt's checkpoint, and of the numbers of ranks it can run on."""
    return made_of(n.Checkpointed, report, job=job, attempt=attempt, world_sizes=world_sizes)


def progress(
    job: int, attempt: int, report: ProgressReport, world_sizes: tuple[int, ...] = ()
) -> n.TrainingProgress:
    """Return the report of how far an attempt is, and of the numbers of ranks it can run on."""
    return made_of(n.TrainingProgress, report, job=job, attempt=attempt, world_sizes=world_sizes)
