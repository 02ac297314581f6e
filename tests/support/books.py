"""A head with its store and nothing else: steps are committed as the engine commits them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gsched.model.job import ExitRecord, JobSpec
from gsched.model.resources import Load, Share, Usage
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol import node as n
from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.state.step import Run, Step
from gschedd.daemon.setup import relearn
from gschedd.models.predict import Model
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import fifo
from gschedd.store.rows import Batch
from gschedd.store.sqlite import Store
from tests.support.world import ALICE, BEGIN_S, inventory, settings, submission

LEARNED_AGAIN = 1000  # runs that a head learns when it is started again


def batch_of(
    facts: list[f.AnyFact],
    state: State,
    blobs: dict[str, bytes] | None = None,
    runs: Sequence[Run] = (),
) -> Batch:
    """Return what makes facts durable, and forget that the state was touched."""
    batch = Batch(
        facts=facts,
        jobs=list(state.unstored.jobs.values()),
        attempts=[(job, attempt) for (job, _), attempt in state.unstored.attempts.items()],
        nodes=list(state.unstored.nodes.values()),
        blobs={digest: (ALICE.uid, data) for digest, data in (blobs or {}).items()},
        next_job=state.next_job,
        usage=list(state.unstored.usage.values()),
        runs=list(runs),
    )
    state.unstored.forget_records()
    state.unstored.finished.clear()
    return batch


class Books:
    """A head on a store in ``directory``; `reopen` is what a restart is."""

    def __init__(
        self,
        directory: Path,
        policy: Policy = fifo.plan,
        make_model: Callable[[], Model] | None = None,
    ) -> None:
        self.directory = directory
        self.policy = policy
        self.make_model = make_model
        self.now_s = BEGIN_S
        self.facts: list[f.AnyFact] = []
        self._open()

    def _open(self) -> None:
        self.store = Store(str(self.directory))
        self.opened = self.store.open()
        state = State()
        self.store.load(state)
        model = self.make_model() if self.make_model is not None else None
        if model is not None:
            relearn(model, self.store, LEARNED_AGAIN)
        self.head = Head(state=state, settings=settings(), policy=self.policy, model=model)

    def reopen(self) -> None:
        """Close and begin again from what is on disk."""
        self.store.close()
        self._open()

    def take(self, step: Step, blobs: dict[str, bytes] | None = None) -> Step:
        """Make a step durable."""
        if step.error is not None:
            raise step.error
        self.facts.extend(step.facts)
        if step.facts:
            self.store.commit(batch_of(list(step.facts), self.head.state, blobs, step.runs))
        return step

    def submit(self, resources: str = "nodes=1", **changes: object) -> int:
        """Queue a job of Alice's."""
        from gschedd.core.requests import commands as c

        asked = submission(resources=(resources,), **changes)
        command = c.Submit(caller=ALICE, submitted=asked, digests=("", ""))
        return self.take(self.head.command(command, self.now_s)).job

    def register(self, name: str = "n1", *, identity: str = "", **has: object) -> None:
        """Have a node register that has 4 CPUs, or what is said."""
        said = n.Register(
            identity=identity,
            boot_id="boot",
            incarnation="i",
            address="10.0.0.1",
            gnode_version="t",
            inventory=inventory(**has),  # type: ignore[arg-type] # passed on as they are
            attempts=(),
            load=Load(),
        )
        self.take(self.head.registered(name, said, self.now_s))

    def schedule(self) -> None:
        """Run a cycle."""
        self.take(self.head.cycle(self.now_s))

    def start(self, job: int, node: str = "n1") -> None:
        """Have a job's present attempt start on a node."""
        number = self.head.state.jobs[job].attempts
        said = n.Started(job=job, attempt=number, pid=1, started_s=self.now_s)
        self.take(self.head.reported(node, said, self.now_s))

    def exit(
        self,
        job: int,
        node: str = "n1",
        *,
        code: int = 0,
        wall_s: float = 10.0,
        stopped: StopReason | None = None,
    ) -> None:
        """Have a job's present attempt end on a node, ``wall_s`` from now."""
        began_s = self.now_s
        self.now_s += wall_s
        record = ExitRecord(
            job=job,
            attempt=self.head.state.jobs[job].attempts,
            kind=OutcomeKind.EXITED,
            exit_code=code,
            stop_reason=stopped,
            started_s=began_s,
            ended_s=self.now_s,
        )
        usage = Usage(wall_s=wall_s, cpu_s=wall_s)
        said = n.Exited(record=record, usage=usage, load=Load())
        self.take(self.head.reported(node, said, self.now_s))


def spec_of(**changes: object) -> JobSpec:
    """Return the spec that a plain submission becomes, with changes."""
    from msgspec import structs

    from gschedd.core.requests import commands as c

    head = Head(state=State(), settings=settings(), policy=fifo.plan)
    head.command(c.Submit(caller=ALICE, submitted=submission(), digests=("", "")), BEGIN_S)
    return structs.replace(head.state.jobs[1].spec, **changes)


ONE_CPU = Share(node="n1", cpus=1)
