"""Times the decision of the policy ``sia``."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from gschedd.allocation.adaptive.assignment import solve
from gschedd.allocation.adaptive.core import Limits
from gschedd.allocation.adaptive.problem import AssignmentError
from scripts.bench.sia_instance import read

#: Limits that end no search, to prove an optimum.
PROOF = Limits(gap=0.0, nodes=10**7, time_s=600.0, columns=10**9)


def solve_file(path: str, limits: Limits) -> int:
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
    parser.add_argument("--ilp", metavar="FILE", help="solve one stored problem (.npz)")
    parser.add_argument(
        "--prove", action="store_true", help="search until the optimum is proven, 600 s at most"
    )
    args = parser.parse_args()
    if not args.ilp:
        parser.error("name a problem with --ilp FILE")
    return solve_file(args.ilp, PROOF if args.prove else Limits())


if __name__ == "__main__":
    sys.exit(main())
