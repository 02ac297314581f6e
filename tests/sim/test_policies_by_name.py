"""``gsim`` runs every policy of the registry by its name, each with a predictor of its own."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("balance", "fewest", "fifo", "paper", "roundrobin", "torque")


def gsim(trace: Path, out: Path, hash_seed: str) -> bytes:
    """Run all policies on a trace; return the report."""
    report = out / "report.json"
    out.mkdir()
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "gschedd.sim.cli",
                "run",
                str(trace),
                "--json-file",
                str(report),
            ),
            *("--cluster", "4xcpus=8,gpus=1", "--work", "shared", "--policy", ",".join(NAMES)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return report.read_bytes()


def test_every_policy_runs_by_its_name_and_is_deterministic(tmp_path: Path) -> None:
    """All jobs are done under each; the paper's algorithm is not ours under another name."""
    trace = tmp_path / "trace.csv"
    with trace.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["submit_s", "duration_s", "user", "cpus", "gpus", "walltime_s"])
        for i in range(60):
            rows.writerow([i * 4, 30 + i * 37 % 90, "u", 1 + i % 7, int(i % 9 == 0), 2000])

    first, second = (gsim(trace, tmp_path / seed, seed) for seed in ("1", "2"))

    assert first == second
    results = {each["policy"]: each for each in json.loads(first)["results"]}
    assert tuple(results) == NAMES
    assert {each["done"] for each in results.values()} == {60}
    assert results["paper"]["completion_s"] != results["balance"]["completion_s"]
