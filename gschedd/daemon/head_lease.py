"""The lease of this head where the store is replicated: wait for it, renew it, stop without it."""

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Final

from gsched.clock import SystemClock
from gsched.config.tables import Config, HeadConfig, StoreConfig
from gsched.errors import ConfigError
from gschedd.core.state.settings import Settings
from gschedd.daemon.standing_by import StandbyHead
from gschedd.http.door import Doors
from gschedd.http.ruling import StandbyCheck
from gschedd.policies.registry import Chosen
from gschedd.store.journal import HeadLease, LeaseLostError, ReplicatedLog, SharedFiles
from gschedd.store.sqlite import DATABASE
from gschedd.store.standby import Follower

log = logging.getLogger("gschedd")

#: How often a head that stands by looks for new records and at the lease, seconds.
FOLLOW_S: Final = 0.2
#: Between two renewals of the lease, as a part of its length.
RENEWAL_RATIO: Final = 1 / 3
WATCH_S: Final = 0.2


class LeaseKeeper:
    """The right of this head to decide and to write, which ends when another head has the lease.

    A thread renews the lease, as the event loop may be busy for longer.

    Attributes:
        held: the lease; None: the store is this machine's alone.
        has_others: hosts know other heads, to which they can go.
        listener: the socket of users, which has listened while this head stood by; None: none has.
        files: of both heads, beside the database; None: the store is this machine's alone.
        lost: why this head rules no longer; empty: it does.
        advice: what to do when it does not: to an operator.
    """

    def __init__(
        self,
        held: HeadLease | None = None,
        renewing: ReplicatedLog | None = None,
        files: SharedFiles | None = None,
        *,
        has_others: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        self.held = held
        self.files = files
        self.has_others = has_others
        self.listener = listener
        self.lost = ""
        self.advice = "keep only one of the two: see gschedd(8)"
        self._renewing = renewing
        self._on_lost: Callable[[str], object] | None = None
        self._over = threading.Event()
        self._clock = SystemClock()
        self._renewed_s = self._clock.monotonic_s()
        if renewing is not None:
            threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def _renew(self) -> None:
        assert self.held is not None
        assert self._renewing is not None
        while not self._over.wait(self._renewing.lease_s * RENEWAL_RATIO):
            begun_s = self._clock.monotonic_s()
            try:
                self._renewing.renew(self.held.number)
                self._renewed_s = begun_s
            except LeaseLostError as error:
                self.lost, self.advice = error.message, error.hint
                if self._on_lost is not None:
                    self._on_lost(self.lost)
                return

    @property
    def doubt(self) -> str:
        """Return why another head may rule already; empty: none does."""
        if self.held is None:
            return ""
        age_s = self._clock.monotonic_s() - self._renewed_s
        if age_s < self.held.log.lease_s and not self.lost:
            return ""
        return f"the lease of this head was last renewed {age_s:.0f} s ago: another one may rule"

    def warning(self, of_engine: str) -> str:
        """Return what counts for what is shown; ``of_engine`` is what the engine says of it."""
        return "; ".join(filter(None, (self.doubt, of_engine)))

    def refusal(self) -> str:
        """Return why hosts and commands that know other heads are to go there; else empty."""
        return self.doubt if self.has_others else ""

    async def watch(self, doors: Doors) -> None:
        """Send everybody to the other heads when this one may rule no longer."""
        was_in_doubt = False
        while True:
            await asyncio.sleep(WATCH_S)
            if (why := self.refusal()) and not was_in_doubt:
                log.warning("%s: all connections are closed", why)
                doors.cut_off(why)
            was_in_doubt = bool(why)

    def on_lost(
        self, loop: asyncio.AbstractEventLoop, end: Callable[[str], Coroutine[None, None, None]]
    ) -> None:
        """Have ``end`` run with the reason when another head rules; at once if it does."""
        self._on_lost = lambda why: asyncio.run_coroutine_threadsafe(end(why), loop)
        if self.lost:
            self._on_lost(self.lost)

    def close(self) -> None:
        """Give the lease up: nothing is written any more."""
        self._over.set()
        if self.held is not None and not self.lost:
            self.held.log.release(self.held.number)


def open_log(store: StoreConfig, head: HeadConfig) -> ReplicatedLog:
    """Return the replicated log of a site, connected.

    Raises:
        ConfigError: it cannot be used.
        StorageError: it is away.
    """
    try:
        from gschedd.store.postgresql import PostgresLog  # psycopg is optional
    except ImportError:
        raise ConfigError(
            "[store] url needs psycopg, which is not installed",
            hint="install gsched with its extra postgresql: pip install 'gsched[postgresql]'",
        ) from None
    holder = f"{socket.gethostname()}:{os.path.realpath(head.state_dir)}"
    replicated = PostgresLog(store.url, holder=holder, lease_s=store.lease_s)
    replicated.open()
    return replicated


def wait_to_rule(config: Config, settings: Settings, chosen: Chosen) -> LeaseKeeper:
    """Stand by until this head may rule; at once where the store is not replicated.

    Raises:
        ConfigError: the store cannot be used, or this host lacks the cluster's authority, or has
            another one.
        StorageError: it is away.
        SystemExit: it was ended before.
    """
    store, head = config.store, config.head
    if not store.url:
        return LeaseKeeper()
    replicated = open_log(store, head)
    clock = SystemClock()
    check = StandbyCheck(config, replicated.holder)
    follower = Follower(os.path.join(head.state_dir, DATABASE), replicated, clock, check)
    standby = StandbyHead(config, follower, check, settings=settings, chosen=chosen, clock=clock)
    pause = threading.Event()
    held = asyncio.run(standby.run(lambda: pause.wait(FOLLOW_S)))
    if held is None:
        log.info("stopping: this head has not ruled")
        sys.exit(0)
    files = open_log(store, head).files(held.number)
    has_others = len(head.addresses) > 1
    listener = standby.listener if os.path.exists(head.socket) else None
    renewing = open_log(store, head)
    return LeaseKeeper(held, renewing, files, has_others=has_others, listener=listener)
