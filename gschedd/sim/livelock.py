"""A guard against a policy that decides for ever at one moment, which would stop the clock."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from gsched.errors import GschedError
from gschedd.core.state import facts as f

#: Decisions at one moment, whatever there is to decide; and more for each job of that moment.
MAX_DECISIONS: Final = 1_000
MAX_DECISIONS_PER_JOB: Final = 10
#: Jobs that are named.
NAMED: Final = 5


class RestlessPolicyError(GschedError):
    """A policy decides again and again while nothing but its decisions happens."""

    code = "restless_policy"


class LivelockGuard:
    """Counts the decisions of one moment.

    Args:
        policy: its name.
        begin_s: when the simulated time begins, seconds since the epoch.
    """

    def __init__(self, policy: str, begin_s: float) -> None:
        self._policy = policy
        self._begin_s = begin_s
        self._at_s = begin_s - 1.0
        self._before = self._jobs = 0
        self._changed: Counter[int] = Counter()

    def check(
        self, at_s: float, decisions: int, jobs: Collection[int], facts: Iterable[f.AnyFact]
    ) -> None:
        """Take in a decision.

        Args:
            at_s: the moment, seconds since the epoch.
            decisions: since the simulation began.
            jobs: unfinished ones.
            facts: what the decision changes.

        Raises:
            RestlessPolicyError: there were too many at this moment.
        """
        if at_s != self._at_s:
            self._at_s, self._before, self._jobs = at_s, decisions, 0
            self._changed.clear()
        count = decisions - self._before
        self._jobs = max(self._jobs, len(jobs))
        if count <= MAX_DECISIONS // 2:
            return
        self._changed.update(fact.job for fact in facts if isinstance(fact, f.JobFact))
        if count <= MAX_DECISIONS + MAX_DECISIONS_PER_JOB * self._jobs:
            return
        named = [job for job, _ in self._changed.most_common(NAMED)] or sorted(jobs)[:NAMED]
        several = "jobs" if len(named) > 1 else "job"
        raise RestlessPolicyError(
            f"the policy {self._policy} decided {count} times at {at_s - self._begin_s:g} s of the "
            f"trace, and time cannot go on; {several} {', '.join(map(str, named))}",
            hint="this is a fault of the policy: equal states must come to equal plans",
        )
