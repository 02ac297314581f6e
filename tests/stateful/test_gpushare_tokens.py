"""The token of a shared GPU under arbitrary jobs, processes and times: no sockets, no clock."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnode.gpushare.node_tokens import Admission, NodeTokens, hash_of
from gnode.gpushare.token_model import (
    AskIdle,
    CloseGate,
    Effect,
    OpenGate,
    SetWindow,
    TokenGroup,
    TokenSettings,
)
from gnode.gpushare.token_policy import TokenPolicy
from gsched.model.states import ShareClass

GROUPS = ("high", "low1", "low2", "low3")
DRAIN_MAX_S = 0.5
QUIET_S = 1.0


class Tokens(RuleBasedStateMachine):
    """One high and three low jobs with up to three processes each, on one GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.tokens = NodeTokens(TokenSettings(drain_max_s=DRAIN_MAX_S, overlaps_max=2))
        self.open: set[str] = set()
        self.closed_at_s: dict[str, float] = {}
        self.asked: set[str] = set()
        self.windows: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.rated_until_s: dict[str, float] = {}
        self.attended_until_s: dict[str, float] = {}
        self.clients = 0

    @initialize(restarted=st.booleans())
    def begin(self, *, restarted: bool) -> None:
        """A daemon that was restarted waits for claims."""
        self.tokens.quiet_until_s = self.now_s + QUIET_S if restarted else 0.0
        for group in GROUPS:
            self.tokens.admit(
                Admission(
                    group=group,
                    gpu="GPU-1",
                    share_class=ShareClass.HIGH if group == "high" else ShareClass.LOW,
                    memory_bytes=1,
                    secret_hash=hash_of(group),
                )
            )

    @property
    def policy(self) -> TokenPolicy:
        """Return the policy of the only GPU."""
        return self.tokens.policies["GPU-1"]

    def obey(self, effects: list[Effect]) -> None:
        """Do to the gates what the daemon would."""
        for effect in effects:
            match effect:
                case OpenGate(group, epoch):
                    repeated = group in self.open and epoch == self.epochs[group]
                    assert repeated or epoch > max(self.epochs.values(), default=0)
                    self.asked.discard(group)  # a process that is told so watches no longer
                    self.epochs[group] = epoch
                    self.open.add(group)
                    self.closed_at_s.pop(group, None)
                case CloseGate(group, epoch):
                    assert group in self.open
                    assert epoch == self.epochs[group]
                    self.open.discard(group)
                    if any(self.tokens.members_of(group)):
                        self.closed_at_s[group] = self.now_s
                    self.asked.discard(group)
                case AskIdle(group):
                    self.asked.add(group)
                case SetWindow(group, window):
                    self.windows[group] = window
        beside = self.open & set(self.policy.concurrent)
        assert len(self.open - beside) <= 1, "two jobs hold the token"
        settings = self.tokens.settings
        slice_s = settings.opportunistic_fraction * settings.opportunistic_period_s
        for group in beside:
            until_s = self.rated_until_s.setdefault(group, self.now_s + slice_s)
            assert self.now_s <= max(until_s, self.attended_until_s.get(group, 0.0))
        for group in set(self.rated_until_s) - beside:
            del self.rated_until_s[group]
        rated = beside - {one for one, at in self.attended_until_s.items() if at > self.now_s}
        assert len(rated) <= 1, "low jobs have one rate together"

    def a_client(self, data: st.DataObject) -> int:
        """Return one of the connected processes."""
        return data.draw(st.sampled_from(sorted(self.tokens.members)))

    @rule(group=st.sampled_from(GROUPS), claims=st.booleans())
    def joins(self, group: str, *, claims: bool) -> None:
        """A process connects; after a restart it may claim the token."""
        if sum(1 for _ in self.tokens.members_of(group)) >= 3:
            return
        self.clients += 1
        self.obey(self.tokens.join(self.clients, self.clients, group, self.now_s))
        if claims and self.now_s < self.tokens.quiet_until_s:
            self.obey(self.tokens.claim(self.clients, self.now_s))

    @precondition(lambda self: self.tokens.members)
    @rule(data=st.data())
    def requests(self, data: st.DataObject) -> None:
        """A process waits at its gate, or is busy again."""
        self.obey(self.tokens.request(self.a_client(data), self.now_s))

    @precondition(lambda self: self.tokens.members)
    @rule(data=st.data())
    def is_idle(self, data: st.DataObject) -> None:
        """A process tells that it is idle, as it does when it was asked."""
        client = self.a_client(data)
        if self.tokens.members[client].group in self.asked:
            self.obey(self.tokens.idle(client, self.now_s))

    @precondition(lambda self: self.tokens.members)
    @rule(data=st.data(), drain_s=st.floats(0, 0.1), stale=st.booleans())
    def drains(self, data: st.DataObject, drain_s: float, *, stale: bool) -> None:
        """A process answers a closed gate, or sends an answer that is too old."""
        client = self.a_client(data)
        member = self.tokens.members[client]
        epoch = member.drain_epoch
        if stale or not epoch:
            self.obey(self.tokens.released(client, max(0, epoch - 1), self.now_s, drain_s=0.0))
            return
        self.obey(self.tokens.released(client, epoch, self.now_s, drain_s=drain_s))
        if not any(one.drain_epoch == epoch for one in self.tokens.members_of(member.group)):
            self.closed_at_s.pop(member.group, None)

    @precondition(lambda self: self.tokens.members)
    @rule(data=st.data(), current=st.booleans())
    def loads(self, data: st.DataObject, *, current: bool) -> None:
        """A process tells that its drain waits for code, or it lies."""
        client = self.a_client(data)
        epoch = self.tokens.members[client].drain_epoch if current else 1
        self.tokens.loading(client, epoch)

    @rule(group=st.sampled_from(GROUPS), seconds=st.sampled_from([0.01, 1.0, 5.0]))
    def is_sent_a_signal(self, group: str, seconds: float) -> None:
        """Its launches pass for some time, whoever holds the token."""
        until_s = self.now_s + seconds
        if any(self.tokens.members_of(group)):
            before_s = self.attended_until_s.get(group, 0.0)
            self.attended_until_s[group] = max(before_s, until_s)
        self.obey(self.tokens.attend(group, until_s, self.now_s))
        assert group in self.open or not any(self.tokens.members_of(group))

    @precondition(lambda self: self.tokens.members)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        """A process is killed; what it held is free at once."""
        client = self.a_client(data)
        group = self.tokens.members[client].group
        last = sum(1 for _ in self.tokens.members_of(group)) == 1
        before_s = sum(one.held_s for one in self.policy.groups.values())
        usage = self.policy.holder == group or self.policy.draining == group
        self.obey(self.tokens.leave(client, self.now_s))
        if last:
            self.open.discard(group)
            self.closed_at_s.pop(group, None)
            self.attended_until_s.pop(group, None)
            after_s = sum(one.held_s for one in self.policy.groups.values())
            assert after_s <= before_s + 1e-6
            assert group not in {self.policy.holder, self.policy.draining}, usage

    @rule(elapsed_s=st.sampled_from([0.001, 0.02, 0.06, 0.2, 0.6, 3.0]))
    def time_passes(self, elapsed_s: float) -> None:
        """The daemon wakes up whenever the policy wants, and at the end."""
        end_s = self.now_s + elapsed_s
        for _ in range(1000):
            due_s = self.tokens.next_tick_s()
            if due_s is None or due_s > end_s:
                break
            self.now_s = max(self.now_s, due_s)
            self.obey(self.tokens.tick(self.now_s))
            again_s = self.tokens.next_tick_s()
            assert again_s is None or again_s > self.now_s, "the daemon would spin"
        self.now_s = end_s
        self.obey(self.tokens.tick(self.now_s))

    def has_high(self) -> bool:
        """Return whether a high job is connected that has not been demoted."""
        high = self.policy.groups.get("high")
        return high is not None and not high.demoted

    def may_run(self, one: TokenGroup) -> bool:
        """Return whether a job waits that may get the token."""
        return one.wants_since_s is not None and not (one.demoted and self.has_high())

    @invariant()
    def a_demoted_job_has_not_drained_in_time(self) -> None:
        """Twice in a row, and it runs beside no high job."""
        for one in self.policy.groups.values():
            assert not one.demoted or one.overlaps >= 2

    @invariant()
    def one_holder(self) -> None:
        """Gates are as the policy says, and only those of jobs that are connected."""
        holder = self.policy.holder if self.tokens.policies else None
        beside = set(self.policy.concurrent) if self.tokens.policies else set()
        assert self.open == beside | ({holder} if holder is not None else set())
        assert holder not in beside
        assert self.open <= set(self.policy.groups)

    @invariant()
    def high_waits_for_no_slice(self) -> None:
        """A low job loses its gate at once, and a drain that lasts too long does not matter."""
        high = self.policy.groups.get("high")
        if high is None or high.wants_since_s is None or self.now_s < self.tokens.quiet_until_s:
            return
        if high.demoted:
            return
        assert self.policy.holder is None
        draining = self.policy.draining
        if "high" not in self.closed_at_s:
            assert draining is not None
            assert self.now_s - self.closed_at_s[draining] <= DRAIN_MAX_S + 1e-9

    @invariant()
    def somebody_holds_if_somebody_waits(self) -> None:
        """The GPU is never left idle while a job that may run waits."""
        if self.now_s < self.tokens.quiet_until_s or self.policy.draining is not None:
            return
        waiting = {one.name for one in self.policy.groups.values() if self.may_run(one)}
        assert not waiting or self.policy.holder is not None

    @invariant()
    def a_holder_knows_that_somebody_waits(self) -> None:
        """Or it would keep the token while it is idle."""
        holder = self.policy.holder if self.tokens.policies else None
        waiting = [
            one.name
            for one in self.policy.groups.values()
            if self.may_run(one) and one.name != holder
        ]
        assert holder is None or not waiting or holder in self.asked

    @invariant()
    def usage_is_conserved(self) -> None:
        """What a job was charged is at most the time that has passed."""
        known = {**self.policy.groups, **self.policy.gone} if self.tokens.policies else {}
        for name in known:
            assert self.policy.held_s(name, self.now_s) <= self.now_s - 100.0 + 1e-6

    @invariant()
    def windows_are_limited_beside_a_high_job(self) -> None:
        """And only then, and only for low jobs."""
        has_high = self.has_high()
        for group in self.policy.groups:
            window = self.windows.get(group, 0)
            assert (1 <= window <= 64) if has_high and group != "high" else window == 0


TestTokens = Tokens.TestCase
