"""DRS: deadline-aware dynamic scheduling of training jobs, each on GPUs whose number it chooses.

For each waiting training job the plans on what is free are timed, by the bandwidth between their
GPUs. Of those that meet the deadline the one that is earliest for its GPUs is taken, across nodes
where that uses up fragments; if none does, the one that ends first. The job that meets its deadline
most narrowly starts first. Before that, running training jobs migrate where most nodes are half
empty.

Source: Fu Maozhong, Hu Haiyang, Li Zhongjin, Journal of Computer Research and Development 60(6),
2023, doi 10.7544/issn1000-1239.202220149. Ours differs so: nodes with as many free GPUs are taken
by the capacity that is left on them, the most first; on a cluster of several kinds of nodes there
are also plans within each kind; only so many running jobs migrate at once, only if more deadlines
are met by it and none is missed; and a job that would be late waits for GPUs that are being
released if these let it be in time. ``baselines.drs_paper`` has the published migration.
"""

from functools import partial

from gsched.config.policies import DrsConfig
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.training.drs.planning import Planning


def plan(snapshot: Snapshot) -> Plan:
    """Start the waiting training jobs that have a plan, and predict the ends of all."""
    return _plan(snapshot, DrsConfig())


def drs(settings: DrsConfig) -> Policy:
    """Return the policy with a site's own settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: DrsConfig) -> Plan:
    return Planning(snapshot, settings).plan()
