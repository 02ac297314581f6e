"""Which host gets the next of a bounded number of slots, so that a slow one delays no other.

A host that does not answer for a while gets no second slot until it answers, and what it holds does
not count as taken from the others. Slots go to the hosts in turn.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

#: A host that has not answered for so long counts as slow.
SLOW_S: Final = 2.0


@dataclass(slots=True)
class _Host:
    held: int = 0
    answered_s: float = 0.0
    is_slow: bool = False
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class HostSlots:
    """The slots.

    Args:
        most: of all hosts together.
        of_host: of one host.
    """

    def __init__(self, most: int, of_host: int) -> None:
        self._most = most
        self._of_host = of_host
        self._hosts: dict[str, _Host] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def slot(self, name: str) -> AsyncIterator[None]:
        """Hold a slot of a host, once there is one."""
        loop = asyncio.get_running_loop()
        host = self._hosts.setdefault(name, _Host())
        turn: asyncio.Future[None] = loop.create_future()
        host.waiting.append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given just now
                self._leave(name, host)
            raise
        begun_s = loop.time()
        try:
            yield
        finally:
            if loop.time() - begun_s < SLOW_S:
                host.is_slow = False
            self._leave(name, host)

    def is_slow(self, name: str) -> bool:
        """Return whether a host has not answered for a while."""
        return name in self._hosts and self._hosts[name].is_slow

    def _leave(self, name: str, host: _Host) -> None:
        host.held -= 1
        host.answered_s = asyncio.get_running_loop().time()
        if not host.held and not host.waiting and not host.is_slow:
            self._hosts.pop(name, None)
        self._give()

    def _give(self) -> None:
        """Give what slots there are, one to each host in turn."""
        now_s = asyncio.get_running_loop().time()
        used = sum(each.held for each in self._hosts.values() if not each.is_slow)
        given = True
        while given:
            given = False
            for name, host in list(self._hosts.items()):
                while host.waiting and host.waiting[0].cancelled():
                    del host.waiting[0]
                most = 1 if host.is_slow else self._of_host
                if host.waiting and host.held < most and (used < self._most or host.is_slow):
                    if not host.held:
                        host.answered_s = now_s
                    self._hosts[name] = self._hosts.pop(name)  # the others are first next time
                    host.waiting.popleft().set_result(None)
                    host.held += 1
                    used += not host.is_slow
                    given = True
        if self._timer is None and any(each.waiting for each in self._hosts.values()):
            self._timer = asyncio.get_running_loop().call_later(SLOW_S / 2, self._look)

    def _look(self) -> None:
        """Note which hosts have not answered for a while."""
        self._timer = None
        late_s = asyncio.get_running_loop().time() - SLOW_S
        for host in self._hosts.values():
            host.is_slow = host.is_slow or (host.held > 0 and host.answered_s <= late_s)
        self._give()
