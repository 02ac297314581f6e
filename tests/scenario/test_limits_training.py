"""Training jobs under limits: each policy starts and lets them grow within them, at any moment."""

import pytest
from msgspec import convert

from baselines.registry import ALL, TRAININGS
from gsched.config.tables import LimitsConfig
from gsched.config.words import ADAPTIVE_POLICIES
from gsched.model.training import Adaptive, Training
from gschedd.core.state.settings import Caller
from gschedd.core.state.state import State
from tests.support.world import ALICE, BOB, World, node, settings

MOST = 4
SIZE = Training(iterations=1000.0, rates=((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0)))
#: Policies that may run one job after the other.
ONE_AT_A_TIME = {"edf", "fifowhole"}


class Limited(World):
    """Two nodes of eight GPUs; each user may have four."""

    def __init__(self, policy: str) -> None:
        limits = convert({"each_user": {"max_gpus": MOST}}, LimitsConfig)
        self.adaptive = policy in ADAPTIVE_POLICIES
        machines = [node(name, cpus=16, gpus=8) for name in ("a", "b")]
        super().__init__(
            *machines, policy=ALL.choose(policy).plan, config=settings(limits=limits, at_once=4)
        )

    def _fresh_state(self) -> State:
        return State(
            {"batch": 0},
            plans_training=True,
            plans_adaptive=self.adaptive,
            limits=self.settings.limit_rules(),
        )

    def training(self, by: Caller) -> int:
        """Submit a training job of one to eight GPUs."""
        return self.submit(
            "select=1:ncpus=1:ngpus=1,place=free,walltime=4000",
            runs_s=900.0,
            places_max=8,
            movable=True,
            training=None if self.adaptive else SIZE,
            deadline_after_s=1e5 if self.adaptive else 600.0,
            by=by,
            adaptive=Adaptive(batch=64, batch_max=4096) if self.adaptive else None,
        )

    def gpus_of(self, user: str) -> int:
        """Return how many GPUs a user's attempts and targets have, each job the more of both."""
        total = 0
        for job in self.head.state.jobs.values():
            if job.spec.owner.user == user:
                attempt = job.attempt if job.id in self.head.state.running else None
                here = attempt.allocation if attempt is not None else ()
                there = job.move.allocation if job.move is not None else ()
                counts = [sum(len(each.gpu_indices) for each in one) for one in (here, there)]
                total += max(counts)
        return total


@pytest.mark.parametrize("policy", sorted(TRAININGS))
def test_no_policy_exceeds_a_limit_at_any_moment(policy: str) -> None:
    """Three jobs of Alice, one of Bob: starts, growth and migrations stay within four GPUs each."""
    here = Limited(policy)
    jobs = [here.training(by=ALICE) for _ in range(3)]
    bob = here.training(by=BOB)
    used = {"alice": 0, "bob": 0}
    for _ in range(300):
        here.run_for(5.0)
        for user, before in used.items():
            now = here.gpus_of(user)
            assert now <= MOST, f"{user} has {now} GPUs"
            used[user] = max(before, now)
    assert any(here.started_s(job) is not None for job in jobs)
    assert policy in ONE_AT_A_TIME or here.started_s(bob) is not None
    assert not here.head.oddities["moves_refused"]
    assert not here.head.oddities["plan_refused"]
