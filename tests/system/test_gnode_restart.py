"""What gnode keeps when it, its launcher or a supervisor is killed (table C of the fault list)."""

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gnode.hw import cgroups
from gnode.supervisor import kernel
from gsched.model.states import LaunchStage, OutcomeKind, PartState, StopReason
from gsched.protocol.node import ExitAck, Exited, Register
from tests.support import records
from tests.support.gnode_world import GnodeWorld, lives, wait_until_gone
from tests.support.processes import PATIENCE_S, attempts


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    yield made
    print(made.log())
    made.stop()


def counted(world: GnodeWorld, job: int) -> str:
    """Return a line for a script that notes its start, with a file to be counted."""
    return f"echo start >> {world.work}/starts.{job}"


def starts(world: GnodeWorld, job: int) -> int:
    path = world.work / f"starts.{job}"
    return path.read_text().count("start") if path.exists() else 0


def go_file(world: GnodeWorld, job: int) -> Path:
    """Return the file for which the script of `until_told` waits."""
    return world.work / f"go.{job}"


def until_told(world: GnodeWorld, job: int, code: int = 0) -> str:
    return (
        f"{counted(world, job)}\nwhile ! test -e {go_file(world, job)}; do sleep 0.05; done\n"
        f"exit {code}"
    )


def test_c1_killed_on_receiving_a_launch_starts_it_once_when_told_again(world: GnodeWorld) -> None:
    world.start({"GSCHED_FAIL": "node.launch.received:kill"})
    world.launch(1, counted(world, 1))
    assert world.wait_for_death() == -signal.SIGKILL
    assert not list((world.state / "attempts").iterdir())

    world.start()
    world.launch(1, counted(world, 1))

    assert world.head.wait_for_exit(1).record.exit_code == 0
    assert starts(world, 1) == 1


def test_c2_killed_after_accepting_starts_it_once_after_the_restart(world: GnodeWorld) -> None:
    world.start({"GSCHED_FAIL": "node.launch.after_accepted:kill"})
    world.launch(1, counted(world, 1))
    assert world.wait_for_death() == -signal.SIGKILL
    assert (world.state / "attempts" / "1.1" / "task.json").exists()

    world.start()
    world.launch(1, counted(world, 1))  # the head does not know, so it says it again

    assert world.head.wait_for_exit(1).record.exit_code == 0
    assert starts(world, 1) == 1


def test_c3_killed_after_the_spawn_adopts_the_job_and_reports_it(world: GnodeWorld) -> None:
    world.start({"GSCHED_FAIL": "node.launch.after_spawn:kill"})
    world.launch(1, until_told(world, 1, 7))
    assert world.wait_for_death() == -signal.SIGKILL
    before = world.supervisor(1)

    world.start()

    assert world.head.wait_for_start(1).pid == before.job_pid
    go_file(world, 1).touch()
    assert world.head.wait_for_exit(1).record.exit_code == 7
    assert starts(world, 1) == 1


def test_c4_a_restart_leaves_a_running_job_alone_and_hears_of_its_end(world: GnodeWorld) -> None:
    world.gpus = 1
    world.start()
    world.launch(1, until_told(world, 1, 3), gpus=(0,))
    pid = world.head.wait_for_start(1).pid
    world.kill()

    world.start()

    (report,) = world.head.wait_for(Register, count=2)[-1].attempts
    assert (report.job, report.state, report.pid) == (1, PartState.RUNNING, pid)
    world.launch(2, "true", gpus=(0,))
    refused = world.head.wait_for_exit(2).record  # GPU 0 still has its owner
    assert refused.kind is OutcomeKind.LAUNCH_FAILED
    assert "still belongs to attempt 1.1" in refused.message
    assert refused.failure is not None
    assert refused.failure.stage is LaunchStage.ORDER
    go_file(world, 1).touch()
    assert world.head.wait_for_exit(1).record.exit_code == 3
    assert starts(world, 1) == 1


def test_c4_a_job_that_ended_while_gnode_was_away_is_reported(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, until_told(world, 1, 4))
    world.head.wait_for_start(1)
    world.kill()
    go_file(world, 1).touch()
    directory = world.state / "attempts" / "1.1"
    assert any(records.ended(directory) for _ in attempts())

    world.start()

    (report,) = world.head.wait_for(Register, count=2)[-1].attempts
    assert report.state is PartState.ENDED
    assert report.exit is not None
    assert report.exit.exit_code == 4
    assert world.head.wait_for_exit(1).record.exit_code == 4


def test_c5_no_outcome_is_lost_while_gnode_is_killed_again_and_again(world: GnodeWorld) -> None:
    jobs = range(1, 31)
    world.start()
    for job in jobs:
        world.launch(job, f"{counted(world, job)}\nsleep 0.{job:02d}\nexit {job}")
    for _ in range(6):
        world.kill()
        world.start()
    for job in jobs:
        if not any(
            isinstance(message, Register) and any(report.job == job for report in message.attempts)
            for message in world.head.received
        ):
            world.launch(job, f"{counted(world, job)}\nexit {job}")  # as the head would: unknown

    codes = {job: world.head.wait_for_exit(job).record.exit_code for job in jobs}
    assert codes == {job: job for job in jobs}
    assert all(starts(world, job) == 1 for job in jobs)


def test_c7_the_exit_code_survives_a_killed_supervisor(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, until_told(world, 1, 42))
    world.head.wait_for_start(1)
    os.kill(world.supervisor(1).pid, signal.SIGKILL)
    go_file(world, 1).touch()

    assert world.head.wait_for_exit(1).record.exit_code == 42


def test_c8_on_an_old_kernel_all_three_killed_together_leaves_no_process(
    world: GnodeWorld,
) -> None:
    world.start({"GSCHED_TEST_OLD_KERNEL": "1"})
    world.launch(1, until_told(world, 1))
    pid = world.head.wait_for_start(1).pid
    launcher = msgspec.json.decode((world.state / "launcher.json").read_bytes())["pid"]
    world.kill()
    os.kill(launcher, signal.SIGKILL)
    os.kill(world.supervisor(1).pid, signal.SIGKILL)
    assert lives(pid)

    world.start({"GSCHED_TEST_OLD_KERNEL": "1"})

    record = world.head.wait_for_exit(1).record
    assert record.kind is OutcomeKind.SUPERVISOR_LOST
    assert not lives(pid)


VICTIMS = ("gnode", "launcher", "supervisor")
ORDERS = [order for size in (1, 2, 3) for order in itertools.permutations(VICTIMS, size)]


def launcher_pid(world: GnodeWorld) -> int:
    """Return the launcher's process, the one announced last."""
    return int(msgspec.json.decode((world.state / "launcher.json").read_bytes())["pid"])


def kill_and_wait(world: GnodeWorld, victim: str, job: int, *, patient: bool) -> None:
    """Kill one of the three; with ``patient`` return once what replaces it is there."""
    if victim == "gnode":
        world.kill()
        return
    pid = launcher_pid(world) if victim == "launcher" else world.supervisor(job).pid
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    if patient and victim == "launcher" and world.process.poll() is None:
        for _ in attempts():
            if lives(launcher_pid(world)):
                return


@pytest.mark.skipif(not kernel.tells_exit_status(), reason="needs Linux 6.15 or later")
@pytest.mark.parametrize("patient", [True, False], ids=["one by one", "at once"])
@pytest.mark.parametrize("cgroup", ["auto", "none"])
def test_sweep_any_of_the_three_killed_in_any_order_loses_no_outcome(
    world: GnodeWorld, cgroup: str, *, patient: bool
) -> None:
    world.settings["cgroup"] = cgroup
    world.start()
    for job, order in enumerate(ORDERS, 1):
        world.launch(job, until_told(world, job, job))
        pid = world.head.wait_for_start(job).pid
        for victim in order:
            kill_and_wait(world, victim, job, patient=patient)
        if world.process.poll() is not None:
            world.start()
        world.launch(100 + job, "true")  # once it has run, the launcher has seen what it lacks
        world.head.wait_for_exit(100 + job)
        assert lives(pid), f"{order}: {world.log()}"
        go_file(world, job).touch()

        record = world.head.wait_for_exit(job).record

        assert record.exit_code == job, f"{order}: {record} {world.log()}"
        assert starts(world, job) == 1, order


def test_a_killed_launcher_is_replaced_and_nothing_is_lost(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, until_told(world, 1, 5))
    world.head.wait_for_start(1)
    launcher = msgspec.json.decode((world.state / "launcher.json").read_bytes())["pid"]

    os.kill(launcher, signal.SIGKILL)
    world.launch(2, "exit 6")

    assert world.head.wait_for_exit(2).record.exit_code == 6
    go_file(world, 1).touch()
    assert world.head.wait_for_exit(1).record.exit_code == 5


def test_c11_an_unreadable_attempt_is_set_aside(world: GnodeWorld) -> None:
    broken = world.state / "attempts" / "9.1"
    broken.mkdir(parents=True)
    (broken / "task.json").write_bytes(b'{"job": 9, "att')
    (world.state / "attempts" / "what?").mkdir()

    world.start()

    assert world.head.wait_for(Register)[-1].attempts == ()
    aside = sorted(path.name for path in (world.state / "lost+found").iterdir())
    assert aside == ["9.1", "what?"]


def test_c12_another_boot_id_proves_that_what_ran_is_dead(world: GnodeWorld) -> None:
    world.start({"GSCHED_TEST_BOOT_ID": "first"})
    world.launch(1, until_told(world, 1))
    world.head.wait_for_start(1)
    world.kill()
    launcher = msgspec.json.decode((world.state / "launcher.json").read_bytes())["pid"]
    info = world.supervisor(1)
    for pid in (launcher, info.pid, info.job_pid):  # the power goes
        os.kill(pid, signal.SIGKILL)

    world.start({"GSCHED_TEST_BOOT_ID": "second"})

    record = world.head.wait_for_exit(1).record
    assert record.kind is OutcomeKind.NODE_LOST
    assert world.head.wait_for(Register, count=2)[-1].boot_id == "second"


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="control groups need root here")
def test_c14_processes_of_a_wiped_spool_are_killed(world: GnodeWorld) -> None:
    roots = cgroups.find_roots("auto", str(world.state))
    if roots.tracking is None:
        pytest.skip("no control groups of version 2 here")
    world.start()
    world.launch(1, until_told(world, 1))
    pid = world.head.wait_for_start(1).pid
    world.kill()
    shutil.rmtree(world.state / "attempts" / "1.1")

    world.start()

    wait_until_gone(pid)
    assert world.head.wait_for(Register, count=2)[-1].attempts == ()


def test_c19_a_second_gnode_on_the_same_state_refuses_and_names_the_first(
    world: GnodeWorld,
) -> None:
    world.start()

    second = world.spawn()

    assert second.wait(PATIENCE_S) == 75
    assert f"a gnode already runs on {world.state}: process {world.process.pid}" in world.log()
    assert (world.state / "gnode.pid").read_text() == f"{world.process.pid}\n"


def test_an_exit_is_repeated_at_each_reconnection_until_it_is_acknowledged(
    world: GnodeWorld,
) -> None:
    world.start()
    world.launch(1, "exit 3")
    world.head.wait_for_exit(1)
    world.head.disconnect()
    world.head.wait_for_exit(1, count=2)
    world.kill()
    world.start()
    world.head.wait_for_exit(1, count=3)

    world.head.send(ExitAck(job=1, attempt=1))
    world.launch(2, "true")  # once this is answered, the acknowledgement has been heard
    world.head.wait_for_exit(2)
    world.head.disconnect()
    world.head.wait_for_exit(2, count=2)

    exits = [m for m in world.head.received if isinstance(m, Exited) and m.record.job == 1]
    assert len(exits) == 3


def test_term_leaves_running_jobs_to_their_supervisors(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, until_told(world, 1, 9))
    pid = world.head.wait_for_start(1).pid

    assert world.terminate() == 0
    assert lives(pid)
    assert not (world.state / "gnode.pid").exists()

    world.start()
    go_file(world, 1).touch()
    assert world.head.wait_for_exit(1).record.exit_code == 9


def test_term_of_an_idle_node_leaves_no_process(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, "true")
    world.head.wait_for_exit(1)
    launcher = msgspec.json.decode((world.state / "launcher.json").read_bytes())["pid"]

    assert world.terminate() == 0

    wait_until_gone(launcher)


def test_usr2_ends_all_jobs_and_then_gnode(world: GnodeWorld) -> None:
    world.head.acknowledge = True
    world.start()
    world.launch(1, "sleep 600")
    pid = world.head.wait_for_start(1).pid

    world.process.send_signal(signal.SIGUSR2)

    assert world.wait_for_death() == 0
    assert not lives(pid)
    assert world.head.wait_for_exit(1).record.stop_reason is StopReason.NODE_STOP


@pytest.mark.parametrize("state", ["stopping", "running"])
def test_term_stops_jobs_where_the_machine_shuts_down(world: GnodeWorld, state: str) -> None:
    """What systemd answers decides; scripts/package-test shows it under a real one."""
    programs = world.directory / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(f"#!/bin/sh\necho {state}\n")
    (programs / "systemctl").chmod(0o755)
    world.head.acknowledge = True
    world.start({"PATH": f"{programs}:{os.environ['PATH']}"})
    world.launch(1, "trap 'sleep 0.2; exit 0' TERM; sleep 600 & wait")
    pid = world.head.wait_for_start(1).pid

    assert world.terminate() == 0

    assert lives(pid) == (state == "running")
    if state == "stopping":
        record = world.head.wait_for_exit(1).record
        assert (record.kind, record.stop_reason) == (OutcomeKind.NODE_LOST, None)
        assert record.message == "the node was shut down"


@pytest.mark.parametrize(
    "point", ["node.launch.after_report", "node.exit.before_report", "node.exit.after_report"]
)
def test_sweep_a_kill_at_a_report_loses_nothing(world: GnodeWorld, point: str) -> None:
    world.start({"GSCHED_FAIL": f"{point}:kill"})
    world.launch(1, f"{counted(world, 1)}\nexit 5")
    if point == "node.launch.after_report":
        world.wait_for_death()
    else:
        assert world.wait_for_death() == -signal.SIGKILL

    world.start()

    assert world.head.wait_for_exit(1).record.exit_code == 5
    assert starts(world, 1) == 1


def test_sweep_a_kill_after_the_acknowledgement_forgets_nothing_that_matters(
    world: GnodeWorld,
) -> None:
    world.head.acknowledge = True
    world.start({"GSCHED_FAIL": "node.exit.after_ack:kill"})
    world.launch(1, "exit 5")
    assert world.wait_for_death() == -signal.SIGKILL

    world.start()

    # The acknowledgement was in memory only: the exit comes again and is acknowledged again.
    assert world.head.wait_for_exit(1, count=2).record.exit_code == 5
    for _ in attempts(1.0):
        assert world.process.poll() is None
