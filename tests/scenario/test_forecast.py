"""When will my job start? Foretold by asking the policy again, and true if nothing new comes."""

from gschedd.core.cycle import snapshot
from gschedd.core.forecast import MAX_AHEAD, predict_start
from tests.support.world import BEGIN_S, World, node


def forecast_s(world: World, job: int) -> float | None:
    """Return the predicted start, seconds since the world began."""
    state = world.head.state
    start_s = predict_start(
        snapshot(state, world.settings, world.now_s),
        world.policy,
        job=job,
        key=state.order_key(state.jobs[job]),
    )
    return None if start_s is None else start_s - BEGIN_S


def test_a_forecast_comes_true_when_jobs_run_to_their_walltime() -> None:
    """Seven jobs of three sizes on two nodes: each starts exactly when it was foretold."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    sizes = [(4, 30), (3, 50), (4, 20), (1, 40), (2, 10), (4, 60), (1, 5)]
    jobs = [
        world.submit(f"ncpus={cpus},walltime={limit_s}", runs_s=limit_s) for cpus, limit_s in sizes
    ]
    waiting = [job for job in jobs if world.state(job) == "queued"]
    foretold = {job: forecast_s(world, job) for job in waiting}

    world.run_until(1000)

    assert len(waiting) >= 2
    assert foretold == {job: world.started_s(job) for job in waiting}


def test_nothing_is_foretold_behind_a_job_without_a_limit() -> None:
    """Nobody knows when a job without walltime ends, so nobody is told a time."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=10)
    second = world.submit("walltime=10")

    assert forecast_s(world, second) is None


def test_nothing_is_foretold_far_down_the_queue() -> None:
    """Beyond the bound the answer would cost more than it is worth."""
    world = World(node("n1", cpus=1))
    jobs = [world.submit("walltime=10") for _ in range(MAX_AHEAD + 3)]

    assert forecast_s(world, jobs[-1]) is None
