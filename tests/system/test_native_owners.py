"""Jobs of other users by the library that runs plain jobs: the same rights, and nothing more."""

import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from gnode.hw import cgroups
from gsched.failpoint import FAILPOINTS
from tests.support.launching import Launcher, process_is_there, wait_until
from tests.support.v1_groups import V1Groups, missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start jobs of other users"),
]

UID = 65534  # nobody, whom every machine has
OWNER = {"user": "nobody", "uid": UID, "gid": 65534, "switch_user": True}
#: Its child shares the memory of the supervisor; a thread shares more, and a fork nothing.
NATIVE = "flags=CLONE_VM|CLONE_CHILD_CLEARTID|SIGCHLD"
LOOK = """
grep -E '^(Umask|[UG]id|Groups|Cap|NoNewPrivs|Seccomp|Sig[BIC]|Shd|Cpus_allowed:)' /proc/self/status
cat /proc/self/limits /proc/self/oom_score_adj /proc/self/loginuid /proc/self/sessionid
cat /proc/self/cgroup; nice; id; pwd; env | sort; ls /proc/self/fd | wc -l
readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2
cut -d' ' -f 4-8 /proc/$$/stat | sed "s/$$/own/g; s/^[0-9]*/parent/"
ls -ln "$(dirname "$PBS_NODEFILE")"; stat -c '%u %g %a' "$(dirname "$PBS_NODEFILE")"
grep -c . /proc/keys
"""
FILES = [{"name": "nodefile", "mode": 0o400, "content": "n1\n"}]
TRACE = """
import ctypes, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
for name in ("mem", "environ", "maps", "fd/0", "cwd"):
    try:
        path = f"/proc/{pid}/{name}"
        os.close(os.open(path, os.O_RDWR if name == "mem" else os.O_RDONLY))
        print("opened", name)
    except PermissionError:
        print("refused", name)
print("ptrace", libc.ptrace(16, pid, 0, 0))  # PTRACE_ATTACH
try:
    os.kill(int(sys.argv[2]), 9)
    print("killed the supervisor")
except PermissionError:
    print("refused kill")
"""
Start = Callable[..., Launcher]


@pytest.fixture
def start(native_library: str) -> Iterator[Start]:
    """Return a function that starts a launcher whose processes' children are noted in ``forks``."""
    made: list[Launcher] = []
    top = pathlib.Path(tempfile.mkdtemp(prefix="gsched-owners-"))  # pytest's own are closed
    top.chmod(0o711)
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here to see system calls")

    def started(*inject: str, library: str = native_library, **given: Any) -> Launcher:
        traced = "trace=vfork,clone,clone3,execve"
        words = [word for each in inject for word in ("-e", f"inject={each}")]
        options = ("-D", "-f", "-qq", "-e", traced, "-e", "signal=none", *words)
        state = top / f"state{len(made)}"
        under = (strace, *options, "-o", str(top / f"forks{len(made)}"))
        made.append(Launcher(state, under=under, library=library, **given))
        return made[-1]

    yield started
    for launcher in made:
        launcher.close()
    shutil.rmtree(top)


def system_calls(launcher: Launcher) -> str:
    """Return what strace has written."""
    time.sleep(0.2)  # it writes beside it
    number = launcher.state.name.removeprefix("state")
    return (launcher.state.parent / f"forks{number}").read_text()


def native_starts(launcher: Launcher) -> int:
    return system_calls(launcher).count(NATIVE)


def a_job(launcher: Launcher, job: int, *argv: str, **changes: Any) -> dict[str, Any]:
    """Return a task of the other user."""
    return launcher.task(job, list(argv), **OWNER) | changes


def test_the_second_job_of_a_user_is_native(start: Start) -> None:
    """For the first, a process of its own asks the name service."""
    launcher = start()
    counts = []
    for job in (1, 2, 3):
        assert launcher.run(a_job(launcher, job, "true"))["exit_code"] == 0, launcher.log()
        counts.append(native_starts(launcher))
    assert counts == [0, 1, 2]

    limited = a_job(launcher, 4, "true", nice=1, processes=4000)
    assert launcher.run(limited)["exit_code"] == 0
    assert native_starts(launcher) == 3
    report = f"{launcher.state}/user/5.1/report"
    assert launcher.run(a_job(launcher, 5, "true", failure_report=report))["exit_code"] == 0
    assert native_starts(launcher) == 3, "it is no plain job"
    journal = (launcher.directory(3) / "journal").read_bytes()
    words = [line.split(b" ")[0] for line in journal.split(b"\n") if line]
    assert words == [b"starting", b"started", b"ended"], "recorded before it runs"


@pytest.mark.parametrize("has_groups", [False, True], ids=["plain", "groups"])
def test_both_give_a_job_the_same(start: Start, *, has_groups: bool) -> None:
    """Whatever a process can see of itself is as if Python had started it."""
    launcher = start()
    cpus = [min(os.sched_getaffinity(0))]
    if has_groups and missing():
        pytest.skip(f"no control groups of version 1 here: {missing()}")
    groups = V1Groups()  # one after the other
    more = groups.all(cpus) | {"nice": 2} if has_groups else {"nice": 3, "processes": 4321}
    for job in (1, 2):
        nodefile = f"{launcher.state}/user/{job}.1/nodefile"
        env = {"PATH": os.defpath, "PBS_NODEFILE": nodefile, "HOME": "/nowhere"}
        task = a_job(launcher, job, "/bin/sh", "-c", LOOK, files=FILES, env=env, cpus=cpus)
        task |= {"no_new_privileges": True, "umask": 0o027, "open_files": 99, "cwd": "/usr"}
        launcher.run(task | more)
        assert groups.left() == []
    born = system_calls(launcher).count("CLONE_INTO_CGROUP")
    assert native_starts(launcher) + born == 1
    found = []
    for job in (1, 2):
        text = launcher.output(job).replace(f"/{job}.1", "/J.1").replace(f".o{job}", ".oJ")
        found.append(text.replace(f".e{job}", ".eJ").splitlines())
        assert launcher.output(job, "e") == ""
        assert (launcher.out / f"job.o{job}").stat().st_uid == UID
        assert not (launcher.state / "user" / f"{job}.1").exists()
    times = [index for index, line in enumerate(found[0]) if line.endswith("nodefile")]
    for index in times:  # ls -l tells the minute
        for lines in found:
            lines[index] = lines[index][:30]

    assert found[0] == found[1]
    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in found[1]
    assert {"CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "/usr"} <= set(found[1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cwd": "/root"}, "cannot enter the working directory /root: Permission denied"),
        ({"stdout_path": "/etc/shadow"}, "cannot write /etc/shadow: Permission denied"),
        ({"stdout_path": "/etc/new"}, "cannot write /etc/new: Permission denied"),
        ({"argv": ["/nowhere/program"]}, "cannot run /nowhere/program"),
        ({"user": "root", "uid": 0, "gid": 0}, "system account"),
        ({"gid": 54321}, "is not in group 54321"),
    ],
)
def test_what_fails_is_told_by_python(start: Start, changes: dict[str, Any], words: str) -> None:
    launcher = start()
    launcher.run(a_job(launcher, 1, "true"))

    record = launcher.run(a_job(launcher, 2, "true") | changes)

    assert record["kind"] == "launch_failed"
    assert words in record["message"]


@pytest.mark.parametrize("owner", [OWNER, {}], ids=["another", "own"])
@pytest.mark.parametrize("inject", ["", "clone3:error=ENOSYS"], ids=["born", "joins"])
def test_a_job_is_in_its_group_from_the_beginning(
    start: Start, owner: dict[str, Any], inject: str
) -> None:
    """It is born there, and joins where the kernel knows no other way."""
    launcher = start(*filter(None, [inject]))
    roots = cgroups.find_roots("auto", str(launcher.state))
    if roots.tracking is None:
        pytest.skip("no control groups of version 2 can be made here")
    launcher.run(a_job(launcher, 1, "true"))
    try:
        for job in (2, 3):
            group = pathlib.Path(roots.tracking, f"{job}.1-{uuid.uuid4().hex[:6]}")
            task = launcher.task(job, ["cat", "/proc/self/cgroup"], cgroup=str(group)) | owner
            assert launcher.run(task)["exit_code"] == 0
            assert f"/{group.name}\n" in launcher.output(job)
            supervisor = launcher.started(job)["pid"]
            assert group.name not in pathlib.Path(f"/proc/{supervisor}/cgroup").read_text()
            assert not group.exists()
    finally:
        cgroups.remove_if_empty(roots)
    starts = native_starts(launcher) if owner else system_calls(launcher).count("vfork(")
    if platform.machine() == "x86_64":
        born = system_calls(launcher).count("CLONE_INTO_CGROUP")
        assert (born, starts) == ((1, 1) if inject else (2, 0))


@pytest.mark.parametrize("owner", [OWNER, {}], ids=["another", "own"])
def test_a_script_that_is_no_program_is_told_as_ever(start: Start, owner: dict[str, Any]) -> None:
    """Its file, which nobody may write, is there already when Python starts it again."""
    launcher = start()
    launcher.run(a_job(launcher, 1, "true"))
    script = [{"name": "script", "mode": 0o500, "content": "#!/nowhere/sh\n"}]
    path = f"{launcher.state}/user/2.1/script"

    record = launcher.run(launcher.task(2, [path], files=script) | owner)

    assert native_starts(launcher) == len(owner and [1])
    assert "line 1 names /nowhere/sh" in record["message"]


KILLED_AT = [name for name in FAILPOINTS if name.startswith("supervisor.")]


@pytest.mark.parametrize("point", KILLED_AT)
def test_a_supervisor_that_is_killed_runs_nothing_twice(start: Start, point: str) -> None:
    """Its second job is that of the library."""
    launcher = start(environment={"GSCHED_FAIL": f"{point}:2:kill"})
    launcher.run(a_job(launcher, 1, "true"))
    supervisor = launcher.started(1)["pid"]
    marks = launcher.out / "marks"

    launcher.launch(a_job(launcher, 2, "/bin/sh", "-c", f"echo ran >> {marks}"))
    record = launcher.exit(2)

    assert not process_is_there(supervisor)
    assert native_starts(launcher) == (point != "supervisor.start.before_fork")
    ran = marks.read_text().count("ran") if marks.exists() else 0
    assert ran == (not point.startswith("supervisor.start."))
    has_record = point == "supervisor.exit.after_record"
    assert record["kind"] == (
        "exited" if has_record else "supervisor_lost" if ran else "launch_failed"
    )
    time.sleep(1.5)  # a process that was to become the program has gone by then
    assert (marks.read_text().count("ran") if marks.exists() else 0) == ran
    assert subprocess.run(["pgrep", "-u", str(UID), "-f", str(marks)], check=False).returncode == 1


def test_a_link_leads_root_nowhere(start: Start) -> None:
    launcher = start()
    closed = launcher.state.parent / "closed"
    closed.mkdir(mode=0o755)
    (closed / "root.txt").write_text("root's")
    launcher.run(a_job(launcher, 1, "true"))
    for job, name in ((2, "root.txt"), (3, "new.txt")):
        link = launcher.out / f"link{job}"
        link.symlink_to(closed / name)
        record = launcher.run(a_job(launcher, job, "echo", "x", stdout_path=str(link)))
        assert "Permission denied" in record["message"]

    assert native_starts(launcher) == 2, "both were tried"
    assert [path.name for path in closed.iterdir()] == ["root.txt"]
    assert (closed / "root.txt").read_text() == "root's"


def test_the_rules_of_the_node_hold_for_a_user_who_is_known(start: Start) -> None:
    launcher = start()
    for job in (1, 2):
        launcher.run(a_job(launcher, job, "true"))
    launcher.ask({"rules": {"allow_root": True, "uid_min": UID + 1}})

    record = launcher.run(a_job(launcher, 3, "true"))

    assert "is a system account" in record["message"]
    assert native_starts(launcher) == 1


def test_a_start_that_takes_long_is_pythons_and_runs_once(start: Start) -> None:
    """As where a file server hangs, or the user has stopped the process."""
    launcher = start("keyctl:delay_enter=2500000")
    launcher.run(a_job(launcher, 1, "true"))
    launcher.run(a_job(launcher, 2, "/bin/sh", "-c", "echo once"))

    assert native_starts(launcher) == 1
    assert launcher.output(2) == "once\n"
    journal = (launcher.directory(2) / "journal").read_bytes()
    assert journal.count(b"\nstarted ") == 1


def test_a_process_that_is_killed_before_its_program_is_started_again(start: Start) -> None:
    launcher = start("keyctl:signal=KILL:when=3")  # the third of all: that of Python's second try
    launcher.run(a_job(launcher, 1, "true"))
    launcher.run(a_job(launcher, 2, "/bin/sh", "-c", "echo once"))

    assert launcher.output(2) == "once\n"


def test_an_order_that_came_meanwhile_is_obeyed_before_the_program(start: Start) -> None:
    failing = {"GSCHED_FAIL": "supervisor.start.after_fork:2:sleep=2"}
    launcher = start(environment=failing)
    launcher.run(a_job(launcher, 1, "true"))

    launcher.launch(a_job(launcher, 2, "/bin/sh", "-c", "echo ran"))
    wait_until(lambda: native_starts(launcher) == 1, what="the start of job 2")
    launcher.order(2, {"do": "stop", "reason": "delete", "grace_s": 0})
    record = launcher.exit(2)

    assert native_starts(launcher) == 1
    assert record["stop_reason"] == "delete"
    assert not (launcher.out / "job.o2").exists() or launcher.output(2) == ""


def child_of(pid: int) -> int:
    """Return a child of a process."""
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return int((text.split() or ["0"])[0])


def has_its_ids(pid: int) -> bool:
    """Return whether a process has become the other user's."""
    return f"Uid:\t{UID}" in pathlib.Path(f"/proc/{pid}/status").read_text()


def test_the_user_cannot_reach_the_supervisor_by_the_process_in_its_memory(start: Start) -> None:
    """It has the user's ids already, and hangs before its program."""
    launcher = start("execve:delay_enter=5000000:when=1")
    for job in (1, 2):  # each process's first execve hangs
        launcher.launch(a_job(launcher, job, "/bin/sh", "-c", "echo once"))
        supervisor = launcher.started(job)["pid"]
        child = wait_until(partial(child_of, supervisor), "the child")
        wait_until(partial(has_its_ids, child), "its ids")
        tried = subprocess.run(
            [sys.executable, "-I", "-c", TRACE, str(child), str(supervisor)],
            user=UID,
            group=UID,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        launcher.exit(job)
        lines = tried.stdout.splitlines()
        assert [line for line in lines if not line.startswith("refused")] == ["ptrace -1"]
        assert len(lines) == 7
        assert launcher.output(job) == "once\n"
        assert process_is_there(supervisor)
    assert native_starts(launcher) == 1


def test_a_user_who_stops_the_process_stops_nothing_else(start: Start) -> None:
    """The supervisor has said that it runs; its walltime holds."""
    launcher = start("execve:delay_enter=1500000:when=1")
    launcher.run(a_job(launcher, 1, "true"))
    launcher.launch(a_job(launcher, 2, "/bin/sh", "-c", "echo ran", walltime_s=3.0))
    child = launcher.started(2)["job_pid"]
    os.kill(child, signal.SIGSTOP)

    record = launcher.exit(2)

    assert record["stop_reason"] == "walltime"
    assert not process_is_there(child)


def test_a_login_that_fills_the_memory_ends_its_own_job_only(start: Start) -> None:
    """The kernel may kill the process in the supervisor's memory for it, and so the supervisor."""
    if missing():
        pytest.skip(f"no control groups of version 1 here: {missing()}")
    launcher = start("execve:delay_enter=3000000:when=1")
    launcher.run(a_job(launcher, 1, "true"))
    groups = V1Groups()
    limits = groups.tracking() | groups.memory(32 << 20)
    eat = "import time; kept = bytearray(6 << 20); time.sleep(60)"
    command = [sys.executable, "-I", "-S", "-c", eat]
    eaters: list[subprocess.Popen[bytes]] = []
    try:
        launcher.launch(a_job(launcher, 2, "/bin/sh", "-c", "echo ran", **limits))
        child = wait_until(partial(child_of, launcher.started(2)["pid"]), "the child")
        wait_until(partial(has_its_ids, child), "its ids")
        procs = [groups.path(each) / "cgroup.procs" for each in ("unified", "memory")]
        for _ in range(8):
            join = "".join(f"echo $$ > {each}; " for each in procs)
            eaters.append(subprocess.Popen(["/bin/sh", "-c", join + 'exec "$@"', "x", *command]))
        record = launcher.exit(2)
    finally:
        for each in eaters:
            each.kill()
            each.wait()
        groups.remove()
    assert record["kind"] in {"exited", "signalled", "oom", "supervisor_lost"}
    ran = launcher.out / "job.o2"
    assert ran.read_text() in {"", "ran\n"}, "not twice"
    assert launcher.run(a_job(launcher, 3, "true"))["exit_code"] == 0
    assert process_is_there(launcher.process.pid)
