"""Users log in to a node by a real sshd only while they have a job there, and into that job."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from gnode.hw import cgroups
from gnode.supervisor import fence
from tests.support import records
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.ports import free_port
from tests.support.processes import PATIENCE_S
from tests.support.sshd import Sshd, serving
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SLEEP = ("--", "sleep", "600")
#: Tells in which control groups it runs.
GROUPS = "cat /proc/self/cgroup"
NVIDIA_MAJOR = 195


class Site(NamedTuple):
    """A cluster with a node n1, its accounts, and an sshd on the node's machine.

    Attributes:
        root: the directory of the control groups of attempts.
    """

    cluster: Cluster
    users: Users
    sshd: Sshd
    alice: User
    root: str

    def submitted(self, user: User, *words: str) -> int:
        """Submit a job and wait until its node has reported its start."""
        job = self.users.submit(self.cluster, user, *words)
        wait_until(lambda: self.attempts(job)[-1:] == ["running"], what=f"job {job} to run")
        return job

    def attempts(self, job: int) -> list[str]:
        """Return the states of a job's attempts."""
        return [str(each.state) for each in self.cluster.head.job(job).attempts]

    def state(self, job: int) -> str:
        """Return the state of a job."""
        return str(self.cluster.head.job(job).row.state)

    def await_end(self, job: int) -> None:
        """Wait until a job has ended."""
        wait_until(lambda: self.state(job) == "done", 60, what=f"the end of job {job}")

    def group(self, job: int) -> str:
        """Return the directory of a job's tracking group."""
        return f"{self.root}/{job}.1"


@pytest.fixture
def site(process_marker: str) -> Iterator[Site]:
    with made_users(Cluster, process_marker) as (cluster, users):
        roots = cgroups.find_roots("auto", str(cluster.node_dir("n1")))
        cgroups.remove_if_empty(roots)
        if roots.tracking is None:
            pytest.skip("no control groups of version 2 can be made here")
        alice = users.add("alice")
        cluster.node_tables = '[login]\nallow_users = ["olga"]\nallow_groups = ["test71900"]\n'
        top = cluster.directory.parent / "sshd"
        with serving(users, top, cluster.directory / "n1.toml", process_marker) as sshd:
            cluster.start_head()
            yield Site(cluster, users, sshd, alice, roots.tracking)


def started(site: Site, cpu_binding: str = "auto") -> User:
    """Start the node; return a user."""
    site.cluster.start_node("n1", cpus=8, cpu_binding=cpu_binding)
    return site.alice


def lives(process: psutil.Process) -> bool:
    """Return whether a process is there and more than a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shells_in(group: str) -> list[int]:
    """Return the processes of a group that are sshd's."""
    names = ((pid, Path(f"/proc/{pid}/comm")) for pid in cgroups.members(group))
    return [pid for pid, name in names if name.exists() and name.read_text().startswith("sshd")]


def test_users_come_in_while_they_have_a_job_and_others_are_told_why(site: Site) -> None:
    alice = started(site)
    bob = site.users.add("bob")
    before = site.sshd.run(alice, "echo in")
    job = site.submitted(alice, *SLEEP)
    during, other = site.sshd.run(alice, GROUPS), site.sshd.run(bob, "echo in")
    deleted = run_command("gdel", str(job), head=str(site.cluster.socket))
    site.await_end(job)
    after = site.sshd.run(alice, "echo in")

    for ran, name in ((before, "alice"), (other, "bob"), (after, "alice")):
        assert ran.status == 255
        assert f"gsched: user {name} has no running job on node n1" in ran.stderr
        assert "Traceback" not in ran.stderr
    assert during.status == 0, during
    assert f"/{job}.1\n" in during.stdout
    assert during.stderr == ""
    assert deleted.status == 0


def test_without_a_job_no_way_of_ssh_leads_in(site: Site, tmp_path: Path) -> None:
    """Neither a shell, nor files, nor a forwarded port."""
    started(site)
    bob = site.users.add("bob")
    (tmp_path / "file").write_text("x")
    name = f"{bob.name}@127.0.0.1"
    tried = [
        ["scp", *site.sshd.options("-P"), str(tmp_path / "file"), f"{name}:"],
        ["sftp", *site.sshd.options("-P"), "-b", "/dev/null", name],
        site.sshd.command(bob, options=("-N", "-L", f"127.0.0.1:{free_port()}:127.0.0.1:22")),
        site.sshd.command(bob, options=("-W", f"127.0.0.1:{site.sshd.port}")),
    ]
    for words in tried:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 255, words
        assert "has no running job on node n1" in done.stderr
    assert not (site.users.home(bob) / "file").exists()


def test_users_do_not_set_variables_for_a_program_of_root(site: Site, tmp_path: Path) -> None:
    """As LD_PRELOAD by pam_env: only root comes in where the service of PAM reads users' files."""
    alice = started(site)
    site.submitted(alice, *SLEEP)
    tmp_path.chmod(0o755)
    variables = f"LD_DEBUG DEFAULT=libs\nLD_DEBUG_OUTPUT DEFAULT={tmp_path}/written\n"
    (site.users.home(alice) / ".pam_environment").write_text(variables)
    stack = site.sshd.directory / "pam.d" / "sshd"
    text = stack.read_text()
    for line in ("session required pam_env.so user_readenv=1\n", "@include more\n"):
        (stack.parent / "more").write_text("auth required pam_env.so user_readenv=1\n")
        for changed in (line + text, text + line):
            stack.write_text(changed)
            refused = site.sshd.run(alice, "echo in")
            assert refused.status == 255
            assert "user_readenv=1 of pam_env.so in /etc/pam.d/sshd" in refused.stderr
            assert site.sshd.run("root", "true").status == 0
    stack.write_text(text)

    assert site.sshd.run(alice, "echo in").stdout == "in\n"
    assert not list(tmp_path.iterdir())  # else ld.so has written as root


def test_administrators_come_in_in_no_job(site: Site) -> None:
    """Root, a user and a group of the configuration: also with a job, and while gnode is down."""
    alice = started(site)
    olga = site.users.add("olga")
    owen = site.users.add("owen", groups=(71900,))
    job = site.submitted(olga, *SLEEP)
    for name in ("root", olga.name, owen.name):
        ran = site.sshd.run(name, GROUPS)
        assert ran.status == 0, (name, ran)
        assert f"{job}.1" not in ran.stdout
    assert site.sshd.run(alice, "true").status == 255
    site.cluster.kill_node("n1")
    assert site.sshd.run(olga, "true").status == 0
    config = site.cluster.directory / "n1.toml"
    config.write_text("[node\n")
    refused = site.sshd.run(olga, "true")
    assert refused.status == 255
    assert "only root can log in" in refused.stderr
    assert site.sshd.run("root", "true").status == 0


def test_a_session_has_the_limits_of_the_job_and_ends_with_it(site: Site) -> None:
    alice = started(site, cpu_binding="affinity")
    job = site.submitted(alice, "-l", "nodes=1:ppn=2,mem=64mb", *SLEEP)
    group = site.group(job)
    hungry = "a=$(head -c 300000000 /dev/zero | tr '\\0' x); echo got"
    ate = site.sshd.run(alice, hungry)
    cpus = site.sshd.run(alice, "nproc")
    shell = site.sshd.start(alice, "sleep 500 & setsid sleep 501 & echo on; sleep 502")
    assert shell.stdout is not None
    assert shell.stdout.readline() == "on\n"
    inside = [psutil.Process(pid) for pid in cgroups.members(group)]
    names = {process.name() for process in inside}
    site.users.run(site.cluster, alice, "gdel", "-W", "2", str(job))
    code = shell.wait(PATIENCE_S)
    site.await_end(job)

    assert "got" not in ate.stdout
    assert cpus.stdout == "2\n"
    assert {"sleep", "sshd"} <= {name.partition("-")[0] for name in names}
    assert code != 0
    assert not any(lives(process) for process in inside)
    assert not Path(group).exists()


def test_a_session_opens_the_gpus_of_its_job_only(site: Site) -> None:
    devices = site.cluster.directory.parent / "dev"
    devices.mkdir(mode=0o755)
    for minor in range(3):
        os.mknod(devices / f"nvidia{minor}", 0o020666, os.makedev(NVIDIA_MAJOR, minor))
        (devices / f"nvidia{minor}").chmod(0o666)
    methods = [each for each in ("bpf", "devices") if _has_fence(each, str(devices))]
    if not methods:
        pytest.skip("no control groups for devices here")
    look = f"for n in 0 1 2; do (: < {devices}/nvidia$n) 2>&1 | grep -c 'not permitted'; done"
    answers = []
    for method in methods:
        files = [f"{devices}/nvidia[0-2]"]
        site.cluster.start_node("n1", cpus=4, gpus=3, gpu_files=files, gpu_fence=method)
        job = site.submitted(site.alice, "-l", "nodes=1:gpus=1", *SLEEP)
        answers.append(site.sshd.run(site.alice, look).stdout.split())
        site.users.run(site.cluster, site.alice, "gdel", str(job))
        site.await_end(job)
        site.cluster.stop_node("n1")

    assert answers == [["0", "1", "1"]] * len(methods)


def _has_fence(method: str, name: str) -> bool:
    found = cgroups.find_roots("auto", name, gpu_fence=method, attach=fence.attach)
    cgroups.remove_if_empty(found)
    return found.devices is not None


def test_copies_and_forwarded_ports_are_a_part_of_the_job(site: Site, tmp_path: Path) -> None:
    """And nothing that they say is disturbed by a message."""
    alice = started(site)
    job = site.submitted(alice, *SLEEP)
    (tmp_path / "file").write_text("content\n")
    name = f"{alice.name}@127.0.0.1"
    for legacy in ((), ("-O",)):
        words = ["scp", *legacy, *site.sshd.options("-P"), str(tmp_path / "file"), f"{name}:"]
        copied = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert copied.returncode == 0, copied.stderr
        assert (site.users.home(alice) / "file").read_text() == "content\n"
        (site.users.home(alice) / "file").unlink()
    forwards = site.sshd.start(alice, options=("-N", "-L", f"127.0.0.1:{free_port()}:127.0.0.1:22"))
    wait_until(lambda: shells_in(site.group(job)), what="the connection to be in the job")
    site.users.run(site.cluster, alice, "gdel", "-W", "2", str(job))
    assert forwards.wait(PATIENCE_S) != 0
    with_terminal = site.sshd.run(alice, "tty", options=("-tt",))
    assert with_terminal.status == 255


def test_of_two_jobs_the_newest_has_the_session(site: Site) -> None:
    """When that has ended, the next session is the other one's."""
    alice = started(site)
    first = site.submitted(alice, *SLEEP)
    second = site.submitted(alice, *SLEEP)
    in_second = site.sshd.run(alice, GROUPS).stdout
    site.users.run(site.cluster, alice, "gdel", str(second))
    site.await_end(second)
    in_first = site.sshd.run(alice, GROUPS).stdout

    assert f"/{second}.1\n" in in_second
    assert f"/{first}.1\n" in in_first


def test_gnode_and_the_supervisor_may_be_stopped_or_killed(site: Site) -> None:
    """Sessions of a job need its records only; who takes the supervisor's place ends them, too."""
    alice = started(site)
    job = site.submitted(alice, *SLEEP)
    node = site.cluster.node_process("n1")
    gnode = next(
        each
        for each in (psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True))
        if "gnode.main" in each.cmdline()
    )
    gnode.suspend()
    while_stopped = site.sshd.run(alice, GROUPS)
    gnode.resume()
    shell = site.sshd.start(alice, "echo on; sleep 500")
    assert shell.stdout is not None
    assert shell.stdout.readline() == "on\n"
    supervisor = _supervisor(site, job)
    os.kill(supervisor, signal.SIGKILL)
    after_kill = site.sshd.run(alice, GROUPS)
    site.users.run(site.cluster, alice, "gdel", str(job))
    code = shell.wait(PATIENCE_S)
    site.await_end(job)

    assert f"/{job}.1\n" in while_stopped.stdout
    assert f"/{job}.1\n" in after_kill.stdout
    assert code != 0
    assert not Path(site.group(job)).exists()


def _supervisor(site: Site, job: int) -> int:
    started = records.started(site.cluster.node_dir("n1") / "attempts" / f"{job}.1")
    assert started is not None
    return int(started["pid"])


def test_a_deleted_account_and_a_new_one_of_the_same_number_do_not_come_in(site: Site) -> None:
    alice = started(site)
    site.submitted(alice, *SLEEP)
    site.users.remove(alice)
    carol = site.users.add("carol")
    assert carol.uid == alice.uid
    refused = site.sshd.run(carol, "echo in")

    assert refused.status == 255
    assert "user carol has no running job on node n1" in refused.stderr


@pytest.mark.timeout(400)
def test_logins_while_jobs_end_leave_nothing_behind(site: Site) -> None:
    """Whatever the moment, a session is a part of a job that ends it, or is refused.

    Each job ends as soon as somebody has been in it, while others log in.
    """
    alice = started(site)
    over = site.users.home(alice) / "over"
    come_in: list[int] = []
    stopped = False

    def log_in_again_and_again(number: int) -> None:
        while not stopped:
            if site.sshd.run(alice, "sleep 0.2; cat /proc/self/cgroup").status == 0:
                come_in.append(number)

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(log_in_again_and_again, number) for number in range(3)]
        try:
            for _ in range(5):
                before = len(come_in)
                waits = f"while [ ! -e {over} ]; do sleep 0.05; done"
                job = site.users.submit(site.cluster, alice, "--", "sh", "-c", waits)
                wait_until(lambda: len(come_in) > before, 60, what="a login")  # noqa: B023 - called here
                over.touch()
                site.await_end(job)
                over.unlink()
                assert not cgroups.members(site.group(job))
        finally:
            stopped = True
        for each in threads:
            each.result()
    server = psutil.Process(site.sshd.process.pid)
    wait_until(
        lambda: not any(map(lives, server.children(recursive=True))), what="no session to be left"
    )
    wait_until(lambda: not cgroups.children(site.root), what="all groups to be removed")


def test_many_log_in_at_once(site: Site) -> None:
    alice = started(site)
    job = site.submitted(alice, *SLEEP)
    with ThreadPoolExecutor(8) as pool:
        ran = list(pool.map(lambda _: site.sshd.run(alice, GROUPS), range(8)))

    assert all(f"/{job}.1\n" in each.stdout for each in ran), [each for each in ran if each.status]


def test_a_session_costs_the_job(site: Site) -> None:
    """Its CPU time is in the job's record."""
    alice = started(site)
    job = site.submitted(alice, "--", "sh", "-c", "while [ ! -e over ]; do sleep 0.1; done")
    burned = site.sshd.run(alice, "echo on; ulimit -t 2; while :; do :; done")
    (site.users.home(alice) / "over").touch()
    site.await_end(job)

    assert burned.stdout == "on\n"
    assert site.cluster.head.job(job).row.cpu_s > 1.5


def test_a_login_on_another_node_of_a_job_starts_a_part_there(site: Site) -> None:
    """The job's script runs on its first node only; the part ends with the job."""
    alice = started(site)
    site.cluster.start_node("n2", cpus=8)
    job = site.submitted(alice, "-l", "nodes=n2:ppn=1+n1:ppn=1", *SLEEP)
    assert not Path(site.group(job)).exists()
    with ThreadPoolExecutor(4) as pool:
        ran = list(pool.map(lambda _: site.sshd.run(alice, GROUPS), range(4)))
    shell = site.sshd.start(alice, "echo on; sleep 500")
    assert shell.stdout is not None
    assert shell.stdout.readline() == "on\n"
    site.users.run(site.cluster, alice, "gdel", str(job))
    code = shell.wait(PATIENCE_S)
    site.await_end(job)

    assert all(f"{cgroups.group_name(site.group(job))}\n" in each.stdout for each in ran), ran
    assert code != 0
    assert not Path(site.group(job)).exists()


def test_where_nobody_can_tell_the_configuration_says_who_comes_in(site: Site) -> None:
    """A gnode that does not answer is waited for as long as it says."""
    alice = started(site)
    config = site.cluster.directory / "n1.toml"
    text = config.read_text()
    config.write_text(text.replace("[login]\n", "[login]\ntimeout_s = 2\n"))
    node = site.cluster.node_process("n1")
    family = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
    gnode = next(each for each in family if "gnode.main" in each.cmdline())
    gnode.suspend()
    stopped = site.sshd.run(alice, "echo in")
    gnode.resume()
    site.cluster.kill_node("n1")
    killed = site.sshd.run(alice, "echo in")
    allowing = text.replace("[login]\n", '[login]\nwhen_unknown = "allow"\n')
    config.write_text(allowing)
    allowed = site.sshd.run(alice, "echo in")

    assert stopped.status == killed.status == 255
    assert "it is not known whether user alice has a job on node n1: that took more than 2 s" in (
        stopped.stderr
    )
    assert "gnode does not tell" in killed.stderr
    assert allowed.stdout == "in\n"
