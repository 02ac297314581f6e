"""The client for programs of users: the examples of its page, and what it raises."""

import os
import pwd
import re
from pathlib import Path

import pytest

from gsched.errors import BadStateError, HeadUnreachableError, UnknownJobError, UsageError
from gsched.jobs import ClusterClient
from tests.support.cluster import Cluster, wait_until

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> ClusterClient:
    cluster.start_head()
    cluster.start_node("n1")
    monkeypatch.setenv("GSCHED_HEAD", str(cluster.socket))
    monkeypatch.chdir(cluster.jobs)
    return ClusterClient()


def test_the_examples_of_its_page_run(
    client: ClusterClient, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "python-client.md"
    names: dict[str, object] = {}
    user = pwd.getpwuid(os.getuid()).pw_name
    for example in EXAMPLE.findall(page.read_text()):
        exec(example.replace("alice", user), names)

    shown = capsys.readouterr().out

    assert "1.test 0 hello" in shown
    assert "sleep" in shown
    assert "queue nowhere" in shown or "'nowhere'" in shown
    assert client.job(1).result().succeeded


def test_what_cannot_be_is_raised_as_an_error_with_a_sentence(client: ClusterClient) -> None:
    waiting = client.submit(["sleep", "600"], resources="nodes=1:ppn=1", name="long")

    with pytest.raises(UnknownJobError, match="Unknown Job Id 99"):
        client.job(99)
    with pytest.raises(UsageError, match="there is no program to run"):
        client.submit([])
    with pytest.raises(UsageError, match="is not below the present directory"):
        client.submit(["true"], stage_in=["../x"])
    with pytest.raises(UsageError, match="is not below the present directory"):
        client.submit(["true"], stage_out=["../x"])
    with pytest.raises(UsageError, match="is no list of paths"):
        client.submit(["true"], stage_in="x")
    with pytest.raises(UsageError, match="is no list of paths"):
        client.submit(["true"], stage_out="x")
    with pytest.raises(UsageError, match="missing is no file or directory"):
        client.submit(["true"], stage_in=["missing"])
    with pytest.raises(UsageError, match="starts in the present directory"):
        client.submit(["true"], workdir="/", stage_out=["x"])
    with pytest.raises(UsageError, match="invalid job"):
        client.submit(["true"], colour="red")
    with pytest.raises(BadStateError, match="is running"):
        client.job(waiting.id).result()
    with pytest.raises(TimeoutError, match=r"1 of 1 jobs have not ended: 1\.test"):
        client.wait([waiting], timeout_s=0.1)
    with pytest.raises(HeadUnreachableError, match="no head answers"):
        ClusterClient("/nowhere/head.sock").nodes()
    waiting.hold()
    waiting.cancel()
    waiting.cancel()
    assert waiting.wait(timeout_s=60).kind == "cancelled"


def test_output_is_read_while_a_job_runs_and_afterwards(
    client: ClusterClient, cluster: Cluster
) -> None:
    go = cluster.jobs / "go"
    job = client.submit(f"echo begin\nwhile [ ! -e {go} ]; do sleep 0.1; done\necho end\n")
    wait_until(lambda: job.state == "running" and job.output() == "begin\n", what="its output")
    go.touch()

    result = job.wait()

    assert (result.kind, result.shell_code) == ("exited", 0)
    assert job.output() == "begin\nend\n"
    assert job.output(stream="stderr") == ""
    Path(job.story().stdout_path).unlink()
    with pytest.raises(BadStateError, match="cannot be read on n1"):
        job.output()
