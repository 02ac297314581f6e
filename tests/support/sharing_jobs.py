"""Rules of the head's state machine about jobs that share GPUs; those of node n1 can be shared."""

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from msgspec import structs

from gsched.model.resources import Gpu, GpuShare, GpuShareRequest, Load, Share
from gsched.model.states import NodeState
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state.step import Step
from gschedd.plan.sharing import share_of_gpu
from tests.support.machines import GIB
from tests.support.world import ALICE, submission

NODE = "n1"
CARD_BYTES = 16 * GIB
#: What jobs ask for; the last two are refused.
SHARES = (
    ("gpu_share=40%:4gb:high",),
    ("gpu_share=30%:9gb",),
    ("gpu_share=60%",),
    ("gpu_share=10%:17gb",),
    ("gpus=2,gpu_share=10%",),
)


def sharing_of(node: str) -> str:
    """Return the runtime that a node announces."""
    return "modelled" if node == NODE else ""


def wild_share(asked: GpuShareRequest, chance: random.Random) -> Share:
    """Return what a job requests of some GPU of n1, whether that has it or not."""
    gpu = Gpu(index=chance.randrange(3), memory_bytes=CARD_BYTES)
    part: GpuShare = share_of_gpu(asked, gpu)
    if chance.random() < 0.2:
        part = structs.replace(part, percent=chance.choice([1, 100]))
    return Share(node=NODE, cpus=1, gpu_shares=(part,))


class SharingJobs(RuleBasedStateMachine):
    """Submits jobs that share GPUs; the machine itself carries the commands out."""

    head: Head
    now_s: float
    plan_random: random.Random | None

    def command(self, command: c.AnyCommand) -> Step:
        """Carry out a command."""
        raise NotImplementedError

    def take(self, step: Step) -> None:
        """Take in what has happened."""
        raise NotImplementedError

    @rule(percent=st.sampled_from([0.0, 50.0, 95.0]))
    def load_is_told(self, percent: float) -> None:
        """How busy GPUs are decides about shares, and is not durable."""
        node = self.head.state.nodes.get(NODE)
        if node is not None and node.state is NodeState.UP:
            load = Load(gpu_minute_percent=(percent, percent))
            self.head.note_load(NODE, load, self.now_s)

    @rule(seed=st.one_of(st.none(), st.integers(0, 2**16)), percent=st.sampled_from([30, 60]))
    def some_jobs_share(self, seed: int | None, percent: int) -> None:
        """Jobs that want the same GPU at once, under a policy that need not look what is left."""
        for share_class in ("low", "high", "low"):
            asked = submission(resources=(f"gpu_share={percent}%:5gb:{share_class}",))
            self.take(self.command(c.Submit(caller=ALICE, submitted=asked, digests=("", ""))))
        before, self.plan_random = self.plan_random, None if seed is None else random.Random(seed)
        self.take(self.head.cycle(self.now_s))
        self.plan_random = before
