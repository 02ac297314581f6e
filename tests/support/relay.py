"""A relay between a node and the head: passes frames on, or plays with them as an attacker would.

It knows no key. It runs in a thread of the test's own process.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Literal, Self

import aiohttp
from aiohttp import WSMsgType, web

Frame = str | bytes
Side = Literal["node", "head"]
#: Gets who sent a frame and its number from that side on this connection, counted from 0; returns
#: what is sent instead, and to whom.
Play = Callable[[Side, int, Frame], list[tuple[Side, Frame]]]

MAX_FRAME_BYTES = 32 * 1024 * 1024


def pass_on(sender: Side, _number: int, frame: Frame) -> list[tuple[Side, Frame]]:
    """Send each frame on as it is."""
    return [("head" if sender == "node" else "node", frame)]


class Relay:
    """Listens on a port of loopback and connects each caller to the head.

    Attributes:
        play: what is done with each frame; may be changed at any time.
        play_session: the same, of connections for terminal sessions.
        heard: every frame so far, in order: connection, sender, frame.
        connections: how many there were.
        faults: what went wrong in the relay itself; leaving the context raises the first.
    """

    def __init__(self, head_port: int, play: Play = pass_on) -> None:
        self.play = play
        self.play_session: Play = pass_on
        self.heard: list[tuple[int, Side, Frame]] = []
        self.connections = 0
        self.faults: list[BaseException] = []
        self.port = 0
        self._url = f"ws://127.0.0.1:{head_port}"
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._callers: set[web.WebSocketResponse] = set()
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        stop = self._stop
        if stop is not None:
            self._loop.call_soon_threadsafe(stop.set)
        self._thread.join(10)
        if self.faults:
            raise self.faults[0]

    def frames(self, sender: Side, connection: int = 1) -> list[Frame]:
        """Return the frames of one side of one connection so far."""
        return [frame for which, who, frame in self.heard if (which, who) == (connection, sender)]

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/node", self._relay)
        app.router.add_get("/v1/session", self._relay)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        for caller in tuple(self._callers):
            await caller.close()
        await runner.cleanup()

    async def _relay(self, request: web.Request) -> web.WebSocketResponse:
        self.connections += 1
        number = self.connections
        caller = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False)
        await caller.prepare(request)
        self._callers.add(caller)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(
                self._url + request.path, max_msg_size=MAX_FRAME_BYTES, compress=0
            ) as head,
        ):
            sockets: dict[Side, web.WebSocketResponse | aiohttp.ClientWebSocketResponse]
            sockets = {"node": caller, "head": head}
            pumps = [
                asyncio.create_task(
                    self._pump(number, side, sockets, is_session=request.path == "/v1/session")
                )
                for side in ("node", "head")
            ]
            done, rest = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            errors = (pump.exception() for pump in done)
            self.faults.extend(e for e in errors if e and not isinstance(e, ConnectionError))
            for pump in rest:
                pump.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await caller.close()
        self._callers.discard(caller)
        return caller

    async def _pump(
        self,
        connection: int,
        side: Side,
        sockets: dict[Side, web.WebSocketResponse | aiohttp.ClientWebSocketResponse],
        *,
        is_session: bool,
    ) -> None:
        count = 0
        async for message in sockets[side]:
            if message.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                return
            self.heard.append((connection, side, message.data))
            play = self.play_session if is_session else self.play
            for to, frame in play(side, count, message.data):
                if isinstance(frame, str):
                    await sockets[to].send_str(frame)
                else:
                    await sockets[to].send_bytes(frame)
            count += 1
