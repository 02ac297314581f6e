"""Files on their way to a host of submission: several pieces at once, nothing lost or twice."""

import asyncio
import base64
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gnode.core.effects import DeliverOutput
from gnode.core.inputs import Input, OutputReturned
from gnode.core.task import AttemptKey
from gnode.daemon.act_as_owner import write
from gnode.daemon.deliveries import Outboxes
from gsched.model.limits import MAX_FILE_PIECES
from gsched.protocol.deliveries import DELIVERY_BYTES, DeliverPiece, PieceDelivered

NAME = f"1.1.{'0' * 32}"
KEY = AttemptKey(1, 1)


class Places:
    """Where no other outbox lies."""

    def abandoned(self, _: object) -> list[str]:
        return []


class Kept:
    """Outboxes that are to be removed."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def add(self, path: str) -> None:
        self.paths.append(path)


class Host:
    """The head and a host of submission in one, and the node's daemon.

    Args:
        place: for the outbox, the progress, and what has arrived.
        window: pieces of a file that may be on their way.
        append: the output goes behind what is there.
        holds: answers come when no more pieces may be on their way.
        reverses: of the pieces that are on their way the last one is written first.
    """

    def __init__(
        self,
        place: Path,
        *,
        window: int = MAX_FILE_PIECES,
        append: bool = False,
        holds: bool = False,
        reverses: bool = False,
    ) -> None:
        self.place = place
        self.window = window
        self.append = append
        self.holds = holds
        self.reverses = reverses
        self.pause_s = 0.05 if reverses else 0.001
        self.box = place / "boxes" / NAME
        self.box.mkdir(parents=True)
        self.target = place / "target"
        self.target.mkdir()
        self.pieces: list[DeliverPiece] = []
        self.at_once = 0
        self._pending: list[DeliverPiece] = []
        self._acts = False
        self.on_piece: Callable[[DeliverPiece], PieceDelivered | None] = lambda _: None
        self.returned: list[str] = []
        self.has_returned = asyncio.Event()
        self.kept = Kept()
        self.outboxes = self.daemon()

    def daemon(self) -> Outboxes:
        """Return a node's daemon, with what one before has written down."""
        return Outboxes(
            node="n1",
            places=Places(),  # type: ignore[arg-type]  # a part of it is enough
            state_dir=str(self.place),
            send=self._send,
            is_connected=lambda: True,
            post=self._post,
            remover=self.kept,  # type: ignore[arg-type]  # a part of it is enough
            clock=None,  # type: ignore[arg-type]  # a part of it is enough
        )

    def _post(self, end: Input) -> None:
        assert isinstance(end, OutputReturned)
        self.returned.append(end.fault)
        self.has_returned.set()

    def _send(self, piece: DeliverPiece) -> None:
        self.pieces.append(piece)
        self._pending.append(piece)
        self.at_once = max(self.at_once, len(self._pending))
        is_held = self.holds and piece.at >= 0 and not piece.last
        if not self._acts and (not is_held or len(self._pending) >= max(1, self.window)):
            self._acts = True
            asyncio.get_running_loop().call_later(self.pause_s, self._act)

    def _act(self) -> None:
        piece = self._pending.pop(-1 if self.reverses else 0)
        answer = self.on_piece(piece) or self.written(piece)
        self.outboxes.take(structs.replace(answer, request=piece.request))
        self._acts = bool(self._pending)
        if self._acts:
            asyncio.get_running_loop().call_later(self.pause_s, self._act)

    def written(self, piece: DeliverPiece) -> PieceDelivered:
        """Write a piece as the owner's process does."""
        order: dict[str, Any] = {
            "path": str(self.target / piece.file.replace("/", "-")),
            "at": piece.at,
            "last": piece.last,
            "follows": piece.follows,
            "kind": piece.kind,
        }
        if piece.file.startswith("files/"):
            below = base64.b64encode(piece.name).decode()
            order |= {"temporary": "1.1.0", "below": below, "mode": piece.mode}
        else:
            order |= {"append": self.append}
        done = write(order, piece.data)
        if "error" in done:
            return PieceDelivered(request=0, error=str(done["error"]))
        end, taken = int(str(done.get("end", 0))), int(str(done.get("taken", 0)))
        return PieceDelivered(request=0, end=end, taken=taken, window=self.window)

    async def deliver(self) -> None:
        """Deliver the outbox to its end."""
        effect = DeliverOutput(key=KEY, outbox=str(self.box), host="l1", runs=False)
        self.outboxes.deliver(effect)
        await self.has_returned.wait()


def content(size: int, seed: int = 0) -> bytes:
    """Return bytes that repeat, so that a piece in a wrong place may look right."""
    line = b"step %d\n" % seed
    return (line * (size // len(line) + 1))[:size]


@pytest.mark.parametrize(("window", "most"), [(MAX_FILE_PIECES, MAX_FILE_PIECES), (0, 1)])
def test_as_many_pieces_as_the_host_takes_are_on_their_way(
    tmp_path: Path, window: int, most: int
) -> None:
    host = Host(tmp_path, window=window, holds=True)
    data = os.urandom(20 * DELIVERY_BYTES + 7)
    (host.box / "stdout").write_bytes(data)

    asyncio.run(host.deliver())

    assert host.at_once == most
    assert (host.target / "stdout").read_bytes() == data
    assert len(host.pieces) == 21
    assert host.returned == [""]
    assert host.kept.paths == [str(host.box)]


def test_several_files_are_on_their_way_at_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (host.box / "files").mkdir()
    for number in range(9):
        (host.box / "files" / str(number)).write_bytes(content(300_000 * number, number))

    asyncio.run(host.deliver())

    assert host.at_once > 1
    for number in range(9):
        found = (host.target / f"files-{number}").read_bytes()
        assert found == content(300_000 * number, number)


def test_directories_are_there_before_what_is_in_them(tmp_path: Path) -> None:
    """A host writes with several processes, and the last piece may be the first to be there."""
    host = Host(tmp_path, window=0, reverses=True)
    large = bytes(300_000)
    for number in range(3):
        top = host.box / "files" / str(number)
        (top / "a" / "b").mkdir(parents=True)
        (top / "large").write_bytes(large)
        (top / "a" / "b" / "large").write_bytes(large)
        (top / "small").write_bytes(b"x")
        (top / "a").chmod(0o700)

    asyncio.run(host.deliver())

    assert host.returned == [""]
    for number in range(3):
        top = host.target / f"files-{number}"
        assert [(top / name / "large").read_bytes() for name in (".", "a/b")] == [large] * 2
        assert (top / "small").read_bytes() == b"x"
        assert (top / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_on_the_way_nothing_is_lost_and_nothing_twice(
    tmp_path: Path, seed: int, *, append: bool
) -> None:
    """The head is away, the node's daemon is killed, others write behind: all in any order."""
    drawn = random.Random(seed)
    host = Host(tmp_path, append=append)
    data, other = content(9 * DELIVERY_BYTES + drawn.randrange(5000)), b"<other's line>"
    (host.box / "stdout").write_bytes(data)
    out = host.target / "stdout"
    out.write_bytes(b"before ")
    killed = asyncio.Event()
    happens = {drawn.randrange(2, 14): drawn.choice("lkow") for _ in range(4)}
    others = 0

    def on_piece(piece: DeliverPiece) -> PieceDelivered | None:
        nonlocal others
        what = happens.pop(len(host.pieces) - host.at_once, "") if piece.at >= 0 else ""
        if what == "o":
            others += 1
            with out.open("ab") as file:
                file.write(other)
        elif what == "l":
            return PieceDelivered(request=0, error="away", later=True)
        elif what == "w":  # written, and the answer is lost
            host.written(piece)
            return PieceDelivered(request=0, error="away", later=True)
        elif what == "k":
            killed.set()
        return None

    host.on_piece = on_piece

    async def run() -> None:
        work = asyncio.create_task(host.deliver())
        while not work.done():
            killing = asyncio.create_task(killed.wait())
            await asyncio.wait({work, killing}, return_when=asyncio.FIRST_COMPLETED)
            killing.cancel()
            if killed.is_set():
                killed.clear()
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.wait({work})
                host.outboxes = host.daemon()
                work = asyncio.create_task(host.deliver())
        await work

    asyncio.run(run())

    found = out.read_bytes()
    assert found.count(other) == others
    assert found.replace(other, b"") == (b"before " if append else b"") + data


def test_a_log_that_is_cut_while_it_returns_ends_where_it_ends(tmp_path: Path) -> None:
    """The job's own program truncates it: no piece of nothing is sent for ever."""
    host = Host(tmp_path)
    log = host.box / "stdout"
    log.write_bytes(content(9 * DELIVERY_BYTES))

    def cut(piece: DeliverPiece) -> None:
        if piece.at > 0:
            os.truncate(log, 5)

    host.on_piece = cut
    asyncio.run(host.deliver())

    assert host.returned == [""]
    found = (host.target / "stdout").read_bytes()
    assert content(9 * DELIVERY_BYTES).startswith(found)
    assert host.pieces[-1].last
    assert DELIVERY_BYTES <= len(found) < 9 * DELIVERY_BYTES


def test_a_directory_that_refuses_all_files_is_reported_once(tmp_path: Path) -> None:
    """1,200 files in three batches, and a large one; the other item arrives."""
    host = Host(tmp_path)
    results = host.box / "files" / "0"
    results.mkdir(parents=True)
    for number in range(1200):
        (results / f"{number:04}").write_bytes(b"x")
    (results / "large").write_bytes(bytes(2 * DELIVERY_BYTES))
    (host.box / "files" / "1").write_bytes(bytes(300_000))

    def refuse(piece: DeliverPiece) -> PieceDelivered | None:
        if piece.file == "files/0":
            return PieceDelivered(request=0, error="l1: results: Permission denied", whole=True)
        return None

    host.on_piece = refuse
    asyncio.run(host.deliver())

    (fault,) = host.returned
    assert "output was not delivered: l1: results: Permission denied" in fault
    assert "with 1201 other files" in fault
    assert len(host.pieces) < 10
    assert (host.target / "files-1").stat().st_size == 300_000


def test_the_host_gets_the_names_of_abandoned_files(tmp_path: Path) -> None:
    """So that it removes what there is of them."""
    host = Host(tmp_path)
    (host.box / "files").mkdir()
    (host.box / "files" / "0").write_bytes(bytes(3 * DELIVERY_BYTES))

    dropped = asyncio.Event()

    def refuse(piece: DeliverPiece) -> PieceDelivered | None:
        if piece.drops:
            dropped.set()
        elif piece.at > DELIVERY_BYTES:
            return PieceDelivered(request=0, error="l1: it is a directory now")
        return None

    async def run() -> None:
        host.on_piece = refuse
        await host.deliver()
        await dropped.wait()

    asyncio.run(run())

    assert host.pieces[-1].file == "files/0"
