"""The process that tells of jobs: ``python -m gschedd.notify.worker``, a child of the head.

Its first line of standard input is a `NotifierBegin`; the end of that input is the end of the head,
after which it finishes the deliveries under way and exits. It writes a `NotifierReport` as a line
when one differs from the last. It reads the head's database and writes its own, so it can neither
block nor harm the head, and another one goes on where it was killed.
"""

import gsched.start  # isort: skip - before all that it speeds up

import asyncio
import contextlib
import logging
import os
import sqlite3
from typing import Final

from msgspec import Struct

from gsched.clock import Clock, SystemClock
from gsched.failpoint import failpoint
from gsched.logs import Complaints
from gschedd.notify.ledger import Ledger, Waiting, open_ledger
from gschedd.notify.letters import letters_in, take_letters
from gschedd.notify.notices import USER_URL, WAYS, endpoint_of, user_of
from gschedd.notify.scan import NotifierSettings, Scanner
from gschedd.notify.ways import LaterError, RefusedError, Ways
from gschedd.store.reader import Reader
from gschedd.workers.inside import begin as begin_worker
from gschedd.workers.inside import locked, pause, watch_input, write_report

log = logging.getLogger("gschedd.notify")

#: How often new events are looked for, seconds.
PERIOD_S: Final = 0.5
#: After an error of a database, as a full disk.
PAUSE_S: Final = 5.0
LAST_RETRY_S: Final = 3600.0
#: Lanes of URLs of users that are delivered at once.
USER_LANES: Final = 16


class NotifierBegin(Struct, frozen=True, kw_only=True):
    """What the head tells the process; ``database`` and ``ledger`` are paths.

    Attributes:
        newest: number of the last event when the head started.
    """

    settings: NotifierSettings
    newest: int
    database: str
    ledger: str


class NotifierReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How deliveries go, by way: waiting, sent and dropped ones, and why a way is down."""

    waiting: dict[str, int] = {}
    sent: dict[str, int] = {}
    dropped: dict[str, int] = {}
    reasons: dict[str, str] = {}
    down: dict[str, str] = {}


class Endpoint:
    """What is known of one endpoint: whether it is down, since when it is tried, how often."""

    __slots__ = ("failures", "paused_until_s", "task", "turn", "why")

    def __init__(self) -> None:
        self.failures = 0
        self.paused_until_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.turn = ""
        self.why = ""

    @property
    def is_active(self) -> bool:
        """Return whether something of it is being delivered."""
        return self.task is not None and not self.task.done()


class Deliverer:
    """Delivers what waits: the endpoints beside each other, the lanes of each in turn."""

    def __init__(
        self, ledger: Ledger, ways: Ways, settings: NotifierSettings, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._ways = ways
        self._config = settings.config
        self._clock = clock
        self._endpoints: dict[str, Endpoint] = {}
        self._complaints = Complaints(log, clock)
        self.stopping = False

    def start_due(self) -> None:
        """NotifierBegin with every endpoint for which something is due."""
        now_s = self._clock.wall_s()
        waiting: dict[str, float] = {}
        for lane, due_s in self._ledger.lanes():
            name = endpoint_of(lane)
            waiting[name] = min(due_s, waiting.get(name, due_s))
        for name in [each for each in self._endpoints if each not in waiting]:
            if not self._endpoints[name].is_active:
                del self._endpoints[name]
        users = sum(each.is_active for name, each in self._endpoints.items() if _is_of_user(name))
        for name, due_s in waiting.items():
            endpoint = self._endpoints.setdefault(name, Endpoint())
            if endpoint.is_active or max(due_s, endpoint.paused_until_s) > now_s:
                continue
            if _is_of_user(name):
                users += 1
                if users > USER_LANES:
                    continue
            endpoint.task = asyncio.create_task(self._deliver(name, endpoint))

    async def finish(self) -> None:
        """Wait for what is under way, and begin nothing else."""
        self.stopping = True
        tasks = [each.task for each in self._endpoints.values() if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def down(self) -> dict[str, str]:
        """Return why ways do not work now, by way."""
        found: dict[str, str] = {}
        for name, endpoint in self._endpoints.items():
            if endpoint.failures:
                found[name.partition(" ")[0]] = endpoint.why
        return found

    async def _deliver(self, name: str, endpoint: Endpoint) -> None:
        while not self.stopping:
            each = self._ledger.next_due(name, endpoint.turn, self._clock.wall_s())
            if each is None:
                return
            endpoint.turn = each.lane
            try:
                await self._ways.deliver(each)
            except RefusedError as error:
                self._drop(each, str(error))
            except LaterError as error:
                self._postpone(each, endpoint, error)
                if error.is_down:
                    return
            else:
                failpoint("notify.after_delivery")
                endpoint.failures, endpoint.why = 0, ""
                self._ledger.delivered(each)

    def _drop(self, each: Waiting, why: str) -> None:
        text = f"notification {each.id} by {WAYS[each.way]} is dropped: {why}"
        self._complaints.say(user_of(each.lane), text, level=logging.ERROR)
        self._ledger.dropped(each, why)

    def _postpone(self, each: Waiting, endpoint: Endpoint, error: LaterError) -> None:
        now_s = self._clock.wall_s()
        if error.is_down:
            if not endpoint.failures:
                whose = user_of(each.lane) if _is_of_user(each.lane) else WAYS[each.way]
                text = f"{WAYS[each.way]}: does not work: {error}"
                self._complaints.say(whose, text, level=logging.ERROR)
            endpoint.why = str(error)
            endpoint.paused_until_s = now_s + self._pause_s(endpoint.failures)
            endpoint.failures += 1
        if each.tries + 1 >= self._config.tries:
            self._drop(each, f"{each.tries + 1} tries failed; the last: {error}")
            return
        self._ledger.postponed(each, now_s + self._pause_s(each.tries))

    def _pause_s(self, failures: int) -> float:
        return float(min(self._config.retry_s * 4 ** min(failures, 30), LAST_RETRY_S))


def _is_of_user(lane: str) -> bool:
    return lane.startswith(USER_URL)


async def work(begin: NotifierBegin, clock: Clock) -> None:
    """Tell of jobs until the head has ended."""
    ended = asyncio.Event()
    watching = asyncio.create_task(watch_input(ended))
    with contextlib.ExitStack() as opened:
        lock = opened.enter_context(open(f"{begin.ledger}.lock", "ab"))  # noqa: ASYNC230 - a local file
        if not await locked(lock.fileno(), ended):
            return
        complaints = Complaints(log, clock)
        found = await _opened(begin.ledger, ended, complaints)
        if found is None:
            return
        ledger, trouble = found
        opened.callback(ledger.close)
        if trouble:
            log.error("%s; what waited there is not delivered", trouble)
        reader = Reader(begin.database)
        opened.callback(reader.close)
        ways = Ways(begin.settings.config)
        deliverer = Deliverer(ledger, ways, begin.settings, clock)
        scanner = Scanner(reader, ledger, begin.settings, complaints)
        scanner.begin(begin.newest)
        letters = letters_in(os.path.dirname(begin.ledger))
        last: NotifierReport | None = None
        while not ended.is_set():
            try:
                more = scanner.step(clock.wall_s())
                take_letters(letters, ledger, clock.wall_s())
                deliverer.start_due()
                report = _report(ledger, deliverer)
            except sqlite3.OperationalError as error:
                complaints.say("notifications wait", str(error), level=logging.ERROR)
                await pause(ended, PAUSE_S)
                continue
            if report != last:
                write_report(report)
                last = report
            await pause(ended, 0.0 if more else PERIOD_S)
        await deliverer.finish()
        await ways.close()
    watching.cancel()


async def _opened(
    path: str, ended: asyncio.Event, complaints: Complaints
) -> tuple[Ledger, str] | None:
    """Open the ledger as `open_ledger`, as soon as the disk has room; None: the head has ended."""
    while not ended.is_set():
        try:
            return open_ledger(path)
        except (sqlite3.OperationalError, OSError) as error:
            complaints.say("notifications wait", str(error), level=logging.ERROR)
            await pause(ended, PAUSE_S)
    return None


def _report(ledger: Ledger, deliverer: Deliverer) -> NotifierReport:
    counts = ledger.counts()

    def of(what: str) -> dict[str, int]:
        names = (name for name in counts if name.startswith(what))
        return {name.removeprefix(what): counts[name][0] for name in names}

    reasons = {
        name.removeprefix("dropped "): text
        for name, (_, text) in counts.items()
        if name.startswith("dropped ")
    }
    return NotifierReport(
        waiting=ledger.waiting(),
        sent=of("sent "),
        dropped=of("dropped "),
        reasons=reasons,
        down=deliverer.down(),
    )


def main() -> None:
    """Run the process."""
    gsched.start.imported()
    asyncio.run(work(begin_worker(NotifierBegin), SystemClock()))


if __name__ == "__main__":
    main()
