"""What a training and gnode say to each other, without the socket.

Lines of JSON in both directions. The training's main thread leaves here what is to be said and asks
what was requested; the thread of `gsched.elastic.link` carries it. What waits to be sent is
bounded: a newer progress replaces an older one.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

PROTOCOL_VERSION = 1
LINE_BYTES_MAX = 64 << 10

Body = dict[str, object]


class ProtocolError(Exception):
    """A line that is no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How an adaptive training is to split its samples from one of its next steps on.

    Attributes:
        per_gpu: samples of a forward and backward pass on each GPU.
        accumulation: passes before the one whose gradients are synchronised.
    """

    per_gpu: int
    accumulation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """gnode asks for a checkpoint.

    Attributes:
        request: its number; answers carry it.
        wait: do no further step after it until told.
        world_size: ranks the training is to go on with; None: not said.
        prepared: the processes that are to go on from it wait already.
    """

    request: int
    wait: bool
    world_size: int | None = None
    prepared: bool = False


class Conversation:
    """The state of the talk between rank 0 and gnode. Any thread may call anything.

    Args:
        hello: what the first line says of the training, without ``saved`` and ``waiting``.
        wake: called when there is something to send.
        refuse: why the training cannot go on with that number of ranks; None: it can.
    """

    def __init__(
        self, hello: Body, *, wake: Callable[[], None], refuse: Callable[[int], str | None]
    ) -> None:
        self._hello = hello
        self._wake = wake
        self._refuse = refuse
        self._changed = threading.Condition()
        self._pending: CheckpointRequest | None = None
        self._answering: int | None = None
        self._answers: dict[int, Body] = {}
        self._saved: Body | None = None
        self._waiting: int | None = None
        self._gone_on = 0
        self._tuning: Tuning | None = None
        self._closed: str | None = None
        self._outbox: dict[str, Body] = {}

    # --- the training's side ---

    def hello_with(self, **fields: object) -> None:
        """Say something else of the training with the next connection."""
        with self._changed:
            self._hello = {**self._hello, **fields}

    def pending(self) -> CheckpointRequest | None:
        """Return the request that was not taken up yet; it stays."""
        return self._pending

    def take_up(self) -> CheckpointRequest | None:
        """Return the request that was not taken up yet; from now on it is."""
        with self._changed:
            order, self._pending = self._pending, None
            self._answering = order.request if order else None
            return order

    def take_tuning(self) -> Tuning | None:
        """Return the newest batch size that gnode has told and nobody has taken; it is taken."""
        tuning, self._tuning = self._tuning, None
        return tuning

    def saved(self, body: Body) -> None:
        """Say that a checkpoint was published; ``body`` as the line holds it."""
        with self._changed:
            self._saved = body
            self._answer(int(str(body["request"])), {"checkpointed": body})

    def failed(self, request: int, message: str) -> None:
        """Say that the checkpoint that was requested could not be saved."""
        with self._changed:
            self._answer(request, _failure(request, message))

    def progress(self, body: Body) -> None:
        """Say how far the training is."""
        with self._changed:
            self._outbox["progress"] = {"progress": body}
        self._wake()

    def may_go_on(self, request: int) -> bool:
        """Return whether gnode has said that a training that waits is to go on."""
        return self._gone_on >= request

    def begin_to_wait(self, request: int) -> None:
        """Note that no step is done before gnode says so; a new connection is told."""
        self._waiting = request

    def wait_to_go_on(self, request: int, timeout_s: float) -> bool:
        """Return True as soon as gnode says so, False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._gone_on >= request, timeout_s)

    def end_to_wait(self) -> None:
        """Note that the training does steps again."""
        self._waiting = None

    def over(self, message: str) -> None:
        """Refuse what is requested from now on, and what was not taken up, with these words."""
        with self._changed:
            self._closed = message
            if self._pending is not None:
                request, self._pending = self._pending.request, None
                self._answer(request, _failure(request, message))

    # --- the connection's side ---

    def greeting(self) -> bytes:
        """Return the first line of a connection."""
        with self._changed:
            hello = {**self._hello, "saved": self._saved, "waiting": self._waiting}
            return _line({"hello": hello})

    def hear(self, line: bytes) -> None:
        """Act on a line from gnode. Words that are not known are ignored.

        Raises:
            ProtocolError: it is no JSON object, or a known word without what belongs to it.
        """
        try:
            message = json.loads(line)
            checkpoint, go_on = message.get("checkpoint"), message.get("go_on")
            tune = message.get("tune")
            if tune is not None:
                self._hear_tuning(int(tune["per_gpu"]), int(tune.get("accumulation", 0)))
            if checkpoint is not None:
                size = checkpoint.get("world_size")
                self._hear_request(
                    CheckpointRequest(
                        request=int(checkpoint["request"]),
                        wait=bool(checkpoint.get("wait", True)),
                        world_size=None if size is None else int(size),
                        prepared=bool(checkpoint.get("prepared", False)),
                    )
                )
            if go_on is not None:
                self._hear_go_on(int(go_on["request"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"not a message: {line[:100]!r}") from error

    def _hear_tuning(self, per_gpu: int, accumulation: int) -> None:
        if per_gpu < 1 or accumulation < 0:
            raise ValueError("a batch size from 1")
        self._tuning = Tuning(per_gpu=per_gpu, accumulation=accumulation)

    def to_send(self) -> list[tuple[str, bytes]]:
        """Return what waits to be sent, as keys for `sent` and lines."""
        with self._changed:
            return [(key, _line(message)) for key, message in self._outbox.items()]

    def sent(self, key: str, line: bytes) -> None:
        """Forget what was sent, unless something newer has taken its place."""
        with self._changed:
            message = self._outbox.get(key)
            if message is not None and _line(message) == line:
                del self._outbox[key]

    def _hear_request(self, order: CheckpointRequest) -> None:
        with self._changed:
            known = self._answers.get(order.request)
            if known is not None:
                self._outbox["answer"] = known
            elif order.request == self._answering or order.request <= self._gone_on:
                return  # it is being saved, or nobody waits for it any more
            elif self._closed is not None:
                self._answer(order.request, _failure(order.request, self._closed))
            else:
                fault = None if order.world_size is None else self._refuse(order.world_size)
                if fault is not None:
                    self._answer(order.request, _failure(order.request, fault))
                else:
                    self._pending = order
        self._wake()

    def _hear_go_on(self, request: int) -> None:
        with self._changed:
            self._gone_on = max(self._gone_on, request)
            if self._pending is not None and self._pending.request <= request:
                self._pending = None  # given up before it was taken up
            self._changed.notify_all()

    def _answer(self, request: int, message: Body) -> None:
        """Leave an answer for the connection; the last one is remembered and said again."""
        if request:
            self._answers = {request: message}
            self._answering = None
        self._outbox["answer" if request else "unasked"] = message
        self._wake()


def _failure(request: int, message: str) -> Body:
    return {"checkpoint_failed": {"request": request, "message": message[:4000]}}


def _line(message: Body) -> bytes:
    return json.dumps(message).encode() + b"\n"
