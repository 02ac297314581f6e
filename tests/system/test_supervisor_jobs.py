"""Jobs through a real launcher: what they get, what they leave, how they end."""

import json
import os
import pathlib
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gsched.model.job import ExitRecord
from gsched.model.states import OutcomeKind
from tests.support import records
from tests.support.launching import Launcher, Way, process_is_there, wait_until
from tests.support.processes import PATIENCE_S

BASH = "/bin/bash"


@pytest.fixture
def launcher(tmp_path: pathlib.Path, way: Way) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "state", **vars(way))
    yield launcher
    launcher.close()


@pytest.fixture(params=[0, 1], ids=["spawned", "forked"])
def nice(request: pytest.FixtureRequest) -> int:
    """A job that needs another niceness is forked by Python, any other one is spawned."""
    return int(request.param)


def python(*lines: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", "\n".join(lines)]


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 137, 255])
def test_d14_exit_code_is_what_the_program_said(launcher: Launcher, nice: int, code: int) -> None:
    record = launcher.run(launcher.task(1, [BASH, "-c", f"exit {code}"], nice=nice))

    assert (record["kind"], record["exit_code"]) == ("exited", code)
    assert "signal" not in record
    assert "stop_reason" not in record


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL, signal.SIGUSR1])
def test_d14_signal_is_the_one_that_ended_the_program(
    launcher: Launcher, nice: int, number: signal.Signals
) -> None:
    record = launcher.run(launcher.task(1, [BASH, "-c", f"kill -{int(number)} $$"], nice=nice))

    assert (record["kind"], record["signal"]) == ("signalled", number)
    assert "exit_code" not in record


def test_job_gets_exactly_its_environment(launcher: Launcher, nice: int) -> None:
    environment = {"PATH": "/usr/bin:/bin", "BASH_FUNC_x%%": "() { :\n}", "LD_TRACE": "é\udcff"}
    dump = ["/usr/bin/env", "-0"]

    launcher.run(launcher.task(1, dump, env=environment, nice=nice))

    written = (launcher.out / "job.o1").read_bytes().rstrip(b"\0").split(b"\0")
    expected = {os.fsencode(f"{name}={value}") for name, value in environment.items()}
    assert set(written) == expected


def test_t38_job_has_no_descriptor_but_0_1_2(launcher: Launcher, nice: int) -> None:
    look = python(
        "import os",
        "fds = os.listdir('/proc/self/fd')",
        "print(sorted(int(fd) for fd in fds if os.path.lexists('/proc/self/fd/' + fd)))",
        "print(os.readlink('/proc/self/fd/0'), oct(os.O_APPEND), sep='\\n')",
    )

    launcher.run(launcher.task(1, look, nice=nice))

    # listdir's own descriptor is closed by the time each is looked at
    assert launcher.output(1).splitlines()[:2] == ["[0, 1, 2]", "/dev/null"]


def test_job_starts_with_default_signals_and_a_session_of_its_own(
    launcher: Launcher, nice: int
) -> None:
    look = python(
        "import os",
        "print(os.getsid(0) == os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))",
        "print(open('/proc/self/oom_score_adj').read().strip())",
    )
    # Python itself ignores SIGPIPE and SIGXFSZ, so the shell looks instead.
    shell = [BASH, "-c", "grep -E '^Sig(Blk|Ign)' /proc/$$/status"]

    launcher.run(launcher.task(1, look, nice=nice))
    launcher.run(launcher.task(2, shell, nice=nice))

    own, oom = launcher.output(1).splitlines()
    own_nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert own == f"True {own_nice + nice}"
    assert int(oom) >= 0
    reserved = 0b11 << 31  # 32 and 33 are the C library's own; its posix_spawn ignores them
    masks = {int(line.split()[1], 16) & ~reserved for line in launcher.output(2).splitlines()}
    assert masks == {0}


def test_job_gets_its_umask_directory_and_core_limit(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path
) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    expected = "unlimited" if soft == resource.RLIM_INFINITY else str(soft // 1024)
    argv = [BASH, "-c", "umask; pwd -P; ulimit -S -c; : > made"]

    launcher.run(launcher.task(1, argv, umask=0o027, cwd=str(tmp_path), nice=nice))

    assert launcher.output(1).splitlines() == ["0027", str(tmp_path.resolve()), expected]
    for path in (tmp_path / "made", launcher.out / "job.o1"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_first_attempt_empties_the_output_and_later_ones_add(launcher: Launcher) -> None:
    (launcher.out / "job.o1").write_text("old")

    launcher.run(launcher.task(1, ["echo", "one"]))
    launcher.run(launcher.task(1, ["echo", "two"], attempt=2, append=True))

    assert launcher.output(1) == "one\ntwo\n"


@pytest.mark.parametrize(
    ("join", "out", "err"),
    [("n", "1\n", "2\n"), ("oe", "1\n2\n", None), ("eo", None, "1\n2\n")],
)
def test_output_and_errors_go_where_join_says(
    launcher: Launcher, nice: int, join: str, out: str | None, err: str | None
) -> None:
    launcher.run(launcher.task(1, [BASH, "-c", "echo 1; echo 2 >&2"], join=join, nice=nice))

    started = launcher.started(1)
    found = {path.name: path.read_text() for path in launcher.out.iterdir()}
    expected = {"job.o1": out, "job.e1": err}
    assert found == {name: text for name, text in expected.items() if text is not None}
    assert pathlib.Path(started["stdout_path"]).name == ("job.o1" if out else "job.e1")
    assert pathlib.Path(started["stderr_path"]).name == ("job.e1" if err else "job.o1")


def test_a_directory_without_a_slash_stands_for_a_file_in_it(launcher: Launcher) -> None:
    launcher.run(launcher.task(1, ["echo", "x"], stdout_path=str(launcher.out)))

    assert launcher.output(1) == "x\n"
    assert launcher.started(1)["stdout_path"] == f"{launcher.out}/job.o1"


def test_one_path_for_both_streams_keeps_both(launcher: Launcher) -> None:
    path = str(launcher.out / "both")

    launcher.run(
        launcher.task(1, [BASH, "-c", "echo 1; echo 2 >&2"], stdout_path=path, stderr_path=path)
    )

    assert pathlib.Path(path).read_text() == "1\n2\n"


def test_files_are_in_the_job_s_own_directory(launcher: Launcher, nice: int) -> None:
    files = [
        {
            "name": "script",
            "mode": 0o500,
            "content": "#!/bin/bash\necho ran $1\ncat $PBS_NODEFILE; touch ${0%/*}/more",
        },
        {"name": "nodefile", "mode": 0o400, "content": "n1\nn1\n"},
    ]
    user_dir = launcher.state / "user" / "1.1"

    launcher.run(launcher.task(1, [f"{user_dir}/script", "it"], files=files, nice=nice))

    assert launcher.output(1) == "ran it\nn1\nn1\n"
    assert stat.S_IMODE(user_dir.stat().st_mode) == 0o700
    assert os.listdir(user_dir) == ["more"]  # the rest is gnode's to remove


@pytest.mark.parametrize("end", ["exit 0", "exit 3", "kill -9 $$"])
def test_a_directory_without_files_of_the_job_s_own_is_removed_at_once(
    launcher: Launcher, nice: int, end: str
) -> None:
    files = [
        {"name": "script", "mode": 0o500, "content": f"#!/bin/bash\n{end}"},
        {"name": "nodefile", "mode": 0o400, "content": "n1\n"},
    ]
    user_dir = launcher.state / "user" / "1.1"
    report = str(user_dir / "failure.json")

    launcher.run(
        launcher.task(1, [f"{user_dir}/script"], files=files, nice=nice, failure_report=report)
    )

    assert not user_dir.exists()


def test_a_job_that_could_not_start_leaves_no_directory(launcher: Launcher) -> None:
    files = [{"name": "script", "mode": 0o500, "content": "#!/no/such/shell\n"}]
    user_dir = launcher.state / "user" / "1.1"

    record = launcher.run(launcher.task(1, [f"{user_dir}/script"], files=files))

    assert record["kind"] == "launch_failed"
    assert not user_dir.exists()


def test_a_name_that_the_job_has_made_a_directory_or_a_link_is_no_trap(
    launcher: Launcher, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "precious").write_text("kept")
    script = (
        "#!/bin/bash\ncd ${0%/*}; rm -f script nodefile; mkdir nodefile\n"
        f"ln -s {tmp_path}/precious script"
    )
    files = [
        {"name": "script", "mode": 0o500, "content": script},
        {"name": "nodefile", "mode": 0o400, "content": "n1\n"},
    ]
    user_dir = launcher.state / "user" / "1.1"

    record = launcher.run(launcher.task(1, [f"{user_dir}/script"], files=files))

    assert record["exit_code"] == 0
    assert (tmp_path / "precious").read_text() == "kept"
    assert (user_dir / "nodefile").is_dir()


def test_records_follow_the_head_s_schema_and_say_what_was_used(launcher: Launcher) -> None:
    burn = python("data = bytearray(60 << 20)", "x = 0", "while x < 2_000_000: x += 1")

    pid = launcher.launch(launcher.task(3, burn, attempt=2))
    raw = launcher.exit(3, 2)
    record = launcher.started(3, 2)

    decoded = msgspec.convert(raw, ExitRecord)
    assert set(raw) <= set(ExitRecord.__struct_fields__)
    assert (decoded.job, decoded.attempt, decoded.kind) == (3, 2, OutcomeKind.EXITED)
    assert record["pid"] == pid
    assert record["job_pid"] != pid
    assert record["start_ticks"] > 0
    assert record["job_start_ticks"] >= record["start_ticks"]
    assert decoded.started_s == record["started_s"]
    assert decoded.ended_s >= decoded.started_s
    assert decoded.cpu_s > 0.02
    assert decoded.wall_s >= decoded.cpu_s / 2
    assert decoded.memory_peak_bytes > 60 << 20


def test_usage_counts_processes_the_job_has_not_waited_for(launcher: Launcher) -> None:
    orphan = f"{sys.executable} -I -S -c 'x = 0\nwhile x < 3_000_000: x += 1'"

    record = launcher.run(
        launcher.task(1, [BASH, "-c", f"({orphan} &) ; exit 0"], leftover_grace_s=20, grace_s=20)
    )

    assert record["exit_code"] == 0
    # The leftover was asked to end at once; what it used until then is counted all the same.
    assert record["cpu_s"] > 0


def test_launching_twice_runs_once(launcher: Launcher) -> None:
    task = launcher.task(1, [BASH, "-c", "echo ran; sleep 0.3"], append=True)
    pid = launcher.launch(task)

    launcher.ask({"launch": "1.1"})
    again = launcher.hear("launched", "1.1")
    launcher.exit(1)
    launcher.ask({"launch": "1.1"})
    launcher.hear("launched", "1.1")
    launcher.hear("ended", "1.1")

    assert again["pid"] == pid
    assert launcher.output(1) == "ran\n"


def test_many_launches_in_one_read_all_run(launcher: Launcher) -> None:
    jobs = range(60)
    for job in jobs:
        launcher.accept(launcher.task(job, [BASH, "-c", f"echo {job}; exit {job}"]))
    launcher.channel.sendall(b"".join(b'{"launch": "%d.1"}\n' % job for job in jobs))

    assert {job: launcher.exit(job)["exit_code"] for job in jobs} == {job: job for job in jobs}
    assert [launcher.output(job) for job in jobs] == [f"{job}\n" for job in jobs]


def test_a_launch_without_a_task_fails_with_a_message(launcher: Launcher) -> None:
    for name in ("9.1", "../9.1", "x"):
        launcher.ask({"launch": name})
        assert launcher.hear("failed", name)["message"]


def test_nonsense_costs_the_connection_but_not_the_launcher(launcher: Launcher) -> None:
    launcher.channel.sendall(b"[]\n")
    assert launcher.channel.recv(100) == b""

    launcher.channel.close()
    launcher.channel = socket.socket(socket.AF_UNIX)
    launcher.channel.connect(str(launcher.state / "launcher.sock"))
    launcher.say_rules()  # as gnode does on each connection
    assert launcher.run(launcher.task(1, ["true"]))["exit_code"] == 0


def test_a_second_launcher_refuses_and_names_the_first(launcher: Launcher) -> None:
    command = [sys.executable, "-I", "-m", "gnode.supervisor.launcher"]
    place = ["--socket", str(launcher.state / "other.sock"), "--state", str(launcher.state)]

    second = subprocess.run([*command, *place], capture_output=True, text=True, check=False)

    announced = json.loads((launcher.state / "launcher.json").read_text())
    assert second.returncode != 0
    assert str(launcher.process.pid) in second.stderr
    assert announced["pid"] == launcher.process.pid
    assert launcher.run(launcher.task(1, ["true"]))["exit_code"] == 0


def test_stop_waits_for_the_jobs(launcher: Launcher) -> None:
    fifo = launcher.out / "gate"
    os.mkfifo(fifo)
    launcher.launch(launcher.task(1, [BASH, "-c", f"echo up; read < {fifo}; exit 5"]))
    launcher.wait_for_output(1, "up")

    launcher.ask({"stop": True})
    fifo.write_text("go\n")
    record = launcher.exit(1)
    launcher.process.wait(PATIENCE_S)

    assert record["exit_code"] == 5
    assert not (launcher.state / "launcher.sock").exists()


def test_supervisor_sleeps_while_the_job_runs(launcher: Launcher) -> None:
    pid = launcher.launch(launcher.task(1, ["sleep", "1000"], walltime_s=10_000))
    job_pid = launcher.started(1)["job_pid"]
    wait_until(lambda: "sleep" in pathlib.Path(f"/proc/{job_pid}/comm").read_text(), "the exec")

    def switches(of: int) -> list[str]:
        lines = pathlib.Path(f"/proc/{of}/status").read_text().splitlines()
        return [line for line in lines if "voluntary_ctxt" in line]

    def settled() -> bool:
        before = switches(pid)
        time.sleep(0.5)
        return before == switches(pid)

    wait_until(settled, "half a second in which the supervisor is not woken once")
    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0})
    launcher.exit(1)
    assert not process_is_there(job_pid)


def test_a_reused_supervisor_carries_nothing_over(launcher: Launcher) -> None:
    """The umask, directory, alarm and orders of one attempt do not reach the next one."""
    first = launcher.task(1, [BASH, "-c", "exit 3"], umask=0, cwd="/usr", walltime_s=0.5)
    pid = launcher.launch(first)
    launcher.exit(1)
    os.kill(pid, signal.SIGUSR1)
    seen: list[dict[str, Any]] = []
    for job in range(2, 40):
        again = launcher.launch(launcher.task(job, [BASH, "-c", "umask; sleep 0.02"], umask=0o027))
        seen.append(launcher.exit(job) | {"pid": again})

    assert {one["pid"] for one in seen} == {pid}
    assert {one["exit_code"] for one in seen} == {0}
    assert {launcher.output(job) for job in range(2, 40)} == {"0027\n"}
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert "Umask:\t0077" in pathlib.Path(f"/proc/{pid}/status").read_text()
    assert len(os.listdir(f"/proc/{pid}/fd")) == 4


def test_the_exit_report_equals_the_journal(launcher: Launcher) -> None:
    """So gnode does not read the journal of a short job; of one that was not started it does."""
    argv = [BASH, "-c", ":"]
    tasks = [launcher.task(1, argv), launcher.task(2, argv, nice=1)]
    for task in (*tasks, launcher.task(3, ["/nowhere/program"])):
        launcher.launch(task)
        told = launcher.hear("ended", f"{task['job']}.1")
        directory = launcher.directory(task["job"])
        assert told["record"] == records.ended(directory)
        assert told.get("info") == records.started(directory)
        # What is forked is recorded before it becomes the program.
        assert ("info" in told) == (task["job"] < 3 or launcher.has_groups)
