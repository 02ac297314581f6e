"""Batch scripts of a site that comes from Torque, OpenPBS or Slurm, run unchanged on a cluster.

The scripts lie in ``tests/interop/scripts``. Each case names one, the lines that its jobs have to
get, and texts that their output has to contain. The test and ``scripts/reproduce/scripts`` use it.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gsched.model.units import exact_size, format_duration
from gsched.protocol.job_rows import JobRow, JobStory
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import command_environment

SCRIPTS: Final = Path(__file__).resolve().parents[1] / "interop" / "scripts"
FINISH_TIMEOUT_S: Final = 120.0
NODES: Final = ("n1", "n2")
FAMILIES: Final = ("torque", "openpbs", "slurm")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script, how it is submitted, and what has to come of it.

    Attributes:
        script: its file.
        family: whose commands it is for: ``torque``, ``openpbs`` or ``slurm``.
        got: for each kind of job: how many, and what they got.
        says: texts that are in the output.
        silent: texts that are in no output.
        ignored: a word of each warning of the submission, in their order.
        arguments: of the submitting command before and behind the script.
        needs: programs without which it cannot run.
    """

    script: str
    family: str
    got: tuple[str, ...]
    says: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Return the folder of the script."""
        return "slurm" if self.family == "slurm" else "pbs"

    @property
    def name(self) -> str:
        """Return a name for lists."""
        return f"{self.folder}/{self.script}"

    @property
    def is_possible(self) -> bool:
        """Return whether all programs that it needs are installed."""
        return all(shutil.which(program) for program in self.needs)

    @property
    def jobs(self) -> int:
        """Return how many jobs there have to be, each element of an array counted."""
        return sum(int(line.partition(" ")[0]) for line in self.got)

    @property
    def asked(self) -> str:
        """Return the directives of the script, in one line."""
        text = (SCRIPTS / self.folder / self.script).read_text(encoding="utf-8")
        found = re.findall(r"^#(?:PBS|SBATCH)[ \t]+(.*?)(?:[ \t]+#.*)?$", text, re.MULTILINE)
        return " ".join(found)


@dataclass(kw_only=True)
class Result:
    """What came of a case.

    Attributes:
        submitted: what the submitting command printed, and its exit status.
        warnings: what it printed on standard error.
        got: as in a case.
        output: of all jobs, and of the submission.
    """

    submitted: str = ""
    status: int = 0
    warnings: list[str] = field(default_factory=list)
    got: tuple[str, ...] = ()
    output: str = ""


class ScriptSite:
    """A cluster of two nodes with the commands of three systems."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._submissions: dict[str, Result] = {}
        cluster.start_head()
        features: dict[str, list[str]] = {"n1": ["bigmem"], "n2": []}
        for name in NODES:
            cluster.start_node(
                name,
                cpus=16,
                gpus=4,
                memory="128gb",
                enforce_memory=False,
                wait=False,
                features=features[name],
                resources={"cfd": 2} if name == "n1" else {},
            )
        for name in NODES:
            cluster.wait_for_node(name)
        for family in FAMILIES:
            self._install(family)

    def _install(self, family: str) -> None:
        words = ("install-shims", str(self._shims(family)), "--personality", family)
        subprocess.run(
            [sys.executable, "-m", "gsched.cli.commands.gsched", *words],
            env=command_environment(),
            check=True,
            capture_output=True,
        )

    def _shims(self, family: str) -> Path:
        return self.cluster.directory / family

    def _directory(self, case: Case) -> Path:
        return self.cluster.jobs / case.name.replace("/", "-")

    def submit(self, case: Case) -> Result:
        """Submit a case in a directory of its own, as its user would, once."""
        if case.name in self._submissions:
            return self._submissions[case.name]
        directory = self._directory(case)
        shutil.copytree(SCRIPTS / case.folder, directory)
        (directory / "logs").mkdir()
        environment = command_environment(
            self.cluster.socket,
            PATH=f"{self._shims(case.family)}:{os.environ['PATH']}",
            BASH_ENV=str(SCRIPTS / "site.sh"),
            SITE=str(SCRIPTS),
            SEED="7",
            MODEL="linear",
        )
        for name in ("PBS_DEFAULT", "SBATCH_EXPORT", "OMP_NUM_THREADS"):
            environment.pop(name, None)
        command = ["bash", case.script]
        if not self._is_wrapper(case):
            command = ["sbatch" if case.family == "slurm" else "qsub", case.script]
        done = subprocess.run(
            [*command, *case.arguments],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FINISH_TIMEOUT_S,
            check=False,
        )
        result = Result(
            submitted=done.stdout, status=done.returncode, warnings=done.stderr.splitlines()
        )
        self._submissions[case.name] = result
        return result

    @staticmethod
    def _is_wrapper(case: Case) -> bool:
        """Return whether the script submits jobs instead of being one."""
        text = (SCRIPTS / case.folder / case.script).read_text(encoding="utf-8")
        return re.search(r"^#(PBS|SBATCH)\b", text.partition("<<EOF")[0], re.MULTILINE) is None

    def finish(self, case: Case) -> Result:
        """Wait until all jobs of a case have finished, and return what they got."""
        result = self.submit(case)
        if result.status:
            return result
        stories = wait_until(
            lambda: self._finished(case), FINISH_TIMEOUT_S, what=f"the jobs of {case.name}"
        )
        result.got = tuple(
            sorted(f"{count} x {line}" for line, count in Counter(map(_line, stories)).items())
        )
        sources = {path.name for path in (SCRIPTS / case.folder).iterdir()}
        written = [
            path
            for path in sorted(self._directory(case).rglob("*"))
            if path.is_file() and path.name not in sources
        ]
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in written]
        texts += [_read(Path(story.stdout_path)) for story in stories]
        result.output = "".join([result.submitted, *texts])
        return result

    def _finished(self, case: Case) -> list[JobStory]:
        """Return the jobs of a case if all have finished, else none."""
        directory = str(self._directory(case))
        rows = self.cluster.head.jobs(finished=True, elements=True).jobs
        stories = [self._story(row) for row in rows]
        own = [story for story in stories if story.submit_dir == directory]
        own = [story for story in own if story.row.array is None]
        done = [story for story in own if story.row.state == "done"]
        return done if len(done) == len(own) >= case.jobs else []

    def _story(self, row: JobRow) -> JobStory:
        return self.cluster.head.job(row.shown_id("test") if row.array else row.id)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _line(story: JobStory) -> str:
    """Return what a job got: nodes, CPUs, GPUs, memory and walltime, and how it ended."""
    parts = story.attempts[-1].parts if story.attempts else ()
    row = story.row
    words = [_counted(len(parts), "node"), _counted(sum(part.cpus for part in parts), "CPU")]
    gpus = sum(len(part.gpu_indices) for part in parts)
    words += [_counted(gpus, "GPU")] if gpus else []
    memory_bytes = sum(part.memory_bytes for part in parts)
    words += [exact_size(memory_bytes)] if memory_bytes else []
    words += [format_duration(row.walltime_s)] if row.walltime_s else []
    outcome = row.outcome
    end = "lost" if outcome is None else f"{outcome.kind}"
    if outcome is not None and outcome.exit_code is not None:
        end = f"exit {outcome.exit_code}"
    if outcome is not None and outcome.kind not in {"exited", "cancelled"}:
        end = f"{outcome.kind}, {end}" if outcome.exit_code is not None else str(outcome.kind)
    return f"{', '.join(words)}: {end}" if parts else f"not started: {end}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
