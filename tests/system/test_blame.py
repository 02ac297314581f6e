"""No user can drain a node: every way to make a start fail, as fast as one user can."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gsched.protocol import actions as a
from gsched.protocol.job_rows import JobRow
from tests.support.cluster import Cluster, wait_until
from tests.support.users import User, Users, made_users

pytestmark = pytest.mark.root

MEAN_S = 90.0  # until all that a mean user does has come to its end
NODES = ("n1", "n2")


@pytest.fixture
def site(process_marker: str) -> Iterator[tuple[Cluster, Users]]:
    with made_users(Cluster, process_marker) as made:
        yield made


def started(site: tuple[Cluster, Users], *, nodes: int = 2) -> tuple[Cluster, Users]:
    """Start the head and its nodes; the accounts have to be there before."""
    cluster, users = site
    cluster.start_head()
    for name in NODES[:nodes]:
        cluster.start_node(name, cpus=4)
    return cluster, users


def row(cluster: Cluster, job: int) -> JobRow:
    return cluster.head.job(job).row


def is_waiting(cluster: Cluster, job: int) -> bool:
    return row(cluster, job).state == "waiting"


def attempts_failed(cluster: Cluster, jobs: list[int], count: int = 1) -> bool:
    """Return whether each job is over, held, or has failed to start so often."""
    for job in jobs:
        story = cluster.head.job(job)
        if story.row.state in {"done", "held"}:
            continue
        if sum(each.state == "ended" for each in story.attempts) < count:
            return False
    return True


def drained(cluster: Cluster) -> dict[str, str]:
    return {node.name: node.reason for node in cluster.head.nodes().nodes if node.drained}


def holds_still(cluster: Cluster, users: Users, other: User, steady: int) -> None:
    """Check that no node is drained and that another user's jobs run and start."""
    assert drained(cluster) == {}
    assert row(cluster, steady).state == "running"
    after = [users.submit(cluster, other, "--", "true") for _ in range(4)]
    stories = cluster.head.wait(after, timeout_s=60)
    assert [story.row.outcome and story.row.outcome.exit_code for story in stories] == [0] * 4


def test_too_little_memory_drains_nothing(site: tuple[Cluster, Users]) -> None:
    """Nothing can be executed in a kilobyte: that is no fault of the node's."""
    users = site[1]
    mean, other = users.add("mean"), users.add("other")
    cluster, _ = started(site)
    steady = users.submit(cluster, other, "--", "sleep", "1000")

    jobs = [users.submit(cluster, mean, "-l", "mem=1kb", "--", "true") for _ in range(4)]
    wait_until(lambda: attempts_failed(cluster, jobs), MEAN_S, what="the jobs to end")

    holds_still(cluster, users, other, steady)


def test_another_current_group_is_kept(site: tuple[Cluster, Users]) -> None:
    """``newgrp`` and ``sg``: the job runs with the group that its user has chosen."""
    users = site[1]
    mean, other = users.add("mean", groups=[72001]), users.add("other")
    cluster, _ = started(site)
    steady = users.submit(cluster, other, "--", "sleep", "1000")

    job = users.submit(cluster, mean, "--", "id", "-g", gid=72001)
    wait_until(lambda: attempts_failed(cluster, [job], 3), MEAN_S, what="the job to end")

    holds_still(cluster, users, other, steady)
    assert row(cluster, job).outcome is not None
    assert (users.home(mean) / f"id.o{job}").read_text() == "72001\n"


@contextmanager
def leased(path: Path, user: User) -> Iterator[None]:
    """Have a process of the user's hold a write lease on a file."""
    path.touch()
    os.chown(path, user.uid, user.gid)
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fd = os.open(path, os.O_RDWR)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.write(done, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(done)


def test_an_output_file_with_a_lease_drains_nothing(site: tuple[Cluster, Users]) -> None:
    """The file cannot be opened for as long as its user likes."""
    users = site[1]
    mean, other = users.add("mean"), users.add("other")
    cluster, _ = started(site)
    steady = users.submit(cluster, other, "--", "sleep", "1000")
    path = users.home(mean) / "leased"

    with leased(path, mean):
        jobs = [users.submit(cluster, mean, "-o", str(path), "--", "true") for _ in range(3)]
        wait_until(lambda: attempts_failed(cluster, jobs, 2), MEAN_S, what="the jobs to fail")
        holds_still(cluster, users, other, steady)


def test_a_deleted_users_job_drains_nothing(site: tuple[Cluster, Users]) -> None:
    """The account goes while jobs wait."""
    users = site[1]
    gone, other = users.add("gone"), users.add("other")
    cluster, _ = started(site)
    steady = users.submit(cluster, other, "--", "sleep", "1000")
    jobs = [users.submit(cluster, gone, "-h", "--", "true") for _ in range(8)]
    users.remove(gone)

    for job in jobs:
        cluster.head.act(a.ReleaseJob(ids=(str(job),)))
    wait_until(lambda: attempts_failed(cluster, jobs), MEAN_S, what="the jobs to fail")

    holds_still(cluster, users, other, steady)


def test_every_way_at_once_drains_nothing(site: tuple[Cluster, Users]) -> None:
    """What a job names is taken away after its submission, then all are released together."""
    users = site[1]
    mean, other = users.add("mean"), users.add("other")
    cluster, _ = started(site)
    steady = users.submit(cluster, other, "--", "sleep", "1000")
    home = users.home(mean)
    for name in ("gone", "closed", "results"):
        (home / name).mkdir()
        os.chown(home / name, mean.uid, mean.gid)
    for name, text in (("odd", "#!/no/such/shell\n"), ("plain", "true\n"), ("text", "true\n")):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    ways = {
        "Permission denied": ("-d", str(home / "closed"), "--", "true"),
        "neither a file nor": ("-o", str(home / "pipe"), "--", "true"),
        "line 1 names /no/such/shell": ("--", "./odd"),
        "chmod +x": ("--", "./plain"),
        "it is no program": ("--", "./text"),
        "No such file": ("--", "/no/such-program"),
    }
    jobs = {
        words: [users.submit(cluster, mean, "-h", *way) for _ in range(3)]
        for words, way in ways.items()
    }
    jobs["is not in group 72999"] = [
        users.submit(cluster, mean, "-h", "--", "true", gid=72999) for _ in range(3)
    ]
    waiting = [
        users.submit(cluster, mean, "-h", *way, "--", "true")
        for way in (("-d", str(home / "gone")), ("-o", str(home / "results" / "out")))
    ]
    (home / "gone").rmdir()
    (home / "results").rmdir()
    (home / "closed").chmod(0)
    (home / "plain").chmod(0o644)
    os.mkfifo(home / "pipe", 0o666)
    reader = os.open(home / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.chown(home / "pipe", mean.uid, mean.gid)

    every = [job for some in jobs.values() for job in some]
    cluster.head.act(a.ReleaseJob(ids=tuple(map(str, [*every, *waiting]))))
    stories = cluster.head.wait(every, timeout_s=MEAN_S)
    os.close(reader)

    told = {
        story.row.id: (story.row.outcome.kind, story.row.outcome.message)
        for story in stories
        if story.row.outcome is not None
    }
    assert len(told) == len(every)
    for words, some in jobs.items():
        for job in some:
            kind, message = told[job]
            assert kind == "launch_failed"
            assert words in message
    for job in waiting:
        wait_until(partial(is_waiting, cluster, job), MEAN_S, what="the job to wait")
    holds_still(cluster, users, other, steady)


# --- the node's own probe ---


def test_a_node_that_cannot_start_anything_is_drained_and_resumes_when_it_can(
    site: tuple[Cluster, Users],
) -> None:
    """The directory that jobs' files are made in is taken away, then given back."""
    users = site[1]
    first = users.add("first")
    cluster, _ = started(site, nodes=1)
    (job,) = [users.submit(cluster, first, "--", "true")]
    cluster.head.wait([job], timeout_s=60)
    (scratch,) = [path for path in cluster.tmp_dir.iterdir() if not path.name.endswith("-outbox")]
    hidden = cluster.directory / "hidden"
    scratch.rename(hidden)
    scratch.write_text("no directory")

    job = users.submit(cluster, first, "--", "true")
    reason = wait_until(lambda: drained(cluster).get("n1"), MEAN_S, what="the drain")
    assert reason is not None
    assert reason.startswith("it cannot start jobs: ")
    scratch.unlink()
    hidden.rename(scratch)

    (story,) = cluster.head.wait([job], timeout_s=100)  # the first probe comes after 30 s
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0
    assert drained(cluster) == {}
    wait_until(lambda: not list(scratch.iterdir()), MEAN_S, what="the clean-up")


def hide_passwd(cluster: Cluster, name: str, *, hidden: bool) -> None:
    """Let a node's name service hang, or answer again: in its own mount namespace."""
    pipe = cluster.directory / "passwd.pipe"
    if hidden:
        os.mkfifo(pipe)  # whoever opens it waits for a writer
        what = ["mount", "--bind", str(pipe), "/etc/passwd"]
    else:
        what = ["umount", "--lazy", "/etc/passwd"]
    pid = str(cluster.node_process(name).pid)
    subprocess.run(["nsenter", "-t", pid, "-m", *what], check=True)


def answer(pipe: Path, content: bytes) -> None:
    """Let the one that waits for the pipe read this."""
    fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(fd, content)
    os.close(fd)


def test_d22_a_name_service_that_hangs_blames_nobody(site: tuple[Cluster, Users]) -> None:
    """The node stays connected meanwhile, and the job runs when the service is back."""
    users = site[1]
    first = users.add("first")
    cluster, _ = started(site, nodes=1)
    hide_passwd(cluster, "n1", hidden=True)

    job = users.submit(cluster, first, "--", "true")
    wait_until(lambda: row(cluster, job).state == "waiting", MEAN_S, what="the first failure")

    assert "name service on n1 does not answer for user first" in row(cluster, job).reason
    assert [node.state for node in cluster.head.nodes().nodes] == ["up"]
    assert cluster.log("head.log").count("disconnected") == 0
    hide_passwd(cluster, "n1", hidden=False)
    answer(cluster.directory / "passwd.pipe", users.passwd())
    (story,) = cluster.head.wait([job], timeout_s=60)
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0
    assert drained(cluster) == {}
