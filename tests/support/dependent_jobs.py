"""Rules of the head's state machine about jobs that depend on others."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gsched.model.dependency import DependencyKind
from gsched.model.states import HoldKind
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Step
from tests.support.world import ADMIN, ALICE, BOB, submission


class DependentJobs(RuleBasedStateMachine):
    """Submits jobs that depend on others; the machine itself carries the commands out."""

    head: Head

    def job(self, number: int) -> int:
        """Return the id of one of the unfinished jobs, or of none."""
        raise NotImplementedError

    def command(self, command: c.AnyCommand) -> Step:
        """Carry out a command."""
        raise NotImplementedError

    def take(self, step: Step) -> None:
        """Take in what has happened."""
        raise NotImplementedError

    @rule(
        caller=st.sampled_from([ALICE, ALICE, BOB, ADMIN]),
        kind=st.sampled_from(DependencyKind),
        jobs=st.lists(st.integers(0, 12), max_size=3),
    )
    def submit_dependent(self, caller: Caller, kind: DependencyKind, jobs: list[int]) -> None:
        named = [str(self.job(number)) for number in jobs]
        text = ":".join([kind.value, *(["2"] if kind is DependencyKind.ON else named)])
        asked = submission(depends=(text,))
        self.take(self.command(c.Submit(caller=caller, submitted=asked, digests=("", ""))))

    @invariant()
    def a_job_waits_for_dependencies_exactly_while_it_has_some(self) -> None:
        if not hasattr(self, "head"):
            return  # not set up yet
        for job in self.head.state.jobs.values():
            held = HoldKind.DEPENDENCY in job.holds
            assert held == bool(job.spec.depends), (job.id, job.holds, job.spec.depends)
