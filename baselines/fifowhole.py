"""First come, first served, the whole cluster to one training at a time.

A baseline of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149.
"""

from baselines.kit.whole import plan_one_at_a_time
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import TrainingProfile


def plan(snapshot: Snapshot) -> Plan:
    """Start the training that arrived first on all GPUs, when no other one runs."""
    return plan_one_at_a_time(snapshot, _by_arrival, firm=True)


def _by_arrival(profile: TrainingProfile) -> tuple[float, ...]:
    return (profile.arrived_s, profile.job)
