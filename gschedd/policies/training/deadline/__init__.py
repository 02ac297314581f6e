"""Ours: as many training jobs as possible meet their deadlines, each with as little as that needs.

1. What each training needs at least, in GPU time, to be in time: on few GPUs, since twice as many
   are never twice as fast.
2. Whoever needs least goes first: the largest number of training jobs, in that order, that can all
   be in time; found by bisection, as each of them is planned in order of deadlines on its minimum
   satisfactory share. If that is not all of them, a part of the GPUs is kept for those to come.
3. The others are put where they still fit. A job without a guarantee may be given up for others,
   also when it has begun; it goes on with what is left over, and may be taken in again later.
4. Who runs keeps GPUs that nobody needs; those still idle go to where they are used best, then to
   training jobs that will be late, first to those that have been there longest for what they need.

Nothing is known of those to come, and nothing of what was decided before but what runs.

Source: ours. Minimum satisfactory shares are those of Gu et al., "ElasticFlow", ASPLOS 2023; that
the largest is given up first is J. M. Moore's rule, Management Science 15(1):102-109, 1968.
"""

from functools import partial

from gsched.config.policies import DeadlineConfig
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.training.deadline.round import Round


def plan(snapshot: Snapshot) -> Plan:
    """Let as many training jobs as possible meet their deadlines."""
    return _plan(snapshot, DeadlineConfig())


def deadline(settings: DeadlineConfig) -> Policy:
    """Return the policy with a site's own settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: DeadlineConfig) -> Plan:
    return Round(snapshot, settings).plan()
