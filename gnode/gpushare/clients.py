"""The connections of processes to the token daemon, and who of them has a place: no I/O."""

import itertools
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gnode.gpushare import wire
from gnode.gpushare.budgets import Budget

CLIENTS_MAX: Final = 4096
CLIENTS_OF_A_GROUP: Final = 512
#: A job has so many places of its own, whatever others have taken.
CLIENTS_KEPT: Final = 32
#: Connections that have not said yet which job they are of: in all, and of one user.
SILENT_MAX: Final = 256
SILENT_OF_A_USER: Final = 32


@dataclass(slots=True, eq=False)
class Client:
    """One connection of a process; which job it is of is known after its first message.

    Attributes:
        version: of the messages that its library understands.
        budget: of its job on channels of this kind.
        is_waited_for: its messages are waited for; not while its job has spent that.
    """

    number: int
    channel: socket.socket
    pid: int
    uid: int
    hello_by_s: float
    pidfd: int = -1
    group: str = ""
    launches: bool = False
    version: int = wire.VERSION
    budget: Budget | None = None
    is_waited_for: bool = False


@dataclass(slots=True)
class Clients:
    """All connections.

    Attributes:
        places: connections of jobs; each job has `CLIENTS_KEPT` beyond them.
    """

    places: int = CLIENTS_MAX
    _all: dict[int, Client] = field(default_factory=dict)
    _silent: dict[int, Client] = field(default_factory=dict)  # before their HELLO, oldest first
    _of_jobs: dict[str, dict[int, Client]] = field(default_factory=dict)
    _numbers: int = 0

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._all.values()))

    def __contains__(self, client: Client) -> bool:
        return client.number in self._all

    def add(self, channel: socket.socket, pid: int, uid: int, hello_by_s: float) -> Client:
        """Take in a connection that has said nothing yet."""
        self._numbers += 1
        client = Client(self._numbers, channel, pid, uid, hello_by_s)
        self._all[client.number] = self._silent[client.number] = client
        return client

    def remove(self, client: Client) -> bool:
        """Forget a connection; return whether it was known."""
        if self._all.pop(client.number, None) is None:
            return False
        self._silent.pop(client.number, None)
        of_job = self._of_jobs.get(client.group, {})
        of_job.pop(client.number, None)
        if not of_job:
            self._of_jobs.pop(client.group, None)
        return True

    def join(self, client: Client, group: str) -> None:
        """A connection has proved that it is of a job."""
        self._silent.pop(client.number, None)
        client.group = group
        self._of_jobs.setdefault(group, {})[client.number] = client

    def of(self, group: str) -> list[Client]:
        """Return the connections of a job."""
        return list(self._of_jobs.get(group, {}).values())

    def has_place(self, group: str) -> bool:
        """Return whether a job may have one more connection."""
        count = len(self._of_jobs.get(group, ()))
        if count < CLIENTS_KEPT:
            return True
        return count < CLIENTS_OF_A_GROUP and len(self._all) - len(self._silent) < self.places

    def first_silent(self) -> list[Client]:
        """Return the connection that has said nothing for the longest time, if there is one."""
        return list(itertools.islice(self._silent.values(), 1))

    def in_the_way_of(self, uid: int) -> Client | None:
        """Return whose place another silent connection of a user gets; None: there is room."""
        of_user = [one for one in self._silent.values() if one.uid == uid]
        if len(of_user) >= SILENT_OF_A_USER:
            return of_user[0]
        return self.first_silent()[0] if len(self._silent) >= SILENT_MAX else None
