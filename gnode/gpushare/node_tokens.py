"""The state of the token daemon without its sockets: jobs, their processes, tokens and memory.

Processes are numbered by the daemon. Each call returns what has to be done for which process or
job, so that a test needs no socket and no time.
"""

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from gnode.gpushare.memory_book import MemoryBook
from gnode.gpushare.token_model import (
    AskIdle,
    CloseGate,
    Effect,
    OpenGate,
    SetWindow,
    TokenSettings,
)
from gnode.gpushare.token_policy import TokenPolicy
from gsched.model.numbers import MAX_NUMBER
from gsched.model.states import ShareClass

#: A process states how long its work took to end; a longer time counts as this one, seconds.
MAX_DRAIN_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A job that may use a GPU of this node; ``secret_hash`` proves that a process is of it."""

    group: str
    gpu: str
    share_class: ShareClass
    memory_bytes: int
    secret_hash: str


def hash_of(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(slots=True)
class Member:
    """One process of a job, on its launch channel."""

    client: int
    pid: int
    group: str
    idle: bool = False
    drain_epoch: int = 0  # it has to answer a closed gate; 0: it has not


@dataclass(slots=True)
class NodeTokens:
    """All GPUs of a node that are shared.

    Attributes:
        settings: of the policy of each GPU.
        quiet_until_s: see `TokenPolicy`.
    """

    settings: TokenSettings = field(default_factory=TokenSettings)
    quiet_until_s: float = 0.0
    admissions: dict[str, Admission] = field(default_factory=dict)
    memory: MemoryBook = field(default_factory=MemoryBook)
    policies: dict[str, TokenPolicy] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    unhooked_symbols: int = 0

    # ---- jobs ----

    def admit(self, admission: Admission) -> None:
        """Let a job use its GPU; a second admission changes its limit and secret."""
        self.admissions[admission.group] = admission
        self.memory.set_limit(admission.group, admission.memory_bytes)
        self.policies.setdefault(
            admission.gpu, TokenPolicy(self.settings, quiet_until_s=self.quiet_until_s)
        )

    def remove(self, group: str, now_s: float) -> list[Effect]:
        """Forget a job. Its processes, if any are left, are to be disconnected by the caller."""
        effects: list[Effect] = []
        for client in [one.client for one in self.members.values() if one.group == group]:
            effects += self.leave(client, now_s)
        admission = self.admissions.pop(group, None)
        if admission is not None:
            self.policies[admission.gpu].forget(group)
        self.memory.remove(group)
        self.launches.pop(group, None)
        return effects

    def group_of(self, secret: str) -> str | None:
        """Return the job whose secret this is, or None."""
        given = hash_of(secret)
        for admission in self.admissions.values():
            if hmac.compare_digest(admission.secret_hash, given):
                return admission.group
        return None

    def members_of(self, group: str) -> Iterator[Member]:
        """Yield the processes of a job."""
        return (one for one in self.members.values() if one.group == group)

    # ---- processes ----

    def join(self, client: int, pid: int, group: str, now_s: float) -> list[Effect]:
        """A process of the job has connected to launch."""
        self.members[client] = Member(client, pid, group)
        policy = self._policy(group)
        effects = policy.attach(group, self.admissions[group].share_class, now_s)
        if policy.holder == group:
            effects += _for_one(client, policy.repeated())
        return self._apply(effects)

    def claim(self, client: int, now_s: float) -> list[Effect]:
        """The process held the token when an earlier daemon ended."""
        group = self.members[client].group
        return self._apply(self._policy(group).claim(group, now_s))

    def leave(self, client: int, now_s: float) -> list[Effect]:
        """A process has ended or hung up: it launches nothing any more."""
        member = self.members.pop(client, None)
        if member is None:
            return []
        policy, group = self._policy(member.group), member.group
        if not any(self.members_of(group)):
            return self._apply(policy.detach(group, now_s))
        effects: list[Effect] = []
        if member.drain_epoch:
            effects += self._drained(group, member.drain_epoch, now_s, 0.0)
        if all(one.idle for one in self.members_of(group)):
            effects += self._apply(policy.idle(group, now_s))
        return effects

    def request(self, client: int, now_s: float) -> list[Effect]:
        """A process waits for the gate, or launches again after it was idle."""
        member = self.members[client]
        member.idle = False
        policy, group = self._policy(member.group), member.group
        holds = policy.holder == group
        effects = policy.request(group, now_s)
        return self._apply(_for_one(client, effects) if holds else effects)

    def idle(self, client: int, now_s: float) -> list[Effect]:
        """A process is idle; the job is when all of its processes are."""
        member = self.members[client]
        member.idle = True
        if not all(one.idle for one in self.members_of(member.group)):
            return []
        return self._apply(self._policy(member.group).idle(member.group, now_s))

    def released(self, client: int, epoch: int, now_s: float, *, drain_s: float) -> list[Effect]:
        """A process has drained; the job has when all of its processes have."""
        member = self.members[client]
        if member.drain_epoch != epoch:
            return []
        member.drain_epoch = 0
        return self._drained(member.group, epoch, now_s, min(drain_s, MAX_DRAIN_S))

    def _drained(self, group: str, epoch: int, now_s: float, drain_s: float) -> list[Effect]:
        if any(one.drain_epoch == epoch for one in self.members_of(group)):
            return []
        policy = self._policy(group)
        return self._apply(policy.released(group, epoch, now_s, drain_s=drain_s))

    def loading(self, client: int, epoch: int) -> None:
        """A process loads code, and cannot drain before it has: that is no fault of the job."""
        member = self.members[client]
        if epoch and member.drain_epoch == epoch:
            self._policy(member.group).loading(member.group, epoch)

    def attend(self, group: str, until_s: float, now_s: float) -> list[Effect]:
        """A job was sent a signal: see `TokenPolicy.attend`."""
        if not any(self.members_of(group)):
            return []
        return self._apply(self._policy(group).attend(group, until_s, now_s))

    def stat(self, client: int, launches: int, unhooked: int) -> None:
        """A process reports how much it has launched since its last report.

        Any number may come from a job: the sums stay within what the head can read.
        """
        group = self.members[client].group
        self.launches[group] = min(MAX_NUMBER, self.launches.get(group, 0) + launches)
        self.unhooked_symbols = min(MAX_NUMBER, max(self.unhooked_symbols, unhooked))

    # ---- time ----

    def tick(self, now_s: float) -> list[Effect]:
        """Return what the passed time has caused on all GPUs."""
        effects: list[Effect] = []
        for policy in self.policies.values():
            effects += self._apply(policy.tick(now_s))
        return effects

    def next_tick_s(self) -> float | None:
        """Return when `tick` is due."""
        due = [at for policy in self.policies.values() if (at := policy.next_tick_s()) is not None]
        return min(due) if due else None

    # ---- inside ----

    def _policy(self, group: str) -> TokenPolicy:
        return self.policies[self.admissions[group].gpu]

    def _apply(self, effects: list[Effect]) -> list[Effect]:
        """Note on the processes what the policy has decided about their job."""
        for effect in effects:
            match effect:
                case CloseGate(group, epoch):
                    for one in self.members_of(group):
                        one.drain_epoch, one.idle = epoch, False
                case OpenGate(client=client) | AskIdle(client=client) if client:
                    pass  # the others know it, and are idle or not as they were
                case OpenGate(group):
                    for one in self.members_of(group):
                        one.drain_epoch, one.idle = 0, False
                case AskIdle(group):
                    for one in self.members_of(group):
                        one.idle = False
                case SetWindow():
                    pass
        return effects


def _for_one(client: int, effects: list[Effect]) -> list[Effect]:
    """Return what the holder has been told, for a process of it that does not know it yet.

    Its other processes are not told again: each message of a job would be answered to all of them.
    """
    return [
        replace(one, client=client) if isinstance(one, OpenGate | AskIdle) else one
        for one in effects
    ]
