"""Reads the configuration of a running gnode again, for SIGHUP."""

import asyncio
import logging
from collections.abc import Callable

from msgspec import structs

from gnode.core.inputs import ConfigRead, Input, SiteChanged
from gnode.daemon.measuring import Meters
from gsched.clock import Clock
from gsched.config.load import ConfigFile
from gsched.config.reload import differences, reloaded
from gsched.config.rules import check
from gsched.config.tables import Config
from gsched.config.units import BadValueError
from gsched.daemon_files import read_again
from gsched.errors import ConfigError
from gsched.model.configuration import ConfigRow
from gsched.model.units import parse_size_bytes
from gsched.model.wording import counted

log = logging.getLogger("gnode.reload")


class NodeReload:
    """The configuration of a running gnode, and how it changes.

    Args:
        given: the file, as the command line named it; None: the usual one.
        file: as it was read when gnode started.
        site: returns what of a configuration counts for the jobs that start.
        post: gives it to the agent.
        meters: have keys of their own.
    """

    def __init__(
        self,
        given: str | None,
        file: ConfigFile,
        *,
        site: Callable[[Config], SiteChanged],
        post: Callable[[Input], None],
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._given = given
        self._config = file.config
        self._row = ConfigRow(path=file.path, digest=file.digest, read_s=clock.wall_s())
        self._site = site
        self._post = post
        self._meters = meters
        self._clock = clock

    def begin(self) -> None:
        """Let the head know the file with which gnode has started."""
        self._post(ConfigRead(config=self._row))

    async def reload(self) -> None:
        """Read the file and apply it, or nothing of it; the log and the head say how it went."""
        try:
            file, config, site = await asyncio.to_thread(self._read)
        except ConfigError as error:
            log.error(
                "reload refused: %s; gnode keeps the configuration that it has. %s",
                error.message,
                error.hint,
            )
            self._row = structs.replace(
                self._row, problem=error.message, hint=error.hint, problem_s=self._clock.wall_s()
            )
            self._post(ConfigRead(config=self._row))
            return
        self._post(site)
        self._meters.sample_s = config.node.sample_s
        self._meters.space.least_bytes = parse_size_bytes(config.node.least_spool)
        self._meters.outside.config = config.outside_gpu_use
        self._meters.health.configure(config.node, self._post)
        changed = list(differences(self._config, config, "gnode"))
        waits = list(differences(config, file.config, "gnode"))
        self._config = config
        self._row = ConfigRow(
            path=file.path,
            digest=file.digest,
            read_s=self._clock.wall_s(),
            waits=tuple(each.place for each in waits),
        )
        self._post(ConfigRead(config=self._row))
        for each in changed:
            log.info("reload: %s", each.text)
        if waits:
            log.warning(
                "reload: %s for a restart of gnode: %s",
                f"{counted(len(waits), 'key')} wait{'s' * (len(waits) == 1)}",
                ", ".join(each.place for each in waits),
            )
        if not changed and not waits:
            log.info("reload: %s states nothing that is new for gnode", file.path)

    def _read(self) -> tuple[ConfigFile, Config, SiteChanged]:
        """Return the file, what of it counts without a restart, and what the agent gets."""
        file = read_again(self._given)
        merged = reloaded(self._config, file.config, "gnode")
        try:
            check(merged)
        except BadValueError as bad:
            raise file.error(bad) from None
        return file, merged, self._site(merged)
