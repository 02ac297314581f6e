"""Breaks the pure head in one place after the other and tells which breaks no test notices.

``python scripts/mutants.py [PART-OF-A-FILE-NAME]`` works on a copy of the tree. It ends with 1 if a
mutant survives, and with 2 if one no longer applies: then the code has moved on, and the list
below must follow it. It prints which test has noticed a mutant, and the counts of each group.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
#: A mutant that makes the tests loop is noticed, too: without one they take less than half of it.
CPU_LIMIT_S = 600
COPIED = (
    *("gsched", "gschedd", "gnode", "baselines", "tests", "docs", "etc", "man", "scripts"),
    "pyproject.toml",
)

#: The quick ones first: most mutants do not get beyond them.
TESTS = (
    *("transitions", "apply", "fit", "settle", "space", "fifo", "submit", "explain"),
    *("never", "rows", "store", "schema", "mark", "request", "units", "times"),
)
STAGES = (
    tuple(f"tests/unit/test_{name}.py" for name in TESTS),
    ("tests/scenario", "tests/stateful/test_policies.py", "tests/stateful/test_head_machine.py"),
)


class Mutant(NamedTuple):
    """One break: ``old``, which stands in the file once, becomes ``new``."""

    file: str
    old: str
    new: str


CORE, PLAN = "gschedd/core/", "gschedd/plan/"

MUTANTS: Final[Mapping[str, tuple[Mutant, ...]]] = {
    "what may follow what": (
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
            "    if wanted in JOB_MOVES.get((state, type(fact)), ()):",
            "    if (state, type(fact)) in JOB_MOVES:",
        ),
        Mutant(
            CORE + "state/transitions.py",
            "    if wanted in ATTEMPT_MOVES.get((state, type(fact)), ()):",
            "    if (state, type(fact)) in ATTEMPT_MOVES:",
        ),
        Mutant(
            CORE + "state/transitions.py",
            "    if wanted in PART_MOVES.get((state, type(fact)), ()):",
            "    if (state, type(fact)) in PART_MOVES:",
        ),
        Mutant(
            CORE + "state/transitions.py",
            "    if wanted in NODE_MOVES.get((state, type(fact)), ()):",
            "    if (state, type(fact)) in NODE_MOVES:",
        ),
    ),
    "the state": (
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
    ),
    "what follows": (
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
            CORE + "attempts/blame.py",
            "faults >= MAX_NODE_FAULTS and",
            "faults > MAX_NODE_FAULTS and",
        ),
    ),
    "what nodes report": (
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
            CORE + "attempts/reports.py",
            "        yield stop(node, job.id, attempt)",
            "        pass",
        ),
    ),
    "what fits": (
        Mutant(PLAN + "room.py", "if space.cpus < chunk.cpus:", "if space.cpus <= chunk.cpus:"),
        Mutant(
            PLAN + "room.py",
            "if space.exclusive or (exclusive and space.owners):",
            "if exclusive and space.owners:",
        ),
        Mutant(
            PLAN + "room.py", "        not chunk.gpus and space.total_gpus > 0,", "        False,"
        ),
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
            "gpus=tuple(gpu for gpu in space.gpus if gpu.index not in owned) "
            "if owned else space.gpus,",
            "gpus=space.gpus,",
        ),
    ),
    "what a plan may not do": (
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
    ),
    "the policy": (
        Mutant(
            "gschedd/policies/kit/order.py",
            "self.snapshot.now_s + run_time_s <= self.shadow_s:",
            "self.snapshot.now_s + run_time_s <= self.shadow_s + 1:",
        ),
    ),
    "how long jobs are planned to run": (
        Mutant(PLAN + "times.py", "prediction.records < ENOUGH_RUNS", "prediction.records < 1"),
        Mutant(PLAN + "times.py", "is not Basis.KIND", "is Basis.NODE"),
        Mutant(PLAN + "times.py", "else 2 * age_s", "else age_s"),
        Mutant(PLAN + "times.py", "min(expected_s, walltime_s)", "expected_s"),
        Mutant(CORE + "attempts/running.py", "if never or end_s > self._now_s:", "if True:"),
    ),
    "a policy that failed": (
        Mutant("gschedd/core/cycle/dirty.py", "self.due_s = now_s + delay_s", "self.due_s = None"),
        Mutant("gschedd/core/cycle/dirty.py", "2 ** min(self.failures, 30)", "1"),
    ),
    "the mark": (
        Mutant(
            "gschedd/store/mark.py", "        self._turn = 1 - slot\n", "        self._turn = 0\n"
        ),
    ),
}


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def limit_cpu() -> None:
    """Let the kernel end this process when it has used CPU_LIMIT_S."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))


def first_failure(tree: Path) -> str:
    """Return the first test of the pure head that fails on a tree; empty: all pass."""
    environment = {**os.environ, "GSCHED_TEST_PROFILE": "ci", "PYTHONDONTWRITEBYTECODE": "1"}
    for tests in STAGES:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-o", "timeout=0", *tests]  # a busy machine is slow: CPU time is limited
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            preexec_fn=limit_cpu,
        )
        if done.returncode < 0:
            return f"no end within {CPU_LIMIT_S} s of CPU time"
        if done.returncode:
            named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            return named[1] if named else f"pytest ended with {done.returncode}"
    return ""


def try_mutant(mutant: Mutant) -> tuple[str, str]:
    """Return ``killed``, ``SURVIVED`` or ``DOES NOT APPLY``, and by which test."""
    with tempfile.TemporaryDirectory(prefix="gsched-mutant-") as name:
        tree = Path(name)
        copy_tree(tree)
        path = tree / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return "DOES NOT APPLY", ""
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        failed = first_failure(tree)
        return ("killed", failed) if failed else ("SURVIVED", "")


def healthy() -> bool:
    """Return whether the tests pass without a mutant: else nothing is learnt."""
    with tempfile.TemporaryDirectory(prefix="gsched-mutant-") as name:
        copy_tree(Path(name))
        failed = first_failure(Path(name))
    if failed:
        print(f"without any mutant {failed} fails")
    return not failed


def main() -> int:
    """Try all mutants, or those of files whose name holds the argument; return the exit code."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    if not healthy():
        return 2
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        for group, members in MUTANTS.items():
            mutants = [mutant for mutant in members if wanted in mutant.file]
            of_group: Counter[str] = Counter()
            for mutant, (verdict, test) in zip(mutants, pool.map(try_mutant, mutants), strict=True):
                of_group[verdict] += 1
                line = mutant.old.strip().splitlines()[0]
                print(f"{verdict:15}{mutant.file}: {line}  {test}", flush=True)
            if mutants:
                print(f"{group}: {of_group['killed']} of {len(mutants)} killed", flush=True)
            counts += of_group
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts["DOES NOT APPLY"]:
        return 2
    return 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
