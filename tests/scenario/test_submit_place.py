"""The host of submission is the one whose kernel has named the caller, whatever the job says."""

from msgspec import structs

from gsched.model.job import SubmitPlace
from tests.support.world import ALICE, World


def test_t1_the_head_says_on_which_host_a_job_was_submitted() -> None:
    """A job that names another host would have its output written there."""
    world = World()
    stated = SubmitPlace(mark="x 1.2 ", host="other", kept="e")

    jobs = [
        world.submit(by=by, place=stated)
        for by in (ALICE, structs.replace(ALICE, host="l1"), structs.replace(ALICE, token="7"))
    ]

    assert [world.head.state.jobs[job].spec.place for job in jobs] == [
        structs.replace(stated, host=""),
        structs.replace(stated, host="l1"),
        None,  # a program with a token is on no host of the cluster
    ]
