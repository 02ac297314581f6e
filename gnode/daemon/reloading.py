"""The configuration of a gnode: its file, which SIGHUP reads again, and settings of the head."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from gnode.core.inputs import ConfigRead, Input, SiteChanged
from gnode.daemon.measuring import Meters
from gsched import kept_settings
from gsched.clock import Clock
from gsched.config.cluster import node_settings, overridden, read_sent, with_cluster
from gsched.config.load import ConfigFile, read_config
from gsched.config.reload import differences, reloaded
from gsched.config.rules import check
from gsched.config.tables import Config
from gsched.config.units import BadValueError
from gsched.daemon_files import read_again
from gsched.errors import ConfigError
from gsched.kept_settings import KeptSettings
from gsched.model.configuration import MAX_SETTINGS, ConfigRow, SettingsRow
from gsched.model.units import parse_size_bytes
from gsched.model.wording import counted
from gsched.protocol.settings import ClusterSettings, SettingsRead, SettingsWanted

log = logging.getLogger("gnode.reload")


class Configured(Struct, frozen=True, kw_only=True):
    """With what a gnode starts.

    Attributes:
        given: its file, as the command line named it; None: the usual one.
        file: as it was read.
        kept: settings of the head that count; empty: none.
        config: of the file and these settings.
        problem: why the settings that were kept are not used; None: they are, or there are none.
    """

    given: str | None
    file: ConfigFile
    kept: KeptSettings
    config: Config
    problem: ConfigError | None = None

    def without(self, problem: ConfigError) -> "Configured":
        """Return the file alone, as the settings cannot be used."""
        log.error(
            "the cluster's settings cannot be used, and gnode takes no new jobs: %s. %s",
            problem.message,
            problem.hint,
        )
        kept, config = KeptSettings(), self.file.config
        return structs.replace(self, kept=kept, config=config, problem=problem)


def configured(file: ConfigFile, given: str | None, state_dir: str) -> Configured:
    """Return with what gnode starts: its file, and the settings that were kept, if it can."""
    own = Configured(given=given, file=file, kept=KeptSettings(), config=file.config)
    try:
        kept = kept_settings.read(state_dir)
        return structs.replace(own, kept=kept, config=with_cluster(file, kept.settings))
    except ConfigError as error:
        return own.without(error)


class _Merged(Struct, frozen=True, kw_only=True):
    """What counts from now on.

    Attributes:
        file: of this host.
        settings: of the head.
        wanted: by both of them.
        config: what of it counts without a restart.
        site: what the agent gets.
        problem: why the settings that came last are not used.
    """

    file: ConfigFile
    settings: KeptSettings
    wanted: Config
    config: Config
    site: SiteChanged
    problem: ConfigError | None = None


class NodeReload:
    """The configuration of a running gnode, and how it changes.

    Args:
        begun: with what it was started.
        state_dir: where the head's settings are kept.
        site: returns what of a configuration counts for the jobs that start.
        check_start: refuses a configuration with which gnode could not start.
        post: gives it to the agent.
        meters: have keys of their own.
        unused: returns keys of ``[node]`` that have no effect on this host, with the reasons.
    """

    def __init__(  # noqa: PLR0913 - what a reload concerns
        self,
        begun: Configured,
        *,
        state_dir: str,
        site: Callable[[Config], SiteChanged],
        check_start: Callable[[Config], None],
        post: Callable[[Input], None],
        meters: Meters,
        unused: Callable[[], Mapping[str, str]],
        clock: Clock,
    ) -> None:
        self._unused = unused
        self._given, self._file, self._settings = begun.given, begun.file, begun.kept
        self._latest = begun.kept
        self._config = self._wanted = begun.config
        self._state_dir = state_dir
        self._site = site
        self._check_start = check_start
        self._post = post
        self._meters = meters
        self._clock = clock
        self._turn = asyncio.Lock()
        self._row = ConfigRow(path=begun.file.path, digest=begun.file.digest, read_s=clock.wall_s())
        self._problem: tuple[ConfigError, float] | None = None
        if begun.problem is not None:
            self._problem = begun.problem, clock.wall_s()
        self._closed = begun.problem is not None

    def begin(self) -> None:
        """Let the head know with what gnode has started."""
        self._tell()

    async def reload(self) -> None:
        """Read the file and apply it, or nothing of it; the log and the head say how it went."""
        async with self._turn:
            try:
                merged = await asyncio.to_thread(self._read, again=True)
            except ConfigError as error:
                log.error(
                    "reload refused: %s; gnode keeps the configuration that it has. %s",
                    error.message,
                    error.hint,
                )
                self._row = structs.replace(
                    self._row,
                    problem=error.message,
                    hint=error.hint,
                    problem_s=self._clock.wall_s(),
                )
                self._tell()
                return
            self._apply(merged, "reload")

    async def take(self, message: ClusterSettings | SettingsWanted) -> SettingsRead | None:
        """Apply settings that have come from the head, or tell with which gnode runs."""
        if isinstance(message, SettingsWanted):
            rows = node_settings(
                self._config, self._wanted, self._file, self._settings.settings, self._unused()
            )
            return SettingsRead(request=message.request, settings=tuple(rows)[:MAX_SETTINGS])
        async with self._turn:
            try:
                self._latest = KeptSettings(
                    digest=message.digest,
                    received_s=self._clock.wall_s(),
                    settings=read_sent(message.settings),
                )
                again = await asyncio.to_thread(self._has_file, message.file)
                merged = await asyncio.to_thread(self._read, again=again)
            except ConfigError as error:  # the file that counts, too: it names what has gone
                self._refuse(error)
                self._tell()
                return None
            self._apply(merged, "settings of the head")
        return None

    def _has_file(self, digest: str) -> bool:
        """Return whether this host's file is the head's own, and has changed like that."""
        if digest == self._file.digest:
            return False
        try:
            return read_config(self._given).digest == digest
        except ConfigError:
            return False

    def _apply(self, merged: _Merged, name: str) -> None:
        config = merged.config
        self._post(merged.site)
        self._meters.sample_s = config.node.sample_s
        self._meters.space.least_bytes = parse_size_bytes(config.node.least_spool)
        self._meters.outside.config = config.outside_gpu_use
        self._meters.health.configure(config.node, self._post)
        changed = list(differences(self._config, config, "gnode"))
        waits = list(differences(config, merged.wanted, "gnode"))
        self._config, self._wanted = config, merged.wanted
        if merged.file is not self._file:
            self._row = ConfigRow(
                path=merged.file.path, digest=merged.file.digest, read_s=self._clock.wall_s()
            )
        self._file, self._settings = merged.file, merged.settings
        self._row = structs.replace(self._row, waits=tuple(each.place for each in waits))
        if merged.problem is not None:
            self._refuse(merged.problem)
        else:
            self._problem, self._closed = None, False
        self._tell()
        for each in changed:
            log.info("%s: %s", name, each.text)
        if waits:
            log.warning(
                "%s: %s for a restart of gnode: %s",
                name,
                f"{counted(len(waits), 'key')} wait{'s' * (len(waits) == 1)}",
                ", ".join(each.place for each in waits),
            )
        if not changed and not waits and merged.problem is None:
            log.info("%s: it states nothing that is new for gnode", name)

    def _refuse(self, problem: ConfigError) -> None:
        self._problem = problem, self._clock.wall_s()
        in_use = "the settings in use stay"
        if not self._settings.digest:  # as at a start with settings that cannot be used
            self._closed = True
            in_use = "no others are in use, and gnode takes no new jobs"
        log.error(
            "settings from the head refused: %s; %s. %s", problem.message, in_use, problem.hint
        )

    def _tell(self) -> None:
        error, at_s = self._problem or (None, 0.0)
        settings = SettingsRow(
            digest=self._settings.digest,
            received_s=self._settings.received_s,
            own=tuple(overridden(self._file, self._settings.settings)),
            problem=error.message if error is not None else "",
            hint=error.hint if error is not None else "",
            problem_s=at_s,
            closed=self._closed,
        )
        self._post(ConfigRead(config=structs.replace(self._row, settings=settings)))

    def _read(self, *, again: bool) -> _Merged:
        """Return what counts by the file and the settings that came last, or else those before.

        Args:
            again: the file is read again.

        Raises:
            ConfigError: the file cannot be used.
        """
        file = read_again(self._given) if again else self._file
        try:
            merged = self._merge(file, self._latest)
            if self._latest is not self._settings:
                self._keep(self._latest)
        except ConfigError as problem:
            if self._latest is self._settings:
                raise
            return structs.replace(self._merge(file, self._settings), problem=problem)
        return merged

    def _merge(self, file: ConfigFile, settings: KeptSettings) -> _Merged:
        wanted = with_cluster(file, settings.settings)
        config = reloaded(self._config, wanted, "gnode")
        self._check_start(wanted)
        try:
            check(config)
        except BadValueError as bad:
            raise file.error(bad) from None
        return _Merged(
            file=file, settings=settings, wanted=wanted, config=config, site=self._site(config)
        )

    def _keep(self, settings: KeptSettings) -> None:
        """Keep settings that can be used, before they count.

        Raises:
            ConfigError: the disk is full, say.
        """
        try:
            kept_settings.keep(self._state_dir, settings)
        except OSError as error:
            raise ConfigError(
                f"{kept_settings.path_in(self._state_dir)} cannot be written: {error.strerror}",
                hint="free space, then gsched reload on the head",
            ) from error
