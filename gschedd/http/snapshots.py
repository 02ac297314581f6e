"""What the policies see now, as a file that can be replayed (operators only)."""

import asyncio

from aiohttp import web

from gsched.clock import Clock
from gsched.version import VERSION
from gschedd.core.cycle.run import snapshot
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.engine.loop import Engine
from gschedd.http.callers import Callers
from gschedd.models import saved


class Snapshots:
    """Handler of the route.

    Args:
        engine: of this head.
        callers: who asks.
        clock: of this machine.
        policy: that plans, by its name.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        callers: Callers,
        clock: Clock,
        policy: str,
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._clock = clock
        self._policy = policy

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/snapshot", self.now)]

    async def now(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/snapshot``: it names everybody's jobs, so it is for operators."""
        authorize(self._callers.of(request), Verb.READ_SNAPSHOT)
        head = self._engine.head
        config = head.settings.config
        seen = snapshot(head.state, head.settings, self._clock.wall_s(), head.model).detach()

        def encoded() -> bytes:
            content = saved.SnapshotFile(
                format=saved.FORMAT,
                version=saved.VERSION,
                gsched=VERSION,
                policy=self._policy,
                balance=config.balance,
                training=config.training,
                snapshot=saved.saved(seen),
            )
            return saved.encode(content)

        body = await asyncio.get_running_loop().run_in_executor(None, encoded)
        return web.Response(body=body, content_type="application/json")
