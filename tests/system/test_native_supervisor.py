"""The library that runs plain jobs: which it runs, what it writes, and how it comes and goes."""

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnode.compiling import find_compiler
from gnode.hw import cgroups
from gsched.directories import mark_of
from tests.support import records
from tests.support.cluster import NATIVE_WORDS
from tests.support.gnode_world import GnodeWorld
from tests.support.launching import Launcher, process_is_there, wait_until
from tests.support.v1_groups import ZERO, V1Groups, missing

FILES = [
    {"name": "nodefile", "mode": 0o400, "content": "n1\n"},
    {"name": "script", "mode": 0o500, "content": "#!/bin/sh\ncat $PBS_NODEFILE; pwd; exit 3\n"},
]
Start = Callable[..., Launcher]
VFORK = re.compile(r"vfork\(|CLONE_VFORK\|CLONE_INTO_CGROUP")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a launcher whose processes' forks are noted in ``forks``."""
    made: list[Launcher] = []
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here to see system calls")
    options = ("-D", "-f", "-qq", "-e", "trace=vfork,clone,clone3", "-e", "signal=none")

    def started(library: str) -> Launcher:
        under = (strace, *options, "-o", str(tmp_path / f"forks{len(made)}"))
        made.append(Launcher(tmp_path / f"state{len(made)}", under=under, library=library))
        return made[-1]

    yield started
    for launcher in made:
        launcher.close()


def runs_natively(launcher: Launcher, job: int, **changes: Any) -> bool:
    """Run a job; return whether the library has started its program: nothing else has vfork."""
    said = launcher.state.parent / f"forks{launcher.state.name.removeprefix('state')}"
    before = len(VFORK.findall(said.read_text()))
    task = launcher.task(job, ["true"], **changes)

    assert launcher.run(task)["kind"] in {"exited", "launch_failed"}, launcher.log()

    time.sleep(0.1)  # strace writes beside it
    return len(VFORK.findall(said.read_text())) > before


def lines(launcher: Launcher, job: int) -> list[bytes]:
    """Return the lines of a journal; those with JSON exactly as Python writes it."""
    content = (launcher.directory(job) / "journal").read_bytes()
    found = [line for line in content.split(b"\n") if line]
    for line in found:
        _, brace, text = line.partition(b"{")
        if brace:
            assert json.dumps(json.loads(b"{" + text)).encode() == b"{" + text
    return found


def test_both_write_the_same_journal(start: Start, native_library: str) -> None:
    """The odd characters and the CPU time make every number and text of the records odd."""
    seen: list[list[str]] = []
    stories: list[dict[str, Any]] = []
    for library in ("", native_library):
        launcher = start(library)
        script = f"{launcher.state}/user/1.1/script"
        out = f'{launcher.out}/ä"\\ %s \udcff'
        launcher.run(launcher.task(1, [script], files=FILES, stdout_path=out, cwd="/usr"))
        found = lines(launcher, 1)
        seen.append([line.split(b" ")[0].decode() for line in found])
        record = records.ended(launcher.directory(1))
        started = records.started(launcher.directory(1))
        assert record is not None
        assert started is not None
        assert started["stdout_path"] == out
        assert Path(os.fsencode(out).decode("utf-8", "surrogateescape")).read_text() == "n1\n/usr\n"
        assert not (launcher.state / "user" / "1.1").exists()
        assert 0 < record["wall_s"] < 60
        assert record["memory_peak_bytes"] > 100_000
        stories.append({key: type(value) for key, value in (started | record).items()})
        assert (record["kind"], record["exit_code"]) == ("exited", 3)

    assert seen[0] == seen[1] == ["starting", "may", "started", "ended"]
    assert list(stories[0].items()) == list(stories[1].items())


def test_plain_jobs_only(start: Start, native_library: str) -> None:
    launcher = start(native_library)

    assert runs_natively(launcher, 1)
    assert runs_natively(launcher, 2, cpus=[min(os.sched_getaffinity(0))], no_new_privileges=True)
    assert runs_natively(launcher, 3, nice=1, processes=4000)
    assert not runs_natively(launcher, 4, env={"PATH": os.defpath, "SLURM_JOB_ID": "4"})
    assert not runs_natively(launcher, 5, failure_report=f"{launcher.state}/user/5.1/report")
    assert not runs_natively(launcher, 6, stage_out=[["true"]], stage_timeout_s=9.0)
    many = [{"name": f"file{number}", "mode": 0o400, "content": "x"} for number in range(9)]
    assert not runs_natively(launcher, 7, files=many)
    assert runs_natively(launcher, 8, files=many[:8])


@pytest.mark.root
@pytest.mark.skipif(bool(missing()), reason="no control groups of version 1 here")
def test_jobs_with_control_groups_are_plain(start: Start, native_library: str) -> None:
    launcher = start(native_library)
    groups = V1Groups()
    cpu = min(os.sched_getaffinity(0))
    each = (
        *(groups.memory(), groups.pids(), groups.cpuset([]), groups.cpuset([cpu])),
        *(groups.fence([ZERO]), groups.all([cpu]), groups.all([cpu]) | {"nice": 1}),
    )
    try:
        for job, fields in enumerate(each, 1):
            assert runs_natively(launcher, job, **fields), fields
            assert groups.left() == []
        small = groups.memory(16 << 20)
        assert not runs_natively(launcher, 9, **small), "its limit could hit the supervisor"
    finally:
        groups.remove()


@pytest.mark.parametrize(
    "odd",
    [
        {"memory_cgroup": {"version": 1, "limit_bytes": 1 << 30}},
        {"memory_cgroup": {"version": 1, "path": "/proc/g", "limit_bytes": "much"}},
        {"fence": {"version": 1, "path": "/proc/g", "denied": [7], "allowed": []}},
        {"cpuset": ["/proc/g"]},
        {"processes": -1},
    ],
)
def test_a_task_that_makes_no_sense_runs_nothing(
    start: Start, native_library: str, odd: dict[str, Any]
) -> None:
    """Not without its limits, whatever a call of Python gives back."""
    launcher = start(native_library)

    launcher.launch(launcher.task(1, ["touch", f"{launcher.out}/ran"], **odd))
    launcher.hear("ended", "1.1")

    assert not (launcher.out / "ran").exists()


def test_a_text_that_c_would_cut_is_left_to_python(start: Start, native_library: str) -> None:
    """A supervisor cannot start such a program, and no file has the cut path."""
    launcher = start(native_library)

    record = launcher.run(launcher.task(1, ["true"], stdout_path=f"{launcher.out}/cut\0off"))

    assert record["kind"] != "exited"
    assert list(launcher.out.iterdir()) == []


def test_a_task_of_a_newer_gnode_is_left_to_python(start: Start, native_library: str) -> None:
    launcher = start(native_library)

    assert not runs_natively(launcher, 1, stage_somewhere=[["true"]])
    assert runs_natively(launcher, 2)


def test_both_read_the_same_texts(start: Start, native_library: str) -> None:
    """Escapes, characters of two to four bytes, bytes that are no text, and a long text."""
    odd = 'quote" slash\\ /\b\f\n\r\t\x1f\x7f ä € \U0001f600 \udcff\udc80 ' + "x" * 70_000
    env = {"PATH": os.defpath, "ODD": odd, "Ünicode": "1", "EMPTY": ""}
    for library in ("", native_library):
        launcher = start(library)
        files = [{"name": odd[:20].replace("/", ""), "mode": 0o400, "content": odd}]
        path = f"{launcher.state}/user/2.1/{files[0]['name']}"

        launcher.run(launcher.task(1, ["env", "-0"], env=env))
        launcher.run(launcher.task(2, ["cat", path], files=files))

        found = {*(launcher.out / "job.o1").read_bytes().split(b"\0")}
        assert found == {b"", *(os.fsencode(f"{name}={value}") for name, value in env.items())}
        assert (launcher.out / "job.o2").read_bytes() == os.fsencode(odd)


def test_the_directory_of_submission_is_looked_for(
    start: Start, native_library: str, tmp_path: Path
) -> None:
    """The library knows that it is here; where it does not, Python looks."""
    launcher = start(native_library)
    here, other = tmp_path / "here", tmp_path / "other"
    for each in (here, other):
        each.mkdir()
    away = {"submit_dir": str(here), "host": "host", "outbox": str(tmp_path / "outbox")}

    assert runs_natively(launcher, 1, away=away | {"mark": mark_of(str(here))})
    assert not runs_natively(launcher, 2, away=away | {"mark": mark_of(str(other))})
    assert not launcher.started(2)["away"], "another one, in the same place"
    boot_id, rest = mark_of(str(here)).split(" ", 1)
    assert not runs_natively(launcher, 3, away=away | {"mark": f"{boot_id[::-1]} {rest}"})
    assert launcher.started(3)["away"]


def test_an_attempt_whose_lease_is_over_is_not_started(start: Start, native_library: str) -> None:
    told: list[tuple[str, str]] = []
    for library in ("", native_library):
        launcher = start(library)
        record = launcher.run(launcher.task(1, ["true"], lease_s=1.0, lease_from_s=0.5))
        told.append((record["kind"], record["message"]))

    assert told[0] == told[1]
    assert told[0][0] == "node_lost"


def test_it_comes_and_goes_between_two_jobs(start: Start, native_library: str) -> None:
    launcher = start("")
    assert not runs_natively(launcher, 1)

    launcher.ask({"native": native_library})
    assert runs_natively(launcher, 2)

    launcher.ask({"native": ""})
    assert not runs_natively(launcher, 3)

    launcher.ask({"native": "/nowhere/supervisor.so"})
    assert not runs_natively(launcher, 4)
    assert "/nowhere/supervisor.so cannot be used" in launcher.log()


def test_a_step_that_fails_is_told_as_ever(start: Start, native_library: str) -> None:
    """The library starts these jobs, and leaves it to Python to find out what is wrong."""
    told: list[list[str]] = []
    for library in ("", native_library):
        launcher = start(library)
        broken = [
            launcher.task(1, ["/nowhere/program"]),
            launcher.task(2, ["true"], cwd="/nowhere"),
            launcher.task(3, ["true"], stdout_path="/nowhere/out"),
            launcher.task(4, ["no-such-program"]),
            launcher.task(5, ["true"], cgroup="/proc/nowhere/1.1"),
            launcher.task(6, ["true"], cpus=[4095]),
        ]
        ended = [launcher.run(task) for task in broken]
        assert {record["kind"] for record in ended} == {"launch_failed"}
        told.append([record["message"] for record in ended])

    assert told[0] == told[1]


def test_what_a_job_gets_it_does_not_leave_to_the_next(start: Start, native_library: str) -> None:
    """Affinity, privileges and umask are the program's, not the supervisor's."""
    launcher = start(native_library)
    look = "grep -E 'NoNewPrivs|Cpus_allowed_list|Umask' /proc/self/status; ulimit -n; pwd"
    first = min(os.sched_getaffinity(0))

    launcher.run(
        launcher.task(
            *(1, ["/bin/sh", "-c", look]),
            cpus=[first],
            no_new_privileges=True,
            umask=0o027,
            open_files=99,
            cwd="/usr",
        )
    )
    launcher.run(launcher.task(2, ["/bin/sh", "-c", look]))

    assert launcher.output(1).split() == (
        f"Umask: 0027 NoNewPrivs: 1 Cpus_allowed_list: {first} 99 /usr".split()
    )
    words = launcher.output(2).split()
    assert words[1:4:2] + words[-2:] == ["0022", "0", "1024", "/"]
    own = [each for each in words if "-" in each or "," in each]
    assert len(os.sched_getaffinity(0)) == 1 or own, words


def test_a_group_holds_the_job_and_goes_with_it(start: Start, native_library: str) -> None:
    launcher = start(native_library)
    roots = cgroups.find_roots("auto", str(launcher.state))
    if roots.tracking is None:
        pytest.skip("no control groups of version 2 can be made here")
    group = Path(roots.tracking, f"1.1-{uuid.uuid4().hex[:6]}")
    try:
        launcher.launch(launcher.task(1, ["/bin/sh", "-c", "cat; sleep 0.3"], cgroup=str(group)))
        job = launcher.started(1)["job_pid"]
        members = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        record = launcher.exit(1)
    finally:
        cgroups.remove_if_empty(roots)

    assert job in members
    assert record["cpu_s"] > 0
    assert not group.exists()


def test_an_attempt_that_is_taken_out_of_the_spool_ends(start: Start, native_library: str) -> None:
    """The library waits for ten seconds at most before Python looks."""
    launcher = start(native_library)
    launcher.launch(launcher.task(1, ["sleep", "600"]))
    job = launcher.started(1)["job_pid"]
    shutil.rmtree(launcher.directory(1))

    wait_until(lambda: not process_is_there(job), "the end of the job", 30)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_gnode_compiles_it_and_says_so(tmp_path: Path, process_marker: str) -> None:
    world = GnodeWorld(tmp_path / "w", process_marker)
    try:
        world.settings["native_supervisor"] = True
        world.start()
        wait_until(lambda: NATIVE_WORDS in world.log(), "the library")
        world.launch(1, "exit 5\n")
        assert world.head.wait_for_exit(1).record.exit_code == 5
        assert len(list((world.state / "native").glob("*/supervisor.so"))) == 1

        world.kill()
        world.settings["native_supervisor"] = False
        world.start()
        world.launch(2, "exit 6\n")
        assert world.head.wait_for_exit(2).record.exit_code == 6
        assert world.log().count(NATIVE_WORDS) == 1
    finally:
        world.stop()
