"""Kills processes of jobs that break the rules of a shared GPU, and says why."""

import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gnode.gpushare.node_tokens import hash_of
from gnode.gpushare.watchdog import Offence

log = logging.getLogger(__name__)

_SECRET: Final = b"GSCHED_SHARE_SECRET="


class Culprits:
    """Finds the job of a process by its environment.

    Args:
        secrets: jobs by the hash of their secret.

    Attributes:
        notify: is told of each offence before its processes are killed, in any thread.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self.notify: Callable[[Offence], None] = lambda _: None

    def group_of(self, pid: int) -> str | None:
        """Return the shared job whose secret is in the environment of a process."""
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
