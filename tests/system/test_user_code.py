"""What runs for a user on a node is in the attempt: its groups, limits, clock and accounting."""

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gsched.protocol.job_rows import AttemptRow
from tests.support import records
from tests.support.cluster import Cluster, wait_until
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

#: A user's program that gsched's copy command or a container runtime starts: it says where and
#: with which limits it runs, uses CPU time, and leaves a process that has left its session.
LOOK = """#!/bin/sh
{{ cat /proc/self/cgroup
grep 'Max open files' /proc/self/limits
grep -E '^(Uid|Cap...|NoNewPrivs)' /proc/self/status
echo oom $(cat /proc/self/oom_score_adj)
setsid nohup sleep {mark} > /dev/null 2>&1 &
python3 -c 'import time
while time.process_time() < {cpu_s}: pass'
echo done; }} > {home}/seen 2>&1
sleep {sleep_s}
exit 1
"""
MARK = f"4242.{os.getpid()}"  # other workers run tests of this file, too
CPU_S = 0.6


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Cluster, Users, User]]:
    """Return a node whose daemons have more open files and CPU rights than jobs get."""
    with made_users(Cluster, f"user-code-{uuid.uuid4().hex}") as (cluster, users):
        alice = users.add("alice")
        cluster.wrapper = cluster.wrapper.after("prlimit", "--nofile=5000:9000")
        cluster.node_tables = "[staging]\ntimeout_s = 60\n"
        cluster.start_head()
        runtimes = cluster.directory / "bin"
        runtimes.mkdir()
        (runtimes / "podman").write_text(PODMAN)
        (runtimes / "podman").chmod(0o755)
        cluster.start_node(
            "n1",
            cpus=4,
            env={"GSCHED_TEST_CONTAINER_PATH": str(runtimes)},
            container_runtimes=["podman"],
        )
        yield cluster, users, alice


#: Stands in for podman: a container is a program, and its removal reads the user's own settings.
PODMAN = """#!/bin/sh
for word; do case "$word" in
    rm) exec $HOME/x.sh;;
    run) exec sh -c ". $HOME/run";;
esac; done
"""


def plant(users: Users, user: User, *, sleep_s: float = 0.0) -> Path:
    """Let everything that is copied to or from host ``evil`` run a program of the user's."""
    home = users.home(user)
    script, config = home / "x.sh", home / ".ssh" / "config"
    config.parent.mkdir(exist_ok=True, mode=0o700)
    os.chown(config.parent, user.uid, user.gid)
    script.write_text(LOOK.format(home=home, mark=MARK, cpu_s=CPU_S, sleep_s=sleep_s))
    script.chmod(0o755)
    config.write_text(f"Host evil\n  ProxyCommand {script}\n")
    (home / "seen").unlink(missing_ok=True)
    return home / "seen"


def left() -> list[int]:
    """Return the processes that the user's program has left."""
    wanted = ["sleep", MARK]
    return [each.pid for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == wanted]


def check_seen(seen: Path, user: User, attempt: str) -> None:
    """Check that a program of the user's ran inside the attempt."""
    text = seen.read_text()
    groups = [line for line in text.splitlines() if line.endswith(f"/{attempt}")]
    assert any(line.startswith("0::") for line in groups), text
    assert any(":memory:" in line or line.startswith("0::") for line in groups), text
    words = text.split()
    assert words[words.index("files") + 1 : words.index("files") + 3] == ["1024", "9000"]
    assert words[words.index("Uid:") + 1 : words.index("Uid:") + 5] == [str(user.uid)] * 4
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"):
        assert int(words[words.index(name) + 1], 16) == 0, text
    assert words[words.index("oom") + 1] == "0"


def needs_scp() -> None:
    if shutil.which("scp") is None or shutil.which("prlimit") is None:
        pytest.skip("no scp or prlimit here")


def test_stage_out_is_a_part_of_the_attempt_and_leaves_nothing(
    site: tuple[Cluster, Users, User],
) -> None:
    """A user's ~/.ssh/config makes scp start a program of the user's."""
    needs_scp()
    cluster, users, alice = site
    seen = plant(users, alice)
    (users.home(alice) / "result").write_text("x")
    job = users.submit(
        cluster, alice, *("-l", "mem=100mb", "-W", "stageout=result@evil:/x", "--", "true")
    )
    cluster.head.wait([job], timeout_s=60)

    assert left() == []
    check_seen(seen, alice, f"{job}.1")
    ended = cluster.head.job(job)
    assert ended.row.outcome is not None
    assert ended.row.outcome.exit_code == 0
    assert ended.row.cpu_s >= CPU_S, "stage-out counts as the job's use"


def test_stage_in_counts_as_walltime_and_as_use(site: tuple[Cluster, Users, User]) -> None:
    needs_scp()
    cluster, users, alice = site
    seen = plant(users, alice, sleep_s=600)
    job = users.submit(
        cluster, alice, *("-l", "mem=100mb,walltime=4", "-W", "stagein=input@evil:/x", "--", "true")
    )
    wait_until(lambda: seen.exists() and "done" in seen.read_text(), what="the stage-in")
    wait_until(lambda: cluster.head.job(job).row.wall_s > 0, what="its elapsed time")
    assert cluster.head.job(job).row.state == "running"
    cluster.head.wait([job], timeout_s=60)

    assert left() == []
    check_seen(seen, alice, f"{job}.1")
    ended = cluster.head.job(job)
    assert ended.row.outcome is not None
    assert ended.row.outcome.kind == "walltime"
    assert "exceeded its walltime limit during stage-in" in ended.row.outcome.message
    assert [each.attempt for each in ended.attempts] == [1], "it is not tried again"
    assert ended.row.wall_s >= 4.0
    assert ended.row.cpu_s >= CPU_S
    shown = users.run(cluster, alice, "ghist", str(job))
    assert "00:00:04" in shown.stdout, shown


def test_what_a_failed_stage_in_leaves_is_gone_and_accounted(
    site: tuple[Cluster, Users, User],
) -> None:
    needs_scp()
    cluster, users, alice = site
    seen = plant(users, alice)
    job = users.submit(
        cluster, alice, "-l", "mem=100mb", "-W", "stagein=input@evil:/x", "--", "true"
    )

    def first() -> AttemptRow | None:
        attempts = cluster.head.job(job).attempts
        return attempts[0] if attempts and attempts[0].outcome else None

    ended = wait_until(first, what="the end of the first attempt")
    assert ended is not None
    assert left() == []
    check_seen(seen, alice, f"{job}.1")
    assert users.run(cluster, alice, "gdel", "-W", "0", str(job)).status == 0
    cluster.head.wait([job], timeout_s=60)
    assert ended.outcome is not None
    assert "stage-in failed" in ended.outcome.message
    assert ended.usage is not None
    assert ended.usage.cpu_s >= CPU_S
    assert ended.usage.wall_s >= CPU_S
    assert cluster.head.job(job).row.wall_s >= CPU_S


@pytest.mark.parametrize("how", ["ended", "lost"])
def test_the_removal_of_a_container_is_a_part_of_the_attempt(
    site: tuple[Cluster, Users, User], how: str
) -> None:
    """The runtime reads its user's settings, which may name programs.

    Of an attempt that has lost its supervisor the launcher has it removed.
    """
    cluster, users, alice = site
    seen = plant(users, alice)
    (users.home(alice) / "run").write_text("exit 0\n" if how == "ended" else "sleep 600\n")
    job = users.submit(
        cluster, alice, *("--container", "localhost/x:1", "-l", "mem=100mb", "--", "true")
    )
    if how == "lost":
        attempt = cluster.node_dir("n1") / "attempts" / f"{job}.1"
        started = wait_until(lambda: records.started(attempt), what="the start of the job")
        assert started is not None
        os.kill(started["pid"], signal.SIGKILL)
        os.kill(started["job_pid"], signal.SIGKILL)
        wait_until(lambda: seen.exists() and "done" in seen.read_text(), what="the removal")
        wait_until(lambda: not left(), what="the end of what it has left")
        check_seen(seen, alice, f"{job}.1")
        return
    cluster.head.wait([job], timeout_s=60)

    assert left() == []
    check_seen(seen, alice, f"{job}.1")
    ended = cluster.head.job(job)
    assert ended.row.cpu_s >= CPU_S
