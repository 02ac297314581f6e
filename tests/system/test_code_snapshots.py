"""gsub --snapshot: a job runs the code as it was when it was submitted."""

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.disks import FILLER, fill, free, small_disk

pytestmark = pytest.mark.timeout(180)


QUEUE_AND_LIMITS = """
[[queue]]
name = "batch"
[limits]
snapshot_bytes = 100000
snapshot_files = 50
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes whose snapshots may have 100 kB and 50 files."""
    made = Cluster(tmp_path_factory.mktemp("code") / "c", f"code-{uuid.uuid4().hex}")
    made.queues = QUEUE_AND_LIMITS
    made.start_head()
    for name in ("n1", "n2"):
        made.start_node(name, cpus=2)
    yield made
    made.stop()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a Git working tree with one commit."""
    top = tmp_path / "work"
    (top / "sub").mkdir(parents=True)
    (top / "sub" / "say.sh").write_text("#!/bin/sh\necho old; cat ../data\n")
    (top / "sub" / "say.sh").chmod(0o755)
    (top / "data").write_text("committed\n")
    (top / ".gitignore").write_text("*.big\n")
    git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return top


def git(top: Path, *words: str) -> str:
    ran = subprocess.run(
        ["git", "-C", str(top), *words], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def gsub(cluster: Cluster, cwd: Path, *words: str) -> Ran:
    return run_command("gsub", *words, head=str(cluster.socket), cwd=cwd)


def ended(cluster: Cluster, job: str) -> Ran:
    return run_command("gwait", job, head=str(cluster.socket))


def test_code_that_is_edited_after_the_submission_does_not_matter(two: Cluster, work: Path) -> None:
    """Uncommitted changes and untracked files are in it, ignored ones are not."""
    (work / "data").write_text("changed\n")
    (work / "sub" / "new").write_text("untracked\n")
    (work / "x.big").write_text("ignored")
    script = (
        "until [ -e $PBS_O_WORKDIR/edited ]; do sleep 0.05; done\n"
        "./say.sh; cat new; ls ..; pwd; echo $PBS_O_WORKDIR; echo $PWD\n"
        "echo $GSCHED_SNAPSHOT_DIR; test -w . && touch result\n"
    )
    (work / "sub" / "job.sh").write_text(script)
    submitted = gsub(two, work / "sub", "--snapshot", "-N", "snap", "job.sh")
    assert submitted.status == 0, submitted.stderr
    job = submitted.stdout.strip()
    (work / "sub" / "say.sh").write_text("#!/bin/sh\necho new\n")
    (work / "sub" / "new").unlink()
    (work / "data").write_text("later\n")

    (work / "sub" / "edited").touch()
    assert ended(two, job).status == 0

    number = job.partition(".")[0]
    lines = (work / "sub" / f"snap.o{number}").read_text().splitlines()
    assert lines[:3] == ["old", "changed", "untracked"]
    assert lines[3:5] == ["data", "sub"]
    inside = f"{lines[-1]}/sub"
    assert lines[5:8] == [inside, str(work / "sub"), inside]
    assert not (work / "sub" / "result").exists()
    assert not Path(lines[-1]).exists(), "it is removed with the job's directory"
    story = run_command("gstat", "-f", job, head=str(two.socket)).stdout
    assert f"snapshot = commit {git(work, 'rev-parse', 'HEAD')} with changes, 5 files" in story


def test_the_same_code_is_sent_and_kept_once(two: Cluster, work: Path) -> None:
    first = gsub(two, work, "--snapshot", "-o", "../o1", "-e", "../e1", "--", "cat", "data")
    assert first.status == 0, first.stderr
    code = two.state_dir / "code" / str(os.getuid())
    before = sorted(path.name for path in code.iterdir())
    os.utime(work / "data", (1, 1))

    second = gsub(two, work, "--snapshot", "-o", "../o2", "-e", "../e2", "--", "cat", "data")

    assert sorted(path.name for path in code.iterdir()) == before
    for each in (first, second):
        assert ended(two, each.stdout.strip()).status == 0
    assert (work.parent / "o2").read_text() == "committed\n"
    shown = two.head.job(second.stdout.strip()).snapshot
    assert shown is not None
    assert shown.digest in before
    assert (shown.commit, shown.dirty) == (git(work, "rev-parse", "HEAD"), False)


def test_a_rerun_uses_the_same_code(two: Cluster, work: Path) -> None:
    (work / "again.sh").write_text(
        "cat data\n[ $GSCHED_RESTART_COUNT = 1 ] && exit 0\ntouch $PBS_O_WORKDIR/up\nsleep 600\n"
    )
    job = gsub(two, work, "--snapshot", "--grace", "1", "-o", "out", "again.sh").stdout.strip()
    wait_until((work / "up").exists)
    (work / "data").write_text("later\n")

    assert run_command("grerun", "-W", "1", job, head=str(two.socket)).status == 0

    assert ended(two, job).status == 0
    assert (work / "out").read_text() == "committed\n" * 2


def test_without_git_it_is_the_directory(two: Cluster, tmp_path: Path) -> None:
    """Without what .gschedignore lists; links and modes are kept."""
    top = tmp_path / "plain"
    for name in ("a/b", "results/run1", "deep/keep"):
        (top / name).mkdir(parents=True)
    (top / "a" / "b" / "run").write_text("#!/bin/sh\necho ran\n")
    (top / "a" / "b" / "run").chmod(0o700)
    (top / "link").symlink_to("a/b/run")
    (top / "results" / "run1" / "huge").write_bytes(b"0" * 200_000)
    (top / "deep" / "x.log").write_text("no")
    (top / "deep" / "keep" / "y.log").write_text("yes")
    os.mkfifo(top / "pipe")
    (top / ".gschedignore").write_text("# data\nresults/\n*.log\n!deep/keep/*.log\n")

    submitted = gsub(two, top, "--snapshot", "-o", "out", "--", "sh", "-c", "./link; find . | sort")

    assert "warning: --snapshot leaves out pipe: it is no file and no link" in submitted.stderr
    job = submitted.stdout.strip()
    assert ended(two, job).status == 0
    assert (top / "out").read_text().split() == [
        *("ran", ".", "./.gschedignore", "./a", "./a/b", "./a/b/run"),
        *("./deep", "./deep/keep", "./deep/keep/y.log", "./link"),
    ]
    story = run_command("gstat", "-f", job, head=str(two.socket)).stdout
    assert "snapshot = 4 files" in story


def test_what_is_too_large_is_refused_with_what_to_do(two: Cluster, tmp_path: Path) -> None:
    top = tmp_path / "large"
    top.mkdir()
    empty = gsub(two, top, "--snapshot", "--", "true")
    (top / "data.bin").write_bytes(os.urandom(100_001))
    large = gsub(two, top, "--snapshot", "--", "true")
    (top / "data.bin").unlink()
    for number in range(51):
        (top / f"f{number}").touch()
    many = gsub(two, top, "--snapshot", "--", "true")

    assert (empty.status, large.status, many.status) == (2, 2, 2)
    assert f"--snapshot: {top} holds no files" in empty.stderr
    assert "the limit is 97.7kb. The largest: data.bin (97.7kb)" in large.stderr
    assert "list data and results in .gschedignore or .gitignore" in large.stderr
    assert f"{top} has 51 files; the limit is 50" in many.stderr


def test_a_damaged_or_foreign_archive_is_refused(two: Cluster) -> None:
    """The head takes only what has its digest, in order, within the limit; and no job without."""
    from gsched.client import new_job
    from gsched.errors import GschedError
    from gsched.model.job import CodeSnapshot
    from gsched.protocol.code import CodePiece, CodeReply

    def send(**fields: object) -> CodeReply:
        return two.head._post("/v1/code", CodePiece(**fields), CodeReply)  # type: ignore[arg-type] # as given

    digest = "ab" * 32
    assert send(digest=digest, size_bytes=10, offset=5, data=b"later").received_bytes == 0
    assert send(digest=digest, size_bytes=10, data=b"first").received_bytes == 5
    with pytest.raises(GschedError, match="damaged on its way"):
        send(digest=digest, size_bytes=10, offset=5, data=b"after")
    with pytest.raises(GschedError, match="larger than announced"):
        send(digest=digest, size_bytes=3, data=b"first")
    with pytest.raises(GschedError, match=r"the limit is 97\.7kb"):
        send(digest=digest, size_bytes=200_000, data=b"first")
    with pytest.raises(GschedError, match="64 hex digits"):
        send(digest="../../x", size_bytes=3, data=b"abc")
    snapshot = CodeSnapshot(digest=digest, size_bytes=3, files=1)
    job = new_job(name="x", workdir="/tmp", script="true\n", snapshot=snapshot)
    with pytest.raises(GschedError, match="does not have the job's code snapshot"):
        two.head.submit([job])


def test_a_container_and_a_snapshot_are_refused_together(two: Cluster, work: Path) -> None:
    from gsched.client import new_job
    from gsched.head_calls import error_from
    from gsched.model.container import Container
    from gsched.model.job import CodeSnapshot

    submitted = gsub(two, work, "--snapshot", "-h", "--", "true")
    snapshot = two.head.job(submitted.stdout.strip()).snapshot
    assert isinstance(snapshot, CodeSnapshot)
    job = new_job(name="x", workdir="/tmp", script="true\n", snapshot=snapshot)
    both = structs.replace(job, container=Container(image="alpine"))

    error = two.head.submit([both]).results[0].error

    assert error is not None
    assert "cannot be unpacked in a container" in error_from(error).message


def test_a_job_on_two_nodes_has_the_code_on_both(two: Cluster, work: Path) -> None:
    """Also torchrun's, by the name of its script in the snapshot; and tasks of job steps."""
    agent = Path(sys.executable).with_name("gsched-launch-agent")
    job = gsub(
        two,
        work / "sub",
        *("--snapshot", "-l", "nodes=n1:ppn=1+n2:ppn=1", "-o", "out", "--"),
        *("sh", "-c", f"{agent} n2 'pwd; ./say.sh'; echo $GSCHED_SNAPSHOT_DIR/sub"),
    ).stdout.strip()
    (work / "data").write_text("later\n")
    waited = ended(two, job)
    assert waited.status == 0, waited.stderr

    there, *said, here = (work / "sub" / "out").read_text().splitlines()
    assert said == ["old", "committed"]
    assert there.endswith("/code/sub")
    assert there != here, "each node has a copy of its own"


def test_a_migrated_job_runs_the_same_code(two: Cluster, work: Path) -> None:
    """On another node, after its checkpoint signal."""
    (work / "move.sh").write_text(
        "cat data; echo $GSCHED_NODE\n[ $GSCHED_RESTART_COUNT = 1 ] && exit 0\n"
        "trap 'exit 0' USR1; touch $PBS_O_WORKDIR/up\nwhile :; do sleep 0.1; done\n"
    )
    options = ("--snapshot", "--checkpoint-signal", "USR1", "-l", "nodes=1:ppn=1", "-o", "out")
    job = gsub(two, work, *options, "move.sh").stdout.strip()
    wait_until((work / "up").exists)
    (work / "data").write_text("later\n")

    moved = run_command("gmigrate", "--wait", job, head=str(two.socket))

    assert moved.status == 0, moved.stderr
    assert ended(two, job).status == 0
    first, before, second, after = (work / "out").read_text().split()
    assert (first, second) == ("committed", "committed")
    assert {before, after} == {"n1", "n2"}


def test_torchruns_script_is_the_one_in_the_snapshot(two: Cluster, work: Path) -> None:
    (work / "sub" / "train.py").write_text("print('trained')\n")
    submitted = gsub(two, work, "--snapshot", "-h", "--torchrun", "sub/train.py", "--lr", "1")
    outside = gsub(two, work / "sub", "--snapshot", "-h", "--torchrun", str(Path(__file__)))

    job = submitted.stdout.strip()
    assert two.head.job(job).arguments == ("sub/train.py", "--lr", "1")
    assert two.head.job(outside.stdout.strip()).arguments == (str(Path(__file__)),)


def test_a_head_that_restarts_in_between_is_waited_for(two: Cluster, work: Path) -> None:
    """The program's first lines come after the head is back, as its code does."""
    job = gsub(two, work, "--snapshot", "-h", "-o", "out", "--", "cat", "data").stdout.strip()
    two.kill_head()
    two.start_head()
    assert run_command("grls", job, head=str(two.socket)).status == 0
    assert ended(two, job).status == 0
    assert (work / "out").read_text() == "committed\n"


NOBODY = 65534


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
@pytest.mark.parametrize("filler", ["another user", "owner"])
def test_a_full_tmp_dir_is_the_nodes_fault_unless_the_owner_has_filled_it(
    tmp_path: Path, work: Path, filler: str
) -> None:
    """There is space for the script and the archive, but not for the code that is in it."""
    (work / "large").write_bytes(os.urandom(200_000))
    cluster = Cluster(tmp_path / "c", f"code-{uuid.uuid4().hex}")
    with (
        # The node's probe runs as another user, for whom pytest's own directories are closed.
        tempfile.TemporaryDirectory(prefix="gsched-snapshot-") as top,
        small_disk(Path(top) / "tmp", "2m") as disk,
    ):
        os.chmod(top, 0o711)
        try:
            cluster.start_head()
            cluster.start_node("n1", tmp_dir=str(disk))
            fill(disk)
            os.truncate(disk / FILLER, (disk / FILLER).stat().st_size - 300_000)
            if filler == "another user":
                os.chown(disk / FILLER, NOBODY, NOBODY)

            job = gsub(cluster, work, "--snapshot", "-o", "out", "--", "cat", "data").stdout.strip()

            if filler == "another user":
                wait_until(lambda: "cannot unpack" in story(cluster, job))
                free(disk)
                assert ended(cluster, job).status == 0
                assert (work / "out").read_text() == "committed\n"
            else:
                assert ended(cluster, job).status != 0
                assert "most of what is in use there is yours" in story(cluster, job)
        finally:
            cluster.stop()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
def test_code_that_has_no_space_on_a_node_goes_to_another(tmp_path: Path, work: Path) -> None:
    """Also where nothing but the code itself fills the file system."""
    (work / "large").write_bytes(os.urandom(400_000))
    cluster = Cluster(tmp_path / "c", f"code-{uuid.uuid4().hex}")
    with small_disk(tmp_path / "tmp", "256k") as disk:
        try:
            cluster.start_head()
            cluster.start_node("n1", tmp_dir=str(disk))
            job = gsub(cluster, work, "--snapshot", "-o", "out", "--", "cat", "data").stdout.strip()
            wait_until(lambda: "cannot unpack" in story(cluster, job))
            cluster.start_node("n2")

            assert ended(cluster, job).status == 0
            assert (work / "out").read_text() == "committed\n"
        finally:
            cluster.stop()


def story(cluster: Cluster, job: str) -> str:
    return run_command("gstat", "-f", job, head=str(cluster.socket)).stdout
