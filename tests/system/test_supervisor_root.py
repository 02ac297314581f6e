"""What needs root: another user's rights, and control groups."""

import errno
import os
import pathlib
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from gnode.hw import cgroups
from tests.support import records
from tests.support.disks import FILLER, fill, small_disk
from tests.support.launching import Launcher, process_is_there, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start jobs of other users"),
]

BASH = "/bin/bash"
STATUS = [BASH, "-c", "grep -E '^(Uid|Gid|Groups|Cap...)' /proc/$$/status; umask"]

V1_MEMORY = pathlib.Path("/sys/fs/cgroup/memory")
V2_ROOTS = (pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified"))


def ordinary_user() -> pwd.struct_passwd:
    """Return somebody whom the privilege recipe accepts."""
    for account in pwd.getpwall():
        if account.pw_uid >= 1000:
            return account
    pytest.skip("this machine has no account with a uid of 1000 or more")


@pytest.fixture
def launcher(library: str) -> Iterator[Launcher]:
    """Return a launcher, whose idle supervisor knows the user's groups if it has the library."""
    # pytest's own directories are closed to other users.
    top = pathlib.Path(tempfile.mkdtemp(prefix="gsched-root-test-"))
    top.chmod(0o711)
    launcher = Launcher(top / "state", library=library)
    if library:
        nowhere = {"stdout_path": "/dev/null", "stderr_path": "/dev/null"}
        launcher.run(as_user(launcher, ["true"]) | {"job": 99} | nowhere)
    yield launcher
    launcher.close()
    shutil.rmtree(top)


def as_user(launcher: Launcher, argv: list[str], **changes: Any) -> dict[str, Any]:
    account = ordinary_user()
    owner = {"user": account.pw_name, "uid": account.pw_uid, "gid": account.pw_gid}
    return launcher.task(1, argv, **owner, switch_user=True, **changes)


def test_t39_job_has_exactly_its_owner_s_rights(launcher: Launcher) -> None:
    account = ordinary_user()
    groups = sorted(os.getgrouplist(account.pw_name, account.pw_gid))

    record = launcher.run(as_user(launcher, STATUS))

    lines = [line.split() for line in launcher.output(1).splitlines()]
    assert record["exit_code"] == 0
    assert lines[0] == ["Uid:", *[str(account.pw_uid)] * 4]
    assert lines[1] == ["Gid:", *[str(account.pw_gid)] * 4]
    assert lines[2] == ["Groups:", *[str(group) for group in groups]]
    assert {line[0]: int(line[1], 16) for line in lines[3:8]} == {
        "CapInh:": 0,
        "CapPrm:": 0,
        "CapEff:": 0,
        "CapBnd:": 0,
        "CapAmb:": 0,
    }


LIMITS = "ulimit -Sn; ulimit -Hn; ulimit -u; grep NoNewPrivs /proc/self/status"


def limits_of(launcher: Launcher, **changes: Any) -> list[str]:
    """Return what a job's process says of its own limits."""
    record = launcher.run(as_user(launcher, [BASH, "-c", LIMITS], **changes))
    assert record["exit_code"] == 0, record
    return launcher.output(1).split()


@pytest.fixture
def open_top() -> Iterator[pathlib.Path]:
    top = pathlib.Path(tempfile.mkdtemp(prefix="gsched-root-test-"))
    top.chmod(0o711)
    yield top
    shutil.rmtree(top)


def test_t39_a_job_has_bounded_descriptors_whatever_gnode_has(open_top: pathlib.Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        launcher = Launcher(open_top / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    try:
        said = limits_of(launcher)
    finally:
        launcher.close()

    assert said == ["1024", str(before[1]), said[2], "NoNewPrivs:", "0"]


def test_t39_a_job_is_not_kept_from_the_oom_killer_as_daemons_are(open_top: pathlib.Path) -> None:
    """It cannot take that back, either."""
    own = pathlib.Path("/proc/self/oom_score_adj")
    before = own.read_text()
    try:
        own.write_text("-300")
    except PermissionError:
        pytest.skip("this root may not protect processes from the OOM killer")
    try:
        launcher = Launcher(open_top / "state")
    finally:
        own.write_text(before)
    look = "cat /proc/self/oom_score_adj; echo -300 > /proc/self/oom_score_adj; true"
    try:
        launcher.run(as_user(launcher, [BASH, "-c", look]))
        assert launcher.output(1) == "0\n"
        assert "Permission denied" in launcher.output(1, "e")
    finally:
        launcher.close()


def test_limits_that_the_site_asks_for(launcher: Launcher) -> None:
    said = limits_of(launcher, no_new_privileges=True, open_files=300, processes=4000)

    assert (said[0], said[2], said[4]) == ("300", "4000", "1")


@pytest.mark.parametrize("nice", [0, 1], ids=["spawned", "forked"])
def test_limits_of_jobs_that_need_no_other_user(launcher: Launcher, nice: int) -> None:
    """The supervisor's own are not changed by it."""
    argv = [BASH, "-c", "ulimit -Sn; grep NoNewPrivs /proc/self/status"]
    changes: list[dict[str, Any]] = [{}, {"open_files": 300}, {"no_new_privileges": True}, {}]
    supervisors = set()
    for job, changed in enumerate(changes, 1):
        launcher.run(launcher.task(job, argv, nice=nice, **changed))
        supervisors.add(launcher.started(job)["pid"])

    said = [launcher.output(job).split() for job in range(1, 5)]
    assert said == [
        ["1024", "NoNewPrivs:", "0"],
        ["300", "NoNewPrivs:", "0"],
        ["1024", "NoNewPrivs:", "1"],
        ["1024", "NoNewPrivs:", "0"],
    ]
    assert len(supervisors) == 1
    journals = [(launcher.directory(job) / "journal").read_bytes() for job in range(1, 5)]
    is_spawned = nice == 0 or bool(launcher.library)
    assert [b"\nmay run\n" in each for each in journals] == [is_spawned] * 4


@pytest.mark.parametrize("nice", [0, 1], ids=["spawned", "forked"])
def test_a_confined_supervisor_starts_nothing_that_may_gain_rights(
    launcher: Launcher, nice: int
) -> None:
    """It is used again for such attempts alone."""
    argv = [BASH, "-c", "grep NoNewPrivs /proc/self/status /proc/$PPID/status | cut -f 2"]
    supervisors = []
    for job, confined in enumerate((False, True, True, False, True, False), 1):
        task = launcher.task(job, argv, nice=nice, no_new_privileges=confined)
        launcher.run(task, confined=confined)
        supervisors.append(launcher.started(job)["pid"])

    said = [launcher.output(job).split() for job in range(1, 7)]
    assert said == [["0", "0"], ["1", "1"], ["1", "1"], ["0", "0"], ["1", "1"], ["0", "0"]]
    one, other = supervisors[0], supervisors[3]
    assert one != other
    assert supervisors == [one, one, one, other, one, other], "the first was there when it began"


def test_a_confined_supervisor_that_is_killed_while_idle_loses_no_attempt(
    launcher: Launcher,
) -> None:
    task = launcher.task(1, ["/bin/true"], no_new_privileges=True)
    launcher.run(task, confined=True)
    os.kill(launcher.started(1)["pid"], signal.SIGKILL)

    task = launcher.task(2, ["/bin/true"], no_new_privileges=True)
    assert launcher.run(task, confined=True)["exit_code"] == 0


def test_a_program_without_new_privileges_that_cannot_be_started_says_why(
    launcher: Launcher,
) -> None:
    """What fails in the thread that starts it is told as if there were no thread."""
    for job, no_new_privileges in ((1, False), (2, True)):
        task = launcher.task(job, ["/nowhere/program"], no_new_privileges=no_new_privileges)
        launcher.run(task)

    records = [launcher.exit_record(job) for job in (1, 2)]
    assert records[0]["kind"] == records[1]["kind"] == "launch_failed"
    assert records[0]["message"].startswith("cannot run /nowhere/program: No such file")
    assert records[0]["message"] == records[1]["message"]
    assert records[0]["failure"] == records[1]["failure"]


def test_a_setuid_program_gains_nothing_where_the_site_says_so(launcher: Launcher) -> None:
    """The same program as root's, with and without."""
    program = launcher.state.parent / "id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    uid = str(ordinary_user().pw_uid)

    for job, no_new_privileges in ((1, False), (2, True)):
        task = as_user(launcher, [str(program), "-u"]) | {
            "job": job, "stdout_name": f"job.o{job}", "user_dir": f"{launcher.state}/user/{job}.1",
            "no_new_privileges": no_new_privileges,
        }  # fmt: skip
        launcher.run(task)

    assert launcher.output(2).split() == [uid]
    if not os.statvfs(program).f_flag & os.ST_NOSUID:
        assert launcher.output(1).split() == ["0"]


FORKS = """
import os, time
made = 0
try:
    while made < 50:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
"""


def test_forks_stop_at_the_limit_of_the_attempts_group(launcher: Launcher) -> None:
    """The kernel refuses them in the job; a second job of the same user has its own limit."""
    parent = pathlib.Path("/sys/fs/cgroup/pids")
    if not (parent / "cgroup.procs").exists():
        pytest.skip("no version 1 controller of processes here")
    groups = [parent / f"gsched-test-{uuid.uuid4().hex}" for _ in range(2)]
    for job, group in enumerate(groups, 1):
        task = as_user(launcher, [sys.executable, "-I", "-S", "-c", FORKS])
        own = {"job": job, "stdout_name": f"job.o{job}", "processes": 8}
        launcher.launch(task | own | {"processes_cgroup": str(group)})
    for job in (1, 2):
        launcher.exit(job)

    assert [launcher.output(job) for job in (1, 2)] == ["7\n", "7\n"]
    assert not any(group.exists() for group in groups)


def test_without_a_group_forks_stop_at_the_limit_of_the_user(launcher: Launcher) -> None:
    """Of 50; other tests may run processes of the same user, and they count."""
    launcher.run(as_user(launcher, [sys.executable, "-I", "-S", "-c", FORKS], processes=40))

    assert 0 <= int(launcher.output(1)) < 40


def test_output_and_files_belong_to_the_owner(launcher: Launcher) -> None:
    account = ordinary_user()
    files = [{"name": "script", "mode": 0o700, "content": "#!/bin/bash\necho fine; ln $0 $0.kept"}]
    user_dir = launcher.state / "user" / "1.1"

    launcher.run(as_user(launcher, [f"{user_dir}/script"], files=files))

    assert launcher.output(1) == "fine\n"
    for path in (launcher.out / "job.o1", user_dir, user_dir / "script.kept"):
        assert (path.stat().st_uid, path.stat().st_gid) == (account.pw_uid, account.pw_gid)


@pytest.mark.parametrize("target", ["root.txt", "new.txt"])
def test_d12_root_writes_nothing_where_the_owner_may_not(launcher: Launcher, target: str) -> None:
    closed = launcher.state.parent / "closed"
    closed.mkdir(mode=0o755)
    (closed / "root.txt").write_text("root's")
    link = launcher.out / "link"
    link.symlink_to(closed / target)

    record = launcher.run(as_user(launcher, ["echo", "x"], stdout_path=str(link)))

    assert (record["kind"], record["failure"]["subject"]) == ("launch_failed", "job")
    assert record["message"] == (
        f"cannot write {link}: Permission denied: create the directory or choose -o"
    )
    assert [path.name for path in closed.iterdir()] == ["root.txt"]
    assert (closed / "root.txt").read_text() == "root's"


def test_d12_an_output_directory_that_only_root_can_write(launcher: Launcher) -> None:
    launcher.out.chmod(0o700)

    record = launcher.run(as_user(launcher, ["true"]))

    assert "Permission denied" in record["message"]
    assert record["failure"] == {"stage": "output", "subject": "job", "errno": errno.EACCES}
    assert list(launcher.out.iterdir()) == []


def test_a_working_directory_that_the_owner_may_not_enter(launcher: Launcher) -> None:
    record = launcher.run(as_user(launcher, ["true"], cwd="/root"))

    assert "cannot enter the working directory /root: Permission denied" in record["message"]


@pytest.mark.parametrize(
    ("changes", "words", "subject"),
    [
        ({"user": "root", "uid": 0, "gid": 0}, "system account", "job"),
        ({"user": "daemon", "uid": 1, "gid": 1}, "system account", "job"),
        ({"user": "no-such-user-here"}, "there is no user", "user"),
        ({"uid": 12345}, "at the head", "user"),
        ({"gid": 0}, "gid 0 is a group of the system", "job"),
        ({"gid": 54321}, "is not in group 54321", "job"),
    ],
)
def test_t3_t4_d21_who_may_not_run_here(
    launcher: Launcher, changes: dict[str, Any], words: str, subject: str
) -> None:
    record = launcher.run(as_user(launcher, STATUS) | changes)

    assert record["kind"] == "launch_failed"
    assert words in record["message"]
    assert record["failure"]["subject"] == subject
    assert list(launcher.out.iterdir()) == []


@pytest.mark.parametrize("changes", [{}, {"nice": 1}], ids=["spawned", "forked"])
def test_t4_nothing_runs_as_root_unless_gnode_has_said_so(
    launcher: Launcher, changes: dict[str, Any]
) -> None:
    """Also not by supervisors that did run it before gnode was configured otherwise."""
    assert launcher.run(launcher.task(1, ["true"], **changes))["exit_code"] == 0
    launcher.ask({"rules": {"allow_root": False, "uid_min": 0}})

    record = launcher.run(launcher.task(2, ["true"], **changes))

    assert record["kind"] == "launch_failed"
    assert "this node runs no jobs of root" in record["message"]
    assert "job.o2" not in os.listdir(launcher.out)


def test_t4_a_launcher_that_was_told_nothing_runs_nothing_as_root(launcher: Launcher) -> None:
    launcher.channel.close()
    launcher.process.kill()
    launcher.process.wait()
    launcher.allow_root = False
    launcher.start()

    record = launcher.run(launcher.task(1, ["true"]))

    assert "this node runs no jobs of root" in record["message"]


def test_t4_the_lowest_uid_is_the_nodes_own(launcher: Launcher) -> None:
    account = ordinary_user()
    launcher.ask({"rules": {"allow_root": True, "uid_min": account.pw_uid + 1}})

    record = launcher.run(as_user(launcher, STATUS))

    assert "is a system account" in record["message"]


@pytest.mark.parametrize("field", ["uid", "gid"])
def test_t4_the_number_that_leaves_an_id_as_it_is(launcher: Launcher, field: str) -> None:
    """setresuid(-1) succeeds and changes nothing."""
    record = launcher.run(as_user(launcher, STATUS) | {field: (1 << 32) - 1})

    assert record["kind"] == "launch_failed"
    assert list(launcher.out.iterdir()) == []


def test_a_task_that_was_changed_by_another_user_is_not_run(launcher: Launcher) -> None:
    task = as_user(launcher, ["true"])
    launcher.accept(task)
    os.chown(launcher.directory(1) / "task.json", task["uid"], task["gid"])

    launcher.ask({"launch": "1.1"})
    message = launcher.hear("failed", "1.1")["message"]

    assert f"task.json belongs to uid {task['uid']}, not to root" in message
    assert records.started(launcher.directory(1)) is None


def test_t42_job_cannot_signal_its_supervisor(launcher: Launcher) -> None:
    pid = launcher.launch(as_user(launcher, [BASH, "-c", "kill -9 $PPID; echo $?"]))

    assert launcher.exit(1)["exit_code"] == 0
    assert launcher.output(1) == "1\n"
    assert process_is_there(pid)


def test_the_owner_cannot_make_root_read_a_report_through_a_link(launcher: Launcher) -> None:
    secret = launcher.state.parent / "secret"
    secret.write_text('{"failed_s": 1.0, "message": "secret", "rank": 3, "exit_code": 9}')
    secret.chmod(0o600)
    report = f"{launcher.state}/user/1.1/report"
    argv = [BASH, "-c", f"ln -s {secret} {report}; exit 1"]

    record = launcher.run(as_user(launcher, argv, failure_report=report))

    assert record["exit_code"] == 1
    assert "message" not in record


def test_t26_a_hard_link_to_a_report_is_not_read(launcher: Launcher) -> None:
    report = f"{launcher.state}/user/1.1/report"
    text = '{"failed_s": 1.0, "rank": 3, "exit_code": 9}'
    argv = [BASH, "-c", f"echo '{text}' > {report}; ln {report} {report}2; exit 1"]

    assert "rank" not in launcher.run(as_user(launcher, argv, failure_report=report))


# --- control groups ---


@pytest.fixture
def memory_group() -> Iterator[pathlib.Path]:
    if not (V1_MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("no version 1 memory controller here")
    path = V1_MEMORY / f"gsched-test-{uuid.uuid4().hex}"
    yield path
    if path.exists():
        path.rmdir()


@pytest.fixture
def tracking_group() -> Iterator[pathlib.Path]:
    root = next((root for root in V2_ROOTS if (root / "cgroup.controllers").exists()), None)
    if root is None:
        pytest.skip("no version 2 control groups here")
    path = root / f"gsched-test-{uuid.uuid4().hex}"
    yield path
    if path.exists():
        path.rmdir()


EAT = "data = bytearray()\nwhile True: data += bytes(1 << 20)"


@pytest.mark.parametrize("launched_by", ["itself", "a child"])
def test_d1_oom_is_told_and_the_supervisor_survives(
    launcher: Launcher, memory_group: pathlib.Path, launched_by: str
) -> None:
    eater = [sys.executable, "-I", "-S", "-c", EAT]
    argv = eater if launched_by == "itself" else [BASH, "-c", '"$@"; exit $?', "x", *eater]
    limit = {"version": 1, "path": str(memory_group), "limit_bytes": 64 << 20}

    pid = launcher.launch(launcher.task(1, argv, memory_cgroup=limit))
    record = launcher.exit(1)

    assert record["kind"] == "oom"
    assert "64 MiB" in record["message"]
    assert record["memory_peak_bytes"] > 32 << 20
    assert process_is_there(pid)
    assert not memory_group.exists()


def test_a_job_within_its_limit_is_no_oom(launcher: Launcher, memory_group: pathlib.Path) -> None:
    limit = {"version": 1, "path": str(memory_group), "limit_bytes": 256 << 20}

    record = launcher.run(launcher.task(1, [BASH, "-c", "exit 4"], memory_cgroup=limit))

    assert (record["kind"], record["exit_code"]) == ("exited", 4)


def test_a_limit_that_cannot_be_set_keeps_the_job_from_running(launcher: Launcher) -> None:
    limit = {"version": 1, "path": "/proc/no-such-group", "limit_bytes": 1 << 30}

    record = launcher.run(launcher.task(1, ["true"], memory_cgroup=limit))

    assert (record["kind"], record["failure"]["subject"]) == ("launch_failed", "node")
    assert "cannot set up the control group /proc/no-such-group" in record["message"]


def test_job_and_not_its_supervisor_is_in_the_tracking_group(
    launcher: Launcher, tracking_group: pathlib.Path
) -> None:
    look = [BASH, "-c", f"cat {tracking_group}/cgroup.procs; echo me $$"]

    pid = launcher.launch(as_user(launcher, look, cgroup=str(tracking_group)))
    record = launcher.exit(1)

    members = launcher.output(1).split()
    assert record["exit_code"] == 0
    assert str(launcher.started(1)["job_pid"]) in members
    assert str(pid) not in members
    assert record["cpu_s"] > 0
    assert not tracking_group.exists()


def test_d3_with_a_tracking_group_nothing_is_left(
    launcher: Launcher, tracking_group: pathlib.Path
) -> None:
    """The group's members are not all the supervisor's descendants: this one is the test's."""
    stubborn = "trap '' TERM; setsid sleep 995 & echo up; while :; do sleep 0.1; done"
    launcher.launch(launcher.task(1, [BASH, "-c", stubborn], cgroup=str(tracking_group)))
    launcher.wait_for_output(1, "up")
    launcher.started(1)  # by now the supervisor, which spawns from inside the group, has left it
    foreign = os.posix_spawn("/bin/sleep", ["sleep", "996"], {})
    (tracking_group / "cgroup.procs").write_text(str(foreign))
    members = [int(pid) for pid in (tracking_group / "cgroup.procs").read_text().split()]
    assert len(members) >= 3

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0})
    launcher.exit(1)

    _, status = os.waitpid(foreign, 0)
    assert os.WTERMSIG(status) == 9
    assert [pid for pid in members if process_is_there(pid)] == []
    assert not tracking_group.exists()


@pytest.mark.parametrize(("filler", "subject"), [("another user", "node"), ("owner", "job")])
def test_a_full_tmp_is_the_owners_fault_only_if_the_owner_has_filled_it(
    launcher: Launcher, filler: str, subject: str
) -> None:
    """Its files are anywhere there, or in the directory of another attempt of the owner's."""
    account = ordinary_user()
    with small_disk(launcher.state / "tmp", "2m") as disk:
        root = disk / "gsched"
        other = root / "9.1"
        other.mkdir(parents=True)
        other.chmod(0o700)
        root.chmod(0o711)
        fill(other)
        if filler == "owner":
            os.chown(other / FILLER, account.pw_uid, account.pw_gid)
            os.chown(other, account.pw_uid, account.pw_gid)
        script = {"name": "script", "mode": 0o700, "content": "#!/bin/sh\n" + 9000 * "#"}

        record = launcher.run(
            as_user(launcher, ["true"], files=[script], user_dir=str(root / "1.1"))
        )

    assert record["kind"] == "launch_failed"
    assert record["failure"] == {"stage": "files", "subject": subject, "errno": errno.ENOSPC}
    assert f"below {root.parent}: No space left on device" in record["message"]
    assert ("is yours: remove some of it" in record["message"]) == (subject == "job")


def test_who_joins_an_attempt_at_its_end_is_killed_before_its_exit_is_recorded(
    library: str,
) -> None:
    """Nothing was left in its group when the supervisor looked last; then a login came."""
    with tempfile.TemporaryDirectory(prefix="gsched-test-") as place:
        pathlib.Path(place).chmod(0o755)
        state = pathlib.Path(place, "state")
        failing = {"GSCHED_FAIL": "supervisor.exit.before_groups:sleep=1"}
        roots = cgroups.find_roots("auto", str(state))
        if roots.tracking is None:
            pytest.skip("no control groups of version 2 can be made here")
        launcher = Launcher(state, failing, library=library)
        group = pathlib.Path(f"{roots.tracking}/1.1")
        late = subprocess.Popen(["sleep", "60"])
        try:
            launcher.launch(launcher.task(1, ["sleep", "0.1"], cgroup=str(group)))
            job = launcher.started(1)["job_pid"]
            wait_until(lambda: not process_is_there(job), "the end of the job's process")
            time.sleep(0.3)
            (group / "cgroup.procs").write_text(str(late.pid))
            record = launcher.exit(1)
            ended = late.poll()
            was_removed = not group.exists()
        finally:
            late.kill()
            late.wait()
            launcher.close()
            cgroups.remove(str(group))
            cgroups.remove_if_empty(roots)

    assert record["exit_code"] == 0
    assert ended == -signal.SIGKILL
    assert was_removed
