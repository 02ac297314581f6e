"""A world whose training jobs can migrate: two nodes, and a policy that proposes what is wanted."""

from msgspec import structs

from gsched.model.job import Outcome
from gsched.model.resources import Allocation, Share
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Move, Plan, Snapshot
from gschedd.policies.queue import fifo
from tests.support.world import World, node


class Mover:
    """First come first served, and the moves that a story wants, once."""

    def __init__(self) -> None:
        self.wanted: tuple[Move, ...] = ()

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan, wanted = fifo.plan(snapshot), self.wanted
        self.wanted = ()
        return structs.replace(plan, moves=wanted)


def gpus(name: str, *indices: int) -> Allocation:
    """Return an allocation of GPUs, with a CPU for each."""
    count = len(indices)
    return (Share(node=name, cpus=count, slots=count, gpu_indices=indices),)


class Story(World):
    """A world of two nodes with four GPUs each, whose training jobs can be moved."""

    def __init__(self) -> None:
        self.mover = Mover()
        super().__init__(node("a", cpus=8, gpus=4), node("b", cpus=8, gpus=4), policy=self.mover)

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self, count: int = 2, most: int = 0, **changes: object) -> int:
        """Submit a training on so many GPUs of one node, by best fit.

        Args:
            count: least number of GPUs.
            most: greatest number of GPUs; 0: they are one number.
            changes: to the submission; ``memory_bytes`` for each GPU.
        """
        memory_bytes = changes.pop("memory_bytes", 0)
        memory = f":mem={memory_bytes}b" if memory_bytes else ""
        place = "free" if most else "pack"
        resources = f"select={count}:ncpus=1:ngpus=1{memory},place={place}"
        changes = {"runs_s": 1000.0, "deadline_after_s": 1e6, **changes}
        return self.submit(resources, movable=True, places_max=most, **changes)  # type: ignore[arg-type] # passed on

    def move(self, *moves: tuple[int, Allocation]) -> None:
        """Let the policy propose moves, all at once."""
        self.mover.wanted = tuple(Move(job=job, allocation=to, why="room") for job, to in moves)
        self.head.state.dirty.mark_all()
        self.settle()

    def outcome(self, job: int) -> Outcome:
        """Return how a job ended that is done."""
        outcome = self.done[job].outcome
        assert outcome is not None, "a job that is done has its outcome"
        return outcome

    def place(self, job: int) -> Allocation:
        """Return what a job owns."""
        attempt = self.job(job).attempt
        return attempt.allocation if attempt is not None else ()
