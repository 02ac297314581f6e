"""The output of a job on several nodes: each node's own, and that of the rank that failed."""

from gsched.client import new_job
from gsched.head_calls import error_from
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command

FAILS = """#!/bin/sh
echo "from $PBS_NODENUM"
[ "$PBS_NODENUM" = 1 ] || { touch said; exec sleep 600; }
until [ -e said ]; do sleep 0.05; done
exec python3 -c 'raise RuntimeError("the second node is broken")'
"""


def submit(cluster: Cluster, script: str) -> int:
    job = new_job(
        name="wide",
        workdir=str(cluster.jobs),
        script=script,
        grace_s=1.0,
        resources=("nodes=2",),
        every_node=True,
    )
    result = cluster.head.submit([job]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    return result.id


def test_the_error_of_the_node_that_failed_is_shown(cluster: Cluster) -> None:
    """gwait prints the traceback of the second node; gpeek reads either node's output."""
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name)
    job = submit(cluster, FAILS)

    waited = run_command("gwait", str(job), head=str(cluster.socket))

    assert waited.status == 1
    assert "last lines of stderr on n" in waited.stderr
    assert "RuntimeError: the second node is broken" in waited.stderr
    story = cluster.head.job(job)
    first, second = story.row.nodes
    for node, number in ((first, "0"), (second, "1")):
        peeked = run_command("gpeek", "--node", node, str(job), head=str(cluster.socket))
        assert peeked.stdout == f"from {number}\n"
    wrong = run_command("gpeek", "--node", "n9", str(job), head=str(cluster.socket))
    assert wrong.status == 156
    assert "did not run on 'n9'" in wrong.stderr
    assert first in wrong.stderr


def test_elapsed_time_counts_all_attempts(cluster: Cluster) -> None:
    """After a restart the job has run for longer than its present attempt."""
    cluster.start_head()
    cluster.start_node("n1")
    job = new_job(
        name="again",
        workdir=str(cluster.jobs),
        script="#!/bin/sh\ntouch runs$GSCHED_RESTART_COUNT\nexec sleep 600\n",
        grace_s=1.0,
    )
    number = cluster.head.submit([job]).results[0].id
    wait_until((cluster.jobs / "runs0").exists)
    before = cluster.head.job(number).row.wall_s
    assert run_command("grerun", str(number), head=str(cluster.socket)).status == 0
    wait_until(lambda: cluster.head.job(number).row.attempt == 2)
    wait_until(lambda: cluster.head.job(number).row.state == "running")

    row = cluster.head.job(number).row
    ended = [each for each in cluster.head.job(number).attempts if each.attempt == 1]
    assert len(ended) == 1
    assert row.wall_s >= before
    assert row.wall_s >= ended[0].parts[0].usage.wall_s  # type: ignore[union-attr] # it has ended
    assert run_command("gdel", "-W", "0", str(number), head=str(cluster.socket)).status == 0


def test_a_message_is_written_by_the_jobs_node(cluster: Cluster) -> None:
    """Into the files of either node, as the owner; not into what is no plain file."""
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name)
    job = submit(cluster, "touch up.$PBS_NODENUM\nuntil [ -e end ]; do sleep 0.05; done\n")
    wait_until(lambda: all((cluster.jobs / f"up.{number}").exists() for number in (0, 1)))
    wait_until(lambda: cluster.head.job(job).attempts[-1].state == "running")
    first, second = cluster.head.job(job).row.nodes
    head = str(cluster.socket)

    assert run_command("gmsg", "to the first", str(job), head=head).status == 0
    there = run_command("gmsg", "-O", "-E", "--node", second, "to both", str(job), head=head)
    assert there.status == 0, there.stderr
    wrong = run_command("gmsg", "--node", "n9", "no", str(job), head=head)
    assert "did not run on 'n9'" in wrong.stderr
    story = cluster.head.job(job)
    (cluster.jobs / f"wide.e{job}").unlink()
    gone = run_command("gmsg", "lost", str(job), head=head)
    assert "No such file or directory" in gone.stderr
    (cluster.jobs / "end").touch()

    assert run_command("gwait", str(job), head=head).status == 0
    assert story.row.nodes[0] == first
    assert (cluster.jobs / f"wide.o{job}.1").read_text() == "to both\n"
    assert (cluster.jobs / f"wide.e{job}.1").read_text() == "to both\n"
    ended = run_command("gmsg", "late", str(job), head=head)
    assert "not running" in ended.stderr
