"""Generated jobs of recurring kinds: unequal nodes, drift, outliers, failures, new kinds.

Nothing here knows how anything is predicted. Each kind has threads, work, memory and a part of its
run time that scales with the node's speed; inputs differ from run to run; some kinds drift or jump;
some runs fail early or straggle; users pad what they ask for.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gschedd.models.records import Record
from gschedd.plan.load import Kind, NodeRates, Use

GB = 1024**3
LIMITS_S = (3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0, 72 * 3600.0)


class Run(NamedTuple):
    """A job that ran: when it started, and what was recorded at its end."""

    start_s: float
    record: Record


class Machine(NamedTuple):
    """A node, and how much faster it truly is than its nominal rate."""

    name: str
    rates: NodeRates
    truth: float


class Program:
    """One kind of job and how it changes from run to run."""

    def __init__(self, rng: random.Random, owner: int, family: "Program | None") -> None:
        if family is None:
            self.name = f"{owner}:p{rng.randrange(10**9)}"
            self.threads = rng.choice([1, 1, 2, 4, 4, 8, 16])
            self.bound = rng.choice([1.0, 1.0, 1.0, 0.9, 0.7, 0.4, 0.1, 0.0])
            self.log_wall = rng.gauss(math.log(900), 1.4)
            self.log_memory = rng.gauss(math.log(2 * GB), 1.0)
            self.busy = rng.uniform(0.5, 1.0)
        else:
            self.name = family.name
            self.threads = family.threads
            self.bound = family.bound
            self.log_wall = family.log_wall + rng.gauss(0, 0.6)
            self.log_memory = family.log_memory + rng.gauss(0, 0.3)
            self.busy = family.busy * rng.uniform(0.8, 1.0)
        self.owner = owner
        self.key = f"{owner}:k{rng.randrange(10**9)}"
        self.spread = rng.choice([0.05, 0.15, 0.4, 0.8])
        self.drift = rng.choice([0.0, 0.0, 0.02, 0.08])
        self.jump_at = rng.randrange(5, 60) if rng.random() < 0.25 else -1
        self.pad = rng.uniform(2, 10)
        self.pad_memory = rng.uniform(1.3, 4)
        self.states_memory = rng.random() < 0.6
        self.asked_s = next(
            (limit for limit in LIMITS_S if limit > self.pad * math.exp(self.log_wall)),
            LIMITS_S[-1],
        )
        self.asked_bytes = math.ceil(self.pad_memory * math.exp(self.log_memory) / GB) * GB
        self.runs = 0

    def kind(self) -> Kind:
        """Return what a scheduler may know of it."""
        return Kind(
            key=self.key,
            program=self.name,
            owner_uid=self.owner,
            cpus=self.threads,
            memory_bytes=self.asked_bytes if self.states_memory else 0,
            walltime_s=self.asked_s,
        )

    def run(self, rng: random.Random, machine: Machine, start_s: float) -> Run:
        """Return the next run of it on a machine."""
        self.runs += 1
        self.log_wall += rng.gauss(0, self.drift)
        self.log_memory += rng.gauss(0, self.drift / 2)
        if self.runs == self.jump_at:
            self.log_wall += rng.uniform(-1.2, 1.2)
            self.log_memory += rng.uniform(-0.7, 0.7)
        size = rng.gauss(0, self.spread)
        gain = math.log(machine.rates.core_rate / 2.6) + machine.truth
        log_wall = self.log_wall + size - self.bound * gain + rng.gauss(0, 0.03)
        log_cpu = math.log(self.threads * self.busy) - (1 - self.bound) * gain + rng.gauss(0, 0.06)
        log_memory = self.log_memory + 0.3 * size + rng.gauss(0, 0.03)
        whole, luck = True, rng.random()
        if luck < 0.04:
            whole = False
            log_wall += math.log(rng.uniform(0.01, 0.3))
            log_cpu += math.log(rng.uniform(0.3, 1.0))
            log_memory += math.log(rng.uniform(0.3, 1.0))
        elif luck < 0.06:
            slower = math.log(rng.uniform(3, 10))
            log_wall, log_cpu = log_wall + slower, log_cpu - 0.7 * slower
        wall_s = max(min(math.exp(log_wall), self.asked_s), 0.5)
        used = Use(cpu_cores=math.exp(log_cpu), memory_bytes=math.exp(log_memory))
        record = Record(
            kind=self.kind(),
            node=machine.name,
            rates=machine.rates,
            wall_s=wall_s,
            used=used,
            ended_s=start_s + wall_s,
            succeeded=whole,
        )
        return Run(start_s, record)


def machines(rng: random.Random) -> list[Machine]:
    """Return eight unequal nodes of four kinds."""
    made = []
    for number in range(8):
        cores, rate = ((8, 1.8), (16, 2.4), (32, 2.8), (64, 3.6))[number % 4]
        rates = NodeRates(cores=cores, memory_bytes=cores * 4 * GB, core_rate=rate)
        made.append(Machine(f"n{number + 1}", rates, rng.gauss(0, 0.15)))
    return made


def generate(seed: int, jobs: int = 4000) -> tuple[list[Machine], list[Run]]:
    """Return machines and what ran on them, in the order of the starts."""
    rng = random.Random(seed)
    nodes = machines(rng)
    kinds = list(programs(rng))
    popularity = [1 / (place + 1) ** 0.8 for place in range(len(kinds))]
    births = [0.0 if rng.random() < 0.5 else rng.uniform(0, 0.95) * jobs for _ in kinds]
    runs: list[Run] = []
    start_s, batch = 1e9, kinds[0]
    while len(runs) < jobs:
        start_s += rng.expovariate(1 / 60)
        if not runs or rng.random() < 0.6:
            batch = _choose(rng, kinds, popularity, births, len(runs))
        runs.append(batch.run(rng, rng.choice(nodes), start_s))
    return nodes, runs


def programs(rng: random.Random) -> Iterator[Program]:
    """Yield the kinds of twelve owners, in a random order."""
    made = []
    for owner in range(1001, 1013):
        for _ in range(rng.randint(1, 4)):
            first = Program(rng, owner, None)
            made.append(first)
            made.extend(Program(rng, owner, first) for _ in range(rng.randint(0, 4)))
    rng.shuffle(made)
    yield from made


def _choose(
    rng: random.Random,
    programs: Sequence[Program],
    popularity: Sequence[float],
    births: Sequence[float],
    now: int,
) -> Program:
    alive = [
        weight if birth <= now else 0.0 for weight, birth in zip(popularity, births, strict=True)
    ]
    return rng.choices(programs, alive)[0]
