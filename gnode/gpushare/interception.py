"""The runtime ``interception``: a library in jobs' processes, and a token daemon on the node."""

import ctypes.util
import hashlib
import hmac
import logging
import os
import platform
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from gnode.compiling import find_compiler
from gnode.gpushare.build import ALIAS, LIBRARY, build
from gnode.gpushare.errors import NativeBuildError, ShareRefusedError
from gnode.gpushare.keeper import DaemonKeeper
from gnode.gpushare.node_tokens import hash_of
from gnode.gpushare.obstacles import compute_mode_problem, mps_problem, without_mps
from gnode.gpushare.runtime import Contained, Runtime, RuntimeSite
from gnode.gpushare.task import SharedTask
from gnode.gpushare.tokens import Tokens
from gnode.gpushare.watchdog import Culprits, Offence, Watchdog, WatchdogSampler
from gnode.hw.nvml import Nvml
from gsched.config.nodes import GpuShareConfig
from gsched.cuda_driver import find_driver
from gsched.model.units import parse_size_bytes

log = logging.getLogger(__name__)

FOLDER: Final = "gpushare"
#: The driver's library in a container.
DRIVER_INSIDE: Final = "/run/gsched/driver/libcuda.so.1"
MACHINES: Final = frozenset({"x86_64", "aarch64"})
_KEY_BYTES: Final = 32


class InterceptionRuntime(Runtime):
    """Limits of memory and priority by interception of the CUDA driver (docs/gpu-sharing.md).

    Args:
        config: ``[gpu_share]``.
        directory: for the library, the sockets and the daemon's files.
        compiler: finds a C compiler.
        driver: finds the CUDA driver where the configuration does not name it.
        nvml: the library for measurements, for the watchdog; None: there is no watchdog.
        daemon_options: more of the token daemon's options, for benchmarks.
    """

    containers = True

    def __init__(
        self,
        config: GpuShareConfig,
        directory: Path,
        *,
        compiler: Callable[[], str | None] = find_compiler,
        driver: Callable[[], str | None] = find_driver,
        nvml: Nvml | None = None,
        daemon_options: tuple[str, ...] = (),
    ) -> None:
        self._config = config
        self._directory = directory
        self._compiler = compiler
        self._driver = driver
        self._nvml = nvml
        self._found: str | None = None
        self._library: Path | None = None
        self._built_for: object = None  # the driver, as `_identity` tells it
        self._groups: dict[str, str] = {}
        self._sampler: WatchdogSampler | None = None
        self.culprits = Culprits(self._groups)
        self._context_bytes = parse_size_bytes(config.context_reserve)
        rules = ("--drain-max", str(config.drain_max_s), "--overlaps-max", str(config.overlaps_max))
        opportunistic = ("--opportunistic-percent", str(config.opportunistic_percent))
        contexts = ("--context-bytes", str(self._context_bytes))
        self.keeper = DaemonKeeper(directory, (*rules, *opportunistic, *contexts, *daemon_options))

    @classmethod
    def on_node(cls, site: RuntimeSite) -> Self:
        """Return the runtime of a node."""
        made = cls(site.config, site.directory, nvml=site.nvml)
        made.culprits.tracking = site.tracking
        return made

    def missing(self) -> str | None:
        """Return why jobs cannot share GPUs by interception here, or None."""
        if platform.machine() not in MACHINES or ctypes.util.find_library("c") is None:
            return (
                f"interception needs x86-64 or 64-bit ARM, and this is {platform.machine()}: "
                "choose another runtime in [gpu_share]"
            )
        if self._driver_path() is None:
            if self._config.driver:
                return f"no CUDA driver can be read at {self._config.driver}, driver in [gpu_share]"
            return (
                "no CUDA driver (libcuda.so.1): install NVIDIA's driver, "
                "or name its path with driver in [gpu_share]"
            )
        if self._compiler() is None:
            return "no C compiler: install gcc and libc6-dev, or choose another runtime"
        return compute_mode_problem(self._nvml) or mps_problem(self._config.mps_pipe_dir)

    def prepare(self, busy: Collection[int] = ()) -> None:  # noqa: ARG002 - it changes no GPU
        """Compile the library, unless it is there: that takes seconds."""
        try:
            self.library()
        except OSError as error:
            raise self._unusable(error) from error

    def library(self) -> Path:
        """Return the directory with the library; it is compiled when the driver is another one.

        Raises:
            NativeBuildError: there is no compiler, it fails, or the driver is no library.
        """
        path = self._driver_path()
        driver = None if path is None else Path(path)
        identity = _identity(driver)
        if self._library is not None and self._library.is_dir() and self._built_for == identity:
            return self._library
        compiler = self._compiler()
        if compiler is None:
            raise NativeBuildError("no C compiler", hint="install gcc and libc6-dev")
        self._library = build(self._directory / "lib", compiler, driver=driver)
        self._built_for = identity
        return self._library

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Admit a task at the token daemon, which is started if it does not run."""
        try:
            return self._admitted(task)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ShareRefusedError:
        return ShareRefusedError(
            f"{self._directory} cannot be used for GPU sharing: {error.strerror}",
            hint="check its file system and permissions",
        )

    def _admitted(self, task: SharedTask) -> Mapping[str, str]:
        folder = self.library()
        self._prepare()
        self.keeper.ensure()
        secret = self._secret(task)
        self.keeper.ask(
            order="admit",
            admission={
                "group": _group(task),
                "gpu": task.gpu_name,
                "share_class": str(task.share_class),
                "memory_bytes": task.memory_bytes,
                "secret_hash": hash_of(secret),
            },
        )
        self._groups[hash_of(secret)] = _group(task)
        self._watch()
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": task.gpu_name,
            **without_mps(self._directory),
            "LD_PRELOAD": f"{folder / LIBRARY}:{folder / ALIAS}",
            "LD_LIBRARY_PATH": str(folder),
            "GSCHED_REAL_LIBCUDA": self._driver_path() or "",
            "GSCHED_SHARE_SOCKET": self._socket(),
            "GSCHED_SHARE_SECRET": secret,
            "GSCHED_SHARE_CLASS": str(task.share_class),
            "GSCHED_SHARE_MEMORY_BYTES": str(max(1, task.memory_bytes - self._context_bytes)),
            "GSCHED_SHARE_FAIL": self._config.fail,
            "GSCHED_SHARE_PATIENCE_MS": str(int(self._config.patience_s * 1000)),
        }

    def contained(self, task: SharedTask, env: Mapping[str, str]) -> Contained:  # noqa: ARG002 - it is the same for all
        """Return the library, the socket's directory and the driver, all read-only.

        The directory is mounted, since a restarted token daemon makes a new socket. The driver gets
        a path of its own, so that it is there wherever the image and NVIDIA's toolkit have theirs.
        """
        driver = os.path.realpath(env["GSCHED_REAL_LIBCUDA"])
        places = dict.fromkeys((str(self._directory), env["LD_LIBRARY_PATH"]))
        return Contained(
            mounts=(
                *(f"{place}:{place}:ro" for place in places),
                f"{driver}:{DRIVER_INSIDE}:ro",
            ),
            env={"GSCHED_REAL_LIBCUDA": DRIVER_INSIDE},
        )

    def release(self, task: SharedTask) -> None:
        """Remove a task from the token daemon, with the connections of its processes.

        Without the daemon the task stays in its file; it has no process that could use the right.
        """
        try:
            self.keeper.ask(order="remove", group=_group(task))
            self._groups.pop(hash_of(self._secret(task)), None)
        except (ShareRefusedError, OSError) as error:
            log.warning("the end of %s on a shared GPU cannot be told: %s", _group(task), error)

    def attend(self, task: SharedTask, seconds: float) -> None:
        """Let a task launch for so long: it was sent a signal, and may wait at its gate."""
        try:
            self.keeper.ask(order="attend", group=_group(task), seconds=seconds)
        except (ShareRefusedError, OSError) as error:
            log.warning(
                "%s, which was sent a signal, may wait for its GPU: %s", _group(task), error
            )

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        """Remove all tasks but these: a gnode may end between an admission and its record."""
        kept = {_group(task) for task in tasks}
        try:
            self.keeper.keep(kept)
        except (ShareRefusedError, OSError) as error:
            log.warning("the token daemon may know tasks that are over: %s", error)

    def metrics(self) -> Mapping[str, object]:
        """Return the token daemon's counters, as `TokenDaemon.metrics`."""
        return self.keeper.ask(order="metrics")

    def held_s(self) -> Mapping[str, float]:
        """Return for how long each task has held the token, as the token daemon counts it."""
        tokens = self.look() if self._groups else None
        return {} if tokens is None else tokens.held_s()

    def look(self) -> Tokens | None:
        """Return how jobs take turns; None: the token daemon does not run."""
        metrics = self.keeper.look()
        return None if metrics is None else Tokens(metrics, self.keeper.restarts)

    def notify(self, call: Callable[[str, str], None]) -> None:
        """Have each task that is about to be killed told, with the reason."""
        self.culprits.notify = lambda offence: call(offence.group, offence.reason)

    def punish(self, tokens: Tokens) -> None:
        """Kill the jobs that have been demoted, where the site wants that."""
        if self._config.overlap_action != "kill":
            return
        for group, pids in tokens.demoted():
            words = (
                f"job {group} has not left the shared GPU to others within "
                f"{self._config.drain_max_s:g} s, {self._config.overlaps_max} times in a row: "
                "shorter kernels, or a whole GPU"
            )
            self.culprits.kill(Offence(group=group, pids=pids, reason=words))

    def close(self) -> None:
        """Watch the token daemon no longer; it ends if it has no task."""
        if self._sampler is not None:
            self._sampler.close()
        self.keeper.close()

    def _watch(self) -> None:
        """Start the watchdog with the first task."""
        if self._sampler is not None or self._nvml is None or not self._config.watchdog_s:
            return
        self._sampler = WatchdogSampler(
            self._nvml,
            Watchdog(max(0, parse_size_bytes(self._config.context_memory) - self._context_bytes)),
            metrics=self.metrics,
            culprits=self.culprits,
            period_s=self._config.watchdog_s,
        )
        self._sampler.start()

    def _driver_path(self) -> str | None:
        if self._config.driver:
            return self._config.driver if os.access(self._config.driver, os.R_OK) else None
        if self._found is None or not os.access(self._found, os.R_OK):
            self._found = self._driver()
        return self._found

    def _socket(self) -> str:
        return str(self._directory / "token.sock")

    def _prepare(self) -> None:
        """Make the directory; users may enter it, and gnode's own user alone writes it."""
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if stat.S_IMODE(self._directory.stat().st_mode) != 0o755:
            self._directory.chmod(0o755)

    def _secret(self, task: SharedTask) -> str:
        """Return the task's secret: the same at each call, also of the next gnode."""
        path = self._directory / "secret.key"
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = secrets.token_bytes(_KEY_BYTES)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(key)
        text = f"{_group(task)}@{task.gpu_name}"
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _identity(driver: Path | None) -> object:
    """Return what changes when another driver is installed, with little work."""
    if driver is None:
        return None
    status = driver.stat()
    return (driver, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _group(task: SharedTask) -> str:
    return f"{task.job}.{task.attempt}"
