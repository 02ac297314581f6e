"""Jobs that share GPUs beside training jobs: a shared GPU is nobody's whole GPU."""

import pytest
from msgspec import structs

from baselines import edf, fifowhole, themis
from gsched.model.resources import GpuShare, Share
from gsched.model.training import Training
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.allocation.changes import timeline_for
from gschedd.core.cycle.run import run_cycle, snapshot
from gschedd.core.state.state import State
from gschedd.plan.compose import Composed, claim_of, to_check
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import JobClass, Plan, Policy, Snapshot, Start
from gschedd.policies.queue import fifo
from gschedd.policies.training import deadline, drs, elasticflow
from tests.support.machines import GIB
from tests.support.world import BEGIN_S, Program, World, node

SIZE = Training(iterations=1000.0, rates=((1, 1.0), (2, 2.0), (4, 4.0)))
POLICIES = {
    "deadline": deadline.plan,
    "drs": drs.plan,
    "edf": edf.plan,
    "elasticflow": elasticflow.plan,
    "fifowhole": fifowhole.plan,
    "themis": themis.plan,
}


class Mixed(World):
    """A node with four GPUs that jobs can share, beside a policy for training jobs."""

    def __init__(self, policy: Policy) -> None:
        machine = node("a", cpus=16, gpus=4, gpu_memory_bytes=16 * GIB)
        machine.sharing = "colocate"
        super().__init__(machine, policy=Composed(policy, fifo.plan))

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def shared(self, percent: int, **limits: object) -> int:
        """Submit a job that shares a GPU."""
        resources = ",".join(
            [f"gpu_share={percent}%:1gb", *(f"{key}={value}" for key, value in limits.items())]
        )
        return self.submit(resources, program=Program(runs_s=5000.0))

    def training(self) -> int:
        """Submit a training on 1 to 4 GPUs with time enough."""
        return self.submit(
            "select=1:ncpus=1:ngpus=1",
            places_max=4,
            training=SIZE,
            runs_s=5000.0,
            movable=True,
            deadline_after_s=3000.0,
        )

    def gpus(self, job: int) -> set[int]:
        """Return the whole GPUs of a job."""
        attempt = self.job(job).attempt
        return (
            set()
            if attempt is None
            else {index for share in attempt.allocation for index in share.gpu_indices}
        )


@pytest.mark.parametrize("name", POLICIES)
def test_a_training_never_gets_a_gpu_with_shares_on_it(name: str) -> None:
    """Nor does its policy propose one: nothing of its plans is refused."""
    world = Mixed(POLICIES[name])
    world.shared(30)
    world.shared(100)
    training = world.training()

    assert world.gpus(training) <= {2, 3}
    assert world.gpus(training) or name == "fifowhole", "it wants all GPUs"
    world.head.state.dirty.mark_all()
    cycle = run_cycle(world.head.state, world.settings, world.policy, world.now_s)
    assert (cycle.refused, cycle.objection) == ((), "")


@pytest.mark.parametrize("name", ["elasticflow", "deadline"])
def test_a_gpu_comes_back_to_training_jobs_with_its_last_share(name: str) -> None:
    world = Mixed(POLICIES[name])
    first, second = world.shared(30), world.shared(30)
    training = world.training()
    assert 0 not in world.gpus(training)

    world.delete(first)
    world.run_for(60.0)
    assert 0 not in world.gpus(training)
    world.delete(second)
    world.run_for(60.0)
    whole = world.submit("gpus=1", program=Program(runs_s=100.0))
    assert 0 in world.gpus(training) | world.gpus(whole)


def test_the_time_line_has_a_shared_gpu_back_when_its_last_job_is_planned_to_end() -> None:
    world = Mixed(elasticflow.plan)
    world.shared(30, walltime=100)
    world.shared(30, walltime=400)
    world.shared(100)
    seen = snapshot(world.head.state, world.settings, world.now_s)
    line = timeline_for(seen, tuple(seen.running))

    assert line.starts_s == [BEGIN_S, BEGIN_S + 100, BEGIN_S + 400]
    assert line.free == [2, 2, 3]
    closed = {name: structs.replace(space, open=False) for name, space in seen.nodes.items()}
    shut = structs.replace(seen, nodes=closed)
    assert set(timeline_for(shut, tuple(seen.running)).free) == {0}


def test_the_pool_of_adaptive_jobs_has_no_shared_gpu() -> None:
    world = Mixed(elasticflow.plan)
    world.shared(30)

    assert pool_of(world.head.state.spaces).counts == {"": {"a": 3}}


def test_a_share_is_checked_against_deadlines_like_a_whole_gpu() -> None:
    """It takes a GPU that a training may need."""
    part = GpuShare(index=0, percent=10)
    share = Share(node="a", cpus=1, gpu_shares=(part,))
    world = Mixed(elasticflow.plan)
    job_class = JobClass(
        queue="batch", request=world.job(world.shared(30)).spec.request, walltime_s=None
    )
    starts = [
        Start(job=job, job_class=job_class, allocation=(each,), why="")
        for job, each in ((7, share), (8, structs.replace(share, gpu_shares=())))
    ]
    first = Plan(verdicts=(Forecast(job=1, meets=True),))

    seen = Snapshot(now_s=0.0, nodes=world.head.state.spaces, groups=(), running=())
    claim = claim_of([])

    assert to_check(first, Plan(starts=tuple(starts)), seen, claim, ()) == (starts[0],)
