"""Pieces are requested before those ahead of them have come, and all is there as with one each."""

import asyncio
import base64
import os
import random
from pathlib import Path

import pytest

from gnode.core.task import AttemptKey
from gnode.daemon.owner_tree import BEGIN, read_tree, unpack
from gnode.daemon.steps import STAGED_OF_USER, PieceRelay
from gnode.steps.read_ahead import PIECE_BYTES, ReadAhead, TreeCursor
from gnode.steps.stage_in import AHEAD, PieceSource, TreeCopy
from gsched.protocol.deliveries import DELIVERY_BYTES, StagedRead, StagedWanted


def a_tree(top: Path, seed: int) -> None:
    """Make a tree of files of all sizes, most of them holes."""
    drawn = random.Random(seed)
    count = drawn.choice((3, 25, 1300))
    sizes = (0, 1, 4000) if count > 1000 else (0, 4000, PIECE_BYTES - 1, PIECE_BYTES, 2_500_000)
    for number in range(count):
        path = top.joinpath(*(drawn.choice("ab\n") for _ in range(drawn.randrange(3))))
        path.mkdir(parents=True, exist_ok=True)
        path /= f"{number}" + drawn.choice(("", "long-" * 30, "ü\udcff"))
        kind = drawn.random()
        if kind < 0.1:
            path.symlink_to("elsewhere" * 5)
        elif kind < 0.15:
            path.mkdir()
        else:
            with path.open("wb") as file:
                file.write(b"%d" % number)
                file.truncate(drawn.choice(sizes))


def read(top: Path, cursor: TreeCursor, *, lists: bool = False) -> bytes:
    below = base64.b64encode(os.fsencode(cursor.name)).decode()
    order = {"below": below, "offset": cursor.offset, "max_bytes": DELIVERY_BYTES, "lists": lists}
    return read_tree(str(top), order)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_predicted_is_where_each_piece_begins(tmp_path: Path, seed: int) -> None:
    assert PIECE_BYTES == DELIVERY_BYTES
    a_tree(tmp_path / "from", seed)
    copy, begins, sizes = TreeCopy(str(tmp_path / "to"), "1.1"), list[TreeCursor](), list[int]()
    while not copy.is_complete:
        copy.take_piece(unpack(read(tmp_path / "from", copy.cursor)))
        begins.append(copy.cursor)
        sizes.append(copy.size)

    ahead, predicted = ReadAhead(begins[0], sizes[0]), [begins[0]]
    while (cursor := ahead.following()) or not ahead.is_whole:
        if cursor is not None:
            predicted.append(cursor)
            continue
        listing = read(tmp_path / "from", TreeCursor(ahead.last, BEGIN), lists=True)
        ahead.take(header for header, _ in unpack(listing))

    assert predicted == (begins[:-1] or begins)


class Host:
    """A gnode with the head and a host of submission in one, on a socket.

    Args:
        top: what is staged in.
        is_older: the host does not know listings.
    """

    def __init__(self, top: Path, *, is_older: bool = False) -> None:
        self.top = top
        self.is_older = is_older
        self.wanted: list[StagedWanted] = []
        self.at_once = 0
        self.fail_at = -1
        self._pending = 0
        self.relay = PieceRelay(
            send=self._send,  # type: ignore[arg-type]  # a part of it is enough
            is_connected=lambda: True,
            host_of=lambda _: "l1",
        )

    def _send(self, wanted: StagedWanted) -> None:
        self.wanted.append(wanted)
        self._pending += 1
        self.at_once = max(self.at_once, self._pending)
        asyncio.get_running_loop().call_later(0.002, self._answer, wanted)

    def _answer(self, wanted: StagedWanted) -> None:
        self._pending -= 1
        if len(self.wanted) == self.fail_at:
            self.fail_at = -1
            self.relay.take(StagedRead(request=wanted.request, error="away", later=True))
            return
        cursor = TreeCursor(os.fsdecode(wanted.after), wanted.offset)
        data = read(self.top, cursor, lists=wanted.lists and not self.is_older)
        self.relay.take(StagedRead(request=wanted.request, data=data))

    async def run(self, socket: Path, to: Path, changes: dict[int, Path] | None = None) -> int:
        """Copy by this host; ``changes``: files that grow before a piece is taken."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            await self.relay.serve(AttemptKey(1, 1), 0, reader, writer)
            writer.close()

        def copy() -> int:
            tree, source = TreeCopy(str(to), "1.1"), PieceSource(str(socket), "1.1", 0, 1e9)
            count = 0
            while not tree.is_complete:
                if changes and count in changes:
                    with changes[count].open("ab") as file:
                        file.write(b"more")
                tree.take_piece(source.piece(tree.cursor, tree.size))
                count += 1
            source.close()
            return count

        async with await asyncio.start_unix_server(serve, socket):
            return await asyncio.to_thread(copy)


def inside(top: Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in top.rglob("*")
    }


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("seed", [1, 3])
def test_several_pieces_are_on_their_way_and_all_is_there(
    tmp_path: Path, seed: int, *, is_older: bool
) -> None:
    """Also from a host of an older version, which sends a piece where a listing is wanted."""
    a_tree(tmp_path / "from", seed)
    host = Host(tmp_path / "from", is_older=is_older)

    asyncio.run(host.run(tmp_path / "s", tmp_path / "to"))

    assert inside(tmp_path / "to") == inside(tmp_path / "from")
    assert 1 < host.at_once <= AHEAD
    pieces = [(each.after, each.offset) for each in host.wanted if not each.lists]
    assert is_older or len(set(pieces)) == len(pieces), "none twice"


def test_an_older_host_may_send_a_directory_where_a_listing_is_wanted(tmp_path: Path) -> None:
    top = tmp_path / "from"
    for name in ("a", "b", "c"):
        (top / name / "empty").mkdir(parents=True)
        (top / name / "file").write_bytes(bytes(700_000))
    host = Host(top, is_older=True)

    asyncio.run(host.run(tmp_path / "s", tmp_path / "to"))

    assert inside(tmp_path / "to") == inside(top)


def test_a_large_file_has_as_many_pieces_on_their_way_as_may_be(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(os.urandom(20 * PIECE_BYTES + 5))
    host = Host(tmp_path / "from")
    host.fail_at = 15  # the head is away for a moment

    asyncio.run(host.run(tmp_path / "s", tmp_path / "to"))

    assert (tmp_path / "to").read_bytes() == (tmp_path / "from").read_bytes()
    assert host.at_once == AHEAD
    assert not any(each.lists for each in host.wanted)


def test_files_as_large_as_a_piece_are_listed_once(tmp_path: Path) -> None:
    """What is listed while the second piece is on its way counts for the third."""
    top = tmp_path / "from"
    top.mkdir()
    for number in range(4 * AHEAD):
        (top / f"{number:02}").write_bytes(os.urandom(PIECE_BYTES))
    host = Host(top)

    asyncio.run(host.run(tmp_path / "s", tmp_path / "to"))

    assert inside(tmp_path / "to") == inside(top)
    assert sum(each.lists for each in host.wanted) == 1
    assert host.at_once == AHEAD


def test_files_that_change_after_they_were_listed_come_as_they_are(tmp_path: Path) -> None:
    top = tmp_path / "from"
    top.mkdir()
    for number in range(30):
        (top / f"{number:02}").write_bytes(b"x" * (PIECE_BYTES // 2))
    host = Host(top)
    changes = {3: top / "10", 5: top / "11", 6: top / "29", 7: top / "0"}

    asyncio.run(host.run(tmp_path / "s", tmp_path / "to", changes))

    found, now = inside(tmp_path / "to"), inside(top)
    assert len(found) == 30
    assert found["29"] == now["29"], "it had not been requested yet"
    for name, data in found.items():
        assert data in (now[name], b"x" * (PIECE_BYTES // 2)), "whole, as it was or as it is"
    assert host.at_once > 1


def test_a_program_that_does_not_read_holds_a_bounded_number_of_pieces(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(bytes(60 * PIECE_BYTES))
    host = Host(tmp_path / "from")

    async def run() -> int:
        ended = asyncio.Semaphore(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await host.relay.serve(AttemptKey(1, 1), 7, reader, writer)
            finally:
                writer.close()
                ended.release()

        async with await asyncio.start_unix_server(serve, tmp_path / "s"):
            writers = []
            for _ in range(3):
                _, writer = await asyncio.open_unix_connection(tmp_path / "s")
                for number in range(20):
                    writer.write(
                        b'{"fetch": {"item": 0, "offset": %d, "raw": true}}\n'
                        % (number * PIECE_BYTES)
                    )
                writers.append(writer)
            await asyncio.sleep(1)
            wanted = len(host.wanted)
            for writer in writers:
                writer.transport.abort()
            for _ in writers:
                await ended.acquire()
            return wanted

    assert asyncio.run(run()) == STAGED_OF_USER
