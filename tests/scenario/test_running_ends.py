"""When running jobs are planned to end: worked out once for a moment, whoever looks how often."""

import pickle

from gschedd.core.attempts.running import PredictedUses, Running
from gschedd.plan.load import Basis, Prediction, Use
from gschedd.plan.rests import offered, resting
from gschedd.plan.snapshot import RunningJob, RunningJobs
from tests.support.world import World, node


def test_a_job_beyond_its_walltime_is_planned_once_for_a_moment() -> None:
    """A policy looks at the jobs of each node, and each look planned all such jobs anew."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    jobs = [world.submit("walltime=50", runs_s=1000) for _ in range(2)]
    state, late_s = world.head.state, world.now_s + 60

    running = Running(state, world.settings, late_s)
    first = {name: running.on(name)[0] for name in ("n1", "n2")}

    assert sorted(each.job for each in first.values()) == jobs
    assert all((each.end_s or 0.0) <= late_s for each in first.values())
    for name, each in first.items():
        assert running.on(name)[0] is each
    later = Running(state, world.settings, late_s + 60)
    assert later.on("n1")[0] is not first["n1"], "another moment, another plan"


def test_a_plan_that_rests_sees_what_ran_when_it_began() -> None:
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    jobs = [world.submit("walltime=50", runs_s=1000) for _ in range(2)]
    state = world.head.state

    with offered(lambda: None), resting():
        running = iter(Running(state, world.settings, world.now_s))
        first = next(running).job
        state.dirty.ends.order.clear()  # as if the head had gone on meanwhile

        assert [first, *(each.job for each in running)] == jobs


def test_what_a_job_was_predicted_to_use_is_sent_to_a_planner_beside_the_head() -> None:
    """It is read from the predictions, and sent as what it says."""
    use = Use(cpu_cores=1.5)
    told = PredictedUses({"n1": Prediction(use=use, high=Use(cpu_cores=9.0), basis=Basis.KIND)})
    job = RunningJob(job=1, allocation=(), started_s=0.0, end_s=None, uses=told)

    (again,) = pickle.loads(pickle.dumps(RunningJobs((job,))))

    assert told == {"n1": use}
    assert again == job
    assert "n2" not in again.uses
