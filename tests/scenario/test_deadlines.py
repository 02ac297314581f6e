"""Deadlines as their owners meet them: what is guaranteed and told, and how it is judged anew."""

import pytest

from gsched.errors import GschedError, InvalidRequestError
from gsched.model.training import Training
from gsched.protocol import actions as a
from gsched.protocol.actions import Alteration
from gschedd.core.forecast.deadline import outlook_of
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.views.jobs import JobViews
from gschedd.plan.compose import Composed
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.queue import fifo
from gschedd.policies.training import drs, elasticflow
from tests.support.world import ALICE, BEGIN_S, Program, World, node, submission

ELASTIC = "select=1:ncpus=1:ngpus=1"
#: 1000 s on one GPU, and in proportion less on more: nothing is lost in communication.
SIZE = Training(iterations=1000.0, rates=((1, 1.0), (2, 2.0), (4, 4.0)))


class Story(World):
    """A node with four GPUs, under a policy that admits by deadlines, or under another one."""

    def __init__(self, policy: Policy | None = None, *, plans_training: bool = True) -> None:
        self.plans_training = plans_training
        chosen = policy or Composed(elasticflow.plan, fifo.plan)
        super().__init__(node("a", cpus=8, gpus=4), policy=chosen)

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=self.plans_training)

    def training(self, in_s: float, **changes: object) -> int:
        """Submit a training on 1 to 4 GPUs that is to be done ``in_s`` from now."""
        changes = {"places_max": 4, "training": SIZE, "runs_s": 5000.0, "movable": True, **changes}
        return self.submit(ELASTIC, deadline_after_s=in_s, **changes)  # type: ignore[arg-type] # passed on

    def refused(self, in_s: float, **changes: object) -> GschedError:
        """Submit what is refused; return why, after a look at what was kept of it: nothing."""
        before = self.head.state.next_job
        asked = submission(
            **{
                "resources": (ELASTIC,),
                "places_max": 4,
                "training": SIZE,
                "deadline_after_s": in_s,
                **changes,
            }
        )
        command = c.Submit(caller=ALICE, submitted=asked, digests=("", ""))
        step = self.head.command(command, self.now_s)
        assert step.error is not None, "it was taken"
        assert (step.facts, self.head.state.next_job) == ((), before)
        return step.error

    def outlook(self, job: int) -> Forecast:
        """Return what is expected of a job that is not done."""
        head: Head = self.head
        return outlook_of(
            self.job(job),
            state=head.state,
            settings=head.settings,
            verdicts=head.verdicts,
            now_s=self.now_s,
        )

    def change(self, job: int, **changes: object) -> GschedError | None:
        """Alter a job as its owner; return why not."""
        alteration = Alteration(**changes)  # type: ignore[arg-type] # fields of an alteration
        step = self.head.command(
            c.ActOnJob(caller=ALICE, job=job, action=a.AlterJob(alteration=alteration)), self.now_s
        )
        self.settle()
        return step.error


def test_what_is_foreseen_is_what_then_happens() -> None:
    """The verdict about a job that may come is that of the cycle after it has come."""
    story = Story()
    story.training(600.0)
    job = story.head.state.next_job
    spec = story.job(story.training(900.0)).spec
    told = story.outlook(job)
    other = Story()
    other.training(600.0)

    foreseen = other.head.foresee(spec, other.now_s)

    assert (foreseen.meets, foreseen.end_s, foreseen.gpus) == (told.meets, told.end_s, told.gpus)
    assert foreseen.meets is True
    assert len(other.head.state.jobs) == 1, "nothing was kept of the question"


def test_who_would_be_late_is_refused_if_he_asks_for_it() -> None:
    """The expected end stands in the message where it is known; without the wish it is queued."""
    story = Story()
    story.training(260.0)

    error = story.refused(300.0, reject_if_late=True)
    queued = story.training(300.0)

    assert isinstance(error, InvalidRequestError)
    assert "would miss its deadline" in error.message
    assert "nothing was queued" in error.message
    assert story.job(queued).guaranteed is False


def test_who_is_taken_has_a_guarantee_from_the_first_moment() -> None:
    """It stands in the same commit as the submission: what comes beside it cannot break it."""
    story = Story()
    asked = submission(
        resources=(ELASTIC,),
        places_max=4,
        training=SIZE,
        deadline_after_s=500.0,
        reject_if_late=True,
    )
    step = story.head.command(
        c.Submit(caller=ALICE, submitted=asked, digests=("", "")), story.now_s
    )

    assert [type(fact) for fact in step.facts] == [f.JobSubmitted, f.DeadlineJudged]
    assert story.job(step.job).guaranteed is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"holds": ("user",)}, "the job is held"),
        ({"start_after_s": BEGIN_S + 100.0}, "the job starts later"),
        ({"training": None}, "its run time is unknown"),
    ],
)
def test_a_deadline_without_a_forecast_is_not_guaranteed(
    changes: dict[str, object], words: str
) -> None:
    error = Story().refused(500.0, reject_if_late=True, **changes)

    assert "cannot predict whether the deadline" in error.message
    assert words in error.message


def test_a_policy_that_fails_costs_an_answer_and_not_the_head() -> None:
    """Whoever insists on an answer is refused, everybody else is queued."""

    def broken(snapshot: Snapshot) -> Plan:
        raise ValueError(len(snapshot.groups))

    story = Story(broken)

    assert "the policy failed" in story.refused(500.0, reject_if_late=True).message


def test_without_a_deadline_policy_ends_follow_from_starts() -> None:
    """Under first come first served a training runs on what it requests at least."""
    story = Story(fifo.plan, plans_training=False)
    story.submit("select=4:ncpus=1:ngpus=1,walltime=300", runs_s=300.0)

    message = story.refused(1200.0, reject_if_late=True).message
    assert "would miss its deadline" in message
    assert "running jobs and jobs ahead of it in the queue hold it until" in message
    job = story.training(1400.0, reject_if_late=True, training=SIZE)
    assert story.job(job).guaranteed is None, "nobody plans for it"
    story.run_for(301.0)
    told = story.outlook(job)
    assert told.end_s == pytest.approx(story.now_s + 1000.0, abs=3.0)
    assert (told.meets, told.gpus) == (True, 1)


def test_a_training_is_late_before_it_is_late() -> None:
    """The head says so as soon as the policy knows, and when time has overtaken a plan."""
    story = Story()
    late, early = story.training(260.0), story.training(2000.0)
    assert story.outlook(late).meets is True
    story.run_for(100.0)
    row = JobViews(story.head, now_s=story.now_s).row(story.job(early))
    assert row.meets_deadline is True
    assert row.slack_s is not None
    assert row.slack_s > 0
    assert row.deadline_s == pytest.approx(
        row.predicted_end_s + row.slack_s if row.predicted_end_s else 0
    )

    told = JobViews(story.head, now_s=story.now_s + 161.0).row(story.job(late))

    assert told.meets_deadline is False, "it runs beyond its deadline"
    assert told.slack_s is not None
    assert told.slack_s < 0


def test_nobody_is_late_only_because_nothing_is_known_of_what_is_before_it() -> None:
    """It is as soon as the whole cluster, from then on, would no longer do."""
    story = Story(Composed(drs.plan, fifo.plan))
    story.submit("select=1:ncpus=4:ngpus=4", runs_s=5000.0)  # without any walltime
    job = story.training(2000.0)

    told = story.outlook(job)
    refusal = story.refused(2000.0, reject_if_late=True).message

    assert (told.meets, told.why) == (None, "its start time cannot be predicted")
    assert "cannot predict whether the deadline" in refusal
    assert story.told(f.DeadlineJudged, job) == [], "it is not told to miss it, either"
    rows = [
        JobViews(story.head, now_s=story.now_s + s).row(story.job(job)) for s in (1740.0, 1760.0)
    ]
    assert [row.meets_deadline for row in rows] == [None, False]


def test_an_elastic_training_shows_the_gpus_that_it_has() -> None:
    """Waiting: the least it takes; running: what it runs on."""
    story = Story()
    job = story.training(260.0)
    told = JobViews(story.head, now_s=story.now_s)

    row = told.row(story.job(job))

    assert (row.gpus, row.gpus_most) == (4, 4)


def test_a_done_job_met_its_deadline_only_if_it_ended_well_and_in_time() -> None:
    """A failure in time is no training that was done in time."""
    story = Story()
    jobs = [
        story.training(2000.0, runs_s=100.0),
        story.training(2000.0, program=Program(runs_s=100.0, exit_code=3)),
        story.training(2000.0, runs_s=3000.0),
    ]
    story.run_for(6000.0)
    told = JobViews(story.head, now_s=story.now_s)

    rows = [told.row(story.done[job]) for job in jobs]

    assert [row.meets_deadline for row in rows] == [True, False, False]
    assert [row.slack_s is not None and row.slack_s > 0 for row in rows] == [True, True, False]


def test_a_later_deadline_keeps_a_guarantee_and_other_changes_reset_it() -> None:
    """A guarantee cannot be stretched; who was refused gets another chance."""
    story = Story()
    kept = story.training(600.0)
    story.run_for(10.0)
    assert story.job(kept).guaranteed is True

    assert story.change(kept, deadline_after_s=1500.0) is None
    assert story.job(kept).guaranteed is True
    assert len(story.told(f.DeadlineJudged, kept)) == 1

    assert story.change(kept, deadline_after_s=300.0) is None
    assert len(story.told(f.DeadlineJudged, kept)) == 2

    refused = story.training(260.0)
    assert story.job(refused).guaranteed is False
    assert story.change(refused, deadline_after_s=5000.0) is None
    assert story.job(refused).guaranteed is True


def test_a_deadline_can_be_taken_away_and_given_while_it_runs() -> None:
    story = Story()
    job = story.training(600.0)
    story.run_for(10.0)

    assert story.change(job, deadline_s=0.0) is None
    assert story.job(job).spec.deadline_s == 0
    assert story.job(job).guaranteed is None
    assert story.change(job, urgency="relaxed") is None
    left_s = story.job(job).spec.deadline_s - story.now_s
    allowed_s = 1.5 * (1000.0 - 4 * 10.0) + 60.0
    assert left_s == pytest.approx(allowed_s, abs=20.0), "of what is left of it"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deadline_s": 5.0}, "has passed"),
        ({"deadline_after_s": 30.0}, "the earliest end is"),
        ({"deadline_after_s": 500.0, "urgency": "urgent"}, "contradict"),
        ({"urgency": "soon"}, "urgency 'soon' is not known"),
        ({"deadline_s": 1e12}, "not possible"),
    ],
)
def test_a_deadline_that_cannot_be_is_refused_and_the_old_one_stays(
    changes: dict[str, object], words: str
) -> None:
    story = Story()
    job = story.training(600.0)
    before = story.job(job).spec

    error = story.change(job, **changes)

    assert error is not None
    assert words in error.message
    assert story.job(job).spec == before


@pytest.mark.parametrize(
    ("after_s", "training", "words"),
    [
        (600.0, SIZE, "cannot be met: the job cannot start before"),
        (601.0, None, "cannot be met: the job cannot start before"),  # nothing known of it
        (400.0, SIZE, "it cannot start before 2023-11-14 22:20:00 UTC, and it needs at least"),
    ],
)
def test_a_deadline_before_a_job_may_start_is_refused(
    after_s: float, training: Training | None, words: str
) -> None:
    """Nothing is as contradictory, and the head would only say so when the deadline has passed."""
    story = Story()
    start_after_s = story.now_s + after_s

    refusal = story.refused(600.0, start_after_s=start_after_s, training=training)

    assert words in refusal.message
    assert refusal.hint
    assert story.training(600.0, start_after_s=story.now_s + 300.0), "250 s are enough"


def test_neither_a_start_nor_a_deadline_is_altered_past_the_other() -> None:
    story = Story()
    job = story.training(600.0, start_after_s=story.now_s + 100.0)

    late_start = story.change(job, start_after_s=story.now_s + 700.0)
    early_end = story.change(job, deadline_after_s=300.0)
    both = story.change(job, start_after_s=story.now_s + 700.0, deadline_after_s=1000.0)

    assert late_start is not None
    assert "cannot start before" in late_start.message
    assert early_end is not None
    assert "cannot start before" in early_end.message
    assert both is None
    assert story.change(job, start_after_s=story.now_s + 2000.0, deadline_s=0.0) is None


def test_a_range_stays_when_only_the_walltime_is_altered() -> None:
    story = Story()
    job = story.training(6000.0, runs_s=100.0)
    story.run_for(1.0)

    assert story.change(job, resources=("walltime=9000",)) is None
    assert story.job(job).spec.request.places_max == 4


@pytest.mark.parametrize("term", ["gpus=2", "ngpus=1"])
def test_gpus_alone_are_not_altered_where_places_have_them(term: str) -> None:
    """It would change nothing, and be told as done."""
    story = Story()
    job = story.training(6000.0, holds=("user",))

    error = story.change(job, resources=(term,))

    assert error is not None
    assert "its GPUs are part of its chunks" in error.message
    assert story.change(job, resources=("select=2:ngpus=1",)) is None
    assert story.job(job).spec.request.gpus == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deadline_after_s": 200.0}, "the earliest end is"),
        ({"training": None, "walltime_s": 900}, "by its walltime it may run for 00:15:00"),
        ({"deadline_s": 1.0, "deadline_after_s": 0.0}, "has passed"),
        ({"training": Training(parameters=1e8)}, "samples, batch, epochs, step_time missing"),
        ({"training": Training(iterations=10.0)}, "rates missing"),
        (
            {"training": Training(iterations=10.0, rates=((1, 1.0),), batch=16.0)},
            "given twice, by batch and",
        ),
        (
            {
                "training": Training(
                    parameters=1e8, samples=10.0, batch=16.0, epochs=1.0, step_time_s=0.1
                )
            },
            "a batch of 16 is more than all 10 samples",
        ),
        ({"training": Training(iterations=10.0, rates=((8, 1.0), (8, 2.0)))}, "must be 1 or more"),
        ({"training": Training(iterations=0.5, rates=((1, 1.0),))}, "less than one"),
        (
            {"training": Training(iterations=100.0, rates=((1, 0.0), (4, 0.0)))},
            "cannot run on 1 to 4",
        ),
        ({"walltime_s": 100}, "its walltime of 00:01:40 ends it before"),
        (
            {
                "training": Training(iterations=1e15, rates=((1, 1e-9), (4, 1.0))),
                "urgency": "relaxed",
                "deadline_after_s": 0.0,
            },
            "4.91e+16 years, which is not possible",
        ),
        ({"places_max": 4, "resources": ("select=8:ngpus=1",)}, "8 to 4 GPUs is no range"),
        ({"resources": ("select=8:ngpus=1",), "places_max": 16}, "8"),
        ({"resources": ("select=1:ngpus=1+1:ngpus=2",)}, "all alike"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    walltime_s = changes.pop("walltime_s", None)
    if walltime_s is not None:
        changes["resources"] = (f"{ELASTIC},walltime={walltime_s}",)

    error = Story().refused(float(changes.pop("deadline_after_s", 600.0)), **changes)  # type: ignore[arg-type] # a float

    assert words in error.message
    assert error.hint


def test_a_range_beyond_the_cluster_is_taken_and_told() -> None:
    story = Story()
    asked = submission(resources=(ELASTIC,), places_max=64, training=SIZE, deadline_after_s=600.0)
    step = story.head.command(
        c.Submit(caller=ALICE, submitted=asked, digests=("", "")), story.now_s
    )

    assert step.warnings == ("up to 64 GPUs are requested; the job can have at most 4 here",)


def test_a_deadline_without_any_run_time_is_taken_and_told() -> None:
    story = Story()
    asked = submission(deadline_after_s=600.0)
    step = story.head.command(
        c.Submit(caller=ALICE, submitted=asked, digests=("", "")), story.now_s
    )

    assert "its run time is unknown" in step.warnings[0]


def test_a_deadline_of_a_training_that_will_tell_its_steps_is_taken_and_told() -> None:
    """It is planned when it has told them."""
    story = Story()
    asked = submission(resources=(ELASTIC,), movable=True, deadline_after_s=600.0)
    step = story.head.command(
        c.Submit(caller=ALICE, submitted=asked, digests=("", "")), story.now_s
    )

    (warning,) = step.warnings
    assert "once the step time has been measured" in warning


def test_a_deadline_that_has_passed_is_missed_whatever_is_known() -> None:
    """Of a job without any known run time nothing is said before."""
    story = Story()
    job = story.submit("ncpus=1", deadline_after_s=60.0, runs_s=500.0)
    story.run_for(30.0)
    assert story.outlook(job).meets is None

    story.run_for(31.0)

    told = story.outlook(job)
    assert (told.meets, told.why) == (False, "its deadline has passed")


def test_a_training_without_gpus_is_planned_like_any_other_job() -> None:
    """Deadline policies share out GPUs; its end follows from its walltime all the same."""
    story = Story()
    job = story.submit("ncpus=1,walltime=300", deadline_after_s=600.0, runs_s=100.0)
    story.run_for(2.0)

    assert story.head.policy_failure is None
    assert story.state(job) == "running"
    told = story.outlook(job)
    assert told.meets is True
    assert told.end_s == pytest.approx(story.now_s + 300.0, abs=3.0)
