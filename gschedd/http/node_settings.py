"""Settings of the cluster: what the head's file states for nodes, and with what each of them runs.

A node gets them after its welcome, before its first launch, and when a reload has changed them. It
tells their digest when it registers and with each heartbeat, so it gets only what it does not have.
"""

import logging
from collections.abc import Iterator, Mapping

from aiohttp import web

from gsched.config.cluster import OF_CLUSTER, digest_of, stated
from gsched.config.load import ConfigFile
from gsched.errors import BadStateError, UnknownNodeError
from gsched.model.configuration import MAX_SETTINGS, ConfigChange, ConfigRow
from gsched.protocol.settings import ClusterSettings, NodeSettingsReply
from gschedd.core.requests.authorize import Verb
from gschedd.core.state.state import State
from gschedd.http.answers import answer
from gschedd.http.callers import Callers
from gschedd.http.links import Link, Links

log = logging.getLogger("gschedd.nodes")


class NodeSettings:
    """What the head states for its nodes.

    Args:
        file: of the head, as it was read when the head started.
        links: the nodes that are connected.
        state: knows what nodes have told of their settings.
    """

    def __init__(self, file: ConfigFile, links: Links, state: State, callers: Callers) -> None:
        self._links = links
        self._state = state
        self._callers = callers
        self._message = _message(file)

    @property
    def digest(self) -> str:
        """Return that of the present settings."""
        return self._message.digest

    @property
    def present(self) -> dict[str, dict[str, str]]:
        """Return the present settings."""
        return self._message.settings

    def routes(self) -> list[web.RouteDef]:
        """Return the route."""
        return [web.get("/v1/nodes/{name}/settings", self.give)]

    def changed(self, file: ConfigFile) -> Iterator[ConfigChange]:
        """Send what a file that was read again states; yield what differs from before."""
        before, self._message = self._message.settings, _message(file)
        yield from _differences(before, self._message.settings)
        for node, link in list(self._links.connected.items()):
            if not link.surveyed:
                self.offer(link, self._state.volatile.node_configs.get(node))

    def offer(self, link: Link, config: ConfigRow | None) -> None:
        """Send the settings to a node, if it takes any and does not have them.

        Args:
            config: what the node has told.
        """
        has = config.settings if config is not None else None
        if has is not None and (has.digest, has.problem) != (self.digest, ""):
            link.send(self._message)

    async def give(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/nodes/{name}/settings``."""
        self._callers.allowed(request, Verb.READ_CONFIG)
        name = request.match_info["name"]
        if name not in self._state.nodes:
            raise UnknownNodeError(f"unknown node {name[:80]!r}", hint="see gnodes")
        config = self._state.volatile.node_configs.get(name)
        if self._links.link(name) is None:
            raise BadStateError(
                f"node {name} is not connected: it cannot tell its settings",
                hint="see gnodes, or run gsched config show on the node",
            )
        if config is None or config.settings is None:
            raise BadStateError(
                f"the gnode of {name} takes no settings from the head: it has only its own file",
                hint="install the same gsched on the node and restart gnode; jobs keep running",
            )
        read = await self._links.read_settings(name)
        return answer(
            NodeSettingsReply(
                node=name,
                path=config.path,
                head=self.digest,
                state=config.settings,
                settings=tuple(each.bounded for each in read.settings[:MAX_SETTINGS]),
            )
        )


def _message(file: ConfigFile) -> ClusterSettings:
    settings = stated(file)
    return ClusterSettings(digest=digest_of(settings), file=file.digest, settings=settings)


def _differences(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> Iterator[ConfigChange]:
    for table, keys in OF_CLUSTER.items():
        for key in keys:
            old, new = (each.get(table, {}).get(key, "") for each in (before, after))
            if old != new:
                yield ConfigChange(table=table, key=key, before=old, after=new)
