"""Each job has a /tmp and a /dev/shm of its own, which all of its processes on the node share."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gnode.supervisor import private
from tests.support import records
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.launching import Launcher
from tests.support.records import task_of
from tests.support.sshd import serving
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


class Site(NamedTuple):
    """A cluster with a node n1 whose jobs have a /tmp of their own.

    Attributes:
        work: a directory that is not below /tmp, for all to write.
    """

    cluster: Cluster
    users: Users
    alice: User
    work: Path

    def submit(self, *words: str, user: User | None = None) -> int:
        """Submit a job that works in ``work``."""
        return self.users.submit(
            self.cluster, user or self.alice, "-d", str(self.work), "-j", "oe", *words
        )

    def ran(self, script: str, *words: str) -> str:
        """Run a script as a job and return what it has written."""
        job = self.submit("-o", f"{self.work}/out", *words, "--", "/bin/sh", "-c", script)
        waited = run_command("gwait", str(job), head=str(self.cluster.socket))
        assert waited.status == 0, self.cluster.head.job(job).row
        text = (self.work / "out").read_text()
        (self.work / "out").unlink()
        return text

    def running(self, script: str, *words: str) -> int:
        """Start a job that stays; return its number once its script has said that it is there."""
        words = ("-o", f"{self.work}/log", *words)
        job = self.submit(*words, "--", "/bin/sh", "-c", f"{script}\ntouch here; exec sleep 600")
        wait_until((self.work / "here").exists, what="the start of the job")
        (self.work / "here").unlink()
        return job

    def state(self, job: int) -> str:
        return str(self.cluster.head.job(job).row.state)


@pytest.fixture
def work() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gsched-test-", dir="/var/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def site(process_marker: str, work: Path) -> Iterator[Site]:
    if os.geteuid() == 0 and private.problem():
        pytest.skip(private.problem())
    with made_users(Cluster, process_marker) as (cluster, users):
        cluster.start_head()
        head = f"unix:{cluster.directory}/head-node.sock"
        cluster.start_node("n1", cpus=8, private_tmp=True, head=head)
        yield Site(cluster, users, users.add("alice"), work)


def test_jobs_do_not_see_the_files_of_others_and_leave_none(site: Site) -> None:
    name = f"gsched-test-{os.getpid()}"
    first = site.running(f"echo mine > /tmp/{name}; echo mine > /dev/shm/{name}; df /dev/shm")
    look = f"cat /tmp/{name} /dev/shm/{name} 2>/dev/null; ls -a /tmp /dev/shm; ls -ld /tmp"
    second = site.ran(look)
    bob = site.users.add("bob")
    assert bob.uid != site.alice.uid
    inside = site.users.run(site.cluster, site.alice, "gshell", str(first), look)
    user_dir = next(site.cluster.tmp_dir.glob(f"gsched-0-*/{first}.1"))

    assert name not in second
    assert "drwxrwxrwt" in second
    assert inside.stdout.startswith("mine\nmine\n"), inside
    assert not Path("/tmp", name).exists()
    assert not Path("/dev/shm", name).exists()
    assert name in os.listdir(user_dir / private.NAME)
    site.users.run(site.cluster, site.alice, "gdel", str(first))
    wait_until(lambda: not user_dir.exists(), what="the directory of the job to be removed")
    assert private.NAME not in Path("/proc/self/mounts").read_text()


def test_what_the_node_needs_in_tmp_stays_visible(site: Site) -> None:
    """The job's own directory, gnode's socket, and the head's, by which commands work in jobs."""
    node = site.cluster.node_dir("n1")
    socket = f"{site.cluster.socket}"
    command = f"{sys.executable} -m gsched.cli.commands.gstat"
    script = (
        f'cat "$PBS_NODEFILE" && touch "$TMPDIR/x" && ls {node}/elastic.sock && '
        f"cd {ROOT} && GSCHED_HEAD={socket} {command} -f $PBS_JOBID"
    )
    text = site.ran(script)

    assert text.startswith("n1\n"), text
    assert f"{node}/elastic.sock" in text
    assert "Job Id: 1.test" in text


def test_shared_memory_counts_as_memory_of_the_job(site: Site) -> None:
    size = site.ran("df --output=size -k /dev/shm", "-l", "nodes=1,mem=64mb")
    words = ("-l", "nodes=1,mem=64mb", "-o", f"{site.work}/out", "--", "/bin/sh", "-c")
    job = site.submit(*words, "head -c 200000000 /dev/zero > /dev/shm/x; sleep 600")
    waited = run_command("gwait", str(job), head=str(site.cluster.socket))

    assert size.split()[-1] == "65536"
    assert "killed for using more than its 64 MiB of memory" in waited.stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("-d", "/tmp"), "working directory /tmp"),
        (("-d", "/dev/shm"), "working directory /dev/shm"),
        (("-o", "/tmp/gsched-test-x"), "output file /tmp/gsched-test-x"),
        (("-e", "/tmp/gsched-test-x"), "error file /tmp/gsched-test-x"),
    ],
)
def test_a_job_whose_files_would_be_hidden_is_told_so(
    site: Site, words: tuple[str, ...], what: str
) -> None:
    given = ("-d", str(site.work), "-o", f"{site.work}/o", "-e", f"{site.work}/e")
    job = site.users.submit(site.cluster, site.alice, *given, *words, "--", "true")
    wait_until(lambda: site.state(job) == "done", what="the job to be given up")
    message = str(site.cluster.head.job(job).row)

    assert f"the {what} is not visible in jobs" in message
    assert not Path("/tmp/gsched-test-x").exists()


@pytest.mark.parametrize("option", ["-d", "-o"])
def test_a_symbolic_link_to_a_hidden_directory_is_told_so(site: Site, option: str) -> None:
    hidden = Path(tempfile.mkdtemp(prefix="gsched-test-hidden-", dir="/tmp"))
    os.chown(hidden, site.alice.uid, site.alice.gid)
    link = site.work / "link"
    link.symlink_to(hidden)
    given = {"-d": f"{site.work}", "-o": f"{site.work}/o"}
    given[option] = f"{link}" if option == "-d" else f"{link}/o"
    words = [word for pair in given.items() for word in pair]
    job = site.users.submit(site.cluster, site.alice, *words, "-j", "oe", "--", "touch", "x")
    wait_until(lambda: site.state(job) == "done", what="the job to be given up")
    left = os.listdir(hidden)
    shutil.rmtree(hidden)
    message = str(site.cluster.head.job(job).row)

    assert f"{given[option]} (it leads to {hidden}" in message
    assert "is not visible in jobs" in message
    assert not left


def test_staging_and_steps_see_the_tmp_of_the_job(site: Site) -> None:
    source = site.work / "in"
    source.write_text("staged\n")
    name = f"/tmp/gsched-test-in-{os.getpid()}"
    script = f"cat {name}; echo out > /tmp/result; pbsdsh -n 0 /bin/cat /tmp/result"
    place = site.work / "torque"
    run_command("gsched", "install-shims", "--personality", "torque", str(place))
    for path in (place, *place.rglob("*")):
        path.chmod(0o755)
    text = site.ran(
        f"PATH={place}:$PATH; cd {ROOT}; {script}",
        *("-W", f"stagein={name}@localhost:{source}"),
        *("-W", f"stageout=/tmp/result@localhost:{site.work}/staged-out"),
    )

    assert text == "staged\nout\n"
    assert (site.work / "staged-out").read_text() == "out\n"
    assert not Path(name).exists()


def test_a_job_without_its_supervisor_keeps_its_tmp_and_ends(site: Site) -> None:
    job = site.running(
        "echo kept > /tmp/kept; (while :; do cat /tmp/kept > seen; sleep 0.1; done) &"
    )
    started = records.started(site.cluster.node_dir("n1") / "attempts" / f"{job}.1")
    assert started is not None
    os.kill(started["pid"], signal.SIGKILL)
    (site.work / "seen").unlink(missing_ok=True)
    seen = site.work / "seen"
    wait_until(lambda: seen.exists() and seen.read_text() == "kept\n", what="the job to go on")
    site.users.run(site.cluster, site.alice, "gdel", str(job))
    wait_until(lambda: site.state(job) == "done", what="the end of the job")
    left = site.cluster.tmp_dir
    wait_until(lambda: not list(left.glob(f"gsched-0-*/{job}.1")), what="its files to be removed")


@pytest.mark.parametrize("namespace", [True, False])
def test_a_session_over_ssh_sees_the_tmp_of_its_job_in_a_namespace_of_its_own(
    site: Site, process_marker: str, *, namespace: bool
) -> None:
    """Else it sees that of the node, and says so."""
    name = f"gsched-test-{os.getpid()}-ssh"
    job = site.running(f"echo mine > /tmp/{name}")
    config = site.cluster.directory / "n1.toml"
    top = site.cluster.directory.parent / "sshd"
    with serving(site.users, top, config, process_marker, namespace=namespace) as sshd:
        look = f"cat /tmp/{name} 2>/dev/null; echo x > /tmp/{name}-2; cat /proc/self/cgroup"
        ran = sshd.run(site.alice, look)
        shown = sshd.run(site.alice, options=("-tt",), typed="exit\n")
        seen_by_all = Path(f"/proc/{sshd.process.pid}/root/tmp/{name}").exists()
    seen = site.users.run(site.cluster, site.alice, "gshell", str(job), f"cat /tmp/{name}-2")
    outside = Path("/tmp", f"{name}-2")
    was_outside = outside.exists()
    outside.unlink(missing_ok=True)

    assert f"/{job}.1\n" in ran.stdout, ran
    assert ran.stdout.startswith("mine\n") is namespace
    assert seen.stdout.startswith("x") is namespace
    assert was_outside is not namespace
    assert not seen_by_all
    assert f"this session is a part of job {job} and ends with it" in shown.stdout
    assert ("it sees the temporary files of the node" in shown.stdout) is not namespace


def test_the_owner_cannot_have_another_directory_mounted(tmp_path: Path) -> None:
    """Whatever the owner puts into the place of the job's /tmp is refused: a login mounts again."""
    if os.geteuid() != 0 or private.problem():
        pytest.skip("only root can mount file systems")
    launcher = Launcher(tmp_path / "state")
    own = tmp_path / "state" / "user" / "1.1"
    own.mkdir(parents=True)
    own.parent.chmod(0o711)
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    own_tmp = {"visible": [], "shm": False, "shm_bytes": 0}
    task = task_of(launcher.task(1, ["true"], private=own_tmp))
    launcher.close()
    (own / private.NAME).symlink_to(secret)
    with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
        private.mount(task)
    (own / private.NAME).unlink()
    (own / private.NAME).mkdir()
    os.chown(own / private.NAME, 12345, 12345)
    with pytest.raises(PermissionError, match="replaced by uid 12345"):
        private.mount(task)
    assert str(own) not in Path("/proc/self/mounts").read_text()


def test_nothing_is_mounted_through_symbolic_links_of_the_owner(tmp_path: Path) -> None:
    """A directory of the node that was made after the job started is visible to no later login."""
    if os.geteuid() != 0 or private.problem():
        pytest.skip("only root can mount file systems")
    launcher = Launcher(tmp_path / "state")
    made = tmp_path / "state" / "user" / "1.1" / private.NAME
    made.mkdir(parents=True)
    made.parent.parent.chmod(0o711)
    target = Path(tempfile.mkdtemp(prefix="gsched-test-", dir="/var/tmp"))
    late = Path(tempfile.mkdtemp(prefix="gsched-test-late-"))
    (late / "run").mkdir()
    (target / "run").mkdir()
    own_tmp = {"visible": [str(late / "run")], "shm": False, "shm_bytes": 0}
    task = task_of(launcher.task(1, ["true"], private=own_tmp))
    launcher.close()
    (made / late.name).symlink_to(target)
    try:
        with private._new_namespace() as namespace:
            private.mount(task)
            mounted = Path("/proc/thread-self/mounts").read_text()
        os.close(namespace)
    finally:
        shutil.rmtree(late)
        shutil.rmtree(target)

    assert " /tmp " in mounted
    assert str(target) not in mounted


def test_processes_that_were_prepared_have_the_tmp_of_their_attempt(tmp_path: Path) -> None:
    if os.geteuid() != 0 or private.problem():
        pytest.skip("only root can mount file systems")
    launcher = Launcher(tmp_path / "state")
    script = "echo a > /tmp/prepared; echo waits; IFS= read -r line; cat /tmp/prepared; echo over"
    own = {"visible": [f"{tmp_path}/state"], "shm": True, "shm_bytes": 1 << 20}
    try:
        task = launcher.task(
            1,
            ["/bin/bash", "-c", script],
            private=own,
            gate=True,
            walltime_s=60.0,
            env={"PATH": os.environ["PATH"], "GSCHED_GATE": "stdin"},
        )
        launcher.launch(task)
        launcher.wait_for_output(1, "waits\n")
        launcher.launch_prepared({**task, "walltime_s": None})
        text = launcher.wait_for_output(1, "over\n")
    finally:
        launcher.close()

    assert text == "waits\na\nover\n"
    assert not Path("/tmp/prepared").exists()


def test_a_node_that_cannot_do_it_does_not_start(tmp_path: Path) -> None:
    """Not as root: the reason says so."""
    if os.geteuid() != 0:
        assert private.problem() == "gnode does not run as root"
        return
    told = subprocess.run(
        [sys.executable, "-c", "from gnode.supervisor import private; print(private.problem())"],
        cwd=ROOT,
        user="nobody",
        group="nogroup",
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "gnode does not run as root\n"
    config = tmp_path / "gsched.toml"
    config.write_text(f'[node]\nprivate_tmp = true\nstate_dir = "{tmp_path}/state"\n')
    refused = subprocess.run(
        [
            *("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"),
            *(sys.executable, "-m", "gnode.main", "--config", str(config)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 78, refused.stderr
    assert "private_tmp in [node] is true, but this machine does not let gnode" in refused.stderr
