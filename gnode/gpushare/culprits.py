"""Kills processes of jobs that break the rules of a shared GPU, and says why."""

import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gnode.gpushare.node_tokens import hash_of
from gnode.gpushare.watchdog import Offence
from gnode.hw import cgroups

log = logging.getLogger(__name__)

_SECRET: Final = b"GSCHED_SHARE_SECRET="


class Culprits:
    """Finds the job of a process by its control group, which it cannot leave.

    Where attempts have none, or the process is in none of theirs, its environment tells.

    Args:
        secrets: jobs by the hash of their secret.

    Attributes:
        tracking: the control group below which all attempts of this node are, each by its name,
            as /proc/PID/cgroup names it; empty: there is none.
        notify: is told of each offence before its processes are killed, in any thread.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self.tracking = ""
        self.notify: Callable[[Offence], None] = lambda _: None

    def group_of(self, pid: int) -> str | None:
        """Return the job of a process; None: it is of no job, or of one that shares no GPU."""
        if self.tracking:
            own = cgroups.own_paths(Path(f"/proc/{pid}")).get("", "")
            if own.startswith(f"{self.tracking}/"):
                name = own.removeprefix(f"{self.tracking}/").partition("/")[0]
                return name if name in self._secrets.values() else None
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return None
        for entry in environment.split(b"\0"):
            if entry.startswith(_SECRET):
                secret = entry.removeprefix(_SECRET).decode("ascii", "replace")
                return self._secrets.get(hash_of(secret))
        return None

    def kill(self, offence: Offence) -> None:
        """Kill the processes, as long as they are of that job."""
        self.notify(offence)
        for pid in offence.pids:
            try:
                process = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if self.group_of(pid) == offence.group:
                    log.warning("killed process %d: %s", pid, offence.reason)
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            except ProcessLookupError:
                log.debug("process %d has ended by itself", pid)
            finally:
                os.close(process)
