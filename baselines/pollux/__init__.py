"""Pollux: goodput against a fair share of the GPUs, which count as alike.

The speedup of a job is its goodput over that on its fair share, which is all GPUs over the number
of jobs. What changes is reduced by the cost of a restart. The power mean of the speedups is
largest, with a negative power, so that no job is left far behind. GPUs of all types count as
equally fast: of a job on so many GPUs, the mean goodput of the types is assumed.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
OSDI 2021, with its power -1 and rounds of a minute. Ours: the search is that of an assignment up
to a gap, bounded in time, in place of a genetic algorithm; a job has powers of two of the GPUs of a
node, or whole nodes, of one type; batch sizes are tuned to the type that it gets; waiting jobs
start between rounds where GPUs are free.
"""

from msgspec import Struct

from gschedd.plan.snapshot import Plan, Policy, Snapshot


class Settings(Struct, frozen=True, kw_only=True):
    """What may be chosen.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the mean, below 0.
        restart_s: cost of a restart, seconds, of any job.
        gap: a solution that is proven to be so near to the best is good enough, relative.
        time_limit_s: of the search, seconds.
    """

    round_s: float = 60.0
    p: float = -1.0
    restart_s: float = 30.0
    gap: float = 1e-4
    time_limit_s: float = 5.0


def plan(snapshot: Snapshot) -> Plan:
    """Plan with the published settings."""
    return pollux(Settings())(snapshot)


def pollux(settings: Settings) -> Policy:
    """Return the policy with other settings."""

    def planned(snapshot: Snapshot) -> Plan:
        from baselines.pollux.rounds import plan_round  # needs NumPy and HiGHS

        return plan_round(snapshot, settings)

    return planned
