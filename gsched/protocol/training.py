"""What gnode and an elastic training say to each other: JSON lines over a Unix socket.

Each line is one object with one key that says what it is. Unknown keys are ignored by both sides,
so that either may be newer. Nothing that a training says is believed beyond its own attempt.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gsched.protocol import node as n

VERSION = 1
MAX_LINE_BYTES = 64 * 1024
SOCKET_NAME = "elastic.sock"  # in gnode's state directory

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Amount = Annotated[float, Meta(ge=0.0, le=1e300)]
_Text = Annotated[str, Meta(max_length=4096)]
_Sizes = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)], ...], Meta(max_length=256)]


class Saved(Struct, frozen=True, kw_only=True):
    """A checkpoint is published: see `gsched.protocol.node.Checkpointed`."""

    request: _Count = 0
    step: _Count = 0
    work_done: _Amount = 0.0
    work_total: _Amount = 0.0
    path: _Text = ""
    size_bytes: _Count = 0
    wall_s: _Amount = 0.0
    waits: bool = False


class Failed(Struct, frozen=True, kw_only=True):
    """What was asked for could not be saved; the training goes on."""

    request: _Count
    message: _Text = ""


class Reached(Struct, frozen=True, kw_only=True):
    """How far it is: see `gsched.protocol.node.Progress`.

    ``world_sizes`` are the numbers of ranks that it can run on from now on; empty: as before.
    """

    step: _Count
    work_done: _Amount = 0.0
    at_s: _Amount = 0.0
    work_total: _Amount = 0.0
    step_s: _Amount = 0.0
    communication_s: _Amount = 0.0
    gpus: _Count = 0
    restored_step: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    restore_s: _Amount = 0.0
    gradient_bytes: _Amount = 0.0
    world_sizes: _Sizes = ()


class Hello(Struct, frozen=True, kw_only=True):
    """The first line: which attempt this is, and what it said last of a checkpoint.

    ``world_size`` is its number of ranks, ``world_sizes`` are those that it can run on, ascending;
    empty: it does not say.
    """

    version: _Count
    job: _Count
    attempt: _Count
    world_size: _Count = 0
    world_sizes: _Sizes = ()
    saved: Saved | None = None


class Line(Struct, frozen=True, kw_only=True):
    """One line of a training."""

    hello: Hello | None = None
    checkpointed: Saved | None = None
    checkpoint_failed: Failed | None = None
    progress: Reached | None = None


class BadLineError(Exception):
    """A line cannot be read; the message says why."""


_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


def decode_line(line: bytes) -> Line:
    """Return what a training said.

    Raises:
        BadLineError: it is no JSON, or not of this schema.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadLineError(str(error)) from error


def encode_order(order: n.Checkpoint | n.GoOn) -> bytes:
    """Return an order as the line that a training gets."""
    if isinstance(order, n.Checkpoint):
        asked: dict[str, int | bool] = {"request": order.request, "wait": order.wait}
        if order.world_size:
            asked["world_size"] = order.world_size
        return _encoder.encode({"checkpoint": asked}) + b"\n"
    return _encoder.encode({"go_on": {"request": order.request}}) + b"\n"


def encode_refusal(message: str) -> bytes:
    """Return the last line that somebody gets with whom gnode does not talk."""
    return _encoder.encode({"refused": {"message": message}}) + b"\n"


def checkpointed(
    job: int, attempt: int, said: Saved, world_sizes: tuple[int, ...] = ()
) -> n.Checkpointed:
    """Return the report of an attempt's checkpoint, and of the numbers of ranks it can run on."""
    return n.Checkpointed(
        job=job,
        attempt=attempt,
        request=said.request,
        step=said.step,
        work_done=said.work_done,
        work_total=said.work_total,
        path=said.path,
        size_bytes=said.size_bytes,
        wall_s=said.wall_s,
        waits=said.waits,
        world_sizes=world_sizes,
    )


def progress(
    job: int, attempt: int, said: Reached, world_sizes: tuple[int, ...] = ()
) -> n.Progress:
    """Return the report of how far an attempt is, and of the numbers of ranks it can run on."""
    return n.Progress(
        job=job,
        attempt=attempt,
        step=said.step,
        work_done=said.work_done,
        at_s=said.at_s,
        work_total=said.work_total,
        step_s=said.step_s,
        communication_s=said.communication_s,
        gpus=said.gpus,
        restored_step=said.restored_step,
        restore_s=said.restore_s,
        world_sizes=world_sizes,
        gradient_bytes=said.gradient_bytes,
    )
