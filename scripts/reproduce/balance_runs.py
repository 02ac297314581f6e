"""What one policy made of one list of jobs, and one run of it in the simulator."""

from collections.abc import Sequence

from msgspec import Struct

from baselines.registry import ALL
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.machine import SimMachine
from gschedd.sim.measure import Series
from gschedd.sim.simulation import BEGIN_S, Options, Simulation
from gschedd.sim.workload import TraceJob

#: Policies that are compared, and what they are called in tables.
POLICIES = {
    "torque": "first fit (Torque)",
    "roundrobin": "round robin",
    "fewest": "fewest jobs",
    "paper": "the paper's",
    "balance": "gsched's",
}

#: What is followed on each node: its CPUs and its memory.
CPU, MEMORY = range(2)


class Curves(Struct, frozen=True, kw_only=True):
    """Utilisation of one node over time, 0 to 1, each value the mean of ``step_s`` seconds."""

    step_s: float
    cpu: list[float]
    memory: list[float]


class Run(Struct, frozen=True, kw_only=True):
    """What one policy made of one list of jobs.

    Attributes:
        failed: jobs that did not end with exit code 0.
        makespan_s: from the first submission to the last end, the total completion time.
        completion_s: of a job from its submission to its end, the mean.
        cpu_imbalance, memory_imbalance: standard deviation over mean of the nodes' utilisation,
            averaged over the time in which anything was in use.
    """

    policy: str
    seed: int
    jobs: int
    failed: int
    makespan_s: float
    completion_s: float
    cpu_imbalance: float
    memory_imbalance: float
    nodes: dict[str, Curves]


class NodeCurves:
    """Follows what is in use on each node while the simulated time passes."""

    def __init__(self, nodes: Sequence[ClusterNode], simulation: Simulation) -> None:
        self._simulation = simulation
        self._inventories = {node.name: node.inventory for node in nodes}
        self._series = {node.name: Series(2) for node in nodes}
        self._in_use = {node.name: (0.0, 0.0) for node in nodes}
        self._until_s = {node.name: BEGIN_S for node in nodes}
        simulation.recorder.on_change = self._changed

    def _changed(self, machine: SimMachine) -> None:
        self._pass_time(machine.name)
        inventory = self._inventories[machine.name]
        self._in_use[machine.name] = (
            machine.work.cpus_used / inventory.cores,
            machine.work.memory_bytes / inventory.memory_bytes,
        )

    def _pass_time(self, node: str) -> None:
        passed_s = self._simulation.agenda.now_s - self._until_s[node]
        if passed_s > 0:
            self._until_s[node] += passed_s
            self._series[node].add(self._in_use[node], passed_s)

    def curves(self) -> dict[str, Curves]:
        """Return the curves until now, by node."""
        for node in self._series:
            self._pass_time(node)
        return {
            node: Curves(
                step_s=series.width_s,
                cpu=[round(value, 4) for value in series.values(CPU)],
                memory=[round(value, 4) for value in series.values(MEMORY)],
            )
            for node, series in self._series.items()
        }


def simulate(policy: str, nodes: Sequence[ClusterNode], jobs: Sequence[TraceJob], seed: int) -> Run:
    """Run a policy with its own predictor on nodes that slow down when they are over-used."""
    chosen = ALL.choose(policy)
    options = Options(work="shared", make_model=chosen.make_model, heartbeats=chosen.reads_loads)
    simulation = Simulation(nodes, jobs, chosen.plan, options=options)
    curves = NodeCurves(nodes, simulation)
    simulation.run()
    found = simulation.summary(policy)
    return Run(
        policy=policy,
        seed=seed,
        jobs=found.done,
        failed=found.done - found.outcomes.get("exited", 0),
        makespan_s=found.makespan_s,
        completion_s=found.completion_s.mean,
        cpu_imbalance=found.cpu.imbalance,
        memory_imbalance=found.memory.imbalance,
        nodes=curves.curves(),
    )
