"""Running jobs of users above their shares give way to jobs of users below theirs."""

import pytest

from gschedd.core.state import facts as f
from tests.scenario.test_preemption import CAROL, LONG, ONE_GPU, SAVES, ways, world
from tests.support.world import ALICE, BEGIN_S, BOB, World


def test_a_user_below_its_share_gets_it_within_the_minimum_run() -> None:
    """Bob gets what he is entitled to, then he and alice have used the same, and two GPUs each."""
    here = world(by=("share",))
    alices = [here.submit(ONE_GPU, program=LONG, account="all") for _ in range(6)]
    here.run_until(10)
    bobs = [here.submit(ONE_GPU, program=LONG, account="all", by=BOB) for _ in range(4)]

    here.run_until(59)
    assert [here.started_s(job) for job in bobs] == [None] * 4
    here.run_until(65)
    assert sum(here.started_s(job) is not None for job in bobs) == 3
    here.run_until(8000)
    running = here.head.state.running
    assert (sum(job in running for job in alices), sum(job in running for job in bobs)) == (2, 2)
    assert (len(ways(here, *alices)), len(ways(here, *bobs))) == (3, 1)
    usage = here.head.state.usage.usage(here.now_s)
    assert usage["all", "alice"] == pytest.approx(usage["all", "bob"], rel=0.02)


def after_much_use() -> World:
    """Return a cluster on which bob has used all GPUs, and alice nothing: hers go first."""
    here = world(by=("share",))
    here.submit("nodes=1:ppn=1:gpus=4", runs_s=900, account="all", by=BOB)
    here.run_until(1000)
    for _ in range(4):
        here.submit(f"{ONE_GPU},walltime=5000", program=LONG, account="all")
    here.run_until(1010)
    return here


def test_jobs_ahead_that_preempt_nobody_do_not_keep_a_user_from_its_share() -> None:
    """However many kinds of jobs alice has queued; those of her own she cannot preempt."""
    here = after_much_use()
    for minutes in range(1, 41):
        here.submit(f"{ONE_GPU},walltime={minutes}:00", program=LONG, account="all")
    bobs = here.submit(f"{ONE_GPU},walltime=3600", program=LONG, account="all", by=BOB)

    here.run_until(1100)
    assert here.started_s(bobs) == pytest.approx(1061, abs=3)


def test_what_a_job_has_reserved_is_not_kept_from_those_that_have_precedence_over_it() -> None:
    """Alice's large job is ahead of bob's, and would give way to it if it ran."""
    here = after_much_use()
    large = here.submit("nodes=1:ppn=1:gpus=4,walltime=600", program=LONG, account="all")
    here.run_until(1020)
    assert here.wait_of(large).reserved
    bobs = here.submit(f"{ONE_GPU},walltime=36000", program=LONG, account="all", by=BOB)

    here.run_until(1100)
    assert here.started_s(bobs) == pytest.approx(1061, abs=3)


def test_a_large_job_does_not_give_way_by_share_to_a_small_one() -> None:
    """Three of four GPUs would be vacated for nobody; for a job of two it gives way."""
    for gpus, expected in ((1, []), (2, ["requeue"])):
        here = world(by=("share",), max_loss=1.0)
        large = here.submit("nodes=1:ppn=1:gpus=4", program=LONG, account="all")
        here.run_until(100)
        for _ in range(4 // gpus):
            here.submit(f"nodes=1:ppn=1:gpus={gpus}", program=LONG, account="all", by=BOB)
        here.run_until(1000)
        assert ways(here, large) == expected


@pytest.mark.parametrize(("carols_shares", "starts"), [(6, True), (1, False)])
def test_what_is_taken_for_one_job_counts_as_one(carols_shares: int, *, starts: bool) -> None:
    """Alice has about 2.5 GPUs too much; carol's job, within her share or not, needs 4 of them."""
    shares = {"alice": 1, "bob": 1, "carol": carols_shares}
    here = world(by=("share",), nodes=2, gpus=4, shares=shares, max_loss=1.0)
    for _ in range(2):
        here.submit("nodes=1:ppn=1:gpus=4", runs_s=300, account="all", by=BOB)
    here.run_until(310)
    large = "nodes=1:ppn=1:gpus=3"
    here.submit(large, program=LONG, account="all", by=BOB, qos="kept")
    here.run_until(311)
    alices = [here.submit(ONE_GPU, program=SAVES, account="all", movable=True) for _ in range(5)]
    here.run_until(312)
    here.submit(large, program=LONG, account="all", by=BOB, qos="kept")  # waits
    here.run_until(910)
    whole = here.submit("nodes=1:ppn=1:gpus=4", program=LONG, account="all", by=CAROL)

    here.run_until(960)
    assert (here.started_s(whole) is not None) == starts
    assert len(ways(here, *alices)) == (4 if starts else 0)


def test_a_user_above_its_share_preempts_nobody() -> None:
    """Alice has three of four GPUs, and waits for the one of bob."""
    here = world(by=("share",), max_loss=1.0)
    for by in (ALICE, ALICE, ALICE, BOB):
        here.submit(ONE_GPU, program=LONG, account="all", by=by)
    here.run_until(100)
    waits = here.submit(ONE_GPU, program=LONG, account="all")
    here.run_until(1000)

    assert here.started_s(waits) is None
    assert not [fact for fact in here.facts if isinstance(fact, f.JobPreempted)]


def test_a_job_that_gave_way_by_share_waits_behind_those_of_its_user() -> None:
    """Else it is the next of his that starts, and no other job gets its GPU for half an hour."""
    here = world(by=("share",))
    first = [here.submit(ONE_GPU, runs_s=300, account="all") for _ in range(4)]
    rest = [here.submit(ONE_GPU, runs_s=300, account="all") for _ in range(2)]
    here.run_until(100)
    here.submit(ONE_GPU, runs_s=20, account="all", by=BOB)
    later = here.submit(ONE_GPU, runs_s=300, account="all")

    here.run_until(150)
    assert ways(here, *first) == ["requeue"]
    (gave_way,) = (job for job in first if here.state(job) == "queued")
    assert [here.state(job) for job in rest] == ["running", "queued"]
    here.run_until(310)
    assert (here.state(rest[1]), here.state(gave_way)) == ("running", "running")
    here.run_until(3000)
    assert not here.head.state.jobs
    assert (here.done[gave_way].started_s or 0) < (here.done[later].started_s or 0)


def test_a_user_who_has_used_much_starts_when_the_others_have_used_as_much() -> None:
    """A job of all GPUs, among others that could be started at any time; see the guide's bound."""
    here = world(by=("share",))
    here.submit("nodes=1:ppn=1:gpus=4,walltime=1000", runs_s=900, account="all", by=CAROL)
    here.run_until(1000)
    submitted_s = here.now_s
    for by in (ALICE, BOB) * 80:
        here.submit(f"{ONE_GPU},walltime=300", runs_s=200, account="all", by=by)
    large = here.submit("nodes=1:ppn=1:gpus=4,walltime=500", runs_s=400, account="all", by=CAROL)
    bound_s = 900 * 4 * 3 / 4 + 300 + 10

    here.run_until(1000 + bound_s)
    waited_s = (here.job(large).started_s or here.now_s) - submitted_s
    assert 900 < waited_s <= bound_s


def test_a_job_that_gives_way_by_share_again_and_again_comes_to_its_end() -> None:
    """It needs all GPUs for 20 minutes, and others want their shares all of the time."""
    here = world(by=("share",), again_s=60.0, max_loss=1.0)
    large = here.submit("nodes=1:ppn=1:gpus=4", runs_s=1200, account="all", by=CAROL)
    while large not in here.done and here.now_s < BEGIN_S + 8000:
        for by in (ALICE, BOB):
            if not any(job.spec.owner.user == by.user for job in here.head.state.jobs.values()):
                here.submit("nodes=1:ppn=1:gpus=2,walltime=120", runs_s=50, account="all", by=by)
        here.run_until(here.now_s - BEGIN_S + 100)

    assert large in here.done
    facts = here.told(f.JobPreempted, large)
    lost_s = [fact.lost_s for fact in facts if isinstance(fact, f.JobPreempted)]
    least_s = [60.0 * 2**at for at in range(5)]
    assert 3 <= len(lost_s) <= 1 + len(least_s)
    assert all(lost >= least for lost, least in zip(lost_s[1:], least_s, strict=False))


def test_no_more_work_is_lost_for_shares_than_is_allowed() -> None:
    """A job of all GPUs has run for a day: what it has done is more than 2 % of a day."""
    for max_loss, expected in ((0.02, []), (1.0, ["requeue"])):
        here = world(by=("share",), max_loss=max_loss)
        large = here.submit("nodes=1:ppn=1:gpus=4", program=LONG, account="all")
        here.run_until(80000)
        here.submit("nodes=1:ppn=1:gpus=2", program=LONG, account="all", by=BOB)
        here.run_until(80100)
        assert ways(here, large) == expected
