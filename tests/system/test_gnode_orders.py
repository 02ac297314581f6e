"""What gnode does with the head's orders, with real processes (fault tables D and E)."""

import json
import os
import pwd
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.config.tls import TlsConfig
from gsched.model.job import Owner
from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import Share
from gsched.model.states import Join, LaunchKind, OutcomeKind, StopReason, Subject
from gsched.pki.files import files_of
from gsched.protocol.node import (
    ExitAck,
    Exited,
    HeadMessage,
    Heartbeat,
    Hello,
    OutputRead,
    Prepare,
    ReadOutput,
    Register,
    Retime,
    Signal,
    Started,
    StopAttempt,
    UnknownAttempt,
    Welcome,
    encode,
)
from gsched.protocol.unreadable import Unreadable
from tests.support.cluster import wait_until
from tests.support.fake_head import launch_order
from tests.support.gnode_world import GnodeWorld, lives, wait_until_gone


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    yield made
    print(made.log())
    made.stop()


def settle(world: GnodeWorld, job: int = 900) -> None:
    """Return once everything sent before was heard: an order after it has been answered."""
    world.launch(job, "true")
    world.head.wait_for_exit(job)


def messages_about(world: GnodeWorld, job: int) -> list[object]:
    return [
        message
        for message in world.head.received
        if (isinstance(message, Started) and message.job == job)
        or (isinstance(message, Exited) and message.record.job == job)
    ]


def output(world: GnodeWorld, job: int) -> str:
    return (world.work / f"job{job}.o{job}").read_text()


# --- launching ---


def test_e8_a_repeated_launch_runs_once_and_is_answered_with_the_state(world: GnodeWorld) -> None:
    world.start()
    script = f"echo start >> {world.work}/starts; sleep 600"
    world.launch(1, script)
    pid = world.head.wait_for_start(1).pid

    world.launch(1, script)
    world.launch(1, script)

    assert world.head.wait_for_start(1, count=3).pid == pid
    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=5))
    world.head.wait_for_exit(1)
    world.launch(1, script)
    world.head.wait_for_exit(1, count=2)
    assert (world.work / "starts").read_text() == "start\n"


def test_e9_a_stop_before_the_launch_makes_the_launch_refused(world: GnodeWorld) -> None:
    world.start()
    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=5))
    world.head.wait_for_exit(1)

    world.launch(1, f"touch {world.work}/ran")

    record = world.head.wait_for_exit(1, count=2).record
    assert (record.kind, record.stop_reason) == (OutcomeKind.CANCELLED, StopReason.DELETE)
    settle(world)
    assert not (world.work / "ran").exists()


def test_e10_a_launch_of_a_lower_attempt_is_dropped(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, "true", attempt=3)
    world.head.wait_for_exit(1, 3)

    world.launch(1, f"touch {world.work}/ran", attempt=2)

    settle(world)
    assert not (world.work / "ran").exists()
    assert [m for m in messages_about(world, 1) if getattr(m, "attempt", 3) != 3] == []


def test_a_newer_attempt_waits_until_the_older_one_is_dead(world: GnodeWorld) -> None:
    world.start()
    both = f"test -e {world.work}/alive && touch {world.work}/overlap"
    world.launch(1, f"touch {world.work}/alive; trap '' TERM; while :; do sleep 1; done")
    pid = world.head.wait_for_start(1).pid

    world.launch(1, f"kill -0 {pid} && touch {world.work}/overlap; {both}; exit 2", attempt=2)

    assert world.head.wait_for_exit(1, 1).record.stop_reason is StopReason.FENCED
    world.head.wait_for_exit(1, 2)
    first = next(m for m in world.head.received if isinstance(m, Exited))
    assert first.record.attempt == 1
    assert not lives(pid)


def test_a_launch_for_a_gpu_that_is_not_there_is_refused(world: GnodeWorld) -> None:
    world.gpus = 2
    world.start()

    world.launch(1, "true", gpus=(2,))

    record = world.head.wait_for_exit(1).record
    assert record.kind is OutcomeKind.LAUNCH_FAILED
    assert record.message == "node n1 has no GPU 2"
    assert record.failure is not None
    assert record.failure.subject is Subject.NODE


def test_d21_a_user_with_another_uid_here_is_refused(world: GnodeWorld) -> None:
    world.start()
    world.owner = Owner(user=world.owner.user, uid=world.owner.uid + 17, gid=world.owner.gid)

    world.launch(1, "true")

    record = world.head.wait_for_exit(1).record
    assert record.kind is OutcomeKind.LAUNCH_FAILED
    assert "make them equal" in record.message


def test_a_user_whom_the_node_does_not_know_is_refused(world: GnodeWorld) -> None:
    world.start()
    world.owner = Owner(user="no-such-user-here", uid=54321, gid=54321)

    world.launch(1, "true")

    assert "knows no user no-such-user-here" in world.head.wait_for_exit(1).record.message


def test_the_job_sees_its_environment_and_files(world: GnodeWorld) -> None:
    world.gpus = 4
    world.start()
    world.launch(
        7,
        'env; echo "nodes: $(tr "\\n" " " < "$PBS_NODEFILE")"; '
        'echo "gpus: $(cat "$PBS_GPUFILE")"; '
        'echo "dir: $PWD"; umask',
        share=Share(node="n1", cpus=2, gpu_indices=(1, 3)),
        gpus=(1, 3),
        umask=0o027,
        environment={"PATH": "/usr/bin:/bin", "MINE": "kept", "PBS_JOBID": "666.evil"},
        stdout_path=str(world.work) + "/",
    )
    assert world.head.wait_for_exit(7).record.exit_code == 0

    text = output(world, 7)
    for line in (
        "PBS_JOBID=7.head",
        "PBS_ENVIRONMENT=PBS_BATCH",
        "CUDA_VISIBLE_DEVICES=1,3",
        "GSCHED_ATTEMPT=1",
        "MINE=kept",
        f"HOME={pwd.getpwuid(os.getuid()).pw_dir}",
        "nodes: n1 n1 ",
        "gpus: n1-gpu1",
        "n1-gpu3",
        f"dir: {world.work}",
    ):
        assert line in text.splitlines()
    assert text.splitlines()[-1] in {"027", "0027"}


def test_a_command_and_joined_output(world: GnodeWorld) -> None:
    world.start()
    world.launch(
        1,
        "",
        launch=LaunchKind.COMMAND,
        arguments=("sh", "-c", "echo out; echo err >&2; exit 4"),
        join=Join.INTO_OUT,
        stdout_path=str(world.work / "both.$PBS_JOBID"),
    )

    assert world.head.wait_for_exit(1).record.exit_code == 4
    assert (world.work / "both.1.head").read_text() == "out\nerr\n"


def test_a_script_without_a_first_line_runs_under_the_login_shell(world: GnodeWorld) -> None:
    world.start()
    world.head.send(
        launch_order(1, world.owner, world.work, script="echo plain $1\n", arguments=("word",))
    )

    assert world.head.wait_for_exit(1).record.exit_code == 0
    assert output(world, 1) == "plain word\n"


# --- stopping and commanding ---


def test_d3_d4_a_stop_kills_all_that_the_job_started(world: GnodeWorld) -> None:
    world.start()
    world.launch(
        1,
        f"trap '' TERM; setsid sleep 600 & echo $! > {world.work}/child; while :; do sleep 1; done",
    )
    pid = world.head.wait_for_start(1).pid
    child = world.work / "child"
    world.head.wait_for(Started)
    while not (child.exists() and child.read_text().strip()):
        settle(world, 901)

    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=0.5))

    record = world.head.wait_for_exit(1).record
    assert record.stop_reason is StopReason.DELETE
    assert not lives(pid)
    assert not lives(int(child.read_text()))


def test_a_stop_right_behind_the_launch_ends_the_job(world: GnodeWorld) -> None:
    world.start()
    for job in range(1, 21):
        world.launch(job, "sleep 600")
        world.head.send(StopAttempt(job=job, attempt=1, reason=StopReason.DELETE, grace_s=1))

    for job in range(1, 21):
        assert world.head.wait_for_exit(job).record.stop_reason is StopReason.DELETE


def test_a_signal_reaches_the_job(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, f"trap 'exit 12' USR2; touch {world.work}/ready; while :; do sleep 0.05; done")
    world.head.wait_for_start(1)
    while not (world.work / "ready").exists():
        settle(world, 901)

    world.head.send(Signal(job=1, attempt=1, signal=signal.SIGUSR2))

    assert world.head.wait_for_exit(1).record.exit_code == 12


def test_a_walltime_can_be_shortened_while_the_job_runs(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, "sleep 600", walltime_s=600.0)
    world.head.wait_for_start(1)

    world.head.send(Retime(job=1, attempt=1, walltime_s=0.1))

    assert world.head.wait_for_exit(1).record.stop_reason is StopReason.WALLTIME


def test_orders_about_unknown_attempts_are_answered_so(world: GnodeWorld) -> None:
    world.start()

    world.head.send(
        Signal(job=5, attempt=1, signal=10),
        Retime(job=6, attempt=2, walltime_s=None),
        ReadOutput(request=44, job=7, attempt=1, stream="stdout", offset=0, max_bytes=10),
    )

    unknown = world.head.wait_for(UnknownAttempt, count=2)
    assert [(m.job, m.attempt) for m in unknown] == [(5, 1), (6, 2)]
    (read,) = world.head.wait_for(OutputRead)
    assert read.request == 44
    assert "keeps nothing" in read.error


# --- output ---


def test_output_of_a_running_job_is_read_in_pieces(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, f"echo 0123456789; touch {world.work}/ready; sleep 600")
    world.head.wait_for_start(1)
    while not (world.work / "ready").exists():
        settle(world, 901)

    for request, (offset, max_bytes) in enumerate([(0, 4), (4, 100), (-3, 100), (50, 5)]):
        world.head.send(
            ReadOutput(
                request=request,
                job=1,
                attempt=1,
                stream="stdout",
                offset=offset,
                max_bytes=max_bytes,
            )
        )

    replies = {m.request: m for m in world.head.wait_for(OutputRead, count=4)}
    assert [replies[n].data for n in range(4)] == [b"0123", b"456789\n", b"89\n", b""]
    assert {m.size_bytes for m in replies.values()} == {11}
    assert replies[2].offset == 8


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can run jobs of others")
def test_d12_output_is_read_as_its_owner_and_never_as_root(world: GnodeWorld) -> None:
    nobody = pwd.getpwnam("nobody")
    # Only this test's own user may look into the directories that pytest makes.
    for directory in (world.directory, *world.directory.parents):
        if directory.stat().st_uid == 0 and directory != Path("/"):
            directory.chmod(stat.S_IMODE(directory.stat().st_mode) | 0o011)
    os.chown(world.work, nobody.pw_uid, nobody.pw_gid)
    secret = world.directory / "secret"
    secret.write_text("only root reads this")
    secret.chmod(0o600)
    world.owner = Owner(user="nobody", uid=nobody.pw_uid, gid=nobody.pw_gid)
    world.start()
    world.launch(1, "id -u; id -G; echo mine; sleep 600")
    started = world.head.wait_for_start(1)
    request = ReadOutput(request=1, job=1, attempt=1, stream="stdout", offset=0, max_bytes=100)
    while not world.head.received or "mine" not in output(world, 1):
        settle(world, 901)

    world.head.send(request)
    (read,) = world.head.wait_for(OutputRead)
    expected = f"{nobody.pw_uid}\n{nobody.pw_gid}\nmine\n"
    assert (read.data.decode(), read.error) == (expected, "")
    assert Path(started.stdout_path).stat().st_uid == nobody.pw_uid

    os.unlink(started.stdout_path)
    os.symlink(secret, started.stdout_path)
    world.head.send(request)
    again = world.head.wait_for(OutputRead, count=2)[-1]
    assert again.data == b""
    assert "Permission denied" in again.error


# --- the connection ---


def test_a_head_of_a_lower_epoch_is_refused_and_the_higher_one_taken_back(
    world: GnodeWorld,
) -> None:
    world.head.epoch = 5
    world.start()
    world.head.wait_for(Register)
    world.head.epoch = 4
    world.head.disconnect()

    world.head.wait_for(Hello, count=4)  # it goes away again from one that welcomes it all the same

    told = [m for m in world.head.received if isinstance(m, Register)]
    assert {m.highest_epoch for m in told[1:]} == {5}  # by which a real head knows what it is
    welcomed = world.head.connections
    world.head.epoch = 6
    for number in (1, 2):  # the first may still have been of epoch 4
        world.head.wait_for_connection(welcomed + number)
        world.head.disconnect()
    world.head.wait_for(Register, lambda m: m.highest_epoch == 6)
    assert "the head runs on an old copy" in world.log()


def test_a_restarted_gnode_remembers_the_highest_epoch_and_the_cluster(world: GnodeWorld) -> None:
    world.head.epoch = 5
    world.start()
    settle(world)
    world.kill()

    world.head.cluster = "another"
    world.start(wait=False)
    world.head.wait_for(Hello, count=3)

    assert world.head.connections == 1
    assert "the head is of cluster another" in world.log()


def test_e15_a_broken_frame_closes_the_connection_and_nothing_else(world: GnodeWorld) -> None:
    world.start()
    for number, frame in enumerate(
        ("", "[", '{"type":"launch"}', "[" * 5000, '[{"type":"stop"}'), 2
    ):
        world.head.send_to_latest(frame)
        world.head.wait_for_connection(number)

    settle(world)
    assert world.process.poll() is None


def test_an_order_that_cannot_be_read_is_set_aside_and_named(world: GnodeWorld) -> None:
    """To close the connection would bring it again, and the node would do nothing else."""
    world.start()
    good = launch_order(1, world.owner, world.work, script="#!/bin/sh\nexit 3\n")
    bad = launch_order(2, world.owner, world.work)
    messages: list[HeadMessage] = [bad, Prepare(launch=bad), good]
    frame = json.loads(encode(messages))
    frame[0]["origin"]["spec"]["checkpoint_interval_s"] = 1e301
    frame[1]["launch"]["rank"] = 1  # it has one node
    for each in (frame, [{"type": "stop", "job": 7}], [{"type": "started"}], [5]):
        world.head.send_to_latest(json.dumps(each))

    said = world.head.wait_for(Unreadable, count=5)

    assert [(each.of, each.job, each.attempt) for each in said] == [
        ("launch", 2, 1),
        ("prepare", 2, 1),
        ("stop", 7, 0),
        ("started", 0, 0),
        ("", 0, 0),
    ]
    assert "checkpoint_interval_s" in said[0].reason
    assert world.head.wait_for_exit(1).record.exit_code == 3
    assert world.head.connections == 1
    assert "the head's message launch of job 2 cannot be read" in world.log()


def test_a_welcome_in_mid_connection_changes_nothing(world: GnodeWorld) -> None:
    world.start()

    world.head.send(Welcome(cluster="evil", epoch=99))

    settle(world)
    world.head.disconnect()
    assert world.head.wait_for(Register, count=2)[-1].highest_epoch == 1


def test_heartbeats_carry_load_and_what_running_jobs_use(world: GnodeWorld) -> None:
    world.settings.update(heartbeat_s=0.3, sample_s=0.1)
    world.start()
    world.launch(1, "i=0; while :; do i=$((i+1)); done")

    def used(message: Heartbeat) -> bool:
        return any(job == 1 and usage.cpu_s > 0.05 for job, _, usage in message.usage)

    beat = world.head.wait_for(Heartbeat, used)[-1]
    ((job, attempt, usage),) = beat.usage
    assert (job, attempt) == (1, 1)
    assert usage.samples > 0
    assert usage.memory_peak_bytes >= usage.memory_mean_bytes > 0
    assert beat.load.memory_used_bytes > 0
    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=1))
    total = world.head.wait_for_exit(1).usage
    assert total.cpu_s >= usage.cpu_s
    assert total.samples > 0


def test_an_acknowledgement_of_an_unknown_attempt_is_dropped(world: GnodeWorld) -> None:
    world.start()

    world.head.send(ExitAck(job=77, attempt=1))

    settle(world)
    assert "acknowledgement of an unknown attempt" in world.log()


def test_a_declared_machine_is_what_the_head_hears_of(world: GnodeWorld) -> None:
    world.gpus = 3
    world.settings.update(features=["bigmem"], resources={"license": 2}, address="10.9.8.7")
    world.start()

    register = world.head.wait_for(Register)[-1]

    inventory = register.inventory
    assert (inventory.cpus, inventory.memory_bytes, len(inventory.gpus)) == (4, 4 * 1024**3, 3)
    assert inventory.features == ("bigmem", FILES_FEATURE)
    assert inventory.generic == (("license", 2),)
    assert register.address == "10.9.8.7"


# --- starting ---


def test_a_key_that_others_can_read_is_refused(world: GnodeWorld) -> None:
    """T61: a gnode that would use it does not start."""
    world.settings["head"] = "127.0.0.1:9"
    files = files_of(str(world.state), TlsConfig())
    files.write(own=b"key", trusted=b"authority")
    os.chmod(files.key, 0o644)
    world.start(wait=False)

    assert world.wait_for_death() == 78
    assert "own.pem has mode 0644: other users can read it" in world.log()
    assert "chmod 600" in world.log()


def test_a_node_without_a_certificate_says_how_it_gets_one(world: GnodeWorld) -> None:
    """It keeps running: its jobs do, too, while an older cluster is upgraded."""
    world.settings["head"] = "127.0.0.1:9"
    world.start(wait=False)

    wait_until(lambda: "gsched token create --role node --name n1" in world.log(), what="the hint")
    assert world.process.poll() is None


def test_without_control_groups_a_job_is_still_ended_with_its_children(world: GnodeWorld) -> None:
    world.settings["cgroup"] = "none"
    world.start()
    world.launch(1, f"setsid sleep 600 & echo $! > {world.work}/child; sleep 600")
    world.head.wait_for_start(1)
    child = world.work / "child"
    while not (child.exists() and child.read_text().strip()):
        settle(world, 901)

    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=2))

    assert world.head.wait_for_exit(1).record.stop_reason is StopReason.DELETE
    wait_until_gone(int(child.read_text()))


@pytest.mark.parametrize("asked", [False, True])
def test_jobs_get_the_limits_that_the_nodes_configuration_says(
    world: GnodeWorld, *, asked: bool
) -> None:
    """By default few descriptors and nothing else; the group for processes goes with the job."""
    if asked:
        world.settings |= {"no_new_privileges": True, "job_open_files": 300, "job_processes": 99}
    world.start()
    world.launch(
        1,
        "ulimit -Sn; grep NoNewPrivs /proc/self/status; ulimit -u\n"
        "group=$(grep :pids: /proc/self/cgroup | cut -d: -f3)\n"
        "cat /sys/fs/cgroup/pids$group/pids.max || true",
    )

    world.head.wait_for_exit(1)

    said = (world.work / "job1.o1").read_text().split()
    assert said[:3] == (["300", "NoNewPrivs:", "1"] if asked else ["1024", "NoNewPrivs:", "0"])
    assert ("99" in said[3:]) is asked
