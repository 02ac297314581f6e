"""Reads the configuration of a running gnode again, for SIGHUP."""

import asyncio
import logging
from collections.abc import Callable

from gnode.core.inputs import Input, SiteChanged
from gnode.daemon.measuring import Meters
from gsched.config.load import ConfigFile, read_config
from gsched.config.reload import differences, reloaded
from gsched.config.rules import check
from gsched.config.tables import Config
from gsched.config.units import BadValueError
from gsched.daemon_files import check_config
from gsched.errors import ConfigError
from gsched.model.units import parse_size_bytes
from gsched.model.wording import counted

log = logging.getLogger("gnode.reload")


class NodeReload:
    """The configuration of a running gnode, and how it changes.

    Args:
        given: the file, as the command line named it; None: the usual one.
        config: as it was read when gnode started.
        site: returns what of a configuration counts for the jobs that start.
        post: gives it to the agent.
        meters: have keys of their own.
    """

    def __init__(
        self,
        given: str | None,
        config: Config,
        *,
        site: Callable[[Config], SiteChanged],
        post: Callable[[Input], None],
        meters: Meters,
    ) -> None:
        self._given = given
        self._config = config
        self._site = site
        self._post = post
        self._meters = meters

    async def reload(self) -> None:
        """Read the file and apply it, or nothing of it; how it went is in the log."""
        try:
            file, config, site = await asyncio.to_thread(self._read)
        except ConfigError as error:
            log.error(
                "reload refused: %s; gnode keeps the configuration that it has. %s",
                error.message,
                error.hint,
            )
            return
        self._post(site)
        self._meters.sample_s = config.node.sample_s
        self._meters.space.least_bytes = parse_size_bytes(config.node.least_spool)
        self._meters.outside.config = config.outside_gpu_use
        changed = list(differences(self._config, config, "gnode"))
        waits = list(differences(config, file.config, "gnode"))
        self._config = config
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
        check_config(self._given)
        file = read_config(self._given)
        if file.text is None:
            raise ConfigError(f"{file.path}: no such file", hint="put it back, then reload again")
        merged = reloaded(self._config, file.config, "gnode")
        try:
            check(merged)
        except BadValueError as bad:
            raise file.error(bad) from None
        return file, merged, self._site(merged)
