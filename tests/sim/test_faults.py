"""Everything fails, from printed seeds: the invariants hold, and broken daemons are caught.

A seed that fails is the whole story: ``scripts/sim-faults --seeds N`` tells it again.
"""

from collections.abc import Iterable

import pytest
from msgspec import structs

from gnode.core.inputs import HeadOrder, Input, LaunchOrder, SpoolFound
from gsched.model.arrays import take
from gsched.model.resources import Share
from gsched.protocol import node as n
from gsched.protocol.job_steps import StepReport
from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.core.state.lost import lost_parts
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.plan.snapshot import Policy
from gschedd.sim.head import HeadProcess
from gschedd.sim.node import NodeProcess
from tests.fault_world.world import FaultWorld, HeadFactory, is_caught
from tests.support.orders import order_of

KINDS_SEEDS = 10  # the first ones: in them all kinds of faults happen
SEEDS = 30
SWEPT_SEEDS = 70
#: Seeds that have found something, with what that was.
FOUND = {
    1273: "a registration that was held up replaced a newer one: a job that ran seemed lost",
}
CANARY_SEEDS = 20  # among so many, each broken daemon must be caught


@pytest.mark.parametrize(
    "seed",
    [
        *range(KINDS_SEEDS, SEEDS),
        *FOUND,
        *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(SEEDS, SWEPT_SEEDS)),
    ],
)
def test_guarantees_hold_whatever_fails(seed: int) -> None:
    """First faults, then healing: nothing is lost, doubled, overbooked, or left behind."""
    live(FaultWorld(seed))


def live(world: FaultWorld) -> None:
    """Let a world live to its end."""
    story = world.run()

    assert story.jobs >= 15
    assert story.attempts > 0


def test_the_same_seed_tells_the_same_story() -> None:
    """To the last event, and another seed another one."""
    first, again, other = (FaultWorld(seed) for seed in (3, 3, 4))

    assert first.run() == again.run()
    assert first.history.facts == again.history.facts
    assert first.run != other.run
    other.run()
    assert other.history.facts != first.history.facts


def test_all_kinds_of_faults_happen() -> None:
    """Guarantees hold; and late and repeated reports are among what the head met."""
    worlds = [FaultWorld(seed) for seed in range(KINDS_SEEDS)]
    for world in worlds:
        live(world)

    happened = {name for world in worlds for name, count in world.faults.items() if count}
    assert happened == {
        "kill_head", "kill_gnode", "kill_launcher", "lose_power", "cut_both", "cut_one_way",
        "break_connection", "slow_network", "jump_clock", "meddle",
        "kill_head_in_commit", "kill_at_launch", "kill_at_end",
    }  # fmt: skip
    kinds = {type(fact) for world in worlds for fact in world.history.facts}
    assert {f.ElementsMade, f.ElementsDropped, f.ElementsHeld, f.ElementsReleased} <= kinds
    assert {f.JobRequeued, f.StopRequested, f.NodeDisconnected, f.JobAltered, f.JobHeld} <= kinds
    assert sum(world.oddities["exit_again"] for world in worlds) > 0


# --- broken daemons: each breaks one guarantee, and must be caught ---


class Overbooking(Head):
    """Starts every waiting job on the first node that is up, whatever is free there."""

    def cycle(self, now_s: float) -> Step:
        """Ignore what policy and validation say."""
        self.state.dirty.any = False
        names = [name for name, space in self.state.spaces.items() if space.open]
        waiting = [
            key[1] for group in self.state.groups.values() for key in self.state.ordered(group)
        ]
        if not names:
            return Step()
        return self._advance(
            [
                f.AttemptAssigned(
                    at_s=now_s,
                    job=job,
                    attempt=self.state.jobs[job].attempts + 1,
                    allocation=(Share(node=names[0], cpus=1, gpu_indices=(0,)),),
                    active=(names[0],),
                    master_port=0,
                    why="there is always room",
                )
                for job in waiting
            ],
            "cycle",
        )


class Quietly(Overbooking):
    """Overbooks CPUs only, and its books say that all is well: only the machines know better."""

    def _advance(self, facts: Iterable[f.AnyFact], cause: str, *, follows: bool = True) -> Step:
        step = super()._advance(facts, cause, follows=follows)
        for name, space in self.state.spaces.items():
            total = structs.replace(space, cpus=max(space.cpus, 64), total_cpus=space.total_cpus)
            self.state.spaces[name] = total
        return step


class MakesAgain(Head):
    """Leaves the first element that became a job among those that are to become one."""

    def _advance(self, facts: Iterable[f.AnyFact], cause: str, *, follows: bool = True) -> Step:
        step = super()._advance(facts, cause, follows=follows)
        for fact in step.facts:
            array = self.state.jobs.get(fact.job) if isinstance(fact, f.ElementsMade) else None
            if array is None or array.elements is None or not isinstance(fact, f.ElementsMade):
                continue
            again, _ = take(fact.elements, 1)
            left = (*again, *array.elements.left)
            array.elements = structs.replace(array.elements, left=left)
        return step


class ForgetsElements(Head):
    """Takes an array to be over when a hold is put on some of its elements: they are lost."""

    def _advance(self, facts: Iterable[f.AnyFact], cause: str, *, follows: bool = True) -> Step:
        step = super()._advance(facts, cause, follows=follows)
        for fact in step.facts:
            array = self.state.jobs.get(fact.job) if isinstance(fact, f.ElementsHeld) else None
            if array is not None and array.elements is not None:
                array.elements = structs.replace(array.elements, held=())
        return step


class Impatient(Head):
    """Takes a node that it cannot hear for dead, and starts its jobs elsewhere."""

    def disconnected(self, node: str, reason: str, now_s: float) -> Step:
        """End all that ran there."""
        step = super().disconnected(node, reason, now_s)
        facts = lost_parts(self.state, node, now_s=now_s, message="it says nothing")
        more = self._advance(facts, "closed channel")
        return Step(facts=step.facts + more.facts, effects=step.effects + more.effects)


class Deaf(Head):
    """Does not acknowledge exits, so that nodes keep them for ever."""

    def reported(self, node: str, report: n.AttemptMessage | StepReport, now_s: float) -> Step:
        """Forget the acknowledgement."""
        step = super().reported(node, report, now_s)
        effects = tuple(each for each in step.effects if not isinstance(order_of(each), n.ExitAck))
        return structs.replace(step, effects=effects)

    def registered(self, node: str, said: n.Register, now_s: float) -> Step:
        """Forget it here, too."""
        step = super().registered(node, said, now_s)
        effects = tuple(each for each in step.effects if not isinstance(order_of(each), n.ExitAck))
        return structs.replace(step, effects=effects)


class Hasty(HeadProcess):
    """Says "yes" and sends orders before anything is durable."""

    def _commit(self, steps: object, replies: object) -> None:
        real, self._commit_s = self._commit_s, None
        watcher, self._watcher = self._watcher, _Nobody()
        self._finish([], {}, steps, replies)  # type: ignore[arg-type] # as they came
        self._watcher, self._commit_s = watcher, real
        quiet = [structs.replace(step, effects=()) for step in steps]  # type: ignore[attr-defined] # a list of steps
        super()._commit(quiet, [])


class _Nobody:
    def committed(self, facts: object, done: object) -> None:
        """Look away."""


class Forgetful(NodeProcess):
    """Does not look into its spool when it starts."""

    def post(self, event: Input) -> None:
        """Find nothing there."""
        super().post(SpoolFound(found=()) if isinstance(event, SpoolFound) else event)


class Obedient(NodeProcess):
    """Takes every stop for one of an attempt that it had: no tombstones for what comes late."""

    def post(self, event: Input) -> None:
        """Pass over stops of what is not known."""
        if isinstance(event, HeadOrder) and isinstance(event.message, n.StopAttempt):
            known = self.agent.attempts if self.agent is not None else {}
            if (event.message.job, event.message.attempt) not in known:
                return
        super().post(event)


class Restarting(NodeProcess):
    """Remembers no attempt that is over: a late launch of one starts it again."""

    def post(self, event: Input) -> None:
        """Forget which attempts were the last ones, and those that are over."""
        if isinstance(event, LaunchOrder) and self.agent is not None:
            table = self.agent._table
            table.latest.clear()
            for key in [key for key, attempt in table.attempts.items() if not attempt.live]:
                del table.attempts[key]
                self.machine.spool.remove(key)
            table.removals.clear()
        super().post(event)


def head_of(kind: type[Head]) -> HeadFactory:
    """Return what makes heads of a kind."""

    def make(state: State, settings: Settings, policy: Policy) -> Head:
        return kind(state=state, settings=settings, policy=policy)

    return make


def caught(
    numbers: set[str],
    *,
    head: type[Head] = Head,
    daemon: type[HeadProcess] = HeadProcess,
    node: type[NodeProcess] = NodeProcess,
) -> bool:
    """Whether one of these guarantees is found broken in one of the seeds."""

    def make(seed: int) -> FaultWorld:
        return FaultWorld(seed, make_head=head_of(head), daemon=daemon, node=node)

    return is_caught(make, range(CANARY_SEEDS), numbers)


@pytest.mark.parametrize(
    ("head", "numbers"),
    [
        (Overbooking, {"I6"}),
        (Quietly, {"I6", "I13"}),
        (Impatient, {"I4", "I7"}),
        (Deaf, {"I14"}),
        (MakesAgain, {"I1", "I3"}),
        (ForgetsElements, {"I1"}),
    ],
)
def test_a_broken_head_is_caught(head: type[Head], numbers: set[str]) -> None:
    """By the guarantee that it breaks."""
    assert caught(numbers, head=head)


def test_a_head_that_answers_before_it_commits_is_caught() -> None:
    """An acknowledged job is lost, or an attempt runs that was never durable."""
    assert caught({"I1", "I2", "I3"}, daemon=Hasty)


@pytest.mark.parametrize(
    ("node", "numbers"),
    [(Forgetful, {"I4", "I7", "I8"}), (Obedient, {"I11", "I3"}), (Restarting, {"I3", "I5", "I7"})],
)
def test_a_broken_node_is_caught(node: type[NodeProcess], numbers: set[str]) -> None:
    """By the guarantee that it breaks."""
    assert caught(numbers, node=node)
