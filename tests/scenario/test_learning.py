"""The head learns what jobs cost from the parts that end, and the policy uses it."""

import pytest

from baselines import torque
from gsched.model.job import ExitRecord
from gsched.model.resources import Gpu, Inventory, Load, Usage
from gsched.model.states import NodeState, OutcomeKind, StopReason
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.start import AskStart, answer_to
from gschedd.core.state import facts as f
from gschedd.core.state.learning import Kinds, Loads, load_of, what_it_cost
from gschedd.core.state.records import Node
from gschedd.core.state.settings import Settings
from gschedd.models.robust import RobustModel
from gschedd.plan.load import Basis, NodeLoad
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import balance, fifo
from tests.support.world import BEGIN_S, GIB, World, node, settings


def passing(
    policy: Policy, config: Settings | None = None, *, overrun_s: float = 0.0
) -> tuple[float | None, float | None]:
    """Return when a padded short job and the large one before it start.

    Five of its kind have run for 10 s each. Then three of four CPUs are in use for 500 s, and the
    large job waits for all four. Whatever it runs over the prediction, nobody stops it.
    """
    world = World(node("n1", cpus=4), policy=policy, config=config)
    world.head.model = RobustModel()
    for _ in range(5):
        world.submit("nodes=1:ppn=1,walltime=5000", kind="short", runs_s=10)
        world.run_for(20)
    begun_s = world.elapsed_s
    world.submit("nodes=1:ppn=3,walltime=500", kind="long", runs_s=500)
    large = world.submit("nodes=1:ppn=4,walltime=100", kind="large", runs_s=10)
    short = world.submit("nodes=1:ppn=1,walltime=5000", kind="short", runs_s=10 + overrun_s)
    world.run_for(2000)
    outcome = world.job(short).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 0)
    assert not any(isinstance(fact, f.StopRequested) for fact in world.facts)
    starts = [world.started_s(job) for job in (short, large)]
    assert None not in starts
    return tuple(start - begun_s for start in starts if start is not None)  # type: ignore[return-value] # two


@pytest.mark.parametrize("policy", [balance.plan, fifo.plan, torque.plan])
def test_a_padded_job_passes_once_its_kind_is_known(policy: Policy) -> None:
    """By its walltime of 5000 s it would have to wait behind the large job; that is not delayed."""
    assert passing(policy) == (0, 500)
    assert passing(policy, settings(predicted_times=False)) == (510, 500)


def test_a_job_that_outlives_its_prediction_runs_on() -> None:
    """PredictionTable 10 s, it runs for 900: to its own end; and the large one waits for that."""
    assert passing(fifo.plan, overrun_s=890) == (0, 900)


def test_the_end_of_what_runs_is_planned_by_what_it_was_predicted() -> None:
    """Not by its padded walltime, and later and later if it does not end."""
    world = World(node("n1", cpus=1))
    world.head.model = RobustModel()
    for _ in range(5):
        world.submit("walltime=5000", kind="short", runs_s=10)
        world.run_for(20)
    world.submit("walltime=5000", kind="short", runs_s=4000)
    second = world.submit("walltime=5000", kind="short", runs_s=10)
    begun_s = world.elapsed_s

    def planned_s() -> tuple[float, float]:
        """Return the planned end of the first, and the predicted start of the second."""
        state = world.head.state
        seen = snapshot(state, world.settings, world.now_s, world.head.model)
        (running,) = seen.running
        key = state.order_key(state.jobs[second])
        answer = answer_to(AskStart(seen=seen, job=second, key=key), world.policy)
        start_s = answer.starts[second].start_s
        assert running.end_s is not None
        assert start_s is not None
        return running.end_s - BEGIN_S - begun_s, start_s - BEGIN_S - begun_s

    ends = [planned_s()]
    for wait_s in (100, 50, 50, 2800):
        world.run_for(wait_s)
        ends.append(planned_s())

    # three times the 10 s at first, as the spread is not known yet; at last the walltime
    assert ends[0][0] == ends[0][1] == pytest.approx(30)
    assert ends[1:] == [(200, 200), (200, 200), (400, 400), (5000, 5000)]


def test_the_head_learns_from_every_part_that_ends() -> None:
    """Run time and busy cores, for the kind of the job."""
    world = World(node("n1", cpus=4))
    world.head.model = model = RobustModel()
    for _ in range(3):
        world.submit("select=1:ncpus=2", name="train", runs_s=50)
    world.run_until(1000)

    later = world.submit("select=1:ncpus=2", name="train", runs_s=50)
    kind = Kinds(world.head.state)[later]
    said = model.predict(kind, Loads(world.head.state)["n1"], world.now_s)

    assert (said.basis, said.records) == (Basis.KIND, 3)
    assert said.wall_s == pytest.approx(50)
    assert said.use.cpu_cores == pytest.approx(2)


def test_a_head_without_a_model_learns_nothing_and_balances_all_the_same() -> None:
    """By what is reported and what was requested."""
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=balance.plan)
    jobs = [world.submit(runs_s=10) for _ in range(4)]
    world.run_until(1)

    assert sorted(world.machine_of(job)[0] for job in jobs) == ["n1", "n1", "n2", "n2"]


def test_a_burst_before_anything_is_known_is_spread() -> None:
    """Two idle nodes, and a model without any history: four jobs on each, not eight on one."""
    world = World(node("n1", cpus=8), node("n2", cpus=8), policy=balance.plan)
    world.head.model = RobustModel()
    for name in ("n1", "n2"):
        world.head.note_load(name, Load(), world.now_s)
    jobs = [world.submit(runs_s=60) for _ in range(8)]
    world.run_until(1)

    places = [world.machine_of(job)[0] for job in jobs]
    assert (places.count("n1"), places.count("n2")) == (4, 4)


def part_ended(world: World, job: int, **changes: object) -> f.PartEnded:
    fields = {"job": job, "attempt": 1, "kind": OutcomeKind.EXITED, "exit_code": 0, "ended_s": 5.0}
    record = ExitRecord(**{**fields, **changes})  # type: ignore[arg-type] # any of its fields
    usage = Usage(wall_s=10, cpu_s=20)
    return f.PartEnded(at_s=world.now_s, job=job, attempt=1, node="n1", record=record, usage=usage)


@pytest.mark.parametrize(
    ("changes", "succeeded"),
    [
        ({}, True),
        ({"exit_code": 3}, False),
        ({"kind": OutcomeKind.OOM, "exit_code": None, "signal": 9}, False),
    ],
)
def test_a_run_that_failed_is_remembered_as_one(
    changes: dict[str, object],
    succeeded: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """Its use counts little, and its run time is not that of the whole work."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(1)

    record = what_it_cost(world.head.state, part_ended(world, job, **changes))

    assert record is not None
    assert record.succeeded is succeeded
    assert record.used.cpu_cores == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"stop_reason": StopReason.DELETE},
        {"stop_reason": StopReason.WALLTIME},
        {"kind": OutcomeKind.NODE_LOST},
        {"kind": OutcomeKind.LAUNCH_FAILED},
    ],
)
def test_what_was_stopped_or_lost_says_nothing(changes: dict[str, object]) -> None:
    """It would teach that the kind is shorter than it is."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(1)

    assert what_it_cost(world.head.state, part_ended(world, job, **changes)) is None


def test_the_part_of_a_job_that_is_gone_says_nothing() -> None:
    """A late report about an unknown job."""
    world = World(node("n1"))

    assert what_it_cost(world.head.state, part_ended(world, 77)) is None


def test_a_load_is_what_the_heartbeat_said() -> None:
    """Percent of all cores, bytes, and whole GPUs; nothing before the first heartbeat."""
    has = Inventory(cpus=8, memory_bytes=64 * GIB, gpus=(Gpu(index=0, memory_bytes=16 * GIB),))
    known = Node(name="n1", state=NodeState.UP, inventory=has)

    before = load_of(known, 0)
    known.load = Load(
        cpu_percent=25,
        memory_used_bytes=3 * GIB,
        gpu_util_percent=(50.0,),
        gpu_memory_used_bytes=(4 * GIB,),
    )
    known.heartbeat_s = 7.0
    load = load_of(known, 2)

    assert before is None
    assert isinstance(load, NodeLoad)
    assert (load.used.cpu_cores, load.used.memory_bytes) == (2, 3 * GIB)
    assert (load.used.gpus, load.used.gpu_memory_bytes) == (0.5, 4 * GIB)
    assert (load.running, load.reported_s, load.rates.gpu_memory_bytes) == (2, 7.0, 16 * GIB)


def test_a_snapshot_knows_reported_nodes_and_all_jobs() -> None:
    """Nodes without a heartbeat are missing, and a predictor is there only if one is given."""
    world = World(node("n1"), node("n2"))
    job = world.submit(runs_s=10)
    world.head.note_load("n2", Load(cpu_percent=50), world.now_s)
    world.seen_node("n1").load = None

    seen = snapshot(world.head.state, world.settings, world.now_s)

    assert (list(seen.loads), len(seen.loads)) == (["n2"], 1)
    assert (list(seen.kinds), len(seen.kinds)) == ([job], 1)
    assert seen.loads.get("n1") is None
    assert seen.kinds.get(99) is None
    assert seen.predictor is None
