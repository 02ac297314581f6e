"""A longer walltime of a running job holds on its node, whatever is killed after it was given."""

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command


def test_an_extension_survives_head_and_gnode(cluster: Cluster) -> None:
    """One job is extended, head and gnode are killed; the other one is not, and is terminated."""
    cluster.start_head()
    cluster.start_node("n1", cpus=2)
    go = cluster.jobs / "go"

    def gsub(name: str) -> None:
        work = f"touch {name}; while [ ! -e {go} ]; do sleep 0.2; done"
        ran = run_command(
            "gsub", "-l", "walltime=12", "--grace", "1", "--", "sh", "-c", work,
            head=cluster.socket, cwd=cluster.jobs,
        )  # fmt: skip
        assert ran.status == 0, ran.stderr

    gsub("long")
    gsub("short")
    wait_until((cluster.jobs / "long").exists, what="the job to run")
    extended = run_command("galter", "-l", "walltime=+10:00", "1", head=cluster.socket)
    assert extended.status == 0, extended.stderr
    cluster.kill_head()
    cluster.kill_node("n1")
    cluster.start_head()
    cluster.start_node("n1", cpus=2)

    short = run_command("gwait", "2", head=cluster.socket)
    assert "exceeded its walltime limit of 00:00:12" in short.stdout + short.stderr
    assert cluster.head.job(1).row.state == "running"
    assert cluster.head.job(1).row.walltime_s == 612.0
    go.touch()
    assert run_command("gwait", "1", head=cluster.socket).status == 0
