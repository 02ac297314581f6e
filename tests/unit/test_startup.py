"""Start-up times of training jobs: what is learned, and what is left of one that runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.model.states import AttemptState, JobState
from gschedd.core.state.records import Attempt, Job, Reached
from gschedd.core.training.profile import Before, Rest, rest_of_running
from gschedd.models.runtime import WalltimeSpeed, size_of_run
from gschedd.models.startup import LATEST, StartupKey, Startups, at_least, startup_from_end_s
from gschedd.plan.training import Size
from tests.support.books import spec_of

ALICES = StartupKey(kind="1:kind:net", program="1:name:net", owner_uid=1)
RATE = 2.0
SIZE = Size(speed=WalltimeSpeed(gpus=0), work=200.0)


def test_nothing_is_expected_where_nothing_is_known() -> None:
    """Then all is planned as if a training began with its first step."""
    startups = Startups()

    assert not startups
    assert startups.expected_s(ALICES) == 0.0


def test_the_nearest_family_that_ever_started_tells() -> None:
    """Its kind before its program, before its owner, before all others."""
    startups = Startups()
    edited = StartupKey(kind="1:kind:other", program=ALICES.program, owner_uid=1)
    hers = StartupKey(kind="1:kind:third", program="1:name:third", owner_uid=1)
    bobs = StartupKey(kind="2:kind:net", program="2:name:net", owner_uid=2)
    startups.learn(bobs, 40.0)
    assert startups.expected_s(ALICES) == 40.0
    startups.learn(hers, 30.0)
    assert startups.expected_s(ALICES) == 30.0
    startups.learn(edited, 20.0)
    assert startups.expected_s(ALICES) == 20.0
    startups.learn(ALICES, 10.0)

    assert startups.expected_s(ALICES) == 10.0
    assert startups.expected_s(bobs) == 40.0


def test_one_start_that_took_long_is_no_rule() -> None:
    """The one in the middle counts, and what came long before does not."""
    startups = Startups()
    for startup_s in [500.0] * LATEST + [4.0, 5.0, 900.0, 6.0, 5.0, 4.0, 5.0, 6.0, 5.0]:
        startups.learn(ALICES, startup_s)

    assert startups.expected_s(ALICES) == 5.0


@pytest.mark.parametrize(
    ("wall_s", "steps_s", "startup_s"),
    [
        (45.0, 40.0, 5.0),
        (40.4, 40.0, 0.0),  # nobody is heard at once
        (38.0, 40.0, 0.0),  # its steps were faster than its user said
        (4000.0, 40.0, None),  # that is no start: what its user said of its size is wrong
    ],
)
def test_what_a_run_took_longer_than_its_steps_is_its_start(
    wall_s: float, steps_s: float, startup_s: float | None
) -> None:
    """As far as it can be one."""
    assert startup_from_end_s(wall_s, steps_s) == startup_s


def test_less_than_a_second_counts_as_none() -> None:
    """So that what is exact in the simulator stays so."""
    assert (at_least(0.99), at_least(1.0)) == (0.0, 1.0)


def job(*, startup_s: float | None = None, work_begun: float = 0.0) -> Job:
    """Return a training that was started at 1000 s."""
    attempt = Attempt(
        number=1,
        state=AttemptState.RUNNING,
        assigned_s=1000.0,
        started_s=1000.0,
        parts={},
        startup_s=startup_s,
        work_begun=work_begun,
    )
    return Job(
        id=1,
        spec=spec_of(),
        state=JobState.RUNNING,
        submitted_s=900.0,
        eligible_s=900.0,
        attempt=attempt,
        attempts=1,
    )


def rest(
    now_s: float, expected_s: float, *, reached: Reached | None = None, **of_job: float
) -> Rest:
    """Return what is left of it, ``now_s`` after its start."""
    before = Before(startup_s=expected_s, move_s=30.0)
    return rest_of_running(
        job(**of_job), SIZE, RATE, reached=reached, before=before, now_s=1000.0 + now_s
    )


@pytest.mark.parametrize(
    ("now_s", "left_s", "steps_s"),
    [
        (0.0, 20.0, 100.0),
        (15.0, 5.0, 100.0),
        (20.0, 0.0, 100.0),
        (50.0, 0.0, 70.0),
        (120.0, 0.0, 0.0),
        (127.0, 7.0, 0.0),  # it should be done: it goes on as long as it is late
    ],
)
def test_the_steps_of_a_training_begin_after_its_start(
    now_s: float, left_s: float, steps_s: float
) -> None:
    """Its start is expected to take 20 s, its steps 100 s."""
    left = rest(now_s, 20.0)

    assert left.startup_s == left_s
    assert max(0.0, left.work / RATE) == steps_s


@given(now_s=st.floats(0, 100), begun=st.sampled_from([0.0, 50.0]))
def test_nothing_is_left_of_a_start_of_which_nothing_is_known(now_s: float, begun: float) -> None:
    """Then it is as if there was none; what goes on elsewhere has the time of its move."""
    left = rest(now_s, 0.0, work_begun=begun)

    begins_s = 30.0 if begun else 0.0
    assert left.startup_s == 0.0
    assert left.work == pytest.approx(200.0 - begun - RATE * max(0.0, now_s - begins_s))


def test_what_it_said_of_its_own_start_counts_before_what_is_expected() -> None:
    """The head was started anew since, and has not heard from it yet."""
    left = rest(50.0, 20.0, startup_s=40.0)

    assert (left.work, left.startup_s) == (200.0 - RATE * 10.0, 0.0)


def reached(at_s: float, work_done: float, since_s: float, since_work: float) -> Reached:
    """Return what a training of 400 samples said, so many seconds after its start."""
    return Reached(
        attempt=1,
        at_s=1000.0 + at_s,
        step=1,
        work_done=work_done,
        work_total=400.0,
        step_s=0.1,
        communication_s=0.0,
        gpus=1,
        since_s=1000.0 + since_s,
        since_work=since_work,
    )


def test_a_training_that_says_how_far_it_is_is_predicted_from_that() -> None:
    """At the pace that it has had: here half of what its user said, so it takes twice as long."""
    said = reached(50.0, 100.0, since_s=30.0, since_work=60.0)  # 40 of 400 in 20 s: 1 of 200 a s

    left = rest(50.0, 20.0, reached=said)
    later = rest(60.0, 20.0, reached=said)

    assert left.startup_s == 0.0
    assert left.work / RATE == pytest.approx(300.0 / 400.0 * 200.0 / 1.0)
    assert later.work / RATE == pytest.approx(left.work / RATE - 10.0)
    assert left.work / left.total_work == pytest.approx(0.75)


def test_its_first_step_alone_says_nothing_of_its_pace() -> None:
    """First steps are slow: what its user said counts until more was heard."""
    said = reached(30.0, 60.0, since_s=30.0, since_work=60.0)

    left = rest(30.0, 20.0, reached=said)

    assert left.work == pytest.approx(200.0 * 0.85)


def test_a_run_that_was_measured_as_a_whole_has_its_start_in_it() -> None:
    """So nothing is added to what its kind took before, or to a walltime."""
    assert size_of_run(60.0, 2).with_start
