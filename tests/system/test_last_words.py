"""Why gsched ended a job stands at the end of the job's own error file."""

from pathlib import Path

import pytest

from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.warm import Lender

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster_of_one(warm: Lender) -> Cluster:
    return warm(cpus=2)


def submit(cluster: Cluster, script: str, **more: object) -> int:
    job = new_job(name="x", workdir=str(cluster.jobs), script=f"#!/bin/sh\n{script}\n", **more)
    result = cluster.head.submit([job]).results[0]
    assert result.error is None, result.error
    return result.id


def error_file(cluster: Cluster, job: int, letter: str = "e") -> Path:
    return cluster.jobs / f"x.{letter}{job}"


def test_a_job_over_its_walltime_is_told_so_in_its_error_file(cluster_of_one: Cluster) -> None:
    cluster = cluster_of_one
    job = submit(cluster, "echo before >&2; sleep 600", resources=("walltime=1",), grace_s=1.0)
    cluster.head.wait([job], timeout_s=60)

    assert error_file(cluster, job).read_text().splitlines()[0] == "before"
    assert error_file(cluster, job).read_text().splitlines()[-1] == (
        f"gsched: job {job}: terminated: exceeded its walltime limit of 00:00:01"
    )


def test_the_line_goes_where_stderr_goes_and_a_deleted_job_has_one_too(
    cluster_of_one: Cluster,
) -> None:
    """With -j oe that is the file of stdout; one that ignores TERM is killed before."""
    cluster = cluster_of_one
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    job = submit(cluster, script, join="oe", grace_s=0.5)
    wait_until(lambda: error_file(cluster, job, "o").exists() and "up" in
               error_file(cluster, job, "o").read_text())  # fmt: skip
    from gsched.protocol.actions import DeleteJob

    cluster.head.act(DeleteJob(ids=(str(job),)))
    cluster.head.wait([job], timeout_s=60)

    lines = error_file(cluster, job, "o").read_text().splitlines()
    assert lines == ["up", f"gsched: job {job}: cancelled by request; see gstat -f"]


def test_a_job_that_ends_by_itself_has_no_such_line(cluster_of_one: Cluster) -> None:
    cluster = cluster_of_one
    well, badly = submit(cluster, "echo ok"), submit(cluster, "echo no >&2; exit 3")
    cluster.head.wait([well, badly], timeout_s=60)

    assert error_file(cluster, well).read_text() == ""
    assert error_file(cluster, badly).read_text() == "no\n"


def test_an_error_file_that_is_gone_or_no_file_keeps_nothing_from_ending(
    cluster_of_one: Cluster,
) -> None:
    cluster = cluster_of_one
    gone = submit(
        cluster, "rm -f x.e${PBS_JOBID%%.*}; sleep 600", resources=("walltime=1",), grace_s=0.5
    )
    null = submit(
        cluster, "sleep 600", resources=("walltime=1",), stderr_path="/dev/null", grace_s=0.5
    )
    stories = cluster.head.wait([gone, null], timeout_s=60)

    assert [story.row.outcome and story.row.outcome.kind for story in stories] == ["walltime"] * 2
    assert not error_file(cluster, gone).exists()


def test_a_program_that_cannot_be_started_says_why_in_its_error_file(
    cluster_of_one: Cluster,
) -> None:
    cluster = cluster_of_one
    script = "#!/no/such/interpreter\n"
    job = new_job(name="x", workdir=str(cluster.jobs), script=script, rerunnable=False)
    number = cluster.head.submit([job]).results[0].id
    cluster.head.wait([number], timeout_s=90)

    assert "which does not exist on this node" in error_file(cluster, number).read_text()
