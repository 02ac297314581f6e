"""Reads the configuration of a running head again: all keys that can apply at once do, or none."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import structs

from gsched.clock import Clock
from gsched.config.load import ConfigFile
from gsched.config.reload import differences, reloaded
from gsched.config.rules import check
from gsched.config.tables import Config
from gsched.config.units import BadValueError
from gsched.daemon_files import read_again
from gsched.errors import ConfigError, GschedError, InvalidRequestError
from gsched.model.configuration import ConfigChange, ConfigRow, SettingsRow
from gsched.model.wording import counted
from gsched.protocol.running import ReloadReply
from gschedd.core.state.settings import Settings
from gschedd.daemon.setup import settings_from
from gschedd.http.listening import listen_on_address, web_port
from gschedd.http.node_settings import NodeSettings
from gschedd.http.queues import Queues

log = logging.getLogger("gschedd.reload")


class Reloading:
    """The configuration of a running head, and how it changes.

    Args:
        given: the file, as the command line named it; None: the usual one.
        file: as it was read when the head started.
        queues: has the settings of the core in its care.
        take: gives a configuration to all parts that do not ask the core.
        settled: waits for the page, where that starts again.
        node_port: returns where nodes connect; a file that names it states nothing that is new.

    Attributes:
        config: with which the head runs.
        nodes: gives nodes what the file states for them.
    """

    def __init__(  # noqa: PLR0913 - what a reload concerns
        self,
        given: str | None,
        file: ConfigFile,
        *,
        queues: Queues,
        take: Callable[[Config], None],
        settled: Callable[[], Awaitable[None]],
        node_port: Callable[[], int],
        nodes: NodeSettings,
        clock: Clock,
    ) -> None:
        self._given = given
        self._queues = queues
        self._take = take
        self._settled = settled
        self._node_port = node_port
        self.nodes = nodes
        self._clock = clock
        self._turn = asyncio.Lock()
        self.config = file.config
        self._row = ConfigRow(path=file.path, digest=file.digest, read_s=clock.wall_s())

    @property
    def row(self) -> ConfigRow:
        """Return how the last reading went."""
        return structs.replace(self._row, settings=SettingsRow(digest=self.nodes.digest))

    async def for_signal(self) -> None:
        """Reload for SIGHUP; how it went is in the log."""
        try:
            reply = await self.reload("SIGHUP")
        except GschedError:
            return
        if not reply.changed and not reply.waits and not reply.nodes:
            log.info("SIGHUP: %s states nothing that is new", reply.path)

    async def reload(self, by: str) -> ReloadReply:
        """Read the file and apply it; the answer says what changed and what needs a restart.

        Args:
            by: who requested it, for the log.

        Raises:
            GschedError: the file cannot be used now; nothing has changed.
        """
        async with self._turn:
            try:
                file, merged, settings = await asyncio.to_thread(self._read)
                hidden = await self._queues.configure(settings, partial(self._take, merged))
            except GschedError as error:
                raise self._refused(by, error) from None
            changed = tuple(differences(self.config, merged, "gschedd"))
            waits = tuple(differences(merged, file.config, "gschedd"))
            self.config = merged
            self._row = ConfigRow(
                path=file.path,
                digest=file.digest,
                read_s=self._clock.wall_s(),
                waits=tuple(each.place for each in waits),
            )
        _log(by, changed, waits)
        await self._settled()
        for_nodes = tuple(self.nodes.changed(file))
        for each in for_nodes:
            log.info("reload by %s, for nodes: %s", by, each.text)
        return ReloadReply(
            path=file.path, changed=changed, waits=waits, overridden=hidden, nodes=for_nodes
        )

    def _read(self) -> tuple[ConfigFile, Config, Settings]:
        """Return the file, what of it counts without a restart, and the core's settings."""
        file = read_again(self._given)
        running, port = self.config, self._node_port()
        if port and port == file.config.head.node_port:
            running = structs.replace(running, head=structs.replace(running.head, node_port=port))
        merged = reloaded(running, file.config, "gschedd")
        try:
            check(merged)
            settings = settings_from(merged)
        except BadValueError as bad:
            raise file.error(bad) from None
        self._check_address(merged)
        return file, merged, settings

    def _check_address(self, wanted: Config) -> None:
        """Check that the monitor can have another address than now.

        Raises:
            ConfigError: it cannot.
        """
        before, after = (each.web.listen.rpartition(":")[2] for each in (self.config, wanted))
        chosen = str(web_port(wanted.head.state_dir))
        if wanted.web.enabled and after not in {"", "0", before, chosen}:
            listen_on_address(wanted.web.listen, 0).close()

    def _refused(self, by: str, error: GschedError) -> GschedError:
        """Note that the file is refused, and return the error for whoever requested it."""
        if isinstance(error, InvalidRequestError):  # the state does not allow it
            error = ConfigError(f"{self._row.path}: {error.message}", hint=error.hint)
        if isinstance(error, ConfigError):
            self._row = structs.replace(
                self._row, problem=error.message, hint=error.hint, problem_s=self._clock.wall_s()
            )
        message = f"{error.message}; the head keeps the configuration that it has"
        log.error("reload by %s refused: %s. %s", by, message, error.hint)
        return type(error)(message, hint=error.hint)


def _log(by: str, changed: Sequence[ConfigChange], waits: Sequence[ConfigChange]) -> None:
    for each in changed:
        log.info("reload by %s: %s", by, each.text)
    if waits:
        names = ", ".join(each.place for each in waits)
        log.warning("reload by %s: %s for a restart: %s", by, _wait(len(waits)), names)


def _wait(count: int) -> str:
    return f"{counted(count, 'key')} wait{'s' * (count == 1)}"
