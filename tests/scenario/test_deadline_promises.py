"""What `deadline` guarantees to a job that insists on its deadline; the slack of urgencies."""

import pytest

from gsched.errors import InvalidRequestError
from gsched.model.training import Training, Urgency
from gschedd.core.state.state import State
from gschedd.plan.compose import Composed
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import fifo
from gschedd.policies.training import deadline, drs
from tests.support.world import World, node

ONE = "select=1:ncpus=1:ngpus=1"


class Site(World):
    """A node with one GPU, under a policy that plans training jobs beside all others."""

    def __init__(self, policy: Policy = deadline.plan) -> None:
        super().__init__(node("a", cpus=8, gpus=1), policy=Composed(policy, fifo.plan))

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)


def size(run_s: float) -> Training:
    """Return a training job of so many seconds on one GPU."""
    return Training(iterations=run_s, rates=((1, 1.0),))


def training(site: Site, run_s: float, in_s: float, **changes: object) -> int:
    return site.submit(
        ONE,
        training=size(run_s),
        runs_s=run_s,
        deadline_after_s=in_s,
        **changes,  # type: ignore[arg-type] # fields of a submission
    )


@pytest.mark.parametrize("insists", [True, False])
def test_a_job_taken_with_reject_if_late_is_guaranteed_its_deadline(*, insists: bool) -> None:
    """On one GPU a long job waits behind another; short ones come that would take its place.

    Who insists keeps it. The other one needs most GPU time, so it is given up for the short ones.
    """
    site = Site()
    training(site, 100.0, 150.0)
    long = training(site, 1000.0, 1300.0, reject_if_late=insists)
    assert site.job(long).guaranteed is (True if insists else None)
    assert site.job(long).meets is True

    for _ in range(4):
        training(site, 90.0, 900.0)

    assert site.job(long).meets is insists
    assert site.job(long).guaranteed is (True if insists else None)


def test_a_deadline_that_leaves_no_time_for_a_change_is_not_guaranteed() -> None:
    """The job is expected to be in time, and taken; two migrations would take 60 s."""
    site = Site()
    training(site, 100.0, 150.0)

    tight = training(site, 300.0, 430.0, reject_if_late=True, movable=True)

    assert (site.job(tight).meets, site.job(tight).guaranteed) == (True, None)


@pytest.mark.parametrize("policy", [deadline.plan, drs.plan])
@pytest.mark.parametrize("run_s", [30.0, 3600.0, 86400.0])
@pytest.mark.parametrize("urgency", [Urgency.NORMAL, Urgency.RELAXED])
def test_an_urgency_leaves_time_for_the_start(
    policy: Policy, run_s: float, urgency: Urgency
) -> None:
    """On one GPU of an idle cluster; the job takes the measured time and 5 % or 30 s more."""
    site = Site(policy)
    takes_s = run_s + max(30.0, 0.04 * run_s)
    job = site.submit(ONE, training=size(run_s), runs_s=takes_s, urgency=urgency.value)
    assert site.job(job).meets is True
    deadline_s = site.job(job).spec.deadline_s

    ended_s = site.now_s + takes_s
    assert ended_s < deadline_s


def test_an_urgent_job_on_one_gpu_is_refused() -> None:
    """Half of the run time on one GPU is not enough there, whatever is added."""
    with pytest.raises(InvalidRequestError, match="even if all nodes were idle") as refused:
        Site().submit(ONE, training=size(3600.0), urgency="urgent")
    assert refused.value.hint.startswith("give a less urgent --urgency, or --deadline, or ")
    assert refused.value.hint.endswith("allow more than 1 GPU with --gpus LEAST..MOST")


@pytest.mark.parametrize(
    ("gpus", "hint"),
    [
        (4, "give a later deadline, or less work: it runs no faster on 4 GPUs"),
        (1, "give a later deadline, or less work: the cluster has no more than 1 GPU for it"),
    ],
)
def test_more_gpus_are_advised_only_where_they_help(gpus: int, hint: str) -> None:
    """Somebody who gave 1..4 was told to allow more; communication takes longer than computing."""
    world = World(node("a", cpus=8, gpus=gpus))
    slow = Training(iterations=3600.0, rates=((1, 1.0), (2, 0.9), (4, 0.8)))

    with pytest.raises(InvalidRequestError) as refused:
        world.submit(ONE, training=slow, deadline_after_s=60.0, places_max=4)
    assert refused.value.hint == hint
