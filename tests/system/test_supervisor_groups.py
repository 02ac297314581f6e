"""Attempts with control groups, niceness and limits: what the kernel is told, and what it tells."""

import os
import pathlib
import resource
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.launching import Launcher
from tests.support.v1_groups import CONTROLLERS, MOUNT, ZERO, V1Groups, missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make control groups"),
]

BASH = "/bin/bash"
OTHER = {"user": "nobody", "uid": 65534, "gid": 65534, "switch_user": True}


@pytest.fixture
def groups() -> Iterator[V1Groups]:
    if lacking := missing():
        pytest.skip(f"no control groups of version 1 here: {lacking}")
    made = V1Groups()
    yield made
    made.remove()


@pytest.fixture
def top() -> Iterator[pathlib.Path]:
    """Return a directory that other users can reach, as pytest's own are closed."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="gsched-groups-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def launcher(library: str, top: pathlib.Path) -> Iterator[Launcher]:
    """Return a launcher, whose idle supervisor knows the other user's groups."""
    launcher = Launcher(top / "state", library=library)
    nowhere = {"stdout_path": "/dev/null", "stderr_path": "/dev/null"}
    launcher.run(launcher.task(99, ["true"]) | OTHER | nowhere)
    yield launcher
    launcher.close()


@pytest.fixture(params=[{}, OTHER], ids=["own", "another"])
def owner(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_a_job_is_in_each_of_its_groups_and_has_their_limits(
    launcher: Launcher, groups: V1Groups, owner: dict[str, Any]
) -> None:
    cpu = min(os.sched_getaffinity(0))
    go = launcher.out / "go"
    look = "cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status; nice; ulimit -u"
    wait = f"until [ -e {go} ]; do sleep 0.05; done"
    task = launcher.task(1, [BASH, "-c", f"{look}; {wait}; exit 3"], nice=3) | owner
    task |= groups.all([cpu])

    pid = launcher.launch(task)
    limit = limit_words(resource.RLIMIT_NPROC)  # its group has that of the attempt
    lines = launcher.wait_for_output(1, f"\n{limit}\n").splitlines()
    told = [
        (groups.path(controller) / name).read_text().strip()
        for controller, name in (
            *(("memory", "memory.limit_in_bytes"), ("pids", "pids.max")),
            *(("cpuset", "cpuset.cpus"), ("cpuset", "cpuset.sched_load_balance")),
        )
    ]
    supervisors_groups = pathlib.Path(f"/proc/{pid}/cgroup").read_text()
    go.touch()
    record = launcher.exit(1)

    for controller in (*CONTROLLERS, ""):
        assert [one for one in lines if one.endswith(f":{controller}:/{groups.name}")], lines
    own_nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert lines[-3:] == [f"Cpus_allowed_list:\t{cpu}", str(own_nice + 3), limit]
    assert told == [str(1 << 30), "4000", str(cpu), "0"]
    assert groups.name not in supervisors_groups
    assert (record["kind"], record["exit_code"]) == ("exited", 3)
    assert record["cpu_s"] > 0
    assert record["memory_peak_bytes"] > 100_000
    assert groups.left() == []


def limit_words(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def test_a_group_without_cpus_of_its_own_has_those_of_the_group_above(
    launcher: Launcher, groups: V1Groups
) -> None:
    look = f"cd {groups.path('cpuset')}; cat cpuset.cpus cpuset.mems cpuset.sched_load_balance"

    record = launcher.run(launcher.task(1, [BASH, "-c", look], **groups.cpuset([])))

    above = [(MOUNT / "cpuset" / f"cpuset.{name}").read_text().strip() for name in ("cpus", "mems")]
    assert record["exit_code"] == 0
    assert launcher.output(1).split() == [*above, "0"]


def test_the_limit_on_processes_is_the_users_without_a_group(
    launcher: Launcher, owner: dict[str, Any]
) -> None:
    launcher.run(launcher.task(1, [BASH, "-c", "ulimit -Su; ulimit -Hu"], processes=4321) | owner)
    launcher.run(launcher.task(2, [BASH, "-c", "ulimit -Su; nice"]) | owner)

    own_nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert launcher.output(1).split() == ["4321", "4321"]
    assert launcher.output(2).split() == [limit_words(resource.RLIMIT_NPROC), str(own_nice)]


@pytest.mark.parametrize("nice", [-3, 100])
def test_niceness_counts_from_the_supervisors(launcher: Launcher, nice: int) -> None:
    launcher.run(launcher.task(1, ["nice"], nice=nice))

    own_nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert launcher.output(1).strip() == str(max(-20, min(19, own_nice + nice)))


def test_a_fence_holds_and_the_rest_stays_open(
    launcher: Launcher, groups: V1Groups, owner: dict[str, Any]
) -> None:
    status = os.stat("/dev/zero")
    assert f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" == ZERO
    assert stat.S_ISCHR(status.st_mode)
    look = "for each in zero null full; do head -c1 /dev/$each >/dev/null && echo $each; done"
    task = launcher.task(1, [BASH, "-c", look], **groups.fence([ZERO])) | owner

    launcher.run(task)

    assert launcher.output(1).split() == ["null", "full"]
    assert "/dev/zero" in launcher.output(1, "e")
    assert "Operation not permitted" in launcher.output(1, "e")


EAT = "import sys, time; kept = bytearray(int(sys.argv[1]) << 20); time.sleep(float(sys.argv[2]))"


def test_the_peak_is_that_of_all_processes_together(
    launcher: Launcher, groups: V1Groups, owner: dict[str, Any]
) -> None:
    one = f"{sys.executable} -I -S -c '{EAT}' 40 1"
    task = launcher.task(1, [BASH, "-c", f"{one} & {one}; wait"]) | owner | groups.memory()

    record = launcher.run(task)

    assert record["exit_code"] == 0
    assert 80 << 20 < record["memory_peak_bytes"] < 256 << 20
    assert groups.left() == []


@pytest.mark.parametrize(("code", "kind"), [(1, "oom"), (0, "exited")])
def test_an_oom_kill_is_the_outcome_unless_the_job_has_succeeded(
    launcher: Launcher, groups: V1Groups, owner: dict[str, Any], code: int, kind: str
) -> None:
    eater = f"{sys.executable} -I -S -c '{EAT}' 200 0"
    task = launcher.task(1, [BASH, "-c", f"{eater}; exit {code}"]) | owner
    task |= groups.tracking() | groups.memory(64 << 20)

    record = launcher.run(task)

    assert record["kind"] == kind
    assert record["exit_code"] == code
    assert ("more than its 64 MiB" in record.get("message", "")) == (kind == "oom")
    assert record["memory_peak_bytes"] > 48 << 20
    assert groups.left() == []


def test_a_limit_that_is_too_small_for_any_program_is_reported(
    launcher: Launcher, groups: V1Groups, owner: dict[str, Any]
) -> None:
    task = launcher.task(1, ["true"]) | owner | groups.tracking() | groups.memory(1 << 12)

    record = launcher.run(task)

    assert record["kind"] == "oom"
    assert groups.left() == []


@pytest.mark.parametrize("step", ["make", "write", "join", "bind"])
def test_a_step_that_fails_keeps_the_job_from_running(
    launcher: Launcher, groups: V1Groups, top: pathlib.Path, owner: dict[str, Any], step: str
) -> None:
    no_group = top / "group"
    no_group.mkdir()
    if step == "join":
        (no_group / "pids.max").touch()
    changes, words = {
        "make": ({"processes": 9, "processes_cgroup": "/proc/no-group"}, "set up the control"),
        "write": (
            {"processes": 9, "processes_cgroup": str(no_group)},
            f"group {no_group}/pids.max",
        ),
        "join": (
            {"processes": 9, "processes_cgroup": str(no_group)},
            f"join the control group {no_group}",
        ),
        "bind": (groups.cpuset([4095]), "cpuset.cpus"),
    }[step]

    record = launcher.run(launcher.task(1, [BASH, "-c", "echo ran"], **changes) | owner)

    assert record["kind"] == "launch_failed"
    assert words in record["message"]
    assert not (launcher.out / "job.o1").exists() or launcher.output(1) == ""
    assert groups.left() == []


def test_a_group_that_the_job_has_made_others_in_stays(
    launcher: Launcher, groups: V1Groups
) -> None:
    """It is gnode's to remove; the attempt has ended."""
    inner = groups.path("pids") / "inner"
    task = launcher.task(1, ["mkdir", str(inner)], **groups.tracking() | groups.pids())

    record = launcher.run(task)

    was_there = inner.exists()
    inner.rmdir()
    assert was_there
    assert record["exit_code"] == 0
    assert groups.left() == ["pids"]


#: As version 2 has them; the kernel of a machine has each controller in one version.
FILES_OF_VERSION_2 = {
    "memory.max": "",
    "memory.oom.group": "",
    "memory.swap.max": "",
    "memory.peak": "987654321\n",
    "memory.events": "low 0\nhigh 0\nmax 4\noom 2\noom_kill 0\noom_group_kill 0\n",
    "cgroup.procs": "",
}


@pytest.mark.parametrize(("kills", "kind"), [(0, "exited"), (2, "oom")])
def test_version_2_is_told_and_asked_by_its_own_files(
    launcher: Launcher, top: pathlib.Path, owner: dict[str, Any], kills: int, kind: str
) -> None:
    group = top / "group"
    group.mkdir()
    for name, text in FILES_OF_VERSION_2.items():
        (group / name).write_text(text.replace("oom_kill 0", f"oom_kill {kills}"))
    limit = {"version": 2, "path": str(group), "limit_bytes": 64 << 20}

    record = launcher.run(launcher.task(1, ["false"], memory_cgroup=limit) | owner)

    written = [(group / name).read_text() for name in [*FILES_OF_VERSION_2][:3]]
    more = (16 << 20) if kills else 0  # for the words to the owner
    assert written == [str((64 << 20) + more), "1", "0"]
    assert (group / "cgroup.procs").read_text() == "0"
    assert (record["kind"], record["memory_peak_bytes"]) == (kind, 987654321)
