"""Running trainings go on elsewhere: what a policy proposes, and whatever comes in between."""

from msgspec import structs

from gsched.model.job import Outcome
from gsched.model.resources import Allocation, Share
from gsched.model.states import OutcomeKind, StopReason
from gschedd.core import commands as c
from gschedd.core import facts as f
from gschedd.core.state import State
from gschedd.plan.snapshot import Move, Plan, Snapshot
from gschedd.policies import fifo
from tests.support.world import ADMIN, ALICE, Program, World, node


class Mover:
    """First come first served, and the moves that a story wants, once."""

    def __init__(self) -> None:
        self.wanted: tuple[Move, ...] = ()

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan, wanted = fifo.plan(snapshot), self.wanted
        self.wanted = ()
        return structs.replace(plan, moves=wanted)


def gpus(name: str, *indices: int) -> Allocation:
    """Return an allocation of GPUs, with a CPU for each."""
    count = len(indices)
    return (Share(node=name, cpus=count, slots=count, gpu_indices=indices),)


class Story(World):
    """A world of two nodes with four GPUs each, whose trainings can be moved."""

    def __init__(self) -> None:
        self.mover = Mover()
        super().__init__(node("a", cpus=8, gpus=4), node("b", cpus=8, gpus=4), policy=self.mover)

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_goals=True)

    def training(self, count: int = 2, most: int = 0, **changes: object) -> int:
        """Submit a training on so many GPUs of one node, by best fit."""
        resources = f"select={count}:ncpus=1:ngpus=1,place={'free' if most else 'pack'}"
        changes = {"runs_s": 1000.0, "deadline_after_s": 1e6, **changes}
        return self.submit(resources, movable=True, places_max=most, **changes)  # type: ignore[arg-type] # passed on

    def move(self, *moves: tuple[int, Allocation]) -> None:
        """Let the policy propose moves, all at once."""
        self.mover.wanted = tuple(Move(job=job, allocation=to, why="room") for job, to in moves)
        self.head.state.look_anew()
        self.settle()

    def outcome(self, job: int) -> Outcome:
        """Return how a job ended that is done."""
        outcome = self.done[job].outcome
        assert outcome is not None, "a job that is done has its outcome"
        return outcome

    def place(self, job: int) -> Allocation:
        """Return what a job owns."""
        attempt = self.job(job).attempt
        return attempt.allocation if attempt is not None else ()


def test_a_job_goes_on_on_another_node() -> None:
    """It is stopped, its old place is free again, and its next attempt runs at the new one."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    assert story.place(job) == gpus("a", 0, 1)

    story.move((job, gpus("b", 2, 3)))

    assert story.state(job) == "migrating"
    stopped = story.told(f.StopRequested, job)
    assert [fact.reason for fact in stopped] == [StopReason.MOVE]  # type: ignore[attr-defined] # of that kind
    story.run_for(5.0)
    assert story.state(job) == "running"
    assert story.place(job) == gpus("b", 2, 3)
    assert story.job(job).attempts == 2
    assert story.job(job).moves == 1
    assert len(story.head.state.spaces["a"].gpus) == 4


def test_two_jobs_change_places() -> None:
    """Each waits for the other one to leave; neither waits for ever."""
    story = Story()
    first, second = story.training(4), story.training(4)
    story.run_for(5.0)

    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.run_for(10.0)

    assert story.place(first) == gpus("b", 0, 1, 2, 3)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)


def test_a_job_grows_over_what_it_has() -> None:
    """Its own GPUs are among those that it goes to."""
    story = Story()
    job = story.training(1, most=4)
    story.run_for(5.0)

    story.move((job, gpus("a", 0, 1, 2, 3)))
    story.run_for(5.0)

    assert story.place(job) == gpus("a", 0, 1, 2, 3)
    assert story.head.state.spaces["a"].cpus == 4


def test_what_a_moving_job_goes_to_is_for_nobody_else() -> None:
    """A job that comes while it is on its way waits, or takes what is left beside it."""
    story = Story()
    job = story.training(2, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))

    whole = story.training(4)
    half = story.training(2)
    story.run_for(1.0)

    assert story.state(job) == "migrating"
    assert story.state(whole) == "queued"
    assert story.state(half) in {"running", "queued"}
    story.run_for(60.0)
    assert story.place(job) == gpus("b", 0, 1)
    assert story.place(whole) == gpus("a", 0, 1, 2, 3)


def test_moves_are_made_all_or_none() -> None:
    """One that would not fit keeps the others from leaving their places, and is counted."""
    story = Story()
    first, second, third = story.training(4), story.training(2), story.training(2)
    story.run_for(5.0)

    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1)))

    assert {story.state(job) for job in (first, second, third)} == {"running"}
    assert story.head.oddities["moves_refused"] == 1


def test_what_cannot_be_moved_is_not() -> None:
    """Neither a job that does not say so, nor one that is being stopped."""
    story = Story()
    rigid = story.submit("select=1:ncpus=1:ngpus=1", runs_s=1000.0)
    going = story.training(1, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.delete(going)

    for job in (rigid, going):
        before = story.head.oddities["moves_refused"]
        story.move((job, gpus("b", 0)))
        assert story.head.oddities["moves_refused"] == before + 1
    assert story.state(rigid) == "running"


def test_a_delete_wins() -> None:
    """While the old attempt ends, and while the new place is not free yet."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.delete(job)
    story.run_for(5.0)
    assert story.outcome(job).kind is OutcomeKind.CANCELLED

    first = story.training(4)
    second = story.training(4, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.run_for(2.0)
    assert story.state(first) == "migrating"
    assert story.place(first) == ()

    story.delete(first)

    assert story.outcome(first).message == "deleted by alice while it moved"
    story.run_for(60.0)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)
    assert len(story.head.state.spaces["b"].gpus) == 4


def test_a_job_that_ends_meanwhile_is_done() -> None:
    """The order to stop comes too late: it has done its work, and its new place is free."""
    story = Story()
    job = story.training(runs_s=20.0)
    story.run_for(5.0)
    story.machines["a"].connected = False  # the order does not reach it
    story.move((job, gpus("b", 0, 1)))
    story.run_for(30.0)
    story.connect("a")
    story.run_for(5.0)

    assert story.outcome(job).succeeded
    assert len(story.head.state.spaces["b"].gpus) == 4


def test_a_held_job_goes_to_its_queue_instead() -> None:
    """Its new place is given up when it has left the old one."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.hold(job)
    story.run_for(5.0)

    assert story.state(job) == "held"
    assert len(story.head.state.spaces["b"].gpus) == 4
    story.release(job)
    story.run_for(1.0)
    assert story.state(job) == "running"


def test_a_new_place_that_is_gone_is_not_waited_for() -> None:
    """The node dies before the job is there, or is drained: it goes to its queue and on from it."""
    for story, lose in ((Story(), True), (Story(), False)):
        first = story.training(4)
        second = story.training(4, program=Program(runs_s=1000.0, ignores_term=True))
        story.run_for(5.0)
        story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
        story.run_for(2.0)
        assert story.place(first) == ()

        if lose:
            story.disconnect("b")
        else:
            story.do(c.DrainNode(caller=ADMIN, node="b", reason="smoke"))

        assert story.state(first) == "queued"
        story.run_for(1.0)
        assert story.state(second) == "migrating"


def test_a_head_that_is_started_anew_goes_on_with_the_moves() -> None:
    """Whether the old attempt still runs, or has ended already."""
    story = Story()
    first = story.training(4)
    second = story.training(4, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.restart_head()
    story.run_for(2.0)
    assert story.place(first) == ()
    story.restart_head()
    story.run_for(60.0)

    assert story.place(first) == gpus("b", 0, 1, 2, 3)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)
    story.check_history()


def test_rerun_calls_a_move_off() -> None:
    """It is queued again, and starts wherever there is room."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))

    story.do(c.RerunJob(caller=ALICE, job=job))
    story.run_for(5.0)

    assert story.state(job) == "running"
    assert story.place(job) == gpus("a", 0, 1)
    assert not story.head.state.targets
