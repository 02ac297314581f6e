"""Moves whose next attempts are prepared while the present ones train, and whatever ends that."""

from gsched.model.job import ExitRecord
from gsched.model.resources import Allocation, Load, Share, Usage
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.core.state.records import MigrationProgress
from gschedd.core.views.details import move_row
from tests.support.machines import GIB
from tests.support.moves import Story, gpus
from tests.support.orders import order_of, orders
from tests.support.site import PLAIN, changed

PREPARE_S = 20.0


class WarmStory(Story):
    """Two nodes that can prepare attempts, and a head that lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = changed(PLAIN, warm=True, prepare_timeout_s=PREPARE_S)
        self.head.settings = self.settings

    def trained(self, *, ready: bool = True, count: int = 2, **changes: object) -> int:
        """Return a training that has done steps, and whose script waits where it can."""
        arguments = {"launch": "torchrun", "arguments": ("train.py",), **changes}
        job = self.training(count, **arguments)  # type: ignore[arg-type] # passed on
        self.run_for(5.0)
        self.says(job, ready=ready)
        return job

    def says(self, job: int, *, ready: bool = True) -> None:
        """Let a training say how far it is."""
        attempt = self.job(job).attempt
        assert attempt is not None, "it runs"
        said = n.TrainingProgress(
            job=job, attempt=attempt.number, step=5, at_s=self.now_s, ready=ready, work_done=5.0
        )
        self.tell(self.machines[next(iter(attempt.parts))], said)
        self.run_for(0.1)

    def prepared(self, name: str, job: int, attempt: int = 2) -> None:
        """Let a node say that all processes wait."""
        self.tell(self.machines[name], n.Prepared(job=job, attempt=attempt))
        self.run_for(0.1)

    def fails(self, name: str, job: int, attempt: int = 2) -> None:
        """Let a prepared attempt end on a node."""
        record = ExitRecord(
            job=job, attempt=attempt, kind=OutcomeKind.LAUNCH_FAILED, message="exit code 1"
        )
        self.tell(self.machines[name], n.Exited(record=record, usage=Usage(), load=Load()))
        self.run_for(0.1)

    def progress(self, job: int) -> MigrationProgress:
        """Return what is known of a job's last move."""
        found = self.job(job).migration
        assert found is not None, "it has moved"
        return found

    def preparing(self, name: str) -> list[tuple[int, int]]:
        """Return what a node was asked to prepare."""
        return self.machines[name].preparing


def test_a_job_trains_on_until_its_next_attempt_waits() -> None:
    """Then it saves its state, and the launch of the very attempt that waits follows its end."""
    story = WarmStory()
    job = story.trained()

    story.move((job, gpus("b", 2, 3)))
    story.run_for(5.0)
    assert story.preparing("b") == [(job, 2)]
    assert not story.told(f.CheckpointTaken, job)
    assert story.place(job) == gpus("a", 0, 1)

    story.prepared("b", job)
    story.run_for(5.0)
    assert story.state(job) == "running"
    assert story.place(job) == gpus("b", 2, 3)
    assert story.job(job).attempts == 2
    assert story.machines["b"].launches == [(job, 2)]
    assert story.progress(job).warm
    row = move_row(story.job(job))
    assert row is not None
    assert row.start == "warm"


def test_two_nodes_have_to_be_ready() -> None:
    """One alone is not what the next attempt needs."""
    story = WarmStory()
    job = story.trained(count=2, most=2)
    wide = (
        Share(node="a", cpus=1, slots=1, gpu_indices=(3,)),
        Share(node="b", cpus=1, slots=1, gpu_indices=(3,)),
    )
    story.move((job, wide))
    story.run_for(1.0)

    story.prepared("b", job)
    assert not story.told(f.MigrationPrepared, job)
    story.prepared("a", job)
    story.run_for(5.0)
    assert story.place(job) == wide
    assert story.progress(job).warm


def test_what_is_not_ready_in_time_starts_cold_with_another_number() -> None:
    """The number that was prepared is never launched, and the nodes are told to end it."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))

    story.run_for(PREPARE_S - 1.0)
    assert not story.told(f.CheckpointTaken, job)
    story.run_for(10.0)

    assert story.place(job) == gpus("b", 2, 3)
    assert story.job(job).attempts == 3
    assert story.machines["b"].launches == [(job, 3)]
    assert not story.progress(job).warm
    row = move_row(story.job(job))
    assert row is not None
    assert row.start == "cold: its processes were not prepared within 20 s"


def test_processes_that_end_at_their_gate_cost_only_the_time_they_took() -> None:
    """The migration goes on at once, and starts cold."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)

    story.fails("b", job)
    story.run_for(5.0)

    assert story.job(job).attempts == 3
    assert story.place(job) == gpus("b", 2, 3)
    assert "on b: exit code 1" in story.progress(job).cold


def test_the_same_after_they_have_waited() -> None:
    """Until the attempt is assigned."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)
    story.prepared("b", job)

    story.fails("b", job)
    story.run_for(5.0)

    assert story.job(job).attempts == 3
    assert story.place(job) == gpus("b", 2, 3)


def test_a_lost_connection_ends_what_was_prepared() -> None:
    """Also where the node is back at once: it has ended it."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)

    story.connect("b")
    story.run_for(5.0)

    assert story.job(job).attempts == 3
    assert story.place(job) == gpus("b", 2, 3)
    assert "connection to b was lost" in story.progress(job).cold


def test_a_head_that_restarts_launches_nothing_that_was_prepared() -> None:
    """Its nodes have lost the connection to it."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)

    story.restart_head()
    story.run_for(10.0)

    assert story.job(job).attempts == 3
    assert story.place(job) == gpus("b", 2, 3)


def test_an_abandoned_move_ends_what_was_prepared() -> None:
    """The job goes on where it is, and its next attempt has another number."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)
    sent = story.head.reported("b", n.Prepared(job=job, attempt=2), story.now_s)
    assert [type(effect) for effect in orders(sent)] == [n.TakeCheckpoint]
    request = story.job(job).moves_requested
    failed = n.CheckpointFailed(job=job, attempt=1, request=request, message="no space")

    step = story.head.reported("a", failed, story.now_s)

    (node,) = [each.node for each in step.effects if isinstance(order_of(each), n.StopAttempt)]
    (stop,) = [each for each in orders(step) if isinstance(each, n.StopAttempt)]
    assert (node, stop.attempt, stop.reason) == ("b", 2, StopReason.FENCED)
    assert story.state(job) == "running"
    assert story.job(job).attempts == 1
    assert story.job(job).prepared == 2


def test_a_delete_ends_what_was_prepared() -> None:
    """And the job."""
    story = WarmStory()
    job = story.trained()
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)

    story.delete(job)
    story.run_for(5.0)

    assert story.outcome(job).kind is OutcomeKind.CANCELLED
    assert (job, 2) not in story.machines["b"].running
    assert story.machines["b"].seen[job] == 2  # its tombstone


def test_a_script_that_does_not_wait_starts_cold_and_says_why() -> None:
    """As every script that does not call `elastic.ready`."""
    story = WarmStory()
    job = story.trained(ready=False)

    story.move((job, gpus("b", 2, 3)))
    story.run_for(5.0)

    assert story.preparing("b") == []
    assert story.job(job).attempts == 2
    assert story.progress(job).cold == "its script does not call elastic.ready()"


def test_memory_that_others_have_is_not_taken() -> None:
    """What waits counts beside all present owners, its own old attempt among them."""
    story = WarmStory()
    total = story.head.state.spaces["a"].memory_bytes
    job = story.trained(count=1, memory_bytes=total * 2 // 3)
    here = story.place(job)[0].memory_bytes
    assert here > total // 2
    wanted: Allocation = (Share(node="a", cpus=1, slots=1, gpu_indices=(3,), memory_bytes=here),)

    story.move((job, wanted))
    story.run_for(5.0)

    assert story.place(job) == wanted
    assert story.progress(job).cold == "a has no memory free beside what runs there"


def test_memory_of_what_waits_is_kept_for_it() -> None:
    """Both attempts have theirs until the older one has ended."""
    story = WarmStory()
    job = story.trained(count=1, memory_bytes=GIB)
    free = story.head.state.spaces["a"].memory_bytes
    wanted: Allocation = (Share(node="a", cpus=1, slots=1, gpu_indices=(3,), memory_bytes=GIB),)

    story.move((job, wanted))
    assert story.head.state.spaces["a"].memory_bytes == free - GIB
    story.prepared("a", job)
    story.run_for(5.0)

    assert story.place(job) == wanted
    assert story.progress(job).warm
    assert story.head.state.spaces["a"].memory_bytes == free


def test_processes_yield_where_their_cpus_are_still_others() -> None:
    """As those of the old attempt on the same node, where all others are taken."""
    story = WarmStory()
    job = story.trained()
    story.submit("select=1:ncpus=6:host=a", runs_s=1000.0)
    assert story.head.state.spaces["a"].cpus == 0

    story.move((job, gpus("a", 2, 3)))
    story.run_for(0.5)
    assert story.machines["a"].preparing == [(job, 2)]
    assert story.machines["a"].yielding == {(job, 2)}
    story.prepared("a", job)
    story.run_for(5.0)
    assert story.place(job) == gpus("a", 2, 3)
    story.says(job)
    story.move((job, gpus("b", 2, 3)))
    story.run_for(0.5)

    assert story.machines["b"].preparing == [(job, 3)]
    assert not story.machines["b"].yielding


def test_late_words_about_what_was_prepared_change_nothing() -> None:
    """Of a node that has said it already, or that was not asked."""
    story = WarmStory()
    job = story.trained()
    story.prepared("b", job)
    story.move((job, gpus("b", 2, 3)))
    story.run_for(1.0)
    story.prepared("b", job, attempt=7)
    assert not story.told(f.MigrationPrepared, job)
    story.prepared("b", job)
    story.run_for(5.0)
    story.prepared("b", job)

    assert story.head.oddities["prepared_for_no_move"] == 3
    assert story.state(job) == "running"
