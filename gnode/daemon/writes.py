"""What is tried again until it works: small writes to a full disk, and reads of exit records."""

import asyncio
import logging
from collections.abc import Callable

from gnode.core.task import AttemptKey

LOOK_AGAIN_S = 2.0
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


class UnreadableRecords:
    """Attempts whose exit record cannot be read now: looks again until it can, or is not there.

    An ancestor of the spool may be writable by others for a moment, a backup may give the records a
    second name, a disk may fail to read a block. Nothing of that says that there is no outcome.
    """

    def __init__(self) -> None:
        self._complained: set[AttemptKey] = set()
        self._timers: dict[tuple[AttemptKey, str], asyncio.TimerHandle] = {}

    def again(self, key: AttemptKey, why: str, what: str, look: Callable[[], None]) -> None:
        """Call ``look`` later, once for each ``what`` of an attempt."""
        if key not in self._complained:
            self._complained.add(key)
            log.error(
                "attempt %s: its exit record cannot be read: %s; looking again every %.0f s. "
                "If it stays so, remove the file: the attempt then counts as lost",
                key.name,
                why,
                LOOK_AGAIN_S,
            )
        if (key, what) not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key, what] = loop.call_later(LOOK_AGAIN_S, self._ring, key, what, look)

    def _ring(self, key: AttemptKey, what: str, look: Callable[[], None]) -> None:
        del self._timers[key, what]
        look()

    def settle(self, key: AttemptKey) -> None:
        """Note that the record of an attempt could be read, or is not there."""
        if key in self._complained:
            self._complained.discard(key)
            log.info("attempt %s: its records can be read again", key.name)

    def close(self) -> None:
        """Look no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
