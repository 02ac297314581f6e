"""Small writes to the spool that must not get lost: on a full disk they are tried again."""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

RETRY_S = 1.0


class Writes:
    """Writes at once where possible, else in order of their subjects once there is space."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def do(self, subject: str, write: Callable[[], None]) -> None:
        """Write now, or as soon as all that waits for the same subject is written.

        Args:
            subject: what is written, for the log; writes of one subject keep their order.
            write: does it, and raises OSError if it cannot be done now.
        """
        if subject in self._waiting:
            self._waiting[subject].append(write)
            return
        try:
            write()
        except OSError as error:
            log.warning("cannot write %s, trying again until it works: %s", subject, error)
            self._waiting[subject] = [write]
            self._plan()

    def replace(self, subject: str, write: Callable[[], None]) -> None:
        """Write now, or later instead of what waits for the same subject."""
        self._waiting.pop(subject, None)
        self.do(subject, write)

    def close(self) -> None:
        """Try once more, then give up."""
        self.again()
        if self._timer is not None:
            self._timer.cancel()

    def again(self) -> None:
        """Write what has waited, as far as there is space."""
        for subject, writes in tuple(self._waiting.items()):
            try:
                while writes:
                    writes[0]()
                    del writes[0]
            except OSError as error:
                log.debug("%s: %s", subject, error)
                continue
            del self._waiting[subject]
            log.info("%s has been written", subject)

    def _plan(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.again()
        if self._waiting:
            self._plan()
