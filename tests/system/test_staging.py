"""gsub -W stagein= and stageout=: files are copied to the job's node and away, as its owner."""

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.records import a_task

pytestmark = pytest.mark.timeout(120)

#: A copy command as scp: it knows the hosts of this test, which are directories, and no others.
COPY = """#!/bin/sh
echo "$@" >> {directory}/copies
place() {{ case "$1" in
    far:*) echo "{directory}/far${{1#far:}}";;
    slow:*) sleep 60;;
    *:*) echo "unknown host ${{1%%:*}}" >&2; exit 3;;
    *) echo "$1";;
esac }}
from=$(place "$1") && to=$(place "$2") && cp -rT "$from" "$to"
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a node that shares /data of the hosts ``store*``, and has a copy command."""
    directory = tmp_path_factory.mktemp("staging")
    for name in ("far", "shared", "home"):
        (directory / name).mkdir()
    copy = directory / "copy"
    copy.write_text(COPY.format(directory=directory))
    copy.chmod(0o755)
    made = Cluster(directory / "c", f"staging-{uuid.uuid4().hex}")
    made.start_head()
    made.node_tables = (
        f'[staging]\nusecp = [["store*:/data", "{directory}/shared"]]\n'
        f'copy = ["{copy}"]\ntimeout_s = 2\n'
    )
    made.start_node("n1", cpus=4)
    yield made
    made.stop()


def gsub(cluster: Cluster, *words: str) -> Ran:
    return run_command("gsub", *words, head=str(cluster.socket), cwd=cluster.jobs)


def ended(cluster: Cluster, job: str) -> Ran:
    return run_command("gwait", job, head=str(cluster.socket))


def test_files_are_there_before_the_start_and_gone_to_their_place_after_the_end(
    one: Cluster, tmp_path: Path
) -> None:
    """By cp from a shared file system, by the copy command from another host; directories, too."""
    top = one.directory.parent
    (top / "shared" / "in").write_text("shared\n")
    (top / "far" / "tree" / "deep").mkdir(parents=True)
    (top / "far" / "tree" / "deep" / "x").write_text("far\n")
    here = tmp_path / "node"
    here.mkdir()

    job = gsub(
        one,
        *("-W", f"stagein={here}/a@store7:/data/in,{here}/t@far:/tree"),
        *("-W", f"stagein={here}/own@{socket.gethostname()}:{top}/shared/in"),
        *("-W", f"stageout={here}/r@far:/result,{here}/t@store7:/data/back"),
        *("-o", f"{tmp_path}/out", "--", "sh", "-c"),
        f"cat {here}/a {here}/own {here}/t/deep/x; echo done > {here}/r; echo more > {here}/t/y\n"
        "exit 3",
    )

    assert job.status == 0, job.stderr
    assert ended(one, job.stdout.strip()).status == 3, "files of a job that failed go, too"
    assert (tmp_path / "out").read_text() == "shared\nshared\nfar\n"
    assert (top / "far" / "result").read_text() == "done\n"
    assert (top / "shared" / "back" / "y").read_text() == "more\n"
    assert (top / "shared" / "back" / "deep" / "x").read_text() == "far\n"
    assert (top / "copies").read_text().splitlines() == [
        f"far:/tree {here}/t",
        f"{here}/r far:/result",
    ]


def test_a_job_whose_files_cannot_be_had_is_requeued_with_the_reason(
    one: Cluster, tmp_path: Path
) -> None:
    """And started when they can: the program has not run before."""
    top = one.directory.parent
    job = gsub(
        one,
        *("-W", f"stagein={tmp_path}/a@far:/later"),
        *("-o", f"{tmp_path}/out", "--", "cat", f"{tmp_path}/a"),
    ).stdout.strip()

    def reason() -> str:
        return run_command("gstat", "-f", job, head=str(one.socket)).stdout

    wait_until(lambda: "stage-in failed" in reason(), what="the failure")
    assert "later" in reason()
    (top / "far" / "later").write_text("at last\n")

    assert ended(one, job).status == 0
    assert (tmp_path / "out").read_text() == "at last\n"


def test_a_stage_out_that_fails_keeps_the_files_and_tells_the_owner(
    one: Cluster, tmp_path: Path
) -> None:
    """What lay in the job's scratch directory is moved to the owner's home."""
    job = gsub(
        one,
        *("-W", "stageout=nowhere.txt@nohost:/x", "-e", f"{tmp_path}/err", "--", "true"),
    ).stdout.strip()
    slow = gsub(
        one,
        *("-W", f"stageout={tmp_path}/kept@slow:/x", "-e", f"{tmp_path}/slow"),
        *("--", "touch", f"{tmp_path}/kept"),
    ).stdout.strip()

    assert ended(one, job).status == 0
    assert ended(one, slow).status == 0

    said = (tmp_path / "err").read_text()
    assert "stage-out failed" in said
    assert "unknown host nohost" in said
    assert "not done within 2 s" in (tmp_path / "slow").read_text()
    assert (
        f"the files are where the job left them on n1: {tmp_path}/kept"
        in (tmp_path / "slow").read_text()
    )
    assert (tmp_path / "kept").exists()


def test_a_rerun_does_not_copy_away_and_a_delete_during_stage_in_ends_at_once(
    one: Cluster, tmp_path: Path
) -> None:
    top = one.directory.parent
    stuck = gsub(one, "-W", f"stagein={tmp_path}/a@slow:/x", "--", "true").stdout.strip()
    wait_until((top / "copies").exists)
    wait_until(lambda: "slow:/x" in (top / "copies").read_text())
    assert run_command("gdel", "-W", "0", stuck, head=str(one.socket)).status == 0
    assert ended(one, stuck).status != 0

    script = (
        f"[ $GSCHED_RESTART_COUNT = 1 ] && exit 0\necho r > {tmp_path}/r\n"
        f"touch {tmp_path}/up\nsleep 600\n"
    )
    (one.jobs / "again.sh").write_text(script)
    before = (top / "copies").read_text().count("far:/rerun")
    job = gsub(
        one, "--grace", "1", "-W", f"stageout={tmp_path}/r@far:/rerun", "again.sh"
    ).stdout.strip()
    wait_until((tmp_path / "up").exists)
    assert run_command("grerun", "-W", "1", job, head=str(one.socket)).status == 0
    assert ended(one, job).status == 0
    assert (top / "copies").read_text().count("far:/rerun") == before + 1


def test_a_link_that_is_named_is_followed(one: Cluster, tmp_path: Path) -> None:
    """As by scp: data sets are often reached through a link such as ``latest``."""
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "data").write_text("new")
    (tmp_path / "v2" / "link").symlink_to("data")
    (tmp_path / "latest").symlink_to("v2")
    there = f"{socket.gethostname()}:{tmp_path}"

    job = gsub(one, "-W", f"stagein={tmp_path}/got@{there}/latest", "--", "true").stdout.strip()

    assert ended(one, job).status == 0
    assert not (tmp_path / "got").is_symlink()
    assert (tmp_path / "got" / "link").readlink() == Path("data")


def test_a_file_that_is_in_place_needs_no_copy(one: Cluster, tmp_path: Path) -> None:
    """A shared home directory: the same path on the node and where it comes from."""
    host = socket.gethostname()
    (tmp_path / "x").write_text("here")
    both = f"stagein={tmp_path}/x@{host}:{tmp_path}/x,stageout={tmp_path}/x@{host}:{tmp_path}/x"
    job = gsub(one, "-W", both, "-e", f"{tmp_path}/e", "--", "true").stdout.strip()

    assert ended(one, job).status == 0
    assert (tmp_path / "e").read_text() == ""
    missing = gsub(one, "-W", f"stagein={tmp_path}/y@{host}:{tmp_path}/y", "--", "true")
    job = missing.stdout.strip()

    def story() -> str:
        return run_command("gstat", "-f", job, head=str(one.socket)).stdout

    wait_until(lambda: "stage-in failed" in story())
    run_command("gdel", job, head=str(one.socket))


def test_a_mistake_is_refused_at_submission(one: Cluster) -> None:
    for wrong in ("a", "a@b", "a@b:", "@b:c", "a@-oProxyCommand=x:c"):
        said = gsub(one, "-W", f"stagein={wrong}", "--", "true")
        assert said.status == 2, wrong
        assert "write stagein=LOCAL@HOST:REMOTE" in said.stderr


def test_files_in_the_scratch_directory_are_kept(one: Cluster, tmp_path: Path) -> None:
    """$TMPDIR is removed after the job, so what cannot be delivered goes home first."""
    from gnode.supervisor import staging

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "result").write_text("precious")
    task = a_task(
        user_dir=str(scratch),
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GSCHED_NODE": "n1"},
        stage_out=[["false", f"{scratch}/result", "far:/x"]],
        stage_timeout_s=10.0,
    )

    said = staging.take_away(task, is_away=False)

    kept = tmp_path / staging.KEPT / "12.2"
    assert said.endswith(f"exit code 1; the files are kept on n1 in {kept}")
    assert (kept / "result").read_text() == "precious"
