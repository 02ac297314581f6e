"""Jobs, attempts and nodes as users see them, made from the head's records."""

import pytest
from msgspec import structs

from gsched.cli.show.story import live_words, print_story
from gsched.model.resources import Usage
from gsched.protocol.job_rows import AttemptRow, EventRow, OutcomeRow, PartRow
from gsched.protocol.uses import LiveRow
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.start import AskStart, answer_to
from gschedd.core.views.jobs import JobViews, attempt_row, outcome_row, part_row
from gschedd.core.views.nodes import node_row
from gschedd.models.robust import RobustModel
from gschedd.plan.words import Lack, Reason
from tests.support.fake_api import make_row
from tests.support.world import ALICE, BEGIN_S, GIB, Program, World, node


def teller(world: World) -> JobViews:
    return JobViews(world.head, now_s=world.now_s)


def test_a_waiting_job_tells_why_and_until_when() -> None:
    """Its reason, the predicted start, how many are before it."""
    world = World(node("n1", cpus=2))
    world.submit("nodes=1:ppn=2,walltime=60", runs_s=60)
    first = world.submit("nodes=1:ppn=2,walltime=60", priority=1, name="first")
    second = world.submit("nodes=1:ppn=2,walltime=60")
    jobs = world.head.state.jobs
    told = teller(world)

    row = told.row(jobs[first])
    assert (row.state, row.letter, row.user, row.cpus) == ("queued", "Q", ALICE.user, 2)
    assert row.predicted_start_s == BEGIN_S + 60
    assert row.reason == world.why(first)
    story = told.story(jobs[second], attempts=(), events=(), now_s=world.now_s)
    assert story.ahead == 1
    assert story.resources == "nodes=1:ppn=2,walltime=00:01:00"


def test_why_jobs_of_one_class_wait_is_put_into_words_once() -> None:
    """That looks at every node: a list of 100,000 jobs on 1,000 nodes took minutes."""

    class Counted(Lack):
        __slots__ = ("times",)

        def __init__(self, lack: Lack) -> None:
            super().__init__(lack._request, lack._spaces)
            self.times = 0

        @property
        def reason(self) -> Reason:
            self.times += 1
            return super().reason

    world = World(node("n1", cpus=2))
    world.submit("nodes=1:ppn=2,walltime=60", runs_s=60)
    waiting = [world.submit("nodes=1:ppn=2,walltime=60") for _ in range(5)]
    wait = world.wait_of(waiting[0])
    assert isinstance(wait.reason, Lack)
    counted = Counted(wait.reason)
    world.head.waits[wait.job_class] = structs.replace(wait, reason=counted)
    told = teller(world)

    rows = [told.row(world.head.state.jobs[job]) for job in waiting]

    assert [row.reason for row in rows] == [world.why(job) for job in waiting]
    assert counted.times == 1 + len(waiting), "once for the list, once for each question alone"


def test_a_start_that_should_have_been_is_expected_anew() -> None:
    """What runs has outlived what was predicted, and nothing has happened since."""
    world = World(node("n1", cpus=1))
    world.head.model = RobustModel()
    for _ in range(5):
        world.submit("walltime=5000", kind="short", runs_s=10)
        world.run_for(20)
    world.submit("walltime=5000", kind="short", runs_s=4000)
    second = world.submit("walltime=60")
    begun_s = world.now_s

    def expected_s() -> float:
        state = world.head.state
        job = state.jobs[second]
        start = None
        if teller(world).lacks_start(job):
            seen = snapshot(state, world.settings, world.now_s, world.head.model)
            question = AskStart(seen=seen.detach(), job=second, key=state.order_key(job))
            start = answer_to(question, world.policy).starts[second]
        story = teller(world).story(job, attempts=(), events=(), now_s=world.now_s, start=start)
        assert story.row.predicted_start_s is not None
        return story.row.predicted_start_s - begun_s

    first_s = expected_s()
    world.run_for(100)

    assert 10 < first_s < 60
    assert expected_s() == 200


def test_a_delayed_or_held_job_predicts_nothing() -> None:
    """Nobody knows when it will be released."""
    world = World(node("n1"))
    held = world.submit(holds=("user",))
    delayed = world.submit(start_after_s=BEGIN_S + 5)
    told = teller(world)
    rows = [told.row(world.head.state.jobs[job]) for job in (held, delayed)]

    assert [row.letter for row in rows] == ["H", "W"]
    assert [row.predicted_start_s for row in rows] == [None, None]
    assert all(row.reason for row in rows)


def test_a_running_job_tells_where() -> None:
    """Its parts with GPUs and start; no reason, no outcome."""
    world = World(node("n1", gpus=2, memory_bytes=8 * GIB))
    job = world.submit("nodes=1:gpus=1,mem=1gb", runs_s=60)
    world.run_until(5)
    record = world.head.state.jobs[job]
    assert record.attempt is not None

    row = teller(world).row(record)
    attempt = attempt_row(record.attempt)

    assert (row.letter, row.nodes, row.reason, row.outcome) == ("R", ("n1",), "", None)
    (part,) = attempt.parts
    assert (part.node, part.state, part.gpu_indices) == ("n1", "running", (0,))
    assert (part.memory_bytes, part.started_s, part.outcome) == (GIB, BEGIN_S, None)


def test_a_job_that_is_done_tells_how_and_what_happened() -> None:
    """Outcome, usage, and each fact in words."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=60, exit_code=3))
    world.run_until(100)
    done = world.job(job)
    assert done.attempt is not None
    events = [(seq, fact) for seq, fact in enumerate(world.facts) if getattr(fact, "job", 0) == job]

    story = teller(world).story(done, attempts=[done.attempt], events=events, now_s=world.now_s)

    assert story.row.outcome is not None
    assert (story.row.letter, story.row.outcome.exit_status) == ("C", 3)
    assert story.row.cpu_s == 60
    assert [event.kind for event in story.events] == [
        "JobSubmitted",
        "AttemptAssigned",
        "PartStarted",
        "PartEnded",
        "AttemptEnded",
        "JobEnded",
    ]
    assert story.ahead is None
    (part,) = story.attempts[0].parts
    assert part.outcome is not None
    assert (part.outcome.exit_code, part.ended_s) == (3, BEGIN_S + 60)
    assert part_row("n1", done.attempt.parts["n1"]) == part
    assert outcome_row(None) is None


def test_a_node_tells_what_is_free() -> None:
    """Never less than nothing, and why it takes no work."""
    world = World(node("n1", cpus=4, gpu_types=("a100", "a100"), generic={"licence": 2}))
    job = world.submit("nodes=1:ppn=3:gpus=1,licence=1", runs_s=60)
    nodes = world.head.state.nodes

    row = node_row(nodes["n1"], world.head.state, world.now_s)
    assert (row.cpus, row.cpus_free, row.gpus, row.gpus_free) == (4, 1, 2, 1)
    assert (row.gpu_types, row.generic_free, row.jobs) == (("a100",), {"licence": 1}, (job,))
    assert row.reason == ""
    world.replace_hardware("n1", node("n1", cpus=1).has)
    world.disconnect("n1")

    row = node_row(nodes["n1"], world.head.state, world.now_s)
    assert (row.state, row.cpus_free, row.reason) == ("unreachable", 0, "not connected")


def test_a_job_on_a_node_that_does_not_answer_says_so_and_what_can_be_done() -> None:
    world = World(node("n1"), node("n2"))
    rerunnable = world.submit("nodes=n1", runs_s=1000)
    fixed = world.submit("nodes=n1", runs_s=1000, rerunnable=False)
    spread = world.submit("nodes=n1+n2", runs_s=1000)
    healthy = world.submit("nodes=n2", runs_s=1000)
    world.run_until(5)
    assert {teller(world).row(world.job(each)).reason for each in (rerunnable, healthy)} == {""}

    world.disconnect("n1")
    world.run_for(190)
    rows = {each: teller(world).row(world.job(each)) for each in (rerunnable, fixed, spread)}

    silent = "node n1 has not answered for 00:03:10; the job may still run there; "
    gone = "if the machine is gone, gnodes confirm-dead n1 "
    assert rows[rerunnable].reason == silent + gone + "queues the job again"
    assert rows[fixed].reason == silent + gone + "ends the job"
    assert rows[spread].reason == rows[rerunnable].reason
    assert {row.letter for row in rows.values()} == {"R"}
    assert teller(world).row(world.job(healthy)).reason == ""


def test_a_node_that_has_just_gone_is_reconnecting() -> None:
    """As after a restart of the head: nobody is to confirm its death then."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(5)
    world.disconnect("n1")
    world.run_for(1)

    reason = teller(world).row(world.job(job)).reason

    assert reason == "reconnecting: no connection to node n1 for 1 s"


def test_a_deleted_job_on_a_node_that_does_not_answer_says_what_it_waits_for() -> None:
    world = World(node("n1"), node("n2"))
    job = world.torchrun("nodes=n1+n2", program=Program(runs_s=1000))
    world.run_until(5)
    world.disconnect("n1")
    world.disconnect("n2")
    world.delete(job)
    world.run_for(60)

    reason = teller(world).row(world.job(job)).reason

    assert reason == (
        "node n1 has not answered for 00:01:00 (and 1 more); the job ends once it answers; "
        "if the machine is gone, gnodes confirm-dead n1 ends the job"
    )


def test_the_reason_goes_when_the_node_answers() -> None:
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(5)
    world.disconnect("n1")
    world.run_for(30)

    world.connect("n1")

    assert teller(world).row(world.job(job)).reason == ""


def test_starts_that_fail_again_and_again_are_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A message of 200 characters stood there four times for each of five attempts."""
    world = World(node("n1", cpus=2))
    job = world.head.state.jobs[world.submit()]
    story = teller(world).story(job, attempts=(), events=(), now_s=world.now_s)
    why = "stage-in failed: scp host:/a /b: no such host"
    failed = OutcomeRow(
        kind="launch_failed", exit_status=-4, shell_status=126, node="n1", message=why
    )
    words = f"could not be started on n1: {why}"
    attempts, events = [], []
    for number in range(1, 4):
        at_s = BEGIN_S + 10.0 * number
        part = PartRow(node="n1", state="ended", cpus=1, outcome=failed)
        attempts.append(
            AttemptRow(
                attempt=number,
                state="ended",
                assigned_s=at_s,
                ended_s=at_s + 1.0,
                parts=(part,),
                outcome=failed,
                usage=Usage(wall_s=2.0, cpu_s=1.0),
            )
        )
        told = (f"attempt {number} ended on n1: {words}", f"requeued: {words}", "retry")
        events += [EventRow(seq=1, at_s=at_s, kind="x", text=text) for text in told]
    ran = structs.replace(
        attempts[0], attempt=4, outcome=OutcomeRow(kind="exited", exit_status=0, shell_status=0)
    )

    print_story(structs.replace(story, attempts=(*attempts, ran), events=tuple(events)))

    shown = capsys.readouterr().out
    assert "Attempts 1 to 3: ended" in shown
    assert f"outcome, 3 times: {words}" in shown
    assert "used: wall 00:00:06, CPU 00:00:03" in shown
    assert "Attempt 4: ended" in shown
    attempts_shown, _, events_shown = shown.partition("Events:")
    assert attempts_shown.count(why) == 2, "once for the three, and in the fourth, which differs"
    assert events_shown.count(why) == 1
    assert events_shown.count("as above") == 5
    assert events_shown.count("retry") == 3


@pytest.mark.parametrize(
    ("gpus", "held", "size", "words"),
    [
        (0.0, 0, 0, "0.0 of 1 core, 0b (3 s ago)"),
        (0.0, 1, 0, "0.0 of 1 core, 0b, no use of GPU measured (3 s ago)"),
        (0.85, 1, 0, "0.0 of 1 core, 0b, GPU 85 % (3 s ago)"),
        (1.0, 2, GIB, "0.0 of 1 core, 0b, GPUs 50 %, GPU memory 1gb (3 s ago)"),
    ],
)
def test_what_is_in_use_has_no_figure_of_what_nobody_measured(
    gpus: float, held: int, size: int, words: str
) -> None:
    live = LiveRow(at_s=7.0, gpus=gpus, gpus_held=held, gpu_memory_bytes=size)

    assert live_words(live, make_row(1), 10.0) == words
