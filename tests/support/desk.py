"""A cluster whose training jobs are planned by an odd policy, and its user."""

import os

from gsched.protocol.job_rows import JobRow
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command

PLENTY_S = 90.0
SIZE = "[training]\niterations = 20\nrates = { 1 = 10, 2 = 20 }\n"


class Desk:
    """A cluster of one node with two GPUs and four CPUs, and its user."""

    def __init__(self, cluster: Cluster, policy: str = "", *, limit_s: float = 60.0) -> None:
        self.cluster = cluster
        cluster.queues = f"[training]\nplanning_limit_s = {limit_s}\n"
        if policy:
            cluster.head_module = "tests.support.odd_head"
        cluster.start_head({"ODD_POLICY": policy})
        cluster.start_node("n1", cpus=4, gpus=2)
        (cluster.jobs / "size.toml").write_text(SIZE)

    def run(self, name: str, *arguments: str) -> Ran:
        return run_command(name, *arguments, head=self.cluster.socket, cwd=self.cluster.jobs)

    def train(self, seconds: str = "1") -> int:
        """Submit a training with a deadline and return its number."""
        options = ("--training", "size.toml", "--deadline", "1h", "-l", "nodes=1:ppn=1:gpus=1")
        ran = self.run("gsub", *options, "--", "sleep", seconds)
        assert ran.status == 0, ran.stderr
        return int(ran.stdout.partition(".")[0])

    def submit(self, seconds: str = "0") -> int:
        """Submit a job without GPUs and return its number."""
        ran = self.run("gsub", "--", "sleep", seconds)
        assert ran.status == 0, ran.stderr
        return int(ran.stdout.partition(".")[0])

    def row(self, job: int) -> JobRow:
        return self.cluster.head.jobs([job]).jobs[0]

    def ends(self, job: int) -> JobRow:
        """Wait until a job is done, and return its line."""
        wait_until(lambda: self.row(job).state == "done", PLENTY_S, what=f"the end of job {job}")
        return self.row(job)

    def planner(self) -> int:
        """Return the id of the planner's process, once there is one."""
        return wait_until(lambda: self.worker("planner"), PLENTY_S, what="a planner")

    def worker(self, kind: str) -> int:
        """Return the id of the planner's or the forecaster's process; 0: there is none."""
        head = self.cluster.head_process.pid
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == head and b"gschedd.planner.worker" in words and kind.encode() in words:
                return int(name)
        return 0

    def log_says(self, text: str) -> None:
        """Wait until the head's log says something."""
        wait_until(lambda: text in self.cluster.log("head.log"), PLENTY_S, what=text)
