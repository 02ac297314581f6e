"""gsched as a system under measurement: through its Python API, and a shell loop of gsub."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from as_user import ClientOf
from budget import Snapshot
from cluster import BIN, Cluster, CpuTimes, one_node
from floor import NOOP

from gsched.client import HeadClient, new_job
from gsched.model.states import LaunchKind
from gsched.protocol.job_rows import JobRow
from gsched.protocol.submissions import SubmitJob
from tests.support.postgres import postgres_server

SCRIPT = "#!/bin/sh\n:\n"
LOOP = 'for i in $(seq "$1"); do "$2" -N noop -o /dev/null -e /dev/null "$3" || exit; done'
LOOK_S = 0.005
STEP = 200
COMMAND_JOB: Mapping[str, Any] = {"launch": LaunchKind.COMMAND, "arguments": NOOP}
SCRIPT_JOB: Mapping[str, Any] = {"script": SCRIPT, "shell": "/bin/sh"}


class Gsched:
    """One head and one node, up.

    Attributes:
        used: CPU time of the last measurement.
        budget: what was used in all measurements since `reset`, by process, thread and disk.
        elapsed_s: how long these took.
    """

    def __init__(self, cluster: Cluster, user: str = "", *, script: bool = False) -> None:
        """Submit jobs of ``user``, or of this one: commands, or scripts that do the same."""
        self._cluster = cluster
        self._work = SCRIPT_JOB if script else COMMAND_JOB
        self._head: Any = HeadClient(cluster.address)
        if user:
            self._head = ClientOf(self._head, user, cluster.layout.directory)
        self.used = CpuTimes()
        self.reset()

    def reset(self) -> None:
        """Begin the budget."""
        self.budget, self.elapsed_s = Snapshot(), 0.0

    def measure(self, tasks: int) -> float:
        """Return the seconds from before the submission until every outcome is durable.

        What the daemons used in that time is in ``used`` then.
        """
        before = self._cluster.cpu_times()
        self.budget.add(self._cluster.budget(), -1)
        started_s = time.monotonic()
        jobs = [noop(self._work) for _ in range(tasks)]
        ids = [result.id for result in self._head.submit(jobs).results]
        self._wait(ids[-1])
        elapsed_s = time.monotonic() - started_s
        self.used = self._cluster.cpu_times().since(before)
        self.budget.add(self._cluster.budget())
        self.elapsed_s += elapsed_s
        self._check(ids)
        return elapsed_s

    def measure_submissions(self, tasks: int) -> float:
        """Return the seconds in which one client submits jobs, each in a request of its own."""
        started_s = time.monotonic()
        ids = [self._head.submit([noop(self._work)]).results[0].id for _ in range(tasks)]
        elapsed_s = time.monotonic() - started_s
        self._wait(ids[-1])
        return elapsed_s

    def measure_loop(self, tasks: int) -> tuple[float, float]:
        """Return the seconds until the last gsub of a shell loop is back, and until all is done."""
        script = Path(self._cluster.layout.directory, "noop.sh")
        script.write_text(SCRIPT)
        command = ["/bin/sh", "-c", LOOP, "sh", str(tasks), str(BIN / "gsub"), str(script)]
        environment = self._cluster.environment
        started_s = time.monotonic()
        done = subprocess.run(
            command, check=True, env=environment, stdout=subprocess.PIPE, encoding="ascii"
        )
        submitted_s = time.monotonic() - started_s
        ids = done.stdout.split()
        self._wait(ids[-1])
        elapsed_s = time.monotonic() - started_s
        self._check(ids)
        return submitted_s, elapsed_s

    def _wait(self, last: int | str) -> None:
        """Wait for the last job, which ends about last, then until no job is left.

        What the head shows is durable.
        """
        self._head.wait([last])
        while self._head.jobs().jobs:
            time.sleep(LOOK_S)

    def _check(self, ids: list[int] | list[str]) -> None:
        """Stop if a job has another outcome than exit code 0; not part of the time."""
        rows: list[JobRow] = []
        for first in range(0, len(ids), STEP):
            rows.extend(self._head.jobs(ids[first : first + STEP]).jobs)
        good = [row for row in rows if row.outcome is not None and row.outcome.exit_code == 0]
        if len(good) != len(ids):
            bad = next((row for row in rows if row not in good), None)
            raise SystemExit(f"gsched: {len(ids) - len(good)} of {len(ids)} failed: {bad}")


def noop(work: Mapping[str, Any] = COMMAND_JOB, **more: object) -> SubmitJob:
    """Return a job that does nothing, without output."""
    output = {"stdout_path": "/dev/null", "stderr_path": "/dev/null"}
    return new_job(name="noop", workdir="/", **output, **work, **more)


@contextmanager
def running(  # noqa: PLR0913 - the ways to run it
    *,
    cpus: int,
    cgroup: str,
    policy: str,
    learn: bool,
    tls: bool = False,
    postgresql: bool = False,
    native: bool = True,
    script: bool = False,
    user: str = "",
) -> Iterator[Gsched]:
    """Yield gsched with one node of so many CPUs, under a policy, whose head learns or not.

    Args:
        tls: the node connects over TLS on loopback, not by a Unix socket.
        postgresql: the head keeps its state there, not in SQLite; it flushes what is committed.
        native: whether plain jobs are run by the native supervisor.
        script: jobs are scripts, not commands.
        user: whose jobs; empty: of this user.
    """
    with ExitStack() as stack:
        # first, so that it ends last
        server = stack.enter_context(postgres_server(fsync=True)) if postgresql else None
        cluster = stack.enter_context(one_node(cpus=cpus, cgroup=cgroup, native=native))
        cluster.choose(policy, learn=learn)
        if server is not None:
            cluster.use_database(server.url, server.process)
        if tls:
            cluster.use_tls()
        yield Gsched(cluster, user, script=script)
