"""The terminal of an interactive program: a real shell behind a real keeper, no gnode."""

import contextlib
import os
import pathlib
import secrets
import signal
import time
from collections.abc import Iterator

import pytest

from gnode.supervisor.shells import SHELLS_MAX
from gsched import terminal as t
from gsched.terminal import FrameKind, TerminalSize
from tests.support.keeper import Attached
from tests.support.launching import Launcher, process_is_there, wait_until

SHELL = ["/bin/sh"]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("keeper") / "state")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while Attached.opened:
        Attached.opened.pop().close()


@pytest.fixture
def job(request: pytest.FixtureRequest) -> int:
    """Return a number for each test."""
    return 1 + request.session.items.index(request.node)


def start(launcher: Launcher, job: int, argv: list[str] = SHELL, **changes: object) -> Attached:
    changes = {"detach_timeout_s": 0.0, "stdout_path": "/dev/null", "join": "oe"} | changes
    task = launcher.task(job, argv, **changes)
    task["env"] |= {"PS1": "$ ", "MARK": "of-the-job", "TERM": "dumb"}
    launcher.launch(task)
    launcher.started(job)
    return Attached(launcher.directory(job))


def test_a_shell_on_a_terminal_and_its_exit_code(launcher: Launcher, job: int) -> None:
    user = start(launcher, job)
    user.type("tty; echo $MARK; stty size\n")
    user.until("/dev/pts/")
    user.until("of-the-job")
    user.until("24 80")
    user.resize(50, 132)
    user.type("stty size\n")
    user.until("50 132")
    user.type("exit 3\n")

    assert user.ended() == 3
    assert launcher.exit(job)["exit_code"] == 3


def test_the_keeper_has_nothing_of_the_supervisor(launcher: Launcher, job: int) -> None:
    """Neither lock, nor journal, nor the way to the launcher: it runs as the job's owner."""
    user = start(launcher, job)
    user.until("$ ")
    keeper = launcher.started(job)["job_pid"]
    fds = pathlib.Path(f"/proc/{keeper}/fd")
    names = {os.readlink(fd) for fd in fds.iterdir()}

    assert not [name for name in names if "attempts" in name or "launcher" in name], names
    user.type("exec 2>/dev/null; ls /proc/self/fd | tr '\\n' ' '; echo end\n")
    user.until("0 1 2 3 end")  # 3: that of ls itself
    user.type("exit\n")
    launcher.exit(job)


def test_a_killed_program_ends_the_job_by_its_signal(launcher: Launcher, job: int) -> None:
    user = start(launcher, job)
    user.type("kill -9 $$\n")

    assert user.ended() == -9
    assert launcher.exit(job)["signal"] == 9


def test_why_a_program_cannot_start_is_said_on_its_terminal(launcher: Launcher, job: int) -> None:
    user = start(launcher, job, ["/no/such/shell"])

    assert user.ended() == 127
    assert b"cannot run /no/such/shell" in user.seen
    assert launcher.exit(job)["exit_code"] == 127


def test_a_program_starts_also_if_nobody_comes(launcher: Launcher, job: int) -> None:
    launcher.launch(launcher.task(job, ["/bin/sh", "-c", "exit 9"], detach_timeout_s=0.0))

    assert launcher.exit(job)["exit_code"] == 9


def test_a_stop_before_the_program_has_started(launcher: Launcher, job: int) -> None:
    launcher.launch(launcher.task(job, ["/bin/sh"], detach_timeout_s=0.0, grace_s=30.0))
    launcher.started(job)
    launcher._order(f"{job}.1", {"do": "stop", "reason": "delete", "grace_s": 30})

    assert launcher.exit(job)["signal"] == signal.SIGHUP


def test_who_attaches_again_sees_the_last_output_and_goes_on(launcher: Launcher, job: int) -> None:
    user = start(launcher, job)
    go, written = launcher.out / f"go{job}", launcher.out / f"second{job}"
    waits = f"until [ -e {go} ]; do sleep 0.1; done"
    user.type(f"echo fir''st; {waits}; echo sec''ond; touch {written}; read x; echo got $x\n")
    user.until("first")
    seen = user.begin + len(user.seen)
    user.close()
    go.touch()
    wait_until(written.exists, "what is written while nobody is attached")
    again = Attached(launcher.directory(job), offset=seen)
    again.until("second")

    assert "first" not in again.seen.decode()
    assert again.begin == seen
    other = Attached(launcher.directory(job))
    assert "second" in other.until("first")
    again.closed()
    assert again.taken
    other.type("line\nexit\n")
    other.until("got line")
    assert other.ended() == 0
    launcher.exit(job)


def test_output_while_nobody_is_attached_is_bounded_and_blocks_nothing(
    launcher: Launcher, job: int
) -> None:
    user = start(launcher, job)
    written = launcher.out / f"written{job}"
    user.type(f"seq 1 400000; touch {written}; echo do''ne; read x\n")
    user.close()
    wait_until(written.exists, "seq to end")
    again = Attached(launcher.directory(job))
    again.until("done")

    assert again.begin > 1_000_000
    assert len(again.seen) <= t.HISTORY_BYTES + 1000
    assert again.seen.split(b"\r\n")[0].isdigit()  # a whole line
    again.type("x\nexit\n")
    again.ended()
    launcher.exit(job)


def test_who_does_not_read_makes_the_program_wait(launcher: Launcher, job: int) -> None:
    user = start(launcher, job)
    user.type("yes | head -c 1000000; touch written\n")
    keeper = launcher.started(job)["job_pid"]
    before = launcher.started(job)
    wait_until(lambda: [each for child in children(keeper) for each in children(int(child))], "yes")
    time.sleep(1.0)

    assert memory_bytes(keeper) < 100 << 20
    assert before["job_pid"] == keeper
    assert children(int(children(keeper)[0])), "yes and head wait"
    user._read(lambda: len(user.seen) > 1_000_000, "all of it")
    user.type("exit\n")
    user.ended()
    launcher.exit(job)


def children(pid: int) -> list[str]:
    """Return the children of a process."""
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def test_what_is_typed_faster_than_it_is_read_is_bounded(launcher: Launcher, job: int) -> None:
    user = start(launcher, job, ["/bin/sh", "-c", "stty raw -echo; sleep 2; exec head -c 900000"])
    user.channel.settimeout(0.5)
    keeper = launcher.started(job)["job_pid"]
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 2_000_000:
            sent += user.channel.send(t.frame(FrameKind.DATA, b"x" * 10_000))

    assert sent < 2_000_000
    assert memory_bytes(keeper) < 100 << 20
    user.close()
    launcher._order(f"{job}.1", {"do": "stop", "reason": "delete", "grace_s": 0})
    launcher.exit(job)


def test_a_session_that_nobody_uses_is_hung_up(launcher: Launcher, job: int) -> None:
    user = start(launcher, job, detach_timeout_s=3.0)
    user.type("echo here\n")
    user.until("here")
    time.sleep(3.5)  # attached, so the time does not run
    user.type("echo st''ill\n")
    user.until("still")
    user.close()

    record = launcher.exit(job)
    assert record["signal"] == signal.SIGHUP


def test_a_user_who_comes_late_finds_the_session(launcher: Launcher, job: int) -> None:
    task = launcher.task(job, SHELL, detach_timeout_s=0.5, stdout_path="/dev/null", join="oe")
    launcher.launch(task)
    launcher.started(job)
    time.sleep(1.5)
    user = Attached(launcher.directory(job))
    user.type("echo here\n")
    user.until("here")
    user.close()

    assert launcher.exit(job)["signal"] == signal.SIGHUP


def test_a_stop_hangs_the_shell_up_and_says_so(launcher: Launcher, job: int) -> None:
    """An interactive shell ignores TERM: it must not take until KILL."""
    user = start(launcher, job, ["/bin/bash", "--norc", "-i"], grace_s=600.0)
    user.type("echo re''ady\n")
    user.until("ready")
    launcher._order(f"{job}.1", {"do": "stop", "reason": "delete", "grace_s": 600})
    record = launcher.exit(job)

    assert (record["stop_reason"], record["signal"]) == ("delete", signal.SIGHUP)
    user.ended()
    assert user.notes == ["the job is being stopped"]


# --- further shells ---


def shell_order(session: str, *argv: str, linger_s: float = 5.0) -> dict[str, object]:
    return {
        "do": "shell",
        "session": session,
        "argv": list(argv or SHELL),
        "env": {"PS1": "% ", "TERM": "dumb"},
        "linger_s": linger_s,
    }


def sockets(launcher: Launcher, job: int) -> set[str]:
    """Return the sockets of terminals in an attempt's directory."""
    return {each.name for each in launcher.directory(job).iterdir() if "tty" in each.name}


def test_shells_leave_nothing_in_the_spool(launcher: Launcher, job: int) -> None:
    """Those that have run, those beyond the limit, and those that cannot even be refused."""
    launcher.launch(launcher.task(job, ["/bin/sh", "-c", "sleep 60"]))
    launcher.started(job)
    users = []
    for _ in range(2 * SHELLS_MAX + 4):
        session = secrets.token_hex(16)
        launcher._order(f"{job}.1", shell_order(session, "/bin/cat", linger_s=3.0))
        users.append(session)
    wait_until(
        lambda: len(sockets(launcher, job)) == 2 * SHELLS_MAX, "the shells that the limit allows"
    )
    attached = [Attached(launcher.directory(job), each) for each in users[: 2 * SHELLS_MAX]]
    for user in attached:
        user.close()

    wait_until(lambda: not sockets(launcher, job), "the end of the shells")


def test_a_shell_beside_a_batch_job_ends_with_it(launcher: Launcher, job: int) -> None:
    task = launcher.task(job, ["/bin/sh", "-c", "sleep 60"], cwd=str(launcher.out))
    task["env"]["MARK"] = "of-the-job"
    launcher.launch(task)
    launcher.started(job)
    session = secrets.token_hex(16)
    launcher._order(f"{job}.1", shell_order(session))
    user = Attached(launcher.directory(job), session, window=TerminalSize(30, 90))
    user.type("pwd; echo $MARK; stty size; echo $$\n")
    user.until(str(launcher.out))
    user.until("of-the-job")
    user.until("30 90")
    launcher._order(f"{job}.1", {"do": "stop", "reason": "delete", "grace_s": 5})

    launcher.exit(job)
    user.ended()
    assert not process_is_there(launcher.started(job)["job_pid"])


def test_the_exit_code_of_a_shell_is_its_own(launcher: Launcher, job: int) -> None:
    launcher.launch(launcher.task(job, ["/bin/sh", "-c", "sleep 60"]))
    launcher.started(job)
    session = secrets.token_hex(16)
    launcher._order(f"{job}.1", shell_order(session, "/bin/sh", "-c", "exit 4"))

    assert Attached(launcher.directory(job), session).ended() == 4
    other = secrets.token_hex(16)
    launcher._order(f"{job}.1", shell_order(other, "/no/such/program"))
    user = Attached(launcher.directory(job), other)
    assert user.ended() == 127
    assert b"/no/such/program" in user.seen
    assert process_is_there(launcher.started(job)["job_pid"])


def test_a_shell_whose_user_is_gone_ends(launcher: Launcher, job: int) -> None:
    launcher.launch(launcher.task(job, ["/bin/sh", "-c", "sleep 60"]))
    launcher.started(job)
    session = secrets.token_hex(16)
    launcher._order(f"{job}.1", shell_order(session, "/bin/cat", linger_s=0.5))
    user = Attached(launcher.directory(job), session)
    supervisor = launcher.started(job)["pid"]
    wait_until(lambda: len(children(supervisor)) == 2, "the shell")
    user.close()

    wait_until(lambda: len(children(supervisor)) == 1, "the end of the shell")


def test_orders_that_make_no_sense_start_no_shell(launcher: Launcher, job: int) -> None:
    launcher.launch(launcher.task(job, ["/bin/sh", "-c", "sleep 60"]))
    launcher.started(job)
    odds: list[dict[str, object]] = [
        {"session": "../x"},
        {"argv": [7]},
        {"env": []},
        {"linger_s": "1"},
    ]
    for odd in odds:
        launcher._order(f"{job}.1", shell_order(secrets.token_hex(16)) | odd)
    session = secrets.token_hex(16)
    launcher._order(f"{job}.1", shell_order(session, "/bin/true"))

    assert Attached(launcher.directory(job), session).ended() == 0
    wait_until(lambda: not sockets(launcher, job), "the end of the shell")


def test_a_session_of_another_user_s_process_is_refused(launcher: Launcher, job: int) -> None:
    """T8: The socket lies where only gnode reaches it, and the keeper looks who connects."""
    user = start(launcher, job)
    socket = launcher.directory(job) / "tty"

    assert (launcher.directory(job).stat().st_mode & 0o077) == 0
    assert (socket.stat().st_mode & 0o077) == 0
    user.type("exit\n")
    launcher.exit(job)
