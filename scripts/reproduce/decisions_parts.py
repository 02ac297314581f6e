"""The parts of a record: what each runs, and what it keeps of that."""

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from scripts.reproduce import elasticflow_main as elasticflow
from scripts.reproduce import optimum_main as optimum
from scripts.reproduce.balance_jobs import SCENARIOS, cluster
from scripts.reproduce.balance_jobs import draw as draw_balance
from scripts.reproduce.balance_runs import POLICIES as BALANCE_POLICIES
from scripts.reproduce.balance_runs import Run
from scripts.reproduce.balance_runs import simulate as simulate_balance
from scripts.reproduce.decisions_formats import (
    api_fields,
    database_schema,
    stored_fields,
    wire_fields,
)
from scripts.reproduce.decisions_replies import replies
from scripts.reproduce.drs_runs import POLICIES as DRS_POLICIES
from scripts.reproduce.drs_runs import simulate as simulate_drs
from scripts.reproduce.drs_workload import SWEEPS, Scenario
from scripts.reproduce.optimum_exact import most_in_time

#: Told how far a part is.
Tell = Callable[[str], None]

BALANCE_SEEDS: Final = range(3)
DRS_SEEDS: Final = range(2)
#: Nodes of 8 GPUs.
ELASTICFLOW_NODES: Final = (16, 8)
OPTIMUM_CASES: Final = 50
QUICK_OPTIMUM_CASES: Final = 5
QUICK_DRS_SWEEP: Final = "lambda 4"
QUICK_ELASTICFLOW: Final = frozenset({"deadline", "drs", "elasticflow"})
#: Of a run on ElasticFlow's trace, what says how the run was made and not what was decided.
NOT_DECIDED: Final = frozenset({"took_s", "cycles"})


class SkippedError(Exception):
    """A part cannot run here; the message says why."""


class Ran(Struct, frozen=True, kw_only=True):
    """What a part came to.

    Attributes:
        cases: by name: anything that JSON can hold.
        left_out: names of cases that there are, but that were not wanted.
    """

    cases: Mapping[str, object]
    left_out: frozenset[str] = frozenset()


class Case(NamedTuple):
    """One run of a part; ``quick``: also where only quick ones are requested."""

    name: str
    run: Callable[[], object]
    quick: bool


class Wanted(Struct, frozen=True, kw_only=True):
    """Which cases of a part are to be run.

    Attributes:
        names: None for all.
        quick: only quick ones.
    """

    names: frozenset[str] | None = None
    quick: bool = False

    def has(self, case: Case) -> bool:
        """Return whether a case is one of them."""
        return (case.quick or not self.quick) and (self.names is None or case.name in self.names)


class Part(Struct, frozen=True, kw_only=True):
    """A part of a record.

    Attributes:
        what: it runs, in words.
        took: how long all of it takes, and how long what ``--quick`` takes of it, in words.
        run: returns its cases. It is given which of them are wanted, and whom to tell how far it
            is; a part that takes seconds always runs all.
    """

    name: str
    what: str
    took: str
    run: Callable[[Wanted, Tell], Ran]


def _run_cases(cases: Callable[[], Iterator[Case]], wanted: Wanted, tell: Tell) -> Ran:
    """Run cases that are made one by one."""
    every = list(cases())
    chosen = [case for case in every if wanted.has(case)]
    found: dict[str, object] = {}
    for number, case in enumerate(chosen, 1):
        tell(f"{number} of {len(chosen)}: {case.name}")
        found[case.name] = case.run()
    return Ran(cases=found, left_out=frozenset(case.name for case in every) - found.keys())


def _balance() -> Iterator[Case]:
    for scenario in SCENARIOS:
        for seed in BALANCE_SEEDS:
            for policy in BALANCE_POLICIES:
                name = f"{scenario}, seed {seed}, {policy}"
                yield Case(name, partial(_run_balance, scenario, seed, policy), seed == 0)


def _run_balance(scenario: str, seed: int, policy: str) -> object:
    """Return the figures of a run; of its curves, thousands of numbers, a digest."""
    chosen = SCENARIOS[scenario]
    run: Run = simulate_balance(policy, cluster(chosen), draw_balance(chosen, seed), seed)
    curves = hashlib.sha256(msgspec.json.encode(run.nodes)).hexdigest()
    figures = {name: value for name, value in _plain(run).items() if name != "nodes"}
    return figures | {"curves_sha256": curves}


def _drs() -> Iterator[Case]:
    seen: set[Scenario] = set()
    for sweep in SWEEPS:
        for label, scenario in sweep.points:
            if scenario in seen:  # a point that belongs to several sweeps is run once
                continue
            seen.add(scenario)
            point = f"{sweep.name} {label}"
            for seed in DRS_SEEDS:
                for policy in DRS_POLICIES:
                    run = partial(_run_drs, policy, scenario, seed)
                    is_quick = seed == 0 and point == QUICK_DRS_SWEEP
                    yield Case(f"{point}, seed {seed}, {policy}", run, is_quick)


def _run_drs(policy: str, scenario: Scenario, seed: int) -> object:
    return _plain(simulate_drs(policy, scenario, seed))


def _elasticflow() -> Iterator[Case]:
    trace = elasticflow.DATA / "195job.csv"
    if not trace.exists():
        raise SkippedError(f"there is no {trace}")
    for nodes in ELASTICFLOW_NODES:
        for policy in elasticflow.POLICIES:
            run = partial(_run_elasticflow, nodes, policy)
            is_quick = nodes == ELASTICFLOW_NODES[0] and policy in QUICK_ELASTICFLOW
            yield Case(f"195job, {nodes} x 8, {policy}", run, is_quick)


def _run_elasticflow(nodes: int, policy: str) -> object:
    asked = elasticflow.parser().parse_args(["--policies", policy])
    found = elasticflow.report(elasticflow.DATA / "195job.csv", nodes, asked, lambda _: None)
    (figures,) = msgspec.convert(found.pop("policies"), list[dict[str, object]])
    return found | {name: value for name, value in figures.items() if name not in NOT_DECIDED}


def _optimum() -> Iterator[Case]:
    if importlib.util.find_spec("scipy") is None:
        raise SkippedError("SciPy is not installed: pip install '.[optimum]'")
    for kind, at_once in (("at once", True), ("over two hours", False)):
        for seed in range(OPTIMUM_CASES):
            run = partial(_run_optimum, seed, at_once=at_once)
            yield Case(f"{kind}, case {seed}", run, seed < QUICK_OPTIMUM_CASES)


def _run_optimum(seed: int, *, at_once: bool) -> object:
    """Return how many deadlines could be met, and how many each policy meets."""
    jobs = optimum.draw(seed, at_once=at_once)
    most = most_in_time(optimum.tasks_of(jobs), optimum.NODES * optimum.GPUS)
    met = {
        name: optimum.met_by(policy, jobs, move_s=0.0) for name, policy in optimum.POLICIES.items()
    }
    return {"optimum": most, **met}


def _replies(_: Wanted, tell: Tell) -> Ran:
    return Ran(cases={line: _plain(said) for line, said in replies(tell).items()})


def _formats(_: Wanted, __: Tell) -> Ran:
    found: dict[str, object] = {}
    for where, fields in (
        ("API", api_fields()),
        ("wire", wire_fields()),
        ("stored", stored_fields()),
    ):
        found |= {f"{where}: {name}": each for name, each in fields.items()}
    return Ran(cases=found)


def _schema(_: Wanted, __: Tell) -> Ran:
    return Ran(cases=database_schema())


def _plain(record: Struct) -> dict[str, object]:
    return msgspec.convert(msgspec.to_builtins(record), dict[str, object])


def _parts() -> Sequence[Part]:
    return (
        Part(
            name="formats",
            what="fields of all API requests and replies, wire messages, and stored records",
            took="1 s; all of it quick",
            run=_formats,
        ),
        Part(
            name="schema",
            what="SQL of each table and index of the database",
            took="1 s; all of it quick",
            run=_schema,
        ),
        Part(
            name="replies",
            what="bytes of what each command prints with --json, from a head whose clock stands "
            "still",
            took="10 to 30 s; all of it quick",
            run=_replies,
        ),
        Part(
            name="balance",
            what="scripts/reproduce/balance, seeds 0-2; quick: seed 0",
            took="35 to 45 s; quick 5 to 20 s",
            run=partial(_run_cases, _balance),
        ),
        Part(
            name="drs",
            what="scripts/reproduce/drs, seeds 0-1; quick: seed 0, lambda 4",
            took="7 to 11 minutes; quick 5 to 15 s",
            run=partial(_run_cases, _drs),
        ),
        Part(
            name="elasticflow",
            what="scripts/reproduce/elasticflow, 195job on 16 x 8 and 8 x 8 GPUs, all policies; "
            f"quick: 16 x 8, {', '.join(sorted(QUICK_ELASTICFLOW))}",
            took="75 s; quick 7 to 26 s",
            run=partial(_run_cases, _elasticflow),
        ),
        Part(
            name="optimum",
            what=f"scripts/reproduce/optimum, {OPTIMUM_CASES} cases of each kind; quick: "
            f"{QUICK_OPTIMUM_CASES}",
            took="30 s; quick 3 to 6 s",
            run=partial(_run_cases, _optimum),
        ),
    )


#: By name, in the order in which they run.
PARTS: Final[Mapping[str, Part]] = MappingProxyType({part.name: part for part in _parts()})
