"""Moves that people ask for: a job to a node, and a node's jobs away from it."""

import pytest

from gsched.errors import GschedError
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.training.backoff import ASK_AGAIN_S
from tests.support.moves import Story, gpus
from tests.support.world import ADMIN, ALICE, BOB, Program, World, node, settings


def migrate(story: World, job: int, *nodes: str, count: int = 0) -> None:
    """Ask for a move, as alice."""
    story.do(c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=nodes, gpus=count)))


def refusal(story: World, job: int, *nodes: str, count: int = 0) -> GschedError:
    """Return why a move is refused."""
    return story.refusal(
        c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=nodes, gpus=count))
    )


def test_a_job_goes_where_its_user_wants_it() -> None:
    """And elsewhere if he names nothing."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    migrate(story, job, "b")
    assert story.state(job) == "migrating"
    story.run_for(5.0)
    assert story.place(job) == gpus("b", 0, 1)
    (asked,) = story.told(f.MigrationRequested, job)
    assert asked.by == "alice"  # type: ignore[attr-defined] # of that kind

    migrate(story, job)
    story.run_for(5.0)
    assert story.place(job) == gpus("a", 0, 1)
    story.check_history()


def test_a_job_changes_its_number_of_gpus_where_it_is_or_where_there_are_enough() -> None:
    """It may use the GPUs that it has."""
    story = Story()
    job, other = story.training(1, most=4), story.training(2)
    story.run_for(5.0)
    assert story.place(other) == gpus("a", 1, 2)

    migrate(story, job, count=2)
    story.run_for(5.0)
    assert story.place(job) == gpus("a", 0, 3)

    migrate(story, job, count=4)
    story.run_for(5.0)
    assert story.place(job) == gpus("b", 0, 1, 2, 3)

    migrate(story, job, "a", count=1)
    story.run_for(5.0)
    assert [share.node for share in story.place(job)] == ["a"]


def test_what_cannot_be_is_refused_with_the_reason_and_nothing_happens() -> None:
    """Each with words that say what to do."""
    story = Story()
    job, full = story.training(), story.training(4)
    rigid = story.submit("select=1:ncpus=1:ngpus=1", runs_s=1000.0)
    ranged = story.training(1, most=4)
    story.run_for(5.0)
    for who, nodes, count, words in (
        (job, ("c",), 0, "unknown node 'c'"),
        (job, ("b",), 0, "b has no room for job 1 now"),
        (job, ("a",), 0, "job 1 already runs on a"),
        (job, (), 3, "asks for 2 GPUs and runs on no other number"),
        (ranged, (), 5, "runs on 1 to 4 GPUs, not on 5"),
        (ranged, (), -1, "-1"),
        (rigid, ("b",), 0, "does not say that it can save its state"),
        (99, (), 0, "Unknown Job Id 99"),
    ):
        assert words in refusal(story, who, *nodes, count=count).message
    refused = story.refusal(c.ActOnJob(caller=BOB, job=job, action=a.MigrateJob()))
    assert "belongs to alice" in refused.message

    story.do(c.ActOnNode(caller=ADMIN, node="b", action=a.DrainNode(reason="dust")))
    assert "node b is drained: dust" in refusal(story, job, "b").message
    story.disconnect("b")
    assert "node b is not connected" in refusal(story, job, "b").message
    assert {story.state(each) for each in (job, full, rigid, ranged)} == {"running"}
    assert not story.told(f.MigrationRequested, job)


def test_a_refusal_names_who_holds_what_is_needed_and_what_to_do() -> None:
    """Jobs that run there, and first of all migrations: gnodes shows what is kept as free."""
    story = Story()
    job, other = story.training(1, most=4), story.training(2, by=BOB)
    story.run_for(5.0)
    assert (story.place(job), story.place(other)) == (gpus("a", 0), gpus("a", 1, 2))
    last = story.submit("select=1:ncpus=1:ngpus=1", runs_s=1000.0)
    story.run_for(5.0)
    assert story.place(last) == gpus("a", 3)
    story.lost[n.TakeCheckpoint] = 1
    story.do(c.ActOnJob(caller=BOB, job=other, action=a.MigrateJob(nodes=("b",))))
    story.run_for(1.0)

    named = refusal(story, job, "b", count=3)
    assert named.message.startswith("b has no room for job 1 now: needs ")
    assert named.message.endswith(
        "; GPUs 0,1 of b are reserved for job 2 of bob, which migrates there"
    )
    assert named.hint == (
        "request it again when job 2 has migrated (see gstat -f 2), or request --gpus 2, "
        "or name other nodes with --to"
    )
    resized = refusal(story, job, count=4)
    assert resized.message.startswith("job 1 cannot have 4 GPUs now: needs 4 chunks")
    assert "GPUs 0,1 of b are reserved for job 2 of bob, which migrates there; " in resized.message
    assert resized.message.endswith(
        "; GPUs 1,2 of a are in use by job 2 of bob, which migrates away; "
        "GPU 3 of a is in use by job 3 of alice"
    )
    assert "or request --gpus 3" in resized.hint
    full = story.training(2)
    story.run_for(5.0)
    assert story.place(full) == gpus("b", 2, 3)
    elsewhere = refusal(story, job)
    assert elsewhere.message.startswith("no other node has room for job 1 now: ")
    assert elsewhere.message.endswith("GPUs 2,3 of b are in use by job 4 of alice")
    assert elsewhere.hint == "request it again when job 2 has migrated (see gstat -f 2)"
    story.do(c.ActOnJob(caller=ALICE, job=full, action=a.DeleteJob()))


def test_a_node_that_could_never_hold_it_is_told_apart_from_one_that_is_busy() -> None:
    """Waiting would not help."""
    story = Story()
    story.machines["c"] = node("c", cpus=1, gpus=1)
    story.connect("c")
    job = story.training()
    story.run_for(5.0)

    assert "c cannot hold job 1, even with nothing else there" in refusal(story, job, "c").message


def test_a_job_in_another_state_cannot_be_moved() -> None:
    """It waits, starts, moves already, ends or is done."""
    story = Story()
    job = story.training(4)
    assert "only a running job" in refusal(story, story.training(4, holds=("user",))).message
    assert "still starting" in refusal(story, job).message
    story.run_for(5.0)
    migrate(story, job)
    refused = refusal(story, job)
    assert refused.message == f"job {job} already migrates to b, requested by alice (gmigrate)"
    assert refused.hint.startswith(f"gmigrate --wait {job} waits for that migration")
    story.run_for(5.0)
    story.delete(job)
    assert "only a running job" in refusal(story, job).message
    story.run_for(5.0)
    assert "Unknown Job Id 1" in refusal(story, job).message


class Rack(World):
    """Eight nodes of two GPUs; jobs of one GPU."""

    def __init__(self, count: int = 8, max_moves: int = 2) -> None:
        machines = [node(f"n{number}", cpus=8, gpus=2) for number in range(count)]
        super().__init__(*machines, config=settings(at_once=max_moves))

    def _fresh_state(self) -> State:
        return State({"batch": 0})

    def training(self, **more: object) -> int:
        """Submit a job of one GPU."""
        more = {"movable": True, "program": Program(runs_s=1e5, saves_s=10.0), **more}
        return self.submit("select=1:ncpus=1:ngpus=1", **more)  # type: ignore[arg-type] # passed on

    def drain(self, *names: str) -> None:
        """Drain nodes, and let their jobs leave."""
        for name in names:
            self.do(
                c.ActOnNode(
                    caller=ADMIN, node=name, action=a.DrainNode(reason="new driver", migrate=True)
                )
            )

    def on(self, name: str) -> int:
        """Return how many jobs run on a node."""
        return len(self.machines[name].running)


def test_i16_a_drained_rack_is_left_a_few_jobs_at_a_time() -> None:
    """Those that cannot be moved run on; nobody starts there."""
    rack = Rack()
    jobs = [rack.training() for _ in range(7)]
    stays = rack.submit("select=1:ncpus=1:ngpus=1", program=Program(runs_s=1e5))
    rack.run_for(5.0)
    assert sum(rack.on(f"n{number}") for number in range(4)) == 8

    rack.drain("n0", "n1", "n2", "n3")
    most = 0
    for _ in range(60):
        rack.run_for(1.0)
        most = max(most, len(rack.head.state.targets))

    assert most == 2
    assert {rack.state(job) for job in jobs} == {"running"}
    assert [rack.on(f"n{number}") for number in range(4)] == [0, 0, 0, 1]
    assert rack.job(stays).attempts == 1
    assert all(rack.job(job).moves == 1 for job in jobs)
    rack.check_history()


def test_i16_users_take_turns() -> None:
    """One with many jobs does not keep another from leaving."""
    rack = Rack(max_moves=2)
    many = [rack.training() for _ in range(7)]
    one = rack.training(by=BOB)
    rack.run_for(5.0)

    rack.drain("n0", "n1", "n2", "n3")
    assert set(rack.head.state.targets) == {many[0], many[1]}
    rack.run_for(11.0)

    assert set(rack.head.state.targets) == {one, many[2]}


def test_jobs_for_which_there_is_no_room_wait_for_it_where_they_are() -> None:
    """And leave as soon as something ends elsewhere."""
    rack = Rack(count=2)
    jobs = [rack.training(), rack.training()]
    blocks = [rack.training(program=Program(runs_s=50.0)) for _ in range(2)]
    rack.run_for(5.0)
    rack.drain("n0")
    rack.run_for(30.0)
    assert {rack.state(job) for job in jobs} == {"running"}
    assert rack.on("n0") == 2

    rack.run_for(60.0)

    assert {rack.state(job) for job in blocks} == {"done"}
    assert rack.on("n0") == 0
    assert {rack.machine_of(job) for job in jobs} == {("n1",)}


def test_a_job_that_cannot_save_its_state_is_asked_again_much_later() -> None:
    """Not again and again, and it keeps nobody else from leaving."""
    rack = Rack()
    stuck = rack.training(program=Program(runs_s=1e5, save_fault="disk full", saves_s=1.0))
    other = rack.training()
    rack.run_for(5.0)
    rack.drain("n0")
    rack.run_for(60.0)
    assert rack.machine_of(other) != ("n0",)
    assert rack.job(stuck).moves_requested == 1

    rack.run_for(ASK_AGAIN_S)

    assert rack.job(stuck).moves_requested == 2


def test_a_drain_that_is_over_moves_nobody_any_more() -> None:
    """Also after a restart of the head in between, which knows whom it was about to move."""
    rack = Rack(max_moves=1)
    jobs = [rack.training() for _ in range(4)]
    rack.run_for(5.0)
    rack.drain("n0", "n1")
    rack.restart_head()
    rack.run_for(15.0)
    assert sum(rack.job(job).moves for job in jobs) >= 1
    assert rack.head.state.vacating == {"n0", "n1"}

    for name in ("n0", "n1"):
        rack.do(c.ActOnNode(caller=ADMIN, node=name, action=a.ResumeNode()))
    rack.run_for(30.0)
    moves = sum(rack.job(job).moves for job in jobs)
    rack.run_for(100.0)

    assert sum(rack.job(job).moves for job in jobs) == moves < 4


def test_a_plain_drain_moves_nobody() -> None:
    """Jobs run on where they are."""
    rack = Rack()
    rack.training()
    rack.run_for(5.0)
    rack.do(c.ActOnNode(caller=ADMIN, node="n0", action=a.DrainNode(reason="later")))
    rack.run_for(60.0)

    assert rack.on("n0") == 1


@pytest.mark.parametrize("most", [1, 3])
def test_elastic_jobs_leave_with_fewer_gpus_where_there_are_no_more(most: int) -> None:
    """Rather than to stay on a node that somebody waits for."""
    story = Story()
    job = story.training(1, most=4)
    story.run_for(5.0)
    migrate(story, job, "a", count=4)
    story.run_for(5.0)
    if most == 1:
        story.training(3)
    else:
        story.training(1)
    story.run_for(5.0)

    story.do(c.ActOnNode(caller=ADMIN, node="a", action=a.DrainNode(reason="dust", migrate=True)))
    story.run_for(10.0)

    assert [share.node for share in story.place(job)] == ["b"]
    assert sum(len(share.gpu_indices) for share in story.place(job)) == most
