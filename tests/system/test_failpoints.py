"""Every failpoint there is, once: the process dies there, comes back, and nothing is lost.

The same small piece of work goes through each point: a job on all nodes, a job on one, and one
that is deleted while it runs. That the process died proves that the work passes the point.
"""

from functools import partial

import pytest

from gsched.errors import HeadUnreachableError
from gsched.failpoint import FAILPOINTS
from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from tests.support.builds import give_native_library
from tests.support.cluster import Cluster, wait_until
from tests.support.judge import Judge, facts_of, verdict
from tests.support.mishaps import Submission, a_job, delete, is_killed, wait_for_death, wait_for_end

#: Those of moves are passed in tests/system/test_migration.py, those of the replicated log in
#: tests/system/test_standby.py.
HEAD_POINTS = [
    name
    for name in FAILPOINTS
    if name.startswith("head.") and not name.startswith(("head.move.", "head.replicated."))
]
NODE_POINTS = [name for name in FAILPOINTS if name.startswith("node.")]
SUPERVISOR_POINTS = [name for name in FAILPOINTS if name.startswith("supervisor.")]
#: Passed when the database is made, and by the start itself: these heads never answer.
AT_THE_START = {"head.migrate.before_commit", "head.mark.before_write", "head.cycle.before"}
#: Attempts after the death of a supervisor: what it knew is lost with it, unless the record is
#: there already; right after the fork it depends on whether the job's process could go on alone.
SECOND_ATTEMPTS: dict[str, tuple[list[int], ...]] = {
    "supervisor.start.before_fork": ([2],),
    "supervisor.start.after_fork": ([], [2]),
    # none, where the first supervisor that comes to its end is that of the deleted job
    "supervisor.exit.before_groups": ([], [2]),
    "supervisor.exit.before_record": ([], [2]),
    "supervisor.exit.half_record": ([], [2]),
    "supervisor.exit.after_record": ([],),  # it is complete, though not yet durable
}


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def armed(point: str) -> dict[str, str]:
    return {"GSCHED_FAIL": f"{point}:kill"}


class Work:
    """The jobs of one test: on all nodes, on one node, and one to be deleted."""

    def __init__(self, cluster: Cluster, judge: Judge) -> None:
        self._cluster = cluster
        self._judge = judge
        wide = {"resources": ("nodes=2",), "every_node": True}
        self.submission = Submission(
            cluster,
            a_job(cluster, judge, "sleep 0.2", **wide),
            a_job(cluster, judge, "sleep 0.1"),
            a_job(cluster, judge, judge.gate("never")),
        )
        self._is_deleted = False

    def step(self) -> bool:
        """Do what can be done now; return whether all is over."""
        if not self.submission.is_acknowledged():
            return False
        _, single, victim = self.submission.ids()
        judge = self._judge
        # Not before another one has ended: that is the one whose end a failpoint strikes.
        is_time = judge.count("start", victim) and judge.count("end", single)
        try:
            if is_time and not self._is_deleted:
                self._is_deleted = delete(self._cluster.head, victim) is not None
            return not self._cluster.head.jobs().jobs
        except HeadUnreachableError:
            return False

    def check(self) -> None:
        """Hold what the jobs wrote and what the head recorded against what must be so."""
        cluster, judge = self._cluster, self._judge
        wide, single, victim = self.submission.ids()
        outcomes = {s.row.id: s.row.outcome for s in wait_for_end(cluster, [wide, single, victim])}
        for job in (wide, single):
            outcome = outcomes[job]
            assert outcome is not None
            assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 0)
        deleted = outcomes[victim]
        assert deleted is not None
        assert deleted.kind == OutcomeKind.CANCELLED
        database = cluster.state_dir / "gsched.db"
        assert verdict(judge, database, [wide, single, victim]) == []


def attempts(cluster: Cluster) -> list[int]:
    """Return the numbers of all attempts that were ever assigned."""
    facts = facts_of(cluster.state_dir / "gsched.db")
    return [fact.attempt for fact in facts if isinstance(fact, f.AttemptAssigned)]


def start_nodes(cluster: Cluster) -> None:
    for name in ("n1", "n2"):
        cluster.start_node(name, wait=False)
    for name in ("n1", "n2"):
        cluster.wait_for_node(name)


@pytest.mark.parametrize("point", HEAD_POINTS)
def test_head_killed_at(cluster: Cluster, judge: Judge, point: str) -> None:
    if point != "head.migrate.before_commit":
        cluster.start_head()
        start_nodes(cluster)
        cluster.stop_head()
    cluster.start_head(armed(point), wait=point not in AT_THE_START)
    if point in AT_THE_START:
        wait_for_death(cluster.head_process)
        cluster.start_head()
    if point == "head.migrate.before_commit":
        start_nodes(cluster)
    was_hit = point in AT_THE_START
    for name in ("n1", "n2"):
        cluster.wait_for_node(name)
    work = Work(cluster, judge)

    def is_over() -> bool:
        nonlocal was_hit
        if not was_hit and is_killed(cluster.head_process):
            was_hit = True
            cluster.start_head()
        return work.step()

    wait_until(is_over, 60.0, what="the work to be done")

    assert was_hit, f"the work never passed {point}"
    assert attempts(cluster) == [1, 1, 1]  # the head's death is no reason to run anything again
    work.check()


@pytest.mark.parametrize("point", NODE_POINTS)
def test_node_killed_at(cluster: Cluster, judge: Judge, point: str) -> None:
    cluster.start_head()
    cluster.start_node("n1", wait=False, env=armed(point))
    cluster.start_node("n2", wait=False)
    for name in ("n1", "n2"):
        cluster.wait_for_node(name)
    work = Work(cluster, judge)
    was_hit = False

    def is_over() -> bool:
        nonlocal was_hit
        if not was_hit and is_killed(cluster.node_process("n1")):
            was_hit = True
            cluster.start_node("n1", wait=False)
        return work.step()

    wait_until(is_over, 60.0, what="the work to be done")
    if not was_hit:  # the last acknowledgement may come after the end
        wait_for_death(cluster.node_process("n1"))
        cluster.start_node("n1")

    assert attempts(cluster) == [1, 1, 1]  # nor is the death of gnode
    work.check()


@pytest.mark.parametrize("processes", [0, 500], ids=["plain", "limited"])
@pytest.mark.parametrize("point", SUPERVISOR_POINTS)
def test_supervisor_killed_at(
    cluster: Cluster, judge: Judge, point: str, library: str, processes: int
) -> None:
    cluster.is_native = bool(library)
    for name in ("n1", "n2") if library else ():
        give_native_library(library, cluster.node_dir(name))
    latch = cluster.directory / "latch"  # every supervisor passes the point, the first one dies
    cluster.start_head()
    failing = {"GSCHED_FAIL": f"{point}:kill-once={latch}"}
    cluster.start_node("n1", wait=False, env=failing, job_processes=processes)
    cluster.start_node("n2", wait=False, job_processes=processes)
    for name in ("n1", "n2"):
        cluster.wait_for_node(name)
        if library:
            wait_until(partial(cluster.runs_natively, name), what="the library")
    work = Work(cluster, judge)

    wait_until(work.step, 60.0, what="the work to be done")

    assert latch.exists(), f"the work never passed {point}"
    assert sorted(attempts(cluster)) in [[1, 1, 1, *more] for more in SECOND_ATTEMPTS[point]]
    work.check()


def test_every_failpoint_is_in_one_of_the_three_sweeps() -> None:
    # The points of a training are passed in tests/system/test_elastic_faults.py, that of the
    # notifier in tests/system/test_notify.py, those of backups in tests/system/test_backup.py,
    # those of hosts that join in tests/system/test_joining.py, those of the replicated log in
    # tests/system/test_standby.py, those of output that returns in
    # tests/system/test_without_shared_files.py, those of staged files in
    # tests/system/test_staged_files.py.
    swept = HEAD_POINTS + NODE_POINTS + SUPERVISOR_POINTS
    others = (
        "training.",
        "head.move.",
        "head.replicated.",
        "notify.",
        "backup.",
        "restore.",
        "join.",
        "authority.",
        "delivery.",
        "staging.",
    )
    assert sorted(swept) == sorted(p for p in FAILPOINTS if not p.startswith(others))
