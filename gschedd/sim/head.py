"""A modelled head daemon: the real core, with a modelled engine: inbox, group commit, effects.

As in the daemon, nobody hears "yes" and no node hears "start" before the commit; inputs that come
during a commit share the next one. What was not committed is gone when the head is killed.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, assert_never

from gsched.model.states import NodeState
from gsched.protocol import node as n
from gsched.protocol.code import CodeWanted
from gsched.protocol.deliveries import DeliverPiece, FileDone, StagedWanted
from gsched.protocol.hosts import HostReport
from gsched.protocol.job_steps import LoginRequest, StepFailed, StepRequest
from gsched.protocol.joining import CertificateState, CertificateWanted
from gsched.protocol.relays import RelayRequest
from gsched.protocol.sessions import SessionFailed
from gsched.protocol.settings import SettingsRead
from gsched.protocol.unreadable import Unreadable
from gsched.protocol.uses import Uses
from gschedd.core.attempts.idle_gpus import concerned
from gschedd.core.cycle.rounds import Answer, Answerer, Failed, Question
from gschedd.core.head import Head
from gschedd.core.nodes.live import note_uses
from gschedd.core.requests import commands as c
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.step import NOTHING, Step
from gschedd.http.launches import BlobCache, Launches
from gschedd.sim.agenda import Agenda
from gschedd.sim.livelock import LivelockGuard

CLUSTER: Final = "sim"

Reply = Callable[[Step], None]
Input = tuple[Callable[[float], Step], Reply | None]


class Downlink(Protocol):
    """The head's end of a node's connection.

    Attributes:
        name: of the node.
        boot_id: of the node, once it has registered.
        call: which of all connections this is, in the order in which they were opened.
    """

    name: str
    boot_id: str
    call: int

    def to_node(self, message: n.HeadMessage) -> None:
        """Send a message."""

    def cut_off(self) -> None:
        """Close the connection."""


class Watcher(Protocol):
    """Who sees what a head makes durable."""

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in facts that are durable now, and the jobs that are done by them."""


class HeadProcess:
    """One head daemon, restarted whenever it was killed.

    Attributes:
        head: None while none runs.
        epoch: of the last start.
        skew_s: by how much its wall clock is ahead of the true one.
        links: connected nodes.
        on_switch: is told of nodes that are to be powered down, or up (True).

    Args:
        commit_s: how long a commit takes, seconds; None: no time at all.
        plan_s: how long the planner of a head that has one takes, seconds; None: it fails.
        livelock: looks whether the policy comes to rest at each moment.
    """

    def __init__(
        self,
        *,
        agenda: Agenda,
        watcher: Watcher,
        commit_s: Callable[[], float] | None = None,
        plan_s: Callable[[], float | None] | None = None,
        livelock: LivelockGuard | None = None,
    ) -> None:
        self.livelock = livelock
        self.head: Head | None = None
        self.epoch = 0
        self.skew_s = 0.0
        self.links: dict[str, Downlink] = {}
        self.on_switch: Callable[[str, bool], None] | None = None
        self._agenda = agenda
        self._watcher = watcher
        self._commit_s = commit_s
        self._plan_s = plan_s
        self._planner: Answerer | None = None
        self._launches: Launches | None = None
        self._inbox: list[Input] = []
        self._calls = 0
        self._newest: dict[str, int] = {}
        self._pending: tuple[Sequence[f.AnyFact], dict[int, Job]] | None = None
        self._rest: tuple[float, str, float | None] | None = None

    # --- life ---

    def start(self, head: Head) -> None:
        """Start a daemon on what was durable."""
        assert self.head is None, "one head works on a state"
        self.epoch += 1
        self.head, self._rest = head, None
        self._planner = None if head.rounds is None else Answerer(head.rounds.policy)
        self._launches = Launches(
            state=head.state, blobs=BlobCache(_no_blob), server=head.settings.server
        )
        self._commit(list(head.begin(self.wall_s())), [])

    def kill(self, *, commit_kept: bool = False) -> None:
        """Kill the daemon: all that is not durable is gone, and every connection.

        Args:
            commit_kept: whether a commit that was under way reached the disk.
        """
        if self._pending is not None and commit_kept:
            facts, done = self._pending
            self._watcher.committed(facts, done.values())
        self.head = self._launches = self._pending = None
        self.links.clear()
        self._inbox.clear()

    @property
    def pending_done(self) -> Collection[int]:
        """Return the jobs that are done by facts which are not durable yet."""
        return self._pending[1].keys() if self._pending is not None else ()

    def wall_s(self) -> float:
        """Return the time as the head's clock shows it, seconds since the epoch."""
        return self._agenda.now_s + self.skew_s

    # --- inputs ---

    def ask(self, command: c.AnyCommand, reply: Reply | None = None) -> None:
        """Take a command; the reply comes when its facts are durable, or never."""
        head = self.head
        if head is not None:
            self._inbox.append((lambda now_s: head.command(command, now_s), reply))

    def offer(self, link: Downlink) -> n.Challenge | None:
        """Answer a node's call; None if no head runs."""
        if self.head is None:
            return None
        self._calls += 1
        link.call = self._calls
        return n.Challenge(version=n.PROTOCOL_VERSION, cluster=CLUSTER, epoch=self.epoch)

    def hear(  # noqa: C901 # one line a message
        self, link: Downlink, message: n.NodeMessage
    ) -> None:
        """Take in a message of a node."""
        head, name = self.head, link.name
        if head is None:
            return
        match message:
            case (
                n.Started()
                | n.Prepared()
                | n.Exited()
                | n.Checkpointed()
                | n.CheckpointFailed()
                | n.TrainingProgress()
                | StepRequest()
                | StepFailed()
                | LoginRequest()
            ):
                report = message
                self._inbox.append((lambda now_s: head.reported(name, report, now_s), None))
            case n.Heartbeat():
                head.note_load(name, message.load, self.wall_s())
                problem = message.problem
                if problem != head.state.nodes[name].problem:
                    self._inbox.append((lambda now_s: head.has_problem(name, problem, now_s), None))
            case Uses():
                note_uses(head.state, name, message, self.wall_s())
                jobs = concerned(head.state, head.settings, message)
                if jobs:
                    self._inbox.append((lambda now_s: head.answer_idle_gpus(jobs, now_s), None))
            case n.Register():
                self._admit(head, link, message)
            case n.Probed():
                answer = message
                self._inbox.append((lambda now_s: head.probed(name, answer, now_s), None))
            case n.Renew():
                self._renew(head, link, message)
            case n.UnknownAttempt():
                head.oddities["unknown_attempt"] += 1
            case (
                n.Hello()
                | n.OutputRead()
                | n.KnownAttempts()
                | n.Pong()
                | CertificateState()
                | CertificateWanted()
                | SessionFailed()
                | RelayRequest()
                | HostReport()
                | SettingsRead()
                | CodeWanted()
                | DeliverPiece()
                | StagedWanted()
                | FileDone()
                | Unreadable()
            ):
                pass
            case _:
                assert_never(message)

    def _renew(self, head: Head, link: Downlink, message: n.Renew) -> None:
        node = head.state.nodes.get(link.name)
        is_up = node is not None and node.state is NodeState.UP
        if is_up and self.links.get(link.name) is link:
            link.to_node(n.Renewed(number=message.number))

    def _admit(self, head: Head, link: Downlink, registration: n.Register) -> None:
        """Let a node in, by the rules of the node channel."""
        if link.call < self._newest.get(link.name, 0):
            link.cut_off()
            return
        present = self.links.get(link.name)
        if present is not None and present.boot_id != registration.boot_id:
            link.cut_off()
            return
        if present is not None and present is not link:
            present.cut_off()
        link.boot_id = registration.boot_id
        self.links[link.name] = link
        self._newest[link.name] = link.call
        link.to_node(n.Welcome(cluster=CLUSTER, epoch=self.epoch))
        self._inbox.append((lambda now_s: head.registered(link.name, registration, now_s), None))

    def lost(self, link: Downlink, reason: str) -> None:
        """Notice that a connection is gone."""
        head = self.head
        if head is None or self.links.get(link.name) is not link:
            return
        del self.links[link.name]
        self._inbox.append((lambda now_s: head.disconnected(link.name, reason, now_s), None))

    # --- the engine ---

    def next_alarm_s(self) -> float | None:
        """Return when `pump` has something to do although nothing came, on the true clock."""
        head = self.head
        if head is None or self._pending is not None:
            return None
        rest = self._rest
        if rest is None or rest[:2] != (self.skew_s, head.safe_mode):
            rest = self._rest = (self.skew_s, head.safe_mode, self._alarm_s(head))
        return rest[2]

    def _alarm_s(self, head: Head) -> float | None:
        """Return the same; it stays so until `pump` has something to do."""
        alarm_s, expiry_s = head.next_alarm_s(), head.next_expiry_s()
        if alarm_s is None:
            return expiry_s
        alarm_s -= self.skew_s
        return alarm_s if expiry_s is None else min(alarm_s, expiry_s)

    def pump(self) -> bool:
        """Work on what there is; return whether there was anything."""
        head = self.head
        if head is None:
            return False
        if head.rounds is not None and (question := head.take_question()) is not None:
            self._rest = None
            self._ask_planner(question)
            return True
        if self._pending is not None or self._is_resting(head):
            return False
        now_s = self.wall_s()
        is_due = self._is_due(head, now_s) and not self._awaits_cycle(head, now_s)
        self._rest = None
        if self._inbox or is_due:
            inbox, self._inbox = self._inbox, []
            steps = [head.tick(now_s)] if is_due else []
            steps.append(head.expire_leases(now_s, self._agenda.now_s))
            replies: list[tuple[Reply, Step]] = []
            for action, reply in inbox:
                step = action(now_s)
                steps.append(step)
                if reply is not None:
                    replies.append((reply, step))
            self._commit(steps, replies)
            return True
        if head.state.dirty.any and not head.safe_mode:
            step = head.cycle(now_s)
            if self.livelock is not None:
                self.livelock.check(self._agenda.now_s, head.cycles, head.state.jobs, step.facts)
            self._commit([step], [])
            return True
        return False

    def _is_resting(self, head: Head) -> bool:
        """Return whether nothing has come and no time is over: so it is at most moments."""
        if self._inbox or head.state.dirty.any:
            return False
        alarm_s = self.next_alarm_s()
        return alarm_s is None or alarm_s > self._agenda.now_s

    def _ask_planner(self, question: Question) -> None:
        """Have a question answered after a while, on a copy, as in another process."""
        plan_s = self._plan_s() if self._plan_s is not None else 0.0
        if plan_s is None:
            lost = Failed(number=question.number, why="the planner was killed")
            self._inbox.append((partial(self._answer, self.epoch, lost), None))
        else:
            self._agenda.after(plan_s, self._think, self.epoch, question)

    def _think(self, epoch: int, question: Question) -> None:
        if self.head is None or self._planner is None or epoch != self.epoch:
            return
        answer = self._planner.answer(question)
        self._inbox.append((partial(self._answer, epoch, answer), None))

    def _answer(self, epoch: int, answer: Answer, now_s: float) -> Step:
        if self.head is None or epoch != self.epoch:
            return NOTHING
        return self.head.answered(answer, now_s)

    def _awaits_cycle(self, head: Head, now_s: float) -> bool:
        """Return whether the cycle that follows does what power saving has to do by now."""
        power_s = head.power.next_due_s(head.settings)
        return head.state.dirty.any and power_s is not None and power_s <= now_s

    def _is_due(self, head: Head, now_s: float) -> bool:
        if not self.skew_s:  # then it is known, unless something was just done
            rest_s = self.next_alarm_s()
            return rest_s is not None and rest_s <= now_s
        alarm_s, expiry_s = head.next_alarm_s(), head.next_expiry_s()
        if expiry_s is not None and expiry_s <= self._agenda.now_s:
            return True
        return alarm_s is not None and alarm_s <= now_s

    def _commit(self, steps: Sequence[Step], replies: Sequence[tuple[Reply, Step]]) -> None:
        head = self.head
        assert head is not None, "only a running head commits"
        facts = [fact for step in steps for fact in step.facts]
        if facts:
            state = head.state
            done, state.unstored.finished = state.unstored.finished, {}
            state.unstored.forget_records()
        else:
            done = {}
        if facts and self._commit_s is not None:
            self._pending = (facts, done)
            delay_s = self._commit_s()
            arguments = (self.epoch, facts, done, steps, replies)
            self._agenda.after(delay_s, self._committed, *arguments)
        else:
            self._finish(facts, done, steps, replies)

    def _committed(
        self,
        epoch: int,
        facts: Sequence[f.AnyFact],
        done: dict[int, Job],
        steps: Sequence[Step],
        replies: Sequence[tuple[Reply, Step]],
    ) -> None:
        if self.head is not None and epoch == self.epoch:
            self._pending = None
            self._finish(facts, done, steps, replies)

    def _finish(
        self,
        facts: Sequence[f.AnyFact],
        done: dict[int, Job],
        steps: Sequence[Step],
        replies: Sequence[tuple[Reply, Step]],
    ) -> None:
        if facts:
            self._watcher.committed(facts, done.values())
        for reply, step in replies:
            reply(step)
        links = self.links
        for step in steps:
            for effect in step.effects:
                link = links.get(effect.node)
                if isinstance(effect, e.SwitchPower):
                    if self.on_switch is not None:
                        self.on_switch(effect.node, effect.up)
                    continue
                if link is None:
                    continue
                if isinstance(effect, e.SendLaunch | e.SendPrepare):
                    message: n.HeadMessage | None = self._launch(effect)
                else:
                    message = effect.message
                if message is not None:
                    link.to_node(message)

    def _launch(self, effect: e.SendLaunch | e.SendPrepare) -> n.Launch | n.Prepare | None:
        assert self._launches is not None, "a running head can launch"
        return self._launches.order(effect)


def _no_blob(digest: str) -> bytes:
    raise AssertionError(f"jobs of the simulator have no script: {digest}")
