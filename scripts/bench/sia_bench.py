"""Times one round of ``sia`` or ``goodput``: evaluation of models, assignment, and placement."""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from msgspec import Struct

from gsched.config.policies import GoodputConfig, SiaConfig
from gschedd.allocation.adaptive.assignment import solve
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.deciding import (
    AdaptiveRules,
    adaptive_jobs,
    assigned,
    candidates_by,
    decided,
)
from gschedd.allocation.adaptive.plans import plan_of
from gschedd.allocation.adaptive.problem import AssignmentError, Problem
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.training import goodput, sia
from gschedd.policies.training.goodput.objective import rules as rules_of_goodput
from gschedd.policies.training.sia.objective import rules as rules_of_sia
from scripts.bench.sia_instance import read
from scripts.bench.sia_mix import Mix
from scripts.bench.sia_whole import solve_whole

#: Medians of the published code on two cores, by GPUs: evaluation and solver together, ms.
PUBLISHED_MS = {64: 29, 256: 89, 1024: 402, 2048: 1196, 4096: 1690}
SIZES = (64, 256, 1024, 2048, 4096, 10000, 16384)
#: Limits that end no search, to prove an optimum.
PROOF = SearchLimits(gap=0.0, nodes=10**7, time_s=600.0, columns=10**9)
#: Rounds before the first that counts: the cluster fills.
WARM_UP = 3
#: The rules of each policy, and the policy itself.
POLICIES: dict[str, tuple[AdaptiveRules, Policy]] = {
    "goodput": (rules_of_goodput(GoodputConfig()), goodput.plan),
    "sia": (rules_of_sia(SiaConfig()), sia.plan),
}


class Round(Struct, frozen=True, kw_only=True):
    """Times of one round, ms of CPU time; ``wall_ms`` is that of evaluation and solution."""

    jobs: int
    columns: int
    evaluate_ms: float
    solve_ms: float
    place_ms: float
    wall_ms: float
    gap: float
    above_optimum: float | None
    whole_ms: float | None

    @property
    def decide_ms(self) -> float:
        """Return evaluation and solution together."""
        return self.evaluate_ms + self.solve_ms


def measured(
    snapshot: Snapshot, rules: AdaptiveRules, *, prove: bool, compare: bool
) -> tuple[Round, Plan]:
    """Return the times of the steps of a round, and its plan."""
    gc.collect()
    begun_s = time.perf_counter()
    cpu = [time.process_time()]
    jobs = adaptive_jobs(snapshot, rules.round_s)
    candidates = candidates_by(snapshot, jobs, rules)
    cpu.append(time.process_time())
    problem = rules.problem_of(candidates)
    found = assigned(problem, rules)
    cpu.append(time.process_time())
    wall_s = time.perf_counter() - begun_s
    plan = plan_of(snapshot, decided(snapshot, candidates, problem, found))
    cpu.append(time.process_time())
    evaluate, solving, place = (1e3 * (b - a) for a, b in pairwise(cpu))
    above, whole_ms = None, None
    if prove:
        best = solve(problem, PROOF)
        if best.gap > 1e-7:
            print(f"  the optimum was not proven: gap {best.gap:.1e}", file=sys.stderr)
        above = (found.objective - best.objective) / abs(best.objective)
    if compare:
        whole_ms = _whole_ms(problem)
    return Round(
        jobs=len(jobs),
        columns=len(problem.cost),
        evaluate_ms=evaluate,
        solve_ms=solving,
        place_ms=place,
        wall_ms=1e3 * wall_s,
        gap=found.gap,
        above_optimum=above,
        whole_ms=whole_ms,
    ), plan


def _whole_ms(problem: Problem) -> float:
    begun_s = time.process_time()
    solve_whole(problem)
    return 1e3 * (time.process_time() - begun_s)


def measure(
    sizes: Sequence[int],
    rounds: int,
    make: Callable[[int], Mix],
    *,
    policy: str,
    prove: bool,
    compare: bool,
) -> None:
    """Measure each size and print a table."""
    rules, plan_of_policy = POLICIES[policy]
    print(
        "| GPUs | jobs | columns | evaluate ms | solve ms | both: median (max) | wall |"
        " place ms | gap max | published ms | times faster |"
        + (" above optimum max |" * prove)
        + (" whole by HiGHS ms, median (max) |" * compare)
    )
    print("|---" * (11 + prove + compare) + "|")
    for size in sizes:
        mix = make(size)
        found: list[Round] = []
        for number in range(WARM_UP + rounds):
            snapshot = mix.snapshot()
            warm = number < WARM_UP
            times, plan = measured(
                snapshot, rules, prove=prove and not warm, compare=compare and not warm
            )
            if not number and plan != _without_time(plan_of_policy(snapshot)):
                raise SystemExit("what is measured is not what the policy plans")
            if not warm:
                found.append(times)
            mix.carry_out(plan)
        _print(mix.gpus, size, found, prove=prove, compare=compare)


def _without_time(plan: Plan) -> Plan:
    from msgspec import structs

    return structs.replace(plan, again_s=None)


def _print(gpus: int, size: int, found: list[Round], *, prove: bool, compare: bool) -> None:
    both = [each.decide_ms for each in found]
    published = PUBLISHED_MS.get(size)
    cells = [
        str(gpus),
        str(round(median(each.jobs for each in found))),
        str(round(median(each.columns for each in found))),
        _range([each.evaluate_ms for each in found]),
        _range([each.solve_ms for each in found]),
        f"**{_range(both)}**",
        _range([each.wall_ms for each in found]),
        _range([each.place_ms for each in found]),
        f"{max(each.gap for each in found):.1e}",
        str(published or ""),
        f"{published / median(both):.0f}" if published else "",
    ]
    if prove:
        cells.append(f"{max(each.above_optimum or 0.0 for each in found):.1e}")
    if compare:
        cells.append(_range([each.whole_ms or 0.0 for each in found]))
    print("| " + " | ".join(cells) + " |", flush=True)


def _range(values: Sequence[float]) -> str:
    return f"{median(values):.0f} ({max(values):.0f})"


def solve_file(path: str, limits: SearchLimits) -> int:
    """Solve one stored problem and print how good the answer is; return the exit status."""
    try:
        problem = read(path)
        begun_s = time.perf_counter()
        found = solve(problem, limits)
        took_s = time.perf_counter() - begun_s
    except AssignmentError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    running = int(np.count_nonzero(found.configuration >= 0))
    print(f"jobs       {problem.jobs} ({running} with a configuration)")
    print(f"columns    {len(problem.cost)}")
    print(f"objective  {found.objective:.9g}")
    print(f"bound      {found.bound:.9g}")
    print(f"gap        {found.gap:.2e}")
    print(f"time       {1e3 * took_s:.1f} ms")
    print(f"found by   {found.method}")
    return 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ilp", metavar="FILE", help="solve one stored problem (.npz) instead")
    parser.add_argument("--gpus", default=",".join(map(str, SIZES)), help="sizes, with commas")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="sia", help="[sia]")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--traces", metavar="DIR", help="models fitted to the traces of Sia's artifact"
    )
    parser.add_argument(
        "--prove", action="store_true", help="solve each problem to the proven optimum, too"
    )
    parser.add_argument(
        "--compare", action="store_true", help="time HiGHS on the whole problem, too"
    )
    args = parser.parse_args()
    if args.ilp:
        return solve_file(args.ilp, PROOF if args.prove else SearchLimits())
    sizes = [int(size) for size in args.gpus.split(",")]
    traces = Path(args.traces) if args.traces else None
    try:
        measure(
            sizes,
            args.rounds,
            lambda size: Mix(size, args.seed, traces),
            policy=args.policy,
            prove=args.prove,
            compare=args.compare,
        )
    except OSError as error:
        parser.error(f"--traces {args.traces}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
