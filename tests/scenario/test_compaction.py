"""DRS makes room on a whole node: what arrives meanwhile, who cannot be moved, who starts late."""

import pytest

from baselines.registry import ALL
from gsched.cli.commands.gmigrate import check_moves
from gsched.errors import BadStateError
from gsched.model.training import Training
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.backoff import ASK_AGAIN_S
from gschedd.core.views.jobs import JobViews
from tests.support.world import ALICE, Program, World, node, settings

MOVE_S = 10.0
SLOW = Program(runs_s=1000.0, saves_s=20.0)


class Site(World):
    """Two nodes of two GPUs where DRS plans training jobs, and all others are balanced."""

    def __init__(self, policy: str = "drs", config: Settings | None = None) -> None:
        machines = [node(name, cpus=8, gpus=2) for name in ("a", "b")]
        config = config or settings(move_s=MOVE_S)
        super().__init__(*machines, policy=ALL.choose(policy).plan, config=config)

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(
        self,
        work_s: float,
        *,
        gpus: int = 1,
        program: Program | None = None,
        **changes: object,
    ) -> int:
        """Submit a training that takes so long on its GPUs, all on one node."""
        changes = {"deadline_after_s": 1e5, "movable": True, **changes}
        return self.submit(
            f"nodes=1:ppn=1:gpus={gpus}",
            program=program or Program(runs_s=work_s),
            training=Training(iterations=work_s, rates=((gpus, 1.0),)),
            **changes,  # type: ignore[arg-type] # passed on
        )

    def fragment(self, program: Program | None = None) -> tuple[int, int]:
        """Let each node run a training on one of its GPUs; the first one does as it is told."""
        first = self.training(1000.0, program=program)
        filler, second = self.training(5.0), self.training(1000.0)
        self.run_for(10.0)
        assert self.state(filler) == "done"
        assert self.machine_of(first) == ("a",)
        assert self.machine_of(second) == ("b",)
        return first, second


def say_first_step(site: Site, job: int) -> None:
    """Let the present attempt of a training say that it has done a step."""
    (name,) = site.machine_of(job)
    said = n.TrainingProgress(
        job=job, attempt=site.job(job).attempts, step=2, work_done=8.0, at_s=site.now_s
    )
    site.tell(site.machines[name], said)
    site.run_for(0.0)


def test_nobody_takes_the_room_that_is_made_for_another_one() -> None:
    """Neither an ordinary job nor a training with more time, as long as the first one leaves."""
    site = Site()
    first, second = site.fragment(program=SLOW)
    whole = site.training(30.0, gpus=2, deadline_after_s=60.0)
    assert site.state(first) == "migrating"

    ordinary = site.submit("nodes=1:ppn=1:gpus=1", runs_s=100.0)
    small = site.training(50.0)
    site.run_for(15.0)
    assert [site.state(job) for job in (ordinary, small, whole)] == ["queued"] * 3
    site.run_for(10.0)

    assert (site.state(whole), site.machine_of(whole)) == ("running", ("a",))
    assert site.machine_of(first) == ("b",)
    site.run_for(40.0)
    assert [site.state(job) for job in (ordinary, small)] == ["running", "running"]
    assert site.job(second).attempts == 1
    site.check_history()


def test_who_is_moved_for_is_in_time_from_its_submission_on() -> None:
    """What it is told is not that it will be late: so it is also taken if it must not be."""
    site = Site()
    site.fragment()
    whole = site.training(30.0, gpus=2, deadline_after_s=60.0, reject_if_late=True)

    assert [fact.meets for fact in site.told(f.DeadlineJudged, whole)][-1:] == [True]  # type: ignore[attr-defined] # of that kind
    site.run_for(60.0)
    outcome = site.done[whole].outcome
    assert outcome is not None
    assert outcome.succeeded


def test_a_training_that_cannot_be_saved_is_not_asked_again_and_again() -> None:
    """It says so at once; the other node is emptied instead."""
    site = Site()
    first, second = site.fragment(program=Program(runs_s=1000.0, saves_s=0.5, save_fault="full"))
    whole = site.training(30.0, gpus=2, deadline_after_s=90.0)

    site.run_for(80.0)

    assert len(site.told(f.MigrationAbandoned, first)) == 1
    assert site.machine_of(second) == ("a",)
    assert site.done[whole].outcome is not None


def test_a_training_that_could_not_be_saved_is_asked_again_much_later() -> None:
    """Although nothing else happens meanwhile: why it could not may have passed."""
    site = Site()
    first, second = site.fragment(program=Program(runs_s=1000.0, saves_s=0.5, save_fault="full"))
    site.programs[second] = site.programs[first]
    site.training(30.0, gpus=2, deadline_after_s=900.0)
    site.run_for(60.0)
    assert [len(site.told(f.MigrationRequested, job)) for job in (first, second)] == [1, 1]

    site.run_for(ASK_AGAIN_S)

    assert [len(site.told(f.MigrationRequested, job)) for job in (first, second)] == [2, 2]


def test_room_is_made_as_soon_as_what_is_in_the_way_can_be_moved() -> None:
    """It is still being started when it is known to be in the way, and nothing else happens."""
    site = Site()
    first = site.training(1000.0, movable=False)
    filler = site.training(5.0)
    site.run_for(4.0)
    site.delayed_s[n.Started] = 20.0
    second = site.training(1000.0)
    site.run_for(3.0)
    del site.delayed_s[n.Started]
    assert [site.machine_of(job) for job in (first, second)] == [("a",), ("b",)]
    assert site.state(filler) == "done"
    site.training(30.0, gpus=2, deadline_after_s=90.0)
    assert not site.told(f.MigrationRequested, second)
    site.run_for(60.0)

    assert site.machine_of(second) == ("a",)


def test_what_moves_cost_is_added_up() -> None:
    """From each checkpoint to the first step after it, once, however often that is said."""
    site = Site("drs-still")
    job = site.training(1000.0)
    site.run_for(5.0)
    for moves, lasts_s in ((1, 7.0), (2, 12.0)):
        to = "b" if moves == 1 else "a"
        site.do(c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=(to,), gpus=0)))
        site.run_for(lasts_s)
        assert site.job(job).moves == moves
        before_s = site.job(job).moves_cost_s
        (saved,) = [
            fact.at_s
            for fact in site.told(f.CheckpointTaken, job)
            if fact.request == moves  # type: ignore[attr-defined] # of that kind
        ]
        say_first_step(site, job)
        lost_s = site.job(job).moves_cost_s - before_s
        assert lost_s == pytest.approx(site.now_s - saved)
        say_first_step(site, job)
        assert site.job(job).moves_cost_s == before_s + lost_s

    told = JobViews(site.head, now_s=site.now_s).row(site.job(job))
    assert (told.moves, told.moves_cost_s) == (2, site.job(job).moves_cost_s)
    assert told.moves_cost_s > 0


def test_a_restart_after_a_move_is_no_move() -> None:
    """Its node dies long after the move was over: what that took is not the move's."""
    site = Site("drs-still")
    job = site.training(1000.0, requeue_on="node-failure")
    site.run_for(5.0)
    site.do(c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=("b",), gpus=0)))
    site.run_for(5.0)
    say_first_step(site, job)
    migration, cost_s = site.job(job).migration, site.job(job).moves_cost_s
    assert cost_s > 0

    site.run_for(100.0)
    site.reboot("b")
    site.run_for(100.0)
    assert site.job(job).attempts == 3
    say_first_step(site, job)

    assert len(site.told(f.TrainingResumed, job)) == 2
    assert (site.job(job).migration, site.job(job).moves_cost_s) == (migration, cost_s)


def test_a_move_that_ends_in_the_queue_costs_nothing() -> None:
    """Its new place dies before its first step there; what it then waits is no move's."""
    site = Site("drs-still")
    job = site.training(1000.0, requeue_on="node-failure")
    site.run_for(5.0)
    site.do(c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=("b",), gpus=0)))
    site.run_for(5.0)
    assert site.job(job).moves == 1
    site.lose_power("a")
    site.reboot("b")
    site.hold(job)
    site.run_for(5000.0)
    site.release(job)
    site.run_for(100.0)
    say_first_step(site, job)

    events = enumerate(fact for fact in site.facts if getattr(fact, "job", None) == job)
    told = JobViews(site.head, now_s=site.now_s).story(
        site.job(job), attempts=(), events=events, now_s=site.now_s
    )
    assert (told.row.state, told.row.moves, told.row.moves_cost_s) == ("running", 1, 0.0)
    assert told.move is None
    with pytest.raises(BadStateError, match="was requeued: node b was lost"):
        check_moves(told, from_attempt=1)
