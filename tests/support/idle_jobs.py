"""Jobs that do not use their GPUs, for the machine that drives a head at random."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gsched.config.idle_gpus import IdleAction, IdleGpusConfig
from gsched.model.gpu_idle import IdleGpu
from gsched.model.resources import LiveUse
from gsched.protocol.uses import Uses
from gschedd.core.head import Head
from gschedd.core.nodes.live import note_uses
from gschedd.core.state.step import Step
from tests.support.head_wishes import numbers
from tests.support.site import changed

ACTIONS: tuple[IdleAction, ...] = ("report", "warn", "hold", "requeue", "cancel")


class IdleJobs(RuleBasedStateMachine):
    """Nodes tell of idle GPUs of a job, of all of them or some, under any rule."""

    head: Head
    now_s: float

    def take(self, step: Step, *, lose: bool = False) -> None:
        """Make a step's facts durable."""
        raise NotImplementedError

    @rule(
        job=numbers,
        action=st.sampled_from(ACTIONS),
        act_s=st.sampled_from([0.0, 0.0, 60.0]),
        idle_s=st.sampled_from([1.0, 100.0]),
        idle=st.sets(st.integers(0, 2)),
        end_any=st.booleans(),
    )
    def report_idle_gpus(  # what Hypothesis draws
        self,
        job: int,
        action: IdleAction,
        act_s: float,
        idle_s: float,
        idle: set[int],
        *,
        end_any: bool,
    ) -> None:
        known = self.head.state.running.get(job)
        if known is None or known.attempt is None:
            return
        gpus = tuple(IdleGpu(index=index, idle_s=idle_s) for index in sorted(idle))
        use = LiveUse(gpus_idle=gpus)
        for node in known.attempt.parts:
            message = Uses(uses=((job, known.attempts, use),))
            note_uses(self.head.state, node, message, self.now_s)
        before = self.head.settings
        rule = IdleGpusConfig(action=action, warn_s=10.0, act_s=act_s, end_any=end_any)
        self.head.settings = changed(before, idle_gpus=rule)
        self.take(self.head.answer_idle_gpus([job], self.now_s))
        self.head.settings = before
