"""A training of which nothing is said: planned by its walltime, then by what its kind took."""

from gschedd.core.cycle.run import snapshot
from gschedd.core.state.state import State
from gschedd.core.training.profile import known_size
from gschedd.models.robust import RobustModel
from gschedd.plan.training import Layout
from tests.support.world import World, node

ON_TWO = Layout(counts=(2,))


class Learner(World):
    """A world whose head plans training jobs, and learns."""

    def __init__(self) -> None:
        super().__init__(node("n1", cpus=4, gpus=4))
        self.head.model = RobustModel()

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self, count: int = 2, **how: object) -> int:
        """Submit a training on two GPUs that runs for 50 s and says 5000."""
        resources = f"select={count}:ncpus=1:ngpus=1,place=pack,walltime=5000"
        how = {"kind": "net", "deadline_after_s": 1e6, "runs_s": 50.0, **how}
        return self.submit(resources, **how)  # type: ignore[arg-type] # passed on

    def planned_s(self, job: int) -> float:
        """Return how long a job is planned to run in all, on two GPUs."""
        state = self.head.state
        profile = snapshot(state, self.settings, self.now_s, self.head.model).profiles[job]
        return profile.total_work / profile.speed.rate(ON_TWO)


def test_what_its_kind_took_counts_instead_of_its_walltime() -> None:
    """Once enough of them are known; another kind is planned as before."""
    world = Learner()
    first = world.training()
    assert world.planned_s(first) == 5000.0
    world.run_for(60.0)
    for _ in range(4):
        world.training()
        world.run_for(60.0)

    known, other = world.training(), world.training(kind="another")

    assert (
        50.0 <= world.planned_s(known) <= 200.0
    )  # what nine in ten do not exceed, as far as known
    assert world.planned_s(other) == 5000.0


def test_a_range_of_gpus_is_not_told_from_runs_on_other_numbers() -> None:
    """Those runs may have had any number of it."""
    world = Learner()
    for _ in range(6):
        world.training()
        world.run_for(60.0)

    elastic = world.training(1, places_max=4)

    goal_s = world.planned_s(elastic)
    assert goal_s >= 2500.0


def test_nothing_is_known_without_walltime_and_history() -> None:
    """Then no policy plans it by its deadline."""
    world = Learner()
    job = world.submit("select=1:ncpus=1:ngpus=1", deadline_after_s=1e6, kind="new")
    spec = world.job(job).spec

    assert known_size(spec, world.head.state, world.settings, world.head.model, world.now_s) is None
    assert job not in snapshot(world.head.state, world.settings, world.now_s).profiles
