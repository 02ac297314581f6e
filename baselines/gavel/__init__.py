"""Gavel: throughput by type of GPU, shares of time from a linear programme, dealt out in rounds.

Each job has a fixed number of GPUs and a fixed batch. A linear programme gives each job shares of
its time on each type of GPU, so that the sum of the steps a second of all jobs is largest. In each
round, jobs get GPUs in the order of their share over the time that they had already.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, with its policy for the largest sum of throughputs and rounds of 6 min, as in
the comparison of Jayaram Subramanya et al., "Sia", SOSP 2023. Simplified: the time that a job had
follows from its work, on any type; waiting jobs start between rounds where GPUs are free; jobs that
could have other numbers of GPUs get the fewest.
"""

from msgspec import Struct

from gschedd.plan.snapshot import Plan, Policy, Snapshot


class Settings(Struct, frozen=True, kw_only=True):
    """What may be chosen.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
    """

    round_s: float = 360.0


def plan(snapshot: Snapshot) -> Plan:
    """Plan with rounds of 6 min."""
    return gavel(Settings())(snapshot)


def gavel(settings: Settings) -> Policy:
    """Return the policy with other settings."""

    def planned(snapshot: Snapshot) -> Plan:
        from baselines.gavel.rounds import plan_round  # needs NumPy and HiGHS

        return plan_round(snapshot, settings)

    return planned
