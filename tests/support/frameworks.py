"""A training of a framework on a real cluster, resized by gmigrate to two ranks and back."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from gsched.protocol.job_rows import JobStory
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import ROOT, run_command
from tests.support.elastic_runs import release
from tests.support.forks import ForkServer
from tests.support.torch_python import torch_python

TIMEOUT_S = 300.0
IMPORTED = f"{ROOT}/tests/support/late_garbage:{ROOT}"
#: Steps within which the training holds, so that it is asked there and not at its end.
HOLDS = (6, 18)


class FrameworkRun:
    """One training; its script is ``tests/support/framework_NAME.py``."""

    def __init__(self, cluster: Cluster, forks: ForkServer, name: str, *modules: str) -> None:
        """``forks`` has imported what the script imports."""
        self.cluster = cluster
        cluster.trains = forks
        self.python = torch_python(*modules)
        self.script = ROOT / "tests" / "support" / f"framework_{name}.py"
        self.directory = cluster.jobs
        self.number = ""
        cluster.queues = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'

    def begin(self, *options: str) -> None:
        """Start it on the only GPU that there is; it may have two."""
        self.cluster.start_head()
        self.cluster.start_node("n1", cpus=4, gpus=1)
        holds = [f"--hold-at={step}" for step in HOLDS]
        said = run_command(
            *("gsub", "-N", "train", "--elastic", "--gpus", "1..2", "-j", "oe", "-V"),
            *("--python", self.python, "--torchrun", str(self.script)),
            *(str(self.directory), *holds, *options),
            head=self.cluster.socket,
            cwd=self.directory,
            env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": IMPORTED},
        )
        assert (said.status, said.stderr) == (0, ""), said
        self.number = said.stdout.split(".")[0]
        self._wait_for_hold(HOLDS[0])

    def story(self) -> JobStory:
        """Return what the head knows of it."""
        return self.cluster.head.job(self.number)

    def resize(self, step: int, gpus: int, node: str) -> str:
        """Let gmigrate resize it while it holds at a step; return what that says of it."""
        moves = self.story().row.moves
        self._wait_for_hold(step)
        words = ["gmigrate", self.number, "--gpus", str(gpus), "--to", node]
        asked = run_command(*words, head=self.cluster.socket)
        assert asked.status == 0, asked.stderr
        release(self.directory, step, when_asked=True)
        wait_until(lambda: self._has_moved(moves), TIMEOUT_S, what=f"its move to {node}")
        assert self.story().row.nodes == (node,)
        return asked.stdout

    def _wait_for_hold(self, step: int) -> None:
        def holds() -> bool:
            assert self.story().row.state != "done", self.output()
            return (self.directory / f"held-{step}").exists()

        wait_until(holds, TIMEOUT_S, what=f"step {step}")
        wait_until(lambda: self.story().progress, TIMEOUT_S, what="its first word")

    def _has_moved(self, moves: int) -> bool:
        story = self.story()
        assert story.row.state != "done", self.output()
        return story.row.moves > moves and story.move is not None and story.move.phase == "done"

    def finish(self) -> dict[str, Any]:
        """Wait for the end; return the training's result."""
        wait_until(lambda: self.story().row.state == "done", TIMEOUT_S, what="its end")
        outcome = self.story().row.outcome
        assert outcome is not None
        assert outcome.exit_code == 0, (outcome, self.output())
        result: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return result

    def output(self) -> str:
        """Return the end of what the ranks have written."""
        return "".join(
            path.read_text(errors="replace")[-6000:] for path in self.directory.glob("train.o*")
        )


def undisturbed(run: FrameworkRun, forks: ForkServer, directory: Path) -> dict[str, Any]:
    """Return the result of the same training outside gsched, on one rank, and its samples."""
    directory.mkdir()
    forks.run(
        [str(run.script), str(directory), "--step-s=0"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=TIMEOUT_S,
    ).check_returncode()
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return {**result, "samples": samples_by_step(directory)}


def samples_by_step(directory: Path) -> dict[int, Counter[int]]:
    """Return the samples of each step over all ranks; a step done twice has them twice."""
    found: dict[int, Counter[int]] = {}
    for path in directory.glob("trace-*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row["step"], Counter()).update(row["ids"])
    return found


def world_sizes(directory: Path) -> list[int]:
    """Return the number of ranks of each step, in the order of steps."""
    rows = [
        json.loads(line)
        for path in directory.glob("trace-*-0.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [row["world_size"] for row in sorted(rows, key=lambda row: row["step"])]
