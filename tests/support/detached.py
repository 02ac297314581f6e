"""A policy is asked twice: on what the head hands out, and on what that is as a value elsewhere."""

import pickle
from collections.abc import Iterator

from gsched.config.policies import BalanceConfig, TrainingConfig
from gschedd.models.saved import FORMAT, VERSION, SnapshotFile, decode, encode, restored, saved
from gschedd.plan.snapshot import Plan, Policy, Snapshot


def elsewhere(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yield a snapshot as another process has it, and as a file has it."""
    detached = snapshot.detach()
    yield pickle.loads(pickle.dumps(detached, pickle.HIGHEST_PROTOCOL))
    content = SnapshotFile(
        format=FORMAT,
        version=VERSION,
        gsched="test",
        policy="",
        balance=BalanceConfig(),
        training=TrainingConfig(),
        snapshot=saved(detached),
    )
    yield restored(decode(encode(content)).snapshot)


def check_same(seen: Snapshot, copy: Snapshot) -> None:
    """Check that a snapshot says the same elsewhere.

    Raises:
        AssertionError: it does not.
    """
    assert (copy.now_s, copy.fabric, copy.moves_max) == (seen.now_s, seen.fabric, seen.moves_max)
    assert copy.default_walltime_s == seen.default_walltime_s
    assert copy.predicted_times == seen.predicted_times
    assert copy.nodes == dict(seen.nodes)
    assert copy.profiles == dict(seen.profiles)
    assert copy.loads == dict(seen.loads)
    assert list(copy.running) == list(seen.running)
    assert [(each.job_class, list(each.order)) for each in copy.groups] == [
        (each.job_class, list(each.order)) for each in seen.groups
    ]
    jobs = {job for group in seen.groups for _, job in group.order}
    jobs |= {each.job for each in seen.running if not each.has_all_uses}
    assert copy.kinds == {job: kind for job in jobs if (kind := seen.kinds.get(job)) is not None}
    assert (copy.predictor is None) == (seen.predictor is None)
    if seen.predictor is not None and copy.predictor is not None:
        for kind in set(copy.kinds.values()):
            for load in copy.loads.values():
                said = copy.predictor.predict(kind, load, seen.now_s)
                assert said == seen.predictor.predict(kind, load, seen.now_s)


class AlsoDetached:
    """A policy that must plan the same on a detached snapshot.

    Attributes:
        asked: how often it was asked about something.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.asked = 0

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan.

        Raises:
            AssertionError: it is another one elsewhere.
        """
        copies = list(elsewhere(snapshot))  # first: a plan may work out what a view puts off
        plan = self._policy(snapshot)
        for copy in copies:
            check_same(snapshot, copy)
            assert self._policy(copy) == plan
        self.asked += bool(snapshot.groups)
        return plan
