"""Times the simulator (jobs and events a second, memory) and single scheduling cycles."""

import argparse
import gc
import math
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baselines.registry import ALL
from gsched.config.tables import Config, HeadConfig, QueueConfig
from gsched.model.job import ExitRecord
from gsched.model.resources import Gpu, Inventory, Load, Usage
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gsched.protocol.submissions import SubmitJob
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.sim.cluster import ClusterNode, read_cluster
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.traces import read_trace
from gschedd.sim.workload import TraceJob

GIB = 1024**3
MEAN_S = 3600.0
LOAD = 0.75  # CPUs asked for while the trace lasts over those there are; GPUs are scarcer still
WALLTIMES_S = (600, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
GOAL_S = 60.0  # for 100,000 jobs on 1,000 nodes, of one core
GOAL_MIB = 1024.0
USER = Caller(user="user", uid=1001, gid=100)
REPEATS = 20


def synthetic(count: int, nodes: int, cpus: int) -> list[TraceJob]:
    """Return jobs of many sizes that arrive at random and ask for round walltimes."""
    chance = random.Random(1)
    sizes = (1, 1, 2, 4, 8, 16)
    rate = LOAD * nodes * cpus / (sum(sizes) / len(sizes) * MEAN_S)
    jobs: list[TraceJob] = []
    submit_s = 0.0
    for number in range(count):
        submit_s += chance.expovariate(rate)
        asked = chance.choice(sizes)
        duration_s = min(chance.expovariate(1 / MEAN_S) + 10, WALLTIMES_S[-1] - 1.0)
        wanted_s = duration_s * chance.choice((1, 1, 1.5, 3))
        walltime_s = next((w for w in WALLTIMES_S if w >= wanted_s), WALLTIMES_S[-1])
        jobs.append(
            TraceJob(
                submit_s=submit_s,
                duration_s=duration_s,
                user=f"user{number % 20}",
                cpus=asked,
                gpus=chance.choice((0, 0, 0, 0, 0, 1, 2, 4)),
                memory_bytes=asked * chance.choice((1, 2, 3)) * GIB,
                walltime_s=walltime_s,
            )
        )
    return jobs


def replay(
    title: str,
    nodes: Sequence[ClusterNode],
    jobs: Sequence[TraceJob],
    policy: str,
    *,
    learns: bool,
    profile: bool,
) -> None:
    """Replay a trace and print what it took.

    Args:
        learns: as in production: what jobs cost is learned from those before them.
        profile: print beside it what is aimed at.
    """
    chosen = ALL.choose(policy)
    options = Options(
        make_model=chosen.make_model if learns else None, heartbeats=chosen.reads_loads
    )
    begin_s = time.process_time()
    simulation = Simulation(nodes, jobs, chosen.plan, options=options)
    simulation.run()
    took_s = time.process_time() - begin_s
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = simulation.summary(policy)
    waiting = max(found.over_time.waiting)
    aims = (f" (profile {GOAL_S:.0f})", f" (profile {GOAL_MIB:.0f})") if profile else ("", "")
    how = "" if learns else ", nothing learned"
    print(
        f"{title}, {policy}{how}: {found.done} jobs on {len(nodes)} nodes, "
        f"{took_s:.1f} s{aims[0]} of a core\n"
        f"  {found.events / took_s:,.0f} events/s, {found.done / took_s:,.0f} jobs/s, "
        f"{memory_mib:.0f} MiB{aims[1]} at most\n"
        f"  {found.cycles} cycles, {waiting:.0f} jobs waiting at most, mean wait "
        f"{found.waiting_s.mean:.0f} s, CPU used {found.cpu.utilisation:.0%}, "
        f"GPUs {found.gpu.utilisation:.0%}",
        flush=True,
    )


# --- single cycles ---


def crowded(policy: str, nodes: int, queue: int, job_classes: int = 100) -> Head:
    """Return a head with every node full, and jobs of some classes waiting."""
    head = Head(
        state=State({"batch": 0}),
        settings=Settings(
            server="bench",
            config=Config(head=HeadConfig(max_queued_per_user=10**7)),
            queues={"batch": QueueConfig(name="batch")},
        ),
        policy=ALL.choose(policy).plan,
    )
    inventory = Inventory(
        cpus=32, memory_bytes=128 * GIB, gpus=tuple(Gpu(index=index) for index in range(4))
    )
    for number in range(nodes):
        said = n.Register(
            boot_id="b",
            incarnation="i",
            address="",
            gnode_version="",
            inventory=inventory,
            attempts=(),
            load=Load(),
        )
        head.registered(f"n{number:05d}", said, 1.0)
    for number in range(4 * nodes):
        submit(head, f"ncpus=8,gpus=1,walltime={3600 + number % 50}")
    all_cycles_of(head, 2.0)
    assert len(head.state.running) == 4 * nodes, "all nodes are full"
    for number in range(queue):
        submit(head, f"ncpus=8,walltime={3600 + number % job_classes * 60}")
    clean(head)
    all_cycles_of(head, 3.0)
    return head


def all_cycles_of(head: Head, now_s: float) -> None:
    """Run cycles until none is to follow: each starts a limited number of jobs."""
    while True:
        head.cycle(now_s)
        clean(head)
        if not head.unfinished:
            return


def submit(head: Head, resources: str) -> int:
    """Submit a job and return its id."""
    asked = SubmitJob(
        key="", name="job", workdir="/", resources=(resources,), launch="command", arguments=("x",)
    )
    step = head.command(c.Submit(caller=USER, submitted=asked, digests=("", "")), 2.0)
    assert step.job, step.error
    return step.job


def end_one(head: Head) -> None:
    """Let the oldest running job end."""
    job = head.state.jobs[next(iter(head.state.running))]
    assert job.attempt is not None
    (name,) = job.attempt.parts
    record = ExitRecord(job=job.id, attempt=job.attempts, kind=OutcomeKind.EXITED, exit_code=0)
    head.reported(name, n.Exited(record=record, usage=Usage(), load=Load()), 4.0)


def clean(head: Head) -> None:
    """Do what the shell does after a commit."""
    state = head.state
    state.unstored.finished.clear()
    state.unstored.jobs, state.unstored.attempts, state.unstored.nodes = {}, {}, {}


def cycle_us(head: Head, before: Callable[[], object]) -> float:
    """Return the median time of a cycle after something has happened, microseconds."""
    times: list[float] = []
    for _ in range(REPEATS):
        before()
        clean(head)
        begin_s = time.perf_counter()
        head.cycle(5.0)
        times.append(time.perf_counter() - begin_s)
    return sorted(times)[REPEATS // 2] * 1e6


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of a line through the logarithms: 1 for linear growth, 0 for none."""
    x = [math.log(size) for size in sizes]
    y = [math.log(max(value, 1e-3)) for value in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def cycles(policy: str, title: str, sizes: Sequence[int], make: Callable[[int], Head]) -> None:
    """Print the time of each kind of cycle for each size, and how it grows."""
    kinds: dict[str, Callable[[Head], object]] = {
        "nothing has changed": lambda _: None,
        "one more job of a known job_class": lambda head: submit(head, "ncpus=8,walltime=3600"),
        "one job of a new job_class": lambda head: submit(
            head, f"ncpus=9,walltime={10_000 + head.state.next_job}"
        ),
        "one job has ended, one starts": end_one,
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for size in sizes:
        head = make(size)
        gc.collect()
        gc.freeze()  # or the collector would walk the whole queue in the middle of a cycle
        for name, happen in kinds.items():
            found[name].append(cycle_us(head, partial(happen, head)))
        gc.unfreeze()
    print(
        f"\n{policy}: time of a cycle as {title} grow: {', '.join(f'{size:,}' for size in sizes)}"
    )
    for name, times in found.items():
        text = ", ".join(f"{value:,.1f}" for value in times)
        print(f"  {name:<32} {text} us; exponent {exponent(sizes, times):.2f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, metavar="N")
    parser.add_argument("--nodes", type=int, default=1_000, metavar="N")
    parser.add_argument("--policy", default="fifo", metavar="NAME[,NAME...]")
    parser.add_argument("--philly", default="", metavar="FILE")
    parser.add_argument("--large", action="store_true", help="to 1,000,000 jobs, 10,000 nodes")
    parser.add_argument("--no-learning", action="store_true", help="walltimes, no predictions")
    parser.add_argument("--no-cycles", action="store_true", help="only the replay")
    parser.add_argument("--only-cycles", action="store_true", help="no replay")
    wanted = parser.parse_args()
    gc.set_threshold(200_000, 20, 20)  # as gsim does
    policies = wanted.policy.split(",")
    learns = not wanted.no_learning
    if wanted.philly:
        jobs = read_trace(wanted.philly, limit=wanted.jobs).jobs
        nodes = read_cluster("56xcpus=64,gpus=8")
        for policy in policies:
            replay("Philly", nodes, jobs, policy, learns=learns, profile=False)
        return
    if not wanted.only_cycles:
        nodes = read_cluster(f"{wanted.nodes}xcpus=32,gpus=4,memory=128gb")
        jobs = synthetic(wanted.jobs, wanted.nodes, 32)
        profile = (wanted.jobs, wanted.nodes) == (100_000, 1_000)
        for policy in policies:
            replay("synthetic", nodes, jobs, policy, learns=learns, profile=profile)
    if not wanted.no_cycles:
        for policy in policies:
            all_cycles(policy, large=wanted.large)


def all_cycles(policy: str, *, large: bool) -> None:
    """Measure cycles of one policy as queue and nodes grow."""
    queues = (1_000, 10_000, 100_000, *((1_000_000,) if large else ()))
    cycles(policy, "queues on 1,000 nodes", queues, lambda size: crowded(policy, 1_000, size))
    counts = (100, 1_000, *((10_000,) if large else ()))
    cycles(
        policy, "nodes with 10,000 jobs waiting", counts, lambda size: crowded(policy, size, 10_000)
    )


if __name__ == "__main__":
    main()
