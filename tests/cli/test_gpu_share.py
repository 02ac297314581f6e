"""Jobs that share GPUs, from gsub to their end, on a real head and nodes with declared GPUs."""

import json

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command

pytestmark = pytest.mark.timeout(180)


class Desk:
    """A cluster with a node that shares its two GPUs of 16 GiB, and one that does not."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.start_head()
        cluster.share_runtimes["n1"] = "colocate"
        cluster.start_node("n1", cpus=8, gpus=2)
        cluster.start_node("n2", cpus=8, gpus=1)

    def run(self, name: str, *arguments: str) -> Ran:
        return run_command(name, *arguments, head=self.cluster.socket, cwd=self.cluster.jobs)

    def submit(self, *options: str, script: str = "waits.sh") -> str:
        """Submit a job; return its number as text."""
        ran = self.run("gsub", *options, script)
        assert ran.status == 0, ran.stderr
        return ran.stdout.partition(".")[0]

    def state(self, job: str) -> str:
        return self.cluster.head.jobs([job]).jobs[0].state

    def node(self, name: str = "n1") -> dict[str, object]:
        (row,) = json.loads(self.run("gnodes", "--json", name).stdout)["nodes"]
        assert isinstance(row, dict)
        return row

    def shared(self) -> dict[str, object]:
        """Return the one GPU of n1 that is shared."""
        rows = self.node()["shared_gpus"]
        assert isinstance(rows, list)
        assert len(rows) == 1
        return dict(rows[0])


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    go = cluster.jobs / "go"
    (cluster.jobs / "waits.sh").write_text(f"while ! test -e {go}; do sleep 0.1; done\n")
    (cluster.jobs / "shares.sh").write_text(
        "#PBS -l gpu_share=30%:2gb\n#GSCHED --walltime 10m\n"
        f"env > $GSCHED_JOB_NUMBER.env\nwhile ! test -e {go}; do sleep 0.1; done\n"
    )
    return Desk(cluster)


def test_jobs_share_a_gpu_and_all_commands_show_it(desk: Desk) -> None:
    """A directive, the options, a whole job beside them, one that waits for room, and the end."""
    first = desk.submit(script="shares.sh")
    second = desk.submit("--gpu-share", "60%,8gb", "--share-class", "high")
    whole = desk.submit("-l", "nodes=n1:gpus=1")
    wait_until(lambda: {desk.state(job) for job in (first, second, whole)} == {"running"}, what="")
    waiting = desk.submit("--gpu-share", "20%,1gb")

    assert desk.shared() == {
        "index": 0,
        "percent": 90,
        "memory_bytes": 10 * 2**30,
        "gpu_memory_bytes": 16 * 2**30,
        "jobs": [int(first), int(second)],
    }
    assert desk.node()["sharing"] == "colocate"
    assert desk.node("n2")["sharing"] == ""
    assert "\t2/2\t0:90%\t" in desk.run("gnodes").stdout
    details = desk.run("gnodes", "n1").stdout
    assert f"90 % of 100 %, 10gb of 16gb, jobs {first} {second}" in details
    lines = [line.split("\t") for line in desk.run("gstat").stdout.splitlines()]
    gpus = {line[0].partition(".")[0]: line[lines[0].index("GPUs")] for line in lines[1:]}
    assert gpus == {first: "30%", second: "60%", whole: "1", waiting: "20%"}
    story = desk.run("gstat", "-f", second).stdout
    assert "60 % of GPU 0 with 8gb (high)" in story
    assert "Resource_List.gpu_share = 60%:8gb:high" in story
    (row,) = json.loads(desk.run("gstat", "--json", first).stdout)["jobs"]
    assert row["gpu_share"] == {
        "percent": 30,
        "memory_bytes": 2 * 2**30,
        "share_class": "low",
        "index": 0,
    }
    why = " ".join(desk.run("gstat", "--why", waiting).stdout.split())
    assert "20 % of a GPU with 1gb (low)" in why
    assert "1 node has no room on a GPU, 1 node does not share GPUs" in why
    assert "10 % of GPU 0 with 6gb" in why
    environment = (desk.cluster.jobs / f"{first}.env").read_text()
    assert "GSCHED_GPU_SHARE_PERCENT=30\n" in environment

    assert desk.run("galter", "-l", "gpu_share=10%:1gb", waiting).status == 0
    wait_until(lambda: desk.state(waiting) == "running", what="the altered job")
    (desk.cluster.jobs / "go").touch()
    for job in (first, second, whole, waiting):
        assert desk.run("gwait", job).status == 0
    assert desk.run("gnodes", "n1").stdout.count("in use") == 3
    assert desk.node()["shared_gpus"] == []


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--gpu-share", "120%"], "a GPU has 100 %", "gpus=N"),
        (["--gpu-share", "40%,17gb"], "no node can provide that", "has 16gb"),
        (["--gpu-share", "40%", "--gpus", "2"], "not of 2", "omit gpus="),
        (["-l", "nodes=2,gpu_share=40%"], "for one chunk", ""),
        (["--gpu-share", "0%"], "must be at least 1 %", "--gpu-share PERCENT%"),
        (["--share-class", "low"], "without --gpu-share", "--gpu-share 40%"),
        (
            ["--gpu-share", "40%", "-l", "nodes=n2"],
            "n2 on one node, but no node",
            "one node must have all",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_submission(
    desk: Desk, options: list[str], message: str, hint: str
) -> None:
    ran = desk.run("gsub", *options, "waits.sh")

    assert ran.status != 0
    assert message in ran.stderr
    assert hint in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_restarted_head_knows_what_is_shared(desk: Desk) -> None:
    """It is killed; what runs goes on, and a further job gets what is left."""
    first = desk.submit("--gpu-share", "70%,8gb")
    wait_until(lambda: desk.state(first) == "running", what="the first job")
    desk.cluster.kill_head()
    desk.cluster.start_head()
    wait_until(lambda: desk.node()["state"] == "up", what="the node")
    whole = [desk.submit("-l", "gpus=1") for _ in range(2)]
    wait_until(lambda: {desk.state(job) for job in whole} == {"running"}, what="whole jobs")

    second = desk.submit("--gpu-share", "30%,8gb")
    wait_until(lambda: desk.state(second) == "running", what="the second job")
    third = desk.submit("--gpu-share", "1%,1mb")

    assert desk.state(third) == "queued"
    shared = desk.shared()
    assert (shared["percent"], shared["jobs"]) == (100, [int(first), int(second)])


def test_a_node_whose_library_is_missing_is_named_with_what_to_install(cluster: Cluster) -> None:
    """At submission, by gnodes and by the doctor."""
    cluster.share_runtimes["n1"] = "interception"
    cluster.cuda_driver = str(cluster.directory / "no-driver")
    cluster.start_head()
    cluster.start_node("n1", cpus=2, gpus=1)
    words = f"no CUDA driver can be read at {cluster.cuda_driver}"
    (cluster.jobs / "job.sh").write_text("true\n")

    def run(name: str, *arguments: str) -> Ran:
        return run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)

    wait_until(lambda: words in run("gnodes", "n1").stdout, what="the reason of n1")
    refused = run("gsub", "--gpu-share", "40%,1gb", "job.sh")

    assert refused.status != 0
    assert "no node can provide that" in refused.stderr
    said = " ".join(refused.stderr.split())
    assert f"n1 cannot share its GPUs ({words}" in said
    assert f"{cluster.cuda_driver}, driver in [gpu_share])" in said
    assert "request a whole GPU, with gpus=1" in said
    doctor = run("gsched", "doctor").stdout
    assert f"cannot share its GPUs: {words}" in " ".join(doctor.split())
