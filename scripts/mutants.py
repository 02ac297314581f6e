"""Breaks the pure head in one place after the other and tells which breaks no test notices.

``python scripts/mutants.py [PART-OF-A-FILE-NAME]`` works on a copy of the tree. It ends with 1 if a
mutant survives, and with 2 if one no longer applies: then the code has moved on, and the list
below must follow it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
TIMEOUT_S = 300.0  # a mutant that makes the tests loop is noticed, too
COPIED = (
    *("gsched", "gschedd", "gnode", "baselines", "tests", "docs", "etc", "man", "scripts"),
    "pyproject.toml",
)

#: The quick ones first: most mutants do not get beyond them.
TESTS = (
    *("transitions", "apply", "fit", "settle", "space", "fifo", "submit", "explain"),
    *("never", "rows", "store", "schema", "mark", "request", "units", "times"),
)


class Mutant(NamedTuple):
    """One break: ``old``, which stands in the file once, becomes ``new``."""

    file: str
    old: str
    new: str


CORE, PLAN = "gschedd/core/", "gschedd/plan/"

MUTANTS: tuple[Mutant, ...] = (
    # what may follow what
    Mutant(
        CORE + "state/transitions.py",
        "(J.HELD, f.JobEnded): frozenset({J.DONE}),",
        "(J.HELD, f.JobEnded): frozenset({J.DONE}),\n"
        "        (J.HELD, f.AttemptAssigned): frozenset({J.RUNNING}),",
    ),
    Mutant(
        CORE + "state/transitions.py",
        "(J.EXITING, f.JobAltered): frozenset({J.EXITING}),",
        "# gone:",
    ),
    Mutant(
        CORE + "state/transitions.py",
        "(A.EXITING, f.PartStarted): frozenset({A.EXITING}),",
        "(A.EXITING, f.PartStarted): frozenset({A.RUNNING}),",
    ),
    Mutant(
        CORE + "state/transitions.py",
        "(P.RUNNING, f.PartEnded): frozenset({P.ENDED}),",
        "(P.RUNNING, f.PartEnded): frozenset({P.ENDED}),\n"
        "        (P.ENDED, f.PartEnded): frozenset({P.ENDED}),",
    ),
    Mutant(
        CORE + "state/transitions.py",
        "    if wanted not in moves.get((state, type(fact)), ()):",
        "    if (state, type(fact)) not in moves:",
    ),
    # the state
    Mutant(CORE + "state/ledger.py", "state.spaces[name] = give(", "give("),
    Mutant(
        CORE + "state/ledger.py",
        "        space = take(space, job.current_attempt.parts[node.name].share)",
        "        pass",
    ),
    Mutant(CORE + "state/ledger.py", "state.ports.discard(attempt.master_port)", "pass"),
    Mutant(
        CORE + "apply/jobs.py",
        "if attempt.stop in {None, StopReason.MOVE} or fact.reason is StopReason.DELETE:",
        "if attempt.stop in {None, StopReason.MOVE}:",
    ),
    Mutant(
        CORE + "apply/jobs.py",
        "PartState.PENDING if share.node in fact.active else PartState.PASSIVE",
        "PartState.PENDING",
    ),
    Mutant(
        CORE + "state/ledger.py",
        "            and not node.drained\n",
        "",
    ),
    Mutant(
        CORE + "state/indexing.py",
        "    if job.holds:\n        return JobState.HELD\n",
        "",
    ),
    Mutant(CORE + "apply/jobs.py", "    job.requeues += 1\n", ""),
    Mutant(CORE + "apply/jobs.py", "    del state.jobs[job.id]\n", ""),
    Mutant(CORE + "apply/jobs.py", "max(state.next_job, next_number(job))", "state.next_job"),
    Mutant(
        CORE + "state/indexing.py",
        "state.unstored.attempts[job.id, attempt.number] = attempt",
        "pass",
    ),
    # what follows
    Mutant(
        CORE + "attempts/settle.py",
        "elif _failed(fact.record) and attempt.stop is None and not leaves_by_itself(job):",
        "elif False:",
    ),
    Mutant(
        CORE + "attempts/settle.py",
        "_, node, record = min(failures,",
        "_, node, record = max(failures,",
    ),
    Mutant(
        CORE + "attempts/requeue.py",
        "    if not is_restart and not _is_fault(job, attempt, outcome):",
        "    if not _is_fault(job, attempt, outcome):",
    ),
    Mutant(CORE + "attempts/requeue.py", "faults >= MAX_FAULTS:", "faults > MAX_FAULTS:"),
    Mutant(
        CORE + "attempts/requeue.py",
        "    return outcome.kind in LOST and job.spec.rerunnable\n",
        "    return outcome.kind in LOST\n",
    ),
    Mutant(
        CORE + "attempts/blame.py", "faults >= MAX_NODE_FAULTS and", "faults > MAX_NODE_FAULTS and"
    ),
    # what nodes report
    Mutant(
        CORE + "attempts/reports.py",
        "elif attempt.boot_ids.get(node, boot_id) != boot_id:",
        "elif False:",
    ),
    Mutant(
        CORE + "attempts/reports.py",
        "or found.attempt.number != attempt:",
        "or found.attempt.number < 0:",
    ),
    Mutant(
        CORE + "attempts/reports.py",
        "        yield retime(node, job)  # it may have been altered meanwhile",
        "        pass",
    ),
    Mutant(
        CORE + "attempts/reports.py", "        yield stop(node, job.id, attempt)", "        pass"
    ),
    # what fits
    Mutant(PLAN + "room.py", "if space.cpus < chunk.cpus:", "if space.cpus <= chunk.cpus:"),
    Mutant(
        PLAN + "room.py",
        "if space.exclusive or (exclusive and space.owners):",
        "if exclusive and space.owners:",
    ),
    Mutant(PLAN + "room.py", "        not chunk.gpus and space.total_gpus > 0,", "        False,"),
    Mutant(
        PLAN + "room.py",
        "return tuple(gpu for gpu in space.gpus if gpu.type == chunk.gpu_type)",
        "return space.gpus",
    ),
    Mutant(PLAN + "fit.py", "            -bool(chunks[i].gpu_type),\n", ""),
    Mutant(
        PLAN + "fit.py",
        "    if chosen is None and len(request.chunks) > 1:\n        chosen = _matching(",
        "    if False:\n        chosen = _matching(",
    ),
    Mutant(PLAN + "fit.py", "        by_node = _Search(request, spaces).run()", "        pass"),
    Mutant(PLAN + "fit.py", "index, first = index + 1, 0", "index, first = index + 1, first"),
    Mutant(PLAN + "fit.py", "while copies and self.steps < MAX_SEARCH_STEPS:", "while copies:"),
    Mutant(
        PLAN + "space.py",
        "gpus=tuple(gpu for gpu in space.gpus if gpu.index not in owned) if owned else space.gpus,",
        "gpus=space.gpus,",
    ),
    # what a plan may not do
    Mutant(PLAN + "validate.py", "        work.take(start.allocation)\n", ""),
    Mutant(PLAN + "validate.py", "    if start.job in seen:", "    if False:"),
    Mutant(
        PLAN + "validate.py",
        "    if owned and len(set(owned)) != len(owned):",
        "    if False:",
    ),
    Mutant(
        PLAN + "validate.py",
        "if isinstance(place(request, given_spaces), NoFit):",
        "if False:",
    ),
    Mutant(PLAN + "validate.py", "        if given != requested:", "        if False:"),
    Mutant(
        PLAN + "validate.py",
        "if share.slots < 1 or min(share.cpus, share.memory_bytes) < 0:",
        "if share.slots < 1:",
    ),
    # the policy
    Mutant(
        "gschedd/policies/kit/order.py",
        "self.snapshot.now_s + run_time_s <= self.shadow_s:",
        "self.snapshot.now_s + run_time_s <= self.shadow_s + 1:",
    ),
    # how long jobs are planned to run
    Mutant(PLAN + "times.py", "prediction.records < ENOUGH_RUNS", "prediction.records < 1"),
    Mutant(PLAN + "times.py", "is not Basis.KIND", "is Basis.NODE"),
    Mutant(PLAN + "times.py", "else 2 * age_s", "else age_s"),
    Mutant(PLAN + "times.py", "min(expected_s, walltime_s)", "expected_s"),
    Mutant(CORE + "attempts/running.py", "if never or end_s > self._now_s:", "if True:"),
    # a policy that failed
    Mutant("gschedd/core/cycle/dirty.py", "self.due_s = now_s + delay_s", "self.due_s = None"),
    Mutant("gschedd/core/cycle/dirty.py", "2 ** min(self.failures, 30)", "1"),
    # the mark
    Mutant("gschedd/store/mark.py", "        self._turn = 1 - slot\n", "        self._turn = 0\n"),
)


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def run_tests(tree: Path) -> bool:
    """Return whether all tests of the pure head pass on a tree."""
    files = [f"tests/unit/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    command += ["tests/scenario", "tests/stateful/test_policies.py"]
    command += ["tests/stateful/test_head_machine.py"]
    environment = {**os.environ, "GSCHED_TEST_PROFILE": "ci", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def try_mutant(mutant: Mutant) -> str:
    """Return ``killed``, ``SURVIVED`` or ``DOES NOT APPLY``."""
    with tempfile.TemporaryDirectory(prefix="gsched-mutant-") as name:
        tree = Path(name)
        copy_tree(tree)
        path = tree / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return "DOES NOT APPLY"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        return "SURVIVED" if run_tests(tree) else "killed"


def healthy() -> bool:
    """Return whether the tests pass without a mutant: else nothing is learnt."""
    with tempfile.TemporaryDirectory(prefix="gsched-mutant-") as name:
        copy_tree(Path(name))
        return run_tests(Path(name))


def verdicts(mutants: list[Mutant]) -> Iterator[tuple[Mutant, str]]:
    """Yield each mutant with what became of it."""
    with ThreadPoolExecutor(WORKERS) as pool:
        yield from zip(mutants, pool.map(try_mutant, mutants), strict=True)


def main() -> int:
    """Try all mutants, or those of files whose name holds the argument; return the exit code."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    mutants = [mutant for mutant in MUTANTS if wanted in mutant.file]
    if not healthy():
        print("the tests fail without any mutant")
        return 2
    counts = {"killed": 0, "SURVIVED": 0, "DOES NOT APPLY": 0}
    for mutant, verdict in verdicts(mutants):
        counts[verdict] += 1
        print(f"{verdict:15}{mutant.file}: {mutant.old.strip().splitlines()[0]}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts["DOES NOT APPLY"]:
        return 2
    return 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
