"""gsub --stage-in and --stage-out on hosts without a shared file system."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.failpoint import FAILPOINTS
from gsched.model.resources import Inventory
from gsched.protocol.deliveries import DeliverPiece, PieceDelivered, StagedRead, StagedWanted
from tests.support.apart import Apart, made_apart
from tests.support.cluster import wait_until
from tests.support.dialler import answered, dialled, launched, replaced
from tests.support.disks import small_disk
from tests.support.processes import PATIENCE_S

#: More than three pieces.
BIG = b"0123456789abcdef" * 200_000
COPY = "cp -r data results && ls -R results && exit 3"

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture
def apart(process_marker: str) -> Iterator[Apart]:
    with made_apart(process_marker) as made:
        yield made


def given(apart: Apart, host: str, name: str, content: bytes = b"", mode: int = 0o644) -> Path:
    """Make a file of alice's on a host, below her home directory; return its path."""
    path = apart.on(host, apart.home / name)
    missing = [each for each in path.parents if not each.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    for each in (*missing, path):
        os.chown(each, apart.alice.uid, apart.alice.gid)
    return path


def a_tree(apart: Apart, host: str) -> dict[str, object]:
    """Make a directory ``data`` with all that may be in one; return what is in it."""
    given(apart, host, "data/deep/er/big", BIG, 0o640)
    given(apart, host, "data/run.sh", b"#!/bin/sh\n", 0o755)
    given(apart, host, "data/empty")
    given(apart, host, "data/ a\n\"b'$(c)")
    top = apart.on(host, apart.home / "data")
    (top / os.fsdecode(b"not-\xff-utf8")).write_bytes(b"odd")
    (top / "last").symlink_to("deep/er/big")
    (top / "out").symlink_to("/etc/hostname")
    (top / "none").mkdir()
    given(apart, host, "data/private/key", b"for alice alone")
    (top / "private").chmod(0o700)
    (top / "private/for-all").mkdir()
    (top / "private/for-all").chmod(0o755)
    os.mkfifo(top / "pipe")
    for path in top.rglob("*"):
        os.lchown(path, apart.alice.uid, apart.alice.gid)
    found = inside(top)
    del found["pipe"]
    return found


def inside(top: Path) -> dict[str, object]:
    """Return what is below a directory: modes and contents, targets of links, owners."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name, status = str(path.relative_to(top)), path.lstat()
        if path.is_symlink():
            found[name] = (os.readlink(path), status.st_uid)
        elif path.is_file():
            found[name] = (path.read_bytes(), status.st_mode & 0o777, status.st_uid)
        else:
            found[name] = ("directory", status.st_mode & 0o777, status.st_uid)
    return found


def test_files_are_there_before_the_start_and_back_after_a_failure(apart: Apart) -> None:
    """From and to a login host: the same paths, permissions and links, as their owner."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    tree = a_tree(apart, "l1")

    job = apart.submit(
        *("--stage-in", "data", "--stage-out", "results", "-N", "away"),
        *("--", "sh", "-c", f"cd $PBS_O_WORKDIR && {COPY}"),
        host="l1",
    )
    story = apart.ended(job)

    assert story.row.outcome is not None
    assert (story.row.outcome.exit_code, story.row.outcome.message) == (3, "")
    assert inside(apart.on("l1", apart.home / "results")) == tree
    assert list(apart.on("n1", apart.home).iterdir()) == []
    assert list(apart.home.iterdir()) == []
    wait_until(lambda: apart.outboxes() == [], what="the outbox to be removed")


def test_nothing_is_copied_where_the_directory_is_the_same(apart: Apart) -> None:
    apart.cluster.start_node("n1")
    given(apart, "", "data/x", b"here\n")

    job = apart.submit(
        *("--stage-in", "data", "--stage-out", "r", "-N", "here"),
        *("--", "sh", "-c", "pwd; ls -i data; mkdir r; echo $PBS_O_WORKDIR"),
    )
    story = apart.ended(job)

    inode = (apart.home / "data/x").stat().st_ino
    text = f"{apart.home}\n{inode} x\n{apart.home}\n"
    assert (apart.home / f"here.o{job}").read_text() == text
    assert story.row.outcome is not None
    assert story.row.outcome.message == ""
    assert (apart.home / "r").is_dir()


def test_stagein_and_stageout_of_the_host_of_submission_need_no_scp(apart: Apart) -> None:
    """From any directory there to any directory here, with names as for PBS."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    given(apart, "l1", "elsewhere/in", b"in\n")
    link = apart.on("l1", apart.home / "link")
    link.symlink_to(apart.home / "elsewhere/in")

    job = apart.submit(
        *("-W", "stagein=a@l1:link,$TMPDIR/b@l1.example.org:elsewhere"),
        *("-W", f"stageout=$TMPDIR/out@l1:{apart.home}/elsewhere/out", "-j", "oe", "-N", "pbs"),
        *("--", "sh", "-c", "cat ~/a $TMPDIR/b/in; echo back > $TMPDIR/out"),
        host="l1",
    )
    story = apart.ended(job)

    assert story.row.outcome is not None
    assert story.row.outcome.message == ""
    assert apart.on("l1", apart.home / f"pbs.o{job}").read_text() == "in\nin\n"
    out = apart.on("l1", apart.home / "elsewhere/out")
    assert (out.read_text(), out.stat().st_uid) == ("back\n", apart.alice.uid)
    assert not apart.on("n1", apart.home / "a").is_symlink()


@pytest.mark.parametrize("point", [name for name in FAILPOINTS if name.startswith("staging.")])
def test_whoever_is_killed_on_the_way_all_files_come_in_full(
    apart: Apart, tmp_path: Path, point: str
) -> None:
    once = {"GSCHED_FAIL": f"{point}:kill-once={tmp_path / 'killed'}"}
    cluster, who = apart.cluster, point.split(".")[1]
    if who == "head":
        cluster.kill_head()
        cluster.start_head(env=once)
    apart.start_host("l1", role="login", env=once if who == "host" else None)
    apart.start_host("n1", env=once if who == "node" else None)
    tree = a_tree(apart, "l1")

    job = apart.submit(
        *("--stage-in", "data", "--stage-out", "results", "-N", "away"),
        *("--", "sh", "-c", COPY),
        host="l1",
    )
    wait_until((tmp_path / "killed").exists, 60, what=point)
    if who == "head":
        cluster.head_process.wait(PATIENCE_S)
        cluster.start_head()
    else:
        name = {"host": "l1", "node": "n1"}[who]
        cluster.node_process(name).wait(PATIENCE_S)
        apart.start_host(name, role="login" if name == "l1" else "compute")
    story = apart.ended(job)
    wait_until(lambda: apart.outboxes() == [], 90, what="the outbox to be removed")

    assert story.row.outcome is not None
    assert (story.row.outcome.exit_code, len(story.attempts)) == (3, 1)
    assert inside(apart.on("l1", apart.home / "results")) == tree


def test_a_file_that_nobody_may_read_is_named(apart: Apart) -> None:
    """Another owner's, in a directory of one's own: the kernel of the host decides."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    given(apart, "l1", "data/mine")
    secret = apart.on("l1", apart.home / "data/secret")
    secret.write_text("of root")
    secret.chmod(0o600)

    job = apart.submit("--stage-in", "data", "--", "true", host="l1")
    text = f"stage-in failed: l1: {apart.home}/data/secret: Permission denied"
    wait_until(
        lambda: text in apart.run("gstat", "-f", str(job)).stdout.replace("\n\t", ""),
        what="the reason",
    )


def test_what_cannot_be_written_stays_and_does_not_keep_the_rest(apart: Apart) -> None:
    """A link below the stated directory is not entered: what it leads to is not of the job."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    results = given(apart, "l1", "results/old", b"stays").parent
    outside = given(apart, "l1", "outside/x", b"stays").parent
    (results / "b").symlink_to(outside)

    job = apart.submit(
        *("--stage-out", "results", "--stage-out", "none", "-N", "away"),
        *("--", "sh", "-c", "mkdir -p results/b; for i in a b/x c; do echo new >results/$i; done"),
        host="l1",
    )
    story = apart.ended(job)

    assert story.row.outcome is not None
    message = story.row.outcome.message
    assert "stage-out failed: " in message
    assert "work/none does not exist" in message
    assert f"output was not delivered: l1: {apart.home}/results/b: Not a directory" in message
    assert "it is on n1 in " in message
    assert {path.name: path.read_text() for path in results.iterdir() if path.is_file()} == {
        "a": "new\n", "c": "new\n", "old": "stays",
    }  # fmt: skip
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"x": "stays"}
    assert [path.rpartition("/")[2] for path in apart.outboxes()] == ["files", "stderr", "stdout"]


def test_directories_without_write_permission_return_writable(apart: Apart) -> None:
    """Whoever protects results or closes a directory does not lose what is in it."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    script = (
        "cd $PBS_O_WORKDIR && mkdir -p r/below c/a && echo 1 > r/x && echo 2 > r/below/y && "
        "echo 3 > c/a/z && chmod -R a-w r && chmod 0 c/a c ."
    )

    job = apart.submit("--stage-out", "r", "--stage-out", "c", "--", "sh", "-c", script, host="l1")
    story = apart.ended(job)

    assert story.row.outcome is not None
    assert story.row.outcome.message == ""
    home, uid = apart.on("l1", apart.home), apart.alice.uid
    assert inside(home / "r") == {
        "below": ("directory", 0o755, uid),
        "below/y": (b"2\n", 0o444, uid),
        "x": (b"1\n", 0o444, uid),
    }
    assert inside(home / "c") == {
        "a": ("directory", 0o700, uid),
        "a/z": (b"3\n", 0o644, uid),
    }
    assert [(home / name).stat().st_mode & 0o777 for name in "rc"] == [0o755, 0o700]
    wait_until(lambda: apart.outboxes() == [], what="the outbox to be removed")


def test_what_cannot_be_put_aside_is_kept_under_names_of_its_own(apart: Apart) -> None:
    """Two files of the same name, in read-only directories: neither is lost."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    script = (
        "cd $PBS_O_WORKDIR && mkdir a b && ln -s loop a/loop && ln -s loop b/loop && chmod 555 a b"
    )

    job = apart.submit(
        *("--stage-out", "a/loop", "--stage-out", "b/loop", "--", "sh", "-c", script), host="l1"
    )
    story = apart.ended(job)

    assert story.row.outcome is not None
    assert "lost" not in story.row.outcome.message
    kept = apart.on("n1", apart.home / f"gsched-undelivered/{job}.1")
    assert sorted(os.listdir(kept)) == ["loop", "loop.1"]


def test_a_place_that_takes_nothing_is_named_once(apart: Apart) -> None:
    """The directory is root's on the host of submission: 900 files, and one sentence."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    results = apart.on("l1", apart.home / "results")
    results.mkdir(mode=0o755)

    job = apart.submit(
        *("--stage-out", "results", "--"),
        *("sh", "-c", "mkdir results; cd results; seq 900 | xargs touch; head -c 3m /dev/zero >z"),
        host="l1",
    )
    message = apart.ended(job).row.outcome

    assert message is not None
    text = (
        rf"output was not delivered: l1: {apart.home}/results/\w+: Permission denied; it is on n1"
    )
    assert re.search(text, message.message), message.message
    assert message.message.count("Permission denied") == 1
    assert "with 900 other files" in message.message
    assert list(results.iterdir()) == []


def test_full_disks_are_named_or_waited_for(apart: Apart) -> None:
    apart.start_host("l1", role="login", size="8m")
    apart.start_host("n1", size="1m")
    given(apart, "l1", "big", BIG)
    full = apart.submit("-W", "stagein=big@l1:big", "--", "true", host="l1")
    wait_until(
        lambda: "big: No space left on device" in apart.cluster.head.job(full).row.reason,
        what="the reason",
    )
    apart.run("gdel", str(full))

    job = apart.submit(
        *("--stage-in", "big", "--stage-out", "copies", "-N", "away"),
        *("--", "sh", "-c", "mkdir copies; for i in 1 2 3; do cp big copies/$i; done"),
        host="l1",
    )
    story = apart.ended(job)
    homes = apart.home.parent
    subprocess.run(
        ["nsenter", f"--mount={apart.namespace('l1')}", "mount", "-o", "remount,size=64m", homes],
        check=True,
    )

    assert story.row.outcome is not None
    assert "output had not returned when the job ended: l1: " in story.row.outcome.message
    assert "No space left on device" in story.row.outcome.message
    wait_until(lambda: apart.outboxes() == [], 90, what="the outbox to be removed")
    copies = apart.on("l1", apart.home / "copies")
    assert [path.read_bytes() == BIG for path in sorted(copies.iterdir())] == [True] * 3


def test_output_for_which_there_is_no_more_room_is_the_reason_of_a_failure(
    apart: Apart,
) -> None:
    """The job itself cannot write it down."""
    with small_disk(apart.cluster.tmp_dir, "4m"):
        apart.start_host("l1", role="login")
        apart.start_host("n1")
        small = apart.submit("--", "sh", "-c", "echo fails; exit 1", host="l1")
        full = apart.submit("--", "head", "-c", "8m", "/dev/zero", host="l1")
        outcomes = [apart.ended(job).row.outcome for job in (small, full)]
        peeked = apart.run("gpeek", "-n", "0", str(full), host="l1")

    assert [each and (each.exit_code, each.message[:20]) for each in outcomes] == [
        (1, ""), (1, "the file system of /"),
    ]  # fmt: skip
    text = "on n1, where its output waits to return, is full (4 MiB): write less output"
    assert text in outcomes[1].message if outcomes[1] else ""
    assert text in peeked.stderr.replace("\n", " ")


def test_each_node_of_a_job_gets_the_files_and_returns_its_own(apart: Apart) -> None:
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    apart.start_host("n2")
    given(apart, "l1", "data/x", b"x\n")

    job = apart.submit(
        *("--stage-in", "data", "--stage-out", "results", "--every-node", "-l", "nodes=2"),
        *("--", "sh", "-c", "mkdir results; cat data/x > results/$GSCHED_NODE_RANK"),
        host="l1",
    )
    apart.ended(job)
    wait_until(lambda: apart.outboxes() == [], 90, what="the outboxes to be removed")

    home = apart.on("l1", apart.home)
    found = {str(path.relative_to(home)) for path in home.glob("results*/*")}
    assert found == {"results/0", "results.1/1"}


def test_a_snapshot_reaches_a_node_without_the_directory(apart: Apart) -> None:
    """With a script of torchrun's kind that is in it, and data that is not."""
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    given(apart, "l1", "code/lib.py", b"WORD = 'as submitted'\n")
    given(apart, "l1", "code/.gschedignore", b"data\n")
    given(apart, "l1", "code/data/x", b"staged\n")
    given(apart, "l1", "code/main.py", b"import lib; print(lib.WORD)\n")

    ran = apart.run(
        "gsub",
        *("--snapshot", "--stage-in", "data", "-j", "oe", "-N", "snap", "--", "sh", "-c"),
        "python3 main.py; cat $PBS_O_WORKDIR/data/x; ls",
        host="l1",
        below="code",
    )
    assert ran.status == 0, ran
    apart.ended(int(ran.stdout.split(".")[0]))

    out = next(apart.on("l1", apart.home / "code").glob("snap.o*"))
    assert out.read_text().splitlines()[:2] == ["as submitted", "staged"]
    assert "data" not in out.read_text().splitlines()[2:]


def test_a_host_of_submission_that_is_gone_is_waited_for(apart: Apart) -> None:
    apart.start_host("l1", role="login")
    apart.start_host("n1")
    given(apart, "l1", "x", b"here\n")
    apart.cluster.node_process("n1").send_signal(signal.SIGSTOP)
    job = apart.submit("--stage-in", "x", "-N", "late", "--", "cat", "x", host="l1")
    apart.cluster.kill_node("l1")
    apart.cluster.node_process("n1").send_signal(signal.SIGCONT)
    wait_until(lambda: apart.cluster.head.job(job).row.state == "running", what="its start")
    text = "files are staged in from l1 to n1: 0b so far; waits: l1 is not connected"
    wait_until(lambda: text in apart.run("gstat", "--why", str(job)).stdout, what="the reason")
    apart.start_host("l1", role="login")
    apart.ended(job)

    wait_until(lambda: apart.outboxes() == [], 90, what="the outbox to be removed")
    assert apart.on("l1", apart.home / f"late.o{job}").read_text() == "here\n"


def test_t9_t31_a_node_reads_and_writes_nothing_but_what_its_jobs_stage(apart: Apart) -> None:
    """A node that was taken over."""
    apart.start_host("n1")
    given(apart, "", "data/x", b"staged\n")
    given(apart, "", "secret", b"not staged\n")
    (apart.home / "results").symlink_to(apart.home)
    other = apart.submit("--stage-in", "data", "--stage-out", "results", "--", "sleep", "600")
    wait_until(lambda: apart.cluster.head.job(other).row.state == "running", what="a job on n1")

    async def attack() -> tuple[dict[str, str], dict[str, StagedRead]]:
        async with dialled(apart.cluster, node="n9") as n9:
            await n9.call()
            await n9.register()
            job = await asyncio.to_thread(
                apart.submit,
                *("--stage-in", "data", "--stage-out", "out", "-W", "stagein=a@far:secret"),
                *("-l", "nodes=n9", "--", "true"),
            )
            launch = await launched(n9)
            mine = StagedWanted(request=1, job=job, attempt=1, item=0)
            reads = {
                "allowed": mine,
                "job of another node": replaced(mine, job=other),
                "attempt": replaced(mine, attempt=2),
                "item": replaced(mine, item=2),
                "of another host": replaced(mine, item=1),
                "above": replaced(mine, after=b"../secret", offset=0),
                "absolute": replaced(mine, after=b"/etc/passwd", offset=0),
            }
            read = {name: await answered(n9, each, StagedRead) for name, each in reads.items()}
            piece = DeliverPiece(
                request=1, job=job, attempt=1, token=launch.token, file="files/0", data=b"out",
                last=True, mode=0o4755,
            )  # fmt: skip
            writes = {
                "item": replaced(piece, file="files/1"),
                "no number": replaced(piece, file="files/x"),
                "signed": replaced(piece, file="files/-1"),
                "job of another node": replaced(piece, job=other, name=b"secret"),
                "directory": replaced(piece, kind="directory"),
                "above": replaced(piece, name=b"../secret"),
                "absolute": replaced(piece, name=b"/etc/passwd"),
                "link": replaced(piece, kind="link", name=b"l", data=bytes(apart.home)),
                "through a link": replaced(piece, name=b"l/secret"),
                "allowed": replaced(piece, name=b"in"),
            }
            written = {
                name: (await answered(n9, each, PieceDelivered)).error
                for name, each in writes.items()
            }
            return written, read

    written, read = asyncio.run(attack())

    assert b"staged\n" in read.pop("allowed").data
    assert all(answer.error and not answer.data for answer in read.values()), read
    for name in ("directory", "link", "allowed"):
        assert written.pop(name) == "", name
    assert all(written.values()), written
    assert (apart.home / "secret").read_text() == "not staged\n"
    assert (apart.home / "out" / "in").stat().st_mode & 0o7777 == 0o755


def test_a_node_of_an_older_version_gets_no_job_that_stages_files(apart: Apart) -> None:
    given(apart, "", "data/x")
    words = ("--stage-in", "data", "-l", "ncpus=1", "--", "true")

    async def wait() -> tuple[str, str]:
        async with dialled(apart.cluster, node="n9") as n9:
            await n9.call()
            await n9.register(inventory=Inventory(cpus=4, memory_bytes=2**30))
            refused = await asyncio.to_thread(apart.run, "gsub", *words)
            await asyncio.to_thread(apart.start_host, "n1")
            busy = await asyncio.to_thread(
                apart.submit, "-l", "nodes=n1:ppn=4", "--", "sleep", "600"
            )
            head = apart.cluster.head
            await asyncio.to_thread(
                wait_until, lambda: head.job(busy).row.state == "running", what="a busy node"
            )
            job = await asyncio.to_thread(apart.submit, *words)
            why = await asyncio.to_thread(apart.run, "gstat", "--why", str(job))
            assert head.job(job).row.state == "queued"
            return refused.stderr, why.stdout

    refused, why = asyncio.run(wait())

    assert "needs a gnode that can stage files" in refused
    assert "upgrade gsched on the nodes" in refused
    assert "a gnode that can stage files" in why


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--stage-in", "../x"), "it is not below the directory of submission"),
        (("--stage-in", "/etc/passwd"), "it is not below the directory of submission"),
        (("--stage-in", "."), "it is not below the directory of submission"),
        (("--stage-in", "missing"), "does not exist"),
        (("--stage-in", "loop"), "loop leads nowhere"),
        (("--stage-in", "data", "-d", "/tmp"), "--stage-in and -d are mutually exclusive"),
        (("--stage-out", "data", "--container", "a:b"), "--container are mutually exclusive"),
        (("-W", "stagein=x@l1"), "invalid file 'x@l1'"),
    ],
)
def test_mistakes_are_refused_with_what_to_do(
    apart: Apart, words: tuple[str, ...], text: str
) -> None:
    given(apart, "", "data/x")
    (apart.home / "loop").symlink_to("loop")

    ran = apart.run("gsub", *words, "--", "true")

    assert ran.status == 2, ran
    assert text in ran.stderr.replace("\n", " ")
    assert "\n" in ran.stderr.strip(), "a hint"
