"""Which runtime isolates the jobs on a shared GPU of this node: gsched's own ones, and a site's.

A site adds a runtime by a package with an entry point of the group `RUNTIME_GROUP`: its name is
what ``[gpu_share] runtime`` names, and its target returns a `Runtime` for a `RuntimeSite`.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from gnode.gpushare.errors import ShareRefusedError
from gnode.gpushare.hami import HamiRuntime
from gnode.gpushare.interception import FOLDER, InterceptionRuntime
from gnode.gpushare.mig import MigRuntime
from gnode.gpushare.mps import ColocateRuntime, MpsRuntime
from gnode.gpushare.runtime import Contained, Runtime, RuntimeSite
from gnode.gpushare.task import SharedTask
from gnode.gpushare.tokens import Tokens
from gnode.hw.nvml import Nvml
from gsched.config.nodes import RUNTIME_GROUP, GpuShareConfig, share_runtimes
from gsched.errors import ConfigError, GschedError

log = logging.getLogger(__name__)

#: gsched's own; a test holds the names against those that the configuration knows.
OWN: Final[Mapping[str, Callable[[RuntimeSite], Runtime]]] = {
    "mps": MpsRuntime,
    "mig": MigRuntime,
    "hami-core": HamiRuntime,
    "colocate": ColocateRuntime,
    "interception": InterceptionRuntime.on_node,
}


def make_runtime(
    config: GpuShareConfig, *, state_dir: str, nvml: Nvml, tracking: str = ""
) -> Runtime:
    """Return the runtime that the configuration names. It starts nothing before a task comes.

    Args:
        config: ``[gpu_share]``.
        state_dir: of gnode; a directory below it belongs to the runtime.
        nvml: the library for measurements.
        tracking: the control group below which all attempts of this node are, as /proc/PID/cgroup
            names it; empty: there is none.

    Raises:
        ConfigError: there is no such runtime, or it cannot be loaded.
    """
    site = RuntimeSite(
        config=config, directory=Path(state_dir, FOLDER), nvml=nvml, tracking=tracking
    )
    own = OWN.get(config.runtime)
    return own(site) if own is not None else _of_site(config.runtime, site)


def _of_site(name: str, site: RuntimeSite) -> Runtime:
    """Return a runtime that another package has."""
    found = entry_points(group=RUNTIME_GROUP, name=name)
    if not found:
        raise ConfigError(
            f"[gpu_share] runtime: unknown runtime {name!r}",
            hint=f"there are: {', '.join(share_runtimes())}",
        )
    (entry, *_) = found
    hint = "repair or remove that package, or choose another runtime in [gpu_share]"
    try:
        made = entry.load()(site)
    except GschedError:
        raise
    except Exception as error:  # whatever another package does must not be a traceback
        log.debug("the runtime %s", name, exc_info=True)
        raise ConfigError(
            f"[gpu_share] runtime: {name!r} cannot be loaded from {entry.value}: "
            f"{type(error).__name__}: {error}",
            hint=hint,
        ) from error
    if not isinstance(made, Runtime):
        raise ConfigError(
            f"[gpu_share] runtime: {entry.value} returned no gnode.gpushare.Runtime for {name!r}",
            hint=hint,
        )
    return Guarded(name, made)


class Guarded(Runtime):
    """A runtime of another package, whose faults end no more than a launch.

    Args:
        name: of the runtime.
        runtime: it.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        self._name = name
        self._runtime = runtime
        self.containers = runtime.containers

    def _refused(self, error: Exception) -> ShareRefusedError:
        log.error("a fault of the runtime %s", self._name, exc_info=error)
        return ShareRefusedError(
            f"a fault of the runtime {self._name}: {type(error).__name__}: {error}",
            hint="the log of gnode has the details; report it to who maintains the runtime",
        )

    def missing(self) -> str | None:
        """Return its words."""
        try:
            return self._runtime.missing()
        except Exception as error:  # noqa: BLE001 - see the class
            return self._refused(error).message

    def prepare(self, busy: Collection[int] = ()) -> None:
        """Pass it on."""
        try:
            self._runtime.prepare(busy)
        except ShareRefusedError:
            raise
        except Exception as error:
            raise self._refused(error) from error

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return its environment."""
        try:
            return {str(name): str(value) for name, value in self._runtime.admit(task).items()}
        except ShareRefusedError:
            raise
        except Exception as error:
            raise self._refused(error) from error

    def contained(self, task: SharedTask, env: Mapping[str, str]) -> Contained:
        """Return what it says."""
        try:
            return self._runtime.contained(task, env)
        except ShareRefusedError:
            raise
        except Exception as error:
            raise self._refused(error) from error

    def release(self, task: SharedTask) -> None:
        """Pass it on."""
        try:
            self._runtime.release(task)
        except Exception as error:  # noqa: BLE001 - see the class
            self._refused(error)

    def attend(self, task: SharedTask, seconds: float) -> None:
        """Pass it on."""
        try:
            self._runtime.attend(task, seconds)
        except Exception as error:  # noqa: BLE001 - see the class
            self._refused(error)

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        """Pass it on."""
        try:
            self._runtime.keep(tasks)
        except Exception as error:  # noqa: BLE001 - see the class
            self._refused(error)

    def held_s(self) -> Mapping[str, float]:
        """Return nothing: tokens are gsched's own."""
        return {}

    def look(self) -> Tokens | None:
        """Return None: tokens are gsched's own."""
        return None

    def waits(self) -> bool:
        """Return what it says."""
        try:
            return self._runtime.waits()
        except Exception as error:  # noqa: BLE001 - see the class
            self._refused(error)
            return False

    def largest_shares(self) -> Mapping[str, int] | None:
        """Return what it says."""
        try:
            return self._runtime.largest_shares()
        except Exception as error:  # noqa: BLE001 - see the class
            self._refused(error)
            return None

    def words(self) -> str:
        """Return what it says."""
        try:
            return self._runtime.words()
        except Exception as error:  # noqa: BLE001 - see the class
            return self._refused(error).message

    def problem(self) -> str:
        """Return what it says."""
        try:
            return self._runtime.problem()
        except Exception as error:  # noqa: BLE001 - see the class
            return self._refused(error).message

    def close(self) -> None:
        """Pass it on."""
        try:
            self._runtime.close()
        except Exception as error:  # noqa: BLE001 - see the class
            self._refused(error)
