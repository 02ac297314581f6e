"""Server-sent events: a page that is open learns that there is something new, and loads it."""

import asyncio
from collections import Counter
from typing import Final

from aiohttp import web

from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.site import HEADERS, Pages
from gschedd.monitor.viewers import Viewer

#: Streams of one user, and of all.
STREAMS_OF_USER: Final = 12
STREAMS: Final = 160
#: The least time between two events, seconds; more where many look: each of them loads a page.
PERIOD_S: Final = 3.0
PERIOD_FOR_EACH_S: Final = 0.1
#: Without anything new, so that proxies keep the connection, and a dead one is noticed.
BEAT_S: Final = 25.0
#: After that a stream ends, and the browser opens another one.
STREAM_S: Final = 600.0


class LiveUpdates:
    """Gives streams of events to open pages."""

    def __init__(self, site: Pages, model: ReadModel) -> None:
        self._site = site
        self._model = model
        self._streams: Counter[int] = Counter()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [self._site.shows("/updates", self.stream)]

    async def stream(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /updates``: an event for each change; 503 where there are too many streams."""
        if self._streams[viewer.uid] >= STREAMS_OF_USER or self._streams.total() >= STREAMS:
            return web.Response(status=503, text="too many pages are open\n")
        response = web.StreamResponse(
            headers=HEADERS
            | {
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would collect events
            }
        )
        self._streams[viewer.uid] += 1
        try:
            await response.prepare(request)
            await self._send(response)
        except ConnectionError:
            pass  # the browser has gone
        finally:
            self._streams[viewer.uid] -= 1
        return response

    async def _send(self, response: web.StreamResponse) -> None:
        clock = self._model.clock
        begun_s = written_s = clock.monotonic_s()
        seen = self._model.version
        await response.write(b"retry: 5000\n\n")
        while clock.monotonic_s() - begun_s < STREAM_S:
            await asyncio.sleep(max(PERIOD_S, PERIOD_FOR_EACH_S * self._streams.total()))
            if self._model.version != seen:
                seen, written_s = self._model.version, clock.monotonic_s()
                await response.write(b"event: change\ndata: %d\n\n" % seen)
            elif clock.monotonic_s() - written_s >= BEAT_S:
                written_s = clock.monotonic_s()
                await response.write(b": still here\n\n")
