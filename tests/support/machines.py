"""Modelled machines of a hand-turned world."""

from collections.abc import Mapping
from types import MappingProxyType

from gsched.model.job import LaunchFailure
from gsched.model.machine import Machine as Marks
from gsched.model.resources import Gpu, Inventory
from gsched.model.states import PartState
from gsched.model.training import Batching
from gsched.protocol import node as n
from gsched.protocol.job_steps import StepOrder, StepRefused
from tests.support.evidence import FORK
from tests.support.saving import Running

GIB = 1024**3


def inventory(
    *,
    cpus: int = 4,
    gpus: int = 0,
    gpu_types: tuple[str, ...] = (),
    gpu_memory_bytes: int = 0,
    memory_bytes: int = 16 * GIB,
    features: tuple[str, ...] = (),
    generic: Mapping[str, int] = MappingProxyType({}),
) -> Inventory:
    """Return what a node has; ``gpu_types`` names one GPU each, else ``gpus`` untyped ones."""
    types = gpu_types or ("",) * gpus
    return Inventory(
        cpus=cpus,
        memory_bytes=memory_bytes,
        gpus=tuple(
            Gpu(index=index, type=name, memory_bytes=gpu_memory_bytes)
            for index, name in enumerate(types)
        ),
        features=features,
        generic=tuple(sorted(generic.items())),
    )


class Machine:
    """A modelled node: it owns processes and a spool, and obeys the head.

    Attributes:
        launch_fault: why it can start nothing, in words; empty: it can.
        fault: the evidence that it gives of that.
        probe_fault: why its probes fail; None: for what jobs fail for.
        sharing: the runtime by which jobs share its GPUs; empty: they cannot.
        probes: when it was probed, seconds since the beginning.
    """

    def __init__(self, name: str, has: Inventory) -> None:
        self.name = name
        self.has = has
        self.boots = 1
        self.identity = ""
        self.marks = Marks()
        self.connected = False
        self.dead = False
        self.launch_fault = ""
        self.fault: LaunchFailure | None = FORK
        self.probe_fault: str | None = None
        self.can_probe = True
        self.sharing = ""
        self.probes: list[float] = []
        self.running: dict[tuple[int, int], Running] = {}
        self.ended: dict[tuple[int, int], n.Exited] = {}
        self.seen: dict[int, int] = {}
        self.signals: list[tuple[int, int]] = []
        self.launches: list[tuple[int, int]] = []
        self.going_on: list[int] = []
        self.tunes: list[tuple[int, Batching]] = []
        self.messages: list[tuple[int, str]] = []
        self.steps: list[StepOrder | StepRefused] = []
        self.preparing: list[tuple[int, int]] = []
        self.yielding: set[tuple[int, int]] = set()

    @property
    def boot_id(self) -> str:
        """Return the id of this boot."""
        return f"{self.name}-boot-{self.boots}"

    def reports(self) -> tuple[n.AttemptReport, ...]:
        """Return every attempt in the spool, as a registration tells it."""
        live = [
            n.AttemptReport(
                job=job,
                attempt=attempt,
                state=PartState.RUNNING,
                pid=1000 + job,
                started_s=part.started_s,
            )
            for (job, attempt), part in self.running.items()
        ]
        over = [
            n.AttemptReport(
                job=job,
                attempt=attempt,
                state=PartState.ENDED,
                exit=said.record,
                usage=said.usage,
            )
            for (job, attempt), said in self.ended.items()
        ]
        return (*live, *over)


def node(name: str, **has: object) -> Machine:
    """Return a machine; keywords as `inventory`."""
    return Machine(name, inventory(**has))  # type: ignore[arg-type] # passed on as they are
