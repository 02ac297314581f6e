"""The invariants (docs: reliability), checked on a simulated world at every step.

They are told by number: I1 an acknowledged job exists, I2 one id for an intent, I3 one live
attempt, I4 no relaunch without proof of death, I5 one outcome for every attempt, I6 nothing given
twice, I7 release after silence, I8 no orphans, I9 states only go forward, I10 everybody who did
something is named, I11 all ends once faults stop, I13 owned and free make up the whole,
I14 everything is bounded, I15 no power loss takes back an outcome that the head was told. (I12 is
about checkpoints.)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gnode.core.task import AttemptKey
from gsched.model.arrays import indices
from gsched.model.ids import element_number
from gsched.model.job import ExitRecord
from gsched.model.resources import Share
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.sim.machine import Process, SimMachine
from tests.fault_world.bookkeeping import InvariantError, check_gpus, demand

# --- what the head is told ---


def check_durable(message: n.NodeMessage, machine: SimMachine) -> None:
    """Hold a message of a node against what a power loss could take from its disk.

    Raises:
        InvariantError: it tells an outcome that is not durable there.
    """
    if isinstance(message, n.Exited):
        records = [message.record]
    elif isinstance(message, n.Register):
        records = [each.exit for each in message.attempts if each.exit is not None]
    else:
        return
    keys = {AttemptKey(record.job, record.attempt) for record in records}
    early = sorted(keys & machine.spool.unflushed)
    demand(not early, "I15", f"the head is told of {early}, which are not durable")


# --- what became durable ---


class History:
    """All facts so far, each checked against those before it.

    Attributes:
        facts: in order.
        assigned: what each attempt was given, by attempt.
        prepared: what those will be given that were to be prepared.
        done: jobs that have their outcome.
        dropped: indices of elements of arrays that never become jobs, by array.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.facts: list[f.AnyFact] = []
        self.assigned: dict[AttemptKey, tuple[Share, ...]] = {}
        self.prepared: dict[AttemptKey, tuple[Share, ...]] = {}
        self.done: set[int] = set()
        self.submitted: set[int] = set()
        self.dropped: dict[int, set[int]] = {}
        self.live: dict[int, int] = {}
        self.ended: set[AttemptKey] = set()
        self._parts: set[tuple[AttemptKey, str]] = set()
        self._names = frozenset({*names, "gsched"})

    def add(self, fact: f.AnyFact) -> None:
        """Take in a fact.

        Raises:
            InvariantError: it cannot follow those before it.
        """
        self.facts.append(fact)
        job = fact.job if isinstance(fact, f.JobFact) else 0
        demand(job not in self.done, "I9", f"job {job} was done: {type(fact).__name__}")
        by = getattr(fact, "by", "gsched") or "gsched"
        demand(by in self._names, "I10", f"{type(fact).__name__} by {by!r}")
        match fact:
            case f.JobSubmitted():
                demand(job not in self.submitted, "I2", f"job {job} is submitted twice")
                self.submitted.add(job)
            case f.ElementsMade():
                for index in indices(fact.elements):
                    number = element_number(job, index)
                    demand(number not in self.submitted, "I3", f"element {number} is made twice")
                    demand(index not in self.dropped.get(job, ()), "I9", f"{number} was deleted")
                    self.submitted.add(number)
            case f.ElementsDropped():
                self.dropped.setdefault(job, set()).update(indices(fact.elements))
            case f.AttemptAssigned():
                self._assign(fact)
            case f.PartEnded():
                part = (AttemptKey(job, fact.attempt), fact.node)
                demand(part not in self._parts, "I5", f"{part} ends twice")
                self._parts.add(part)
            case f.AttemptEnded():
                alive = self.live.pop(job, None)
                demand(alive == fact.attempt, "I5", f"job {job}: {fact.attempt} ends, not {alive}")
                self.ended.add(AttemptKey(job, fact.attempt))
            case f.MigrationRequested() if fact.prepare:
                self._prepare(fact)
            case f.JobEnded():
                demand(job not in self.live, "I5", f"job {job} ends before its attempt")
                self.done.add(job)
            case _:
                pass

    def _prepare(self, fact: f.MigrationRequested) -> None:
        key = AttemptKey(fact.job, fact.prepare)
        known = key in self.prepared or key in self.assigned
        demand(not known, "I9", f"attempt {key.name} is prepared, and was one before")
        self.prepared[key] = fact.allocation

    def _assign(self, fact: f.AttemptAssigned) -> None:
        job, key = fact.job, AttemptKey(fact.job, fact.attempt)
        demand(job in self.submitted, "I1", f"job {job} was never submitted")
        demand(job not in self.live, "I3", f"job {job} is given attempt {key.attempt}, has one")
        demand(key not in self.assigned, "I9", f"attempt {key.name} is assigned twice")
        prepared = self.prepared.get(key, fact.allocation)
        demand(prepared == fact.allocation, "I9", f"{key.name} was prepared for another place")
        self.live[job] = fact.attempt
        self.assigned[key] = fact.allocation


# --- what really happens ---


class Truth:
    """What the machines really do, whatever anybody believes."""

    def __init__(self, machines: Sequence[SimMachine], history: History) -> None:
        self._machines = machines
        self._history = history
        self._begun: set[tuple[str, AttemptKey]] = set()
        self._records: dict[tuple[str, AttemptKey], ExitRecord] = {}
        for machine in machines:
            machine.on_begin = self._begin
            machine.on_record = self._record

    def _begin(self, machine: SimMachine, key: AttemptKey) -> None:
        demand((machine.name, key) not in self._begun, "I3", f"{key.name} starts twice")
        self._begun.add((machine.name, key))

    def _record(self, machine: SimMachine, record: ExitRecord) -> None:
        self._records[machine.name, AttemptKey(record.job, record.attempt)] = record

    def check(self) -> None:
        """Check what runs now: one attempt of a job, each only once, within what there is."""
        attempts: dict[int, int] = {}
        for machine in self._machines:
            if machine.suspended:
                continue  # nothing runs there; what it has must end before it runs again
            live: list[Share] = []
            cpus = memory_bytes = 0
            for key, process in machine.processes.items():
                if process.gated:
                    memory_bytes += self._prepared_bytes(machine.name, key, process)
                    continue
                first = attempts.setdefault(key.job, key.attempt)
                if first != key.attempt:
                    raise InvariantError("I3", f"job {key.job} lives twice: {first}, {key}")
                if key in self._history.ended:
                    raise InvariantError("I7", f"{key.name} is over, but lives")
                share = self._share(machine.name, key)
                task = process.task
                held = (task.gpu_indices, task.gpu_shares)
                given = held == (share.gpu_indices, share.gpu_shares)
                if not given:
                    raise InvariantError("I6", f"{key.name} has GPUs {held}, it was given {share}")
                live.append(share)
                cpus += share.cpus
                memory_bytes += share.memory_bytes
            has = machine.inventory
            check_gpus(machine.name, live, {gpu.index: gpu.memory_bytes for gpu in has.gpus})
            if cpus > has.cpus:
                raise InvariantError("I6", f"{cpus} CPUs of {machine.name} are used")
            fits = memory_bytes <= has.memory_bytes
            if not fits:
                raise InvariantError("I6", f"{memory_bytes} bytes of {machine.name} are used")

    def _prepared_bytes(self, node: str, key: AttemptKey, process: Process) -> int:
        """Return how much memory a prepared attempt may use; none that is being ended."""
        demand(not process.task.gpu_indices, "I6", f"{key.name} has GPUs, and is not launched")
        demand(key not in self._history.ended, "I7", f"{key.name} is over, but may be launched")
        allocation = self._history.prepared.get(key)
        demand(allocation is not None, "I1", f"{key.name} was never to be prepared durably")
        assert allocation is not None, "just demanded"
        if process.ending.reason is not None or key.job not in self._history.live:
            return 0
        return sum(share.memory_bytes for share in allocation if share.node == node)

    def _share(self, node: str, key: AttemptKey) -> Share:
        allocation = self._history.assigned.get(key)
        if allocation is None:
            raise InvariantError("I1", f"{key.name} runs, but was never assigned durably")
        found = [share for share in allocation if share.node == node]
        if not found:
            raise InvariantError("I6", f"{key.name} runs on {node}, which it was not given")
        return found[0]

    def check_fact(self, fact: f.AnyFact) -> None:
        """Check a fact that has just become durable against what really happened."""
        match fact:
            case f.AttemptAssigned():
                older = self._alive(fact.job)
                demand(not older, "I4", f"job {fact.job} is started anew, but {older} lives")
            case f.AttemptEnded():
                alive = [key for key in self._alive(fact.job) if key.attempt == fact.attempt]
                demand(not alive, "I7", f"{alive} is over, they say, but lives")
            case f.PartEnded() if fact.record.kind in {OutcomeKind.EXITED, OutcomeKind.SIGNALLED}:
                key = AttemptKey(fact.job, fact.attempt)
                real = self._records.get((fact.node, key))
                same = real == fact.record
                demand(same, "I5", f"{key.name} on {fact.node}: {fact.record} is not {real}")
            case _:
                pass

    def _alive(self, job: int) -> list[AttemptKey]:
        machines = [machine for machine in self._machines if not machine.suspended]
        return [
            key
            for machine in machines
            for key, process in machine.processes.items()
            if key.job == job and not process.gated
        ]


def _check_arrays(history: History) -> None:
    """Check that each element of each array was made once, or deleted before it was."""
    for fact in history.facts:
        if not isinstance(fact, f.JobSubmitted) or fact.spec.array is None:
            continue
        dropped = history.dropped.get(fact.job, set())
        for index in indices(fact.spec.array.spans):
            made = element_number(fact.job, index) in history.submitted
            demand(made != (index in dropped), "I1", f"element {fact.job}[{index}] is lost")


def check_rest(history: History, machines: Sequence[SimMachine], acked: Mapping[str, int]) -> None:
    """Check a world in which everything should be over.

    Args:
        acked: the id that each submission was told, by its key.
    """
    ids = Counter(acked.values())
    demand(max(ids.values(), default=1) == 1, "I2", f"an id was given twice: {ids.most_common(1)}")
    lost = set(acked.values()) - history.submitted
    demand(not lost, "I1", f"jobs {sorted(lost)} were acknowledged and are lost")
    _check_arrays(history)
    left = sorted(history.submitted - history.done)
    demand(not left, "I11", f"jobs {left} are not over")
    missing = sorted(key.name for key in set(history.assigned) - history.ended)
    demand(not missing, "I5", f"attempts without an outcome: {missing}")
    for machine in machines:
        orphans = [key.name for key in machine.processes]
        demand(not orphans, "I8", f"left on {machine.name}: {orphans}")
        spool = [key.name for key in {*machine.spool.tasks, *machine.spool.records}]
        demand(not spool, "I14", f"left in the spool of {machine.name}: {spool}")
