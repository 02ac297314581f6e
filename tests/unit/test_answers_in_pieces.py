"""A long list is worked out in pieces, and is the answer that it would be in one."""

import asyncio
import time
from collections.abc import Iterator

from gsched.model.resources import Load
from gsched.protocol.node_rows import NodeList
from gschedd.http.answers import answer, answer_in_pieces
from gschedd.http.pace import PIECE_S


def test_others_get_their_turn_between_rows_that_take_long() -> None:
    turns = 0

    def rows() -> Iterator[Load]:
        for number in range(20):
            until_s = time.monotonic() + PIECE_S / 2
            while time.monotonic() < until_s:
                pass
            yield Load(cpu_percent=float(number))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> bytes:
        task = asyncio.create_task(other())
        made = await answer_in_pieces(rows(), lambda encoded: {"loads": encoded})
        task.cancel()
        assert isinstance(made.body, bytes)
        return made.body

    body = asyncio.run(scenario())

    assert turns > 5
    assert body == answer({"loads": [Load(cpu_percent=float(n)) for n in range(20)]}).body


def test_a_list_without_rows_is_one() -> None:
    async def scenario() -> object:
        reply = NodeList(server="s", now_s=1.0, nodes=())
        return (await answer_in_pieces((), lambda _: reply)).body

    assert asyncio.run(scenario()) == b'{"server":"s","now_s":1.0,"nodes":[]}'
