"""The configuration with which this head runs (operators only)."""

from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web
from msgspec import UNSET, structs

from gsched.config.keys import settings_of
from gsched.config.reload import TABLES_OF_NODES
from gsched.config.tables import QUEUE_ATTRIBUTES, Config, QueueConfig
from gsched.protocol.running import ReloadReply, RunningConfig, RunningSetting
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.state.settings import Settings
from gschedd.http.answers import answer
from gschedd.http.callers import Callers


class Running:
    """Handler of the route.

    Args:
        callers: who asks.
        config: returns the configuration that counts, without the changes of operators.
        settings: returns what counts now, with the changes of operators.
        node_port: returns where nodes connect; 0: nowhere yet.
        started_s: of the head.
        reload: reads the file again for somebody.
    """

    def __init__(
        self,
        *,
        callers: Callers,
        config: Callable[[], Config],
        settings: Callable[[], Settings],
        node_port: Callable[[], int],
        started_s: float,
        reload: Callable[[str], Awaitable[ReloadReply]],
    ) -> None:
        self._callers = callers
        self._config = config
        self._settings = settings
        self._node_port = node_port
        self._started_s = started_s
        self._reload = reload

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/config", self.config), web.post("/v1/reload", self.reload)]

    async def reload(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/reload``: read the configuration again."""
        caller = self._callers.allowed(request, Verb.RELOAD)
        return answer(await self._reload(caller.user))

    async def config(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/config``: it names accounts and paths, so it is for operators."""
        authorize(self._callers.of(request), Verb.READ_CONFIG)
        settings = self._settings()
        rows = running_settings(self._config(), settings, node_port=self._node_port())
        return answer(
            RunningConfig(
                server=settings.server,
                started_s=self._started_s,
                settings=tuple(rows),
            )
        )


def running_settings(
    config: Config, settings: Settings, *, node_port: int
) -> Iterator[RunningSetting]:
    """Yield all keys that the head reads, with the values in effect.

    Args:
        config: as it was read.
        settings: that count now.
        node_port: where nodes connect; 0: nowhere yet.
    """
    queues = tuple(_queue_now(queue, settings) for queue in config.queue)
    known = {queue.name for queue in queues}
    created = (name for name in settings.queues if name not in known)
    queues += tuple(_queue_now(QueueConfig(name=name), settings) for name in created)
    port = node_port or config.head.node_port  # where 0 was stated, a free one was taken
    now = structs.replace(config, queue=queues, head=structs.replace(config.head, node_port=port))
    before = {(row.table, row.key): row.value for row in settings_of(config, "")}
    for row in settings_of(now, ""):
        if row.table.partition(".")[0].partition("[")[0] in TABLES_OF_NODES:
            continue
        stated = before.get((row.table, row.key), UNSET)
        is_stated = stated == row.value
        yield RunningSetting(
            table=row.table,
            key=row.key,
            value=row.value,
            stated=UNSET if is_stated else stated,
            changed=not is_stated and row.table.startswith("queue["),
        )


def _queue_now(queue: QueueConfig, settings: Settings) -> QueueConfig:
    """Return a queue with what operators have changed of it."""
    now = settings.queues[queue.name]
    return structs.replace(queue, **{name: getattr(now, name) for name in QUEUE_ATTRIBUTES})
