"""What passes between gnode and the training jobs of its node, over a real socket."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.daemon.elastic import CONNECT_S, listen, socket_path
from gsched.elastic.conversation import Conversation
from gsched.elastic.link import NodeLink
from gsched.model.limits import MAX_USER_TRAINING_CONNECTIONS
from gsched.model.states import StopReason
from gsched.model.training import Batching
from gsched.protocol.node import (
    Checkpointed,
    CheckpointFailed,
    GoOn,
    StopAttempt,
    TakeCheckpoint,
    TrainingProgress,
    TuneTraining,
)
from gsched.protocol.training import MAX_LINE_BYTES
from tests.support import stand_in_training
from tests.support.gnode_world import GnodeWorld, lives
from tests.support.processes import PATIENCE_S, attempts

PROGRAM = Path(stand_in_training.__file__)


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    yield made
    print(made.log())
    made.stop()


@pytest.fixture
def open_world(process_marker: str) -> Iterator[GnodeWorld]:
    """A world that other users reach: pytest's own directories are closed to them."""
    top = Path(tempfile.mkdtemp(prefix="gsched-elastic-"))
    top.chmod(0o755)
    made = GnodeWorld(top / "w", process_marker)
    yield made
    print(made.log())
    made.stop()
    shutil.rmtree(top)


def train(world: GnodeWorld, job: int = 1, *words: str, **settings: object) -> None:
    """Start the stand-in for a training."""
    command = shlex.join([sys.executable, str(PROGRAM), *words])
    settings = {"checkpoint_dir": str(world.work / "saved"), **settings}
    world.launch(job, f"exec {command}", **settings)  # type: ignore[arg-type] # passed on


def ended(world: GnodeWorld, job: int = 1) -> None:
    """End a training and wait for its end."""
    world.head.send(StopAttempt(job=job, attempt=1, reason=StopReason.DELETE, grace_s=1))
    world.head.wait_for_exit(job)


def heard(world: GnodeWorld, text: str, job: int = 1, *, count: int = 1) -> str:
    """Return the training's output once a line of it holds a text so often."""
    path = world.work / f"job{job}.o{job}"
    said = ""
    for _ in attempts():
        said = path.read_text() if path.exists() else ""
        if said.count(text) >= count:
            return said
    raise AssertionError(f"{text!r} not {count} times in: {said}")


class Client:
    """A hostile or clumsy process on the socket."""

    def __init__(self, world: GnodeWorld) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(socket_path(str(world.state)))
        self.socket.settimeout(PATIENCE_S)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hello(self, job: int = 1, attempt: int = 1, **more: object) -> None:
        said = {"version": 1, "job": job, "attempt": attempt, **more}
        self.send(json.dumps({"hello": said}).encode() + b"\n")

    def last_words(self) -> str:
        """Return all that comes until the other side closes."""
        found = b""
        try:
            while data := self.socket.recv(65536):
                found += data
        except ConnectionResetError:
            pass
        self.socket.close()
        return found.decode()


def test_a_training_saves_waits_and_goes_on(world: GnodeWorld) -> None:
    world.start()
    train(world)
    (first,) = world.head.wait_for(TrainingProgress)
    assert (first.job, first.attempt, first.restored_step) == (1, 1, -1)

    world.head.send(TakeCheckpoint(job=1, attempt=1, request=4))

    (saved,) = world.head.wait_for(Checkpointed)
    assert (saved.request, saved.waits, saved.path) == (4, True, str(world.work / "saved"))
    assert saved.work_done == 32.0 * saved.step > 0
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=4))
    assert world.head.wait_for(Checkpointed, count=2)[1] == saved
    world.head.send(GoOn(job=1, attempt=1, request=4))
    on = world.head.wait_for(TrainingProgress, count=2)[1]
    assert on.step == saved.step
    ended(world)


def test_a_batch_size_reaches_the_training(world: GnodeWorld) -> None:
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)

    world.head.send(TuneTraining(job=1, attempt=1, batching=Batching(per_gpu=64, accumulation=3)))

    assert '"tune":{"per_gpu":64,"accumulation":3}' in heard(world, "tune")
    ended(world)


def test_why_a_state_cannot_be_saved_is_told(world: GnodeWorld) -> None:
    world.start()
    train(world, 1, "--fails", "no space left on device")
    world.head.wait_for(TrainingProgress)

    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))

    (failed,) = world.head.wait_for(CheckpointFailed)
    assert (failed.request, failed.message) == (1, "no space left on device")
    ended(world)


def test_a_restarted_gnode_is_told_everything_again(world: GnodeWorld) -> None:
    """Also that the training waits, so that a head which has given the move up lets it go on."""
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))
    (saved,) = world.head.wait_for(Checkpointed)
    pid = world.head.wait_for_start(1).pid

    world.kill()
    world.start()

    assert world.head.wait_for(Checkpointed, count=2)[1] == saved
    assert lives(pid)
    world.head.send(GoOn(job=1, attempt=1, request=1))
    heard(world, "go_on")
    ended(world)


def test_an_order_while_gnode_was_away_reaches_the_training_when_both_are_back(
    world: GnodeWorld,
) -> None:
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    world.kill()

    world.start()
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))

    assert world.head.wait_for(Checkpointed)[0].request == 1
    assert not [m for m in world.head.received if isinstance(m, CheckpointFailed)]
    ended(world)


def test_a_training_that_is_slow_to_start_is_waited_for(world: GnodeWorld) -> None:
    world.start()
    train(world, 1, "--late", "1.5")
    world.head.wait_for_start(1)

    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))

    assert world.head.wait_for(Checkpointed)[0].request == 1
    ended(world)


@pytest.mark.timeout(120)
def test_a_job_that_never_connects_cannot_be_asked(world: GnodeWorld) -> None:
    """It is said after the time that a start may take, and from then on at once."""
    world.start()
    world.launch(1, "exec sleep 600", checkpoint_dir=str(world.work))
    world.head.wait_for_start(1)
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))

    (failed,) = world.head.wait_for(CheckpointFailed, timeout_s=CONNECT_S + 30)

    assert "does the script use gsched.elastic?" in failed.message
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=2))
    assert world.head.wait_for(CheckpointFailed, count=2)[1].request == 2
    ended(world)


def test_the_environment_says_where_to_connect_only_to_what_can_be_moved(
    world: GnodeWorld,
) -> None:
    world.start()
    world.launch(1, "env", checkpoint_dir="/data/saved", checkpoint_interval_s=90.0)
    world.launch(2, "env")
    world.head.wait_for_exit(1)
    world.head.wait_for_exit(2)

    said = (world.work / "job1.o1").read_text().splitlines()
    assert f"GSCHED_ELASTIC_SOCKET={socket_path(str(world.state))}" in said
    assert "GSCHED_CHECKPOINT_DIR=/data/saved" in said
    assert "GSCHED_CHECKPOINT_INTERVAL_S=90" in said
    assert "GSCHED_ELASTIC" not in (world.work / "job2.o2").read_text()


# --- hostile and clumsy peers ---

BAD_LINES = {
    "no JSON": b"hello\n",
    "no object": b"[1]\n",
    "no hello": b'{"progress": {"step": 1}}\n',
    "nothing": b"\n",
    "deep": b'{"x":' + b"[" * 60000 + b"\n",
    "no text": b'{"hello": {"version": 1, "job": 1, "attempt": "\xff\xfe"}}\n',
    "too long": b'{"x": "' + b"x" * (4 * MAX_LINE_BYTES) + b'"}\n',
    "negative": b'{"hello": {"version": 1, "job": -1, "attempt": 1}}\n',
    "huge number": b'{"hello": {"version": 1, "job": ' + b"9" * 400 + b', "attempt": 1}}\n',
    "another version": b'{"hello": {"version": 7, "job": 1, "attempt": 1}}\n',
    "no such job": b'{"hello": {"version": 1, "job": 2, "attempt": 1}}\n',
    "an attempt to come": b'{"hello": {"version": 1, "job": 1, "attempt": 2}}\n',
}


def test_who_breaks_the_rules_is_cut_off_with_a_word_and_nobody_else_notices(
    world: GnodeWorld,
) -> None:
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)

    for what, data in BAD_LINES.items():
        client = Client(world)
        with contextlib.suppress(BrokenPipeError):  # it may be cut off before all is said
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
        assert "refused" in client.last_words(), what

    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))
    assert world.head.wait_for(Checkpointed)
    assert [type(m) for m in world.head.received if isinstance(m, TrainingProgress)] == [
        TrainingProgress
    ]
    assert world.log().count("on the socket of training jobs") <= 5  # nobody fills the log
    ended(world)


def test_random_bytes_harm_nothing(world: GnodeWorld) -> None:
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)

    for number in range(200):
        client = Client(world)
        data = os.urandom(1 + number * 7)
        if number % 2:  # behind a good beginning, in place of the training
            client.hello()
        client.send(data.replace(b"\n", b"") + b"\n")
        client.socket.close()

    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))
    assert world.head.wait_for(Checkpointed)[0].request == 1
    ended(world)


def test_many_connections_of_a_user_are_cut_off(world: GnodeWorld) -> None:
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    clients = [Client(world) for _ in range(MAX_USER_TRAINING_CONNECTIONS + 20)]

    assert "too many connections" in clients[-1].last_words()
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))
    assert world.head.wait_for(Checkpointed)
    for client in clients:
        client.socket.close()
    ended(world)


def test_a_flood_of_lines_is_read_slowly_and_all_else_goes_on(world: GnodeWorld) -> None:
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    train(world, 2)
    world.head.wait_for(TrainingProgress, lambda m: m.job == 2)
    client = Client(world)
    client.hello(2)
    client.socket.setblocking(False)  # noqa: FBT003 - the socket's own signature
    line = b'{"progress": {"step": 1}}\n'
    try:
        for _ in range(100_000):
            client.send(line * 100)
    except BlockingIOError:
        pass  # it is not read as fast as it is sent

    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))

    assert world.head.wait_for(Checkpointed, lambda m: m.job == 1)
    flood = [m for m in world.head.received if isinstance(m, TrainingProgress) and m.job == 2]
    assert len(flood) < 500
    client.socket.close()
    ended(world)
    ended(world, 2)


def test_a_job_that_connects_again_and_again_is_heard_as_slowly(world: GnodeWorld) -> None:
    """58,310 checkpoints in 30 s once became as many facts; the newest must still be known."""
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    rounds = 400
    for number in range(1, rounds + 1):
        client = Client(world)
        client.hello(saved={"step": number, "path": f"/saved/{number}"})
        with contextlib.suppress(OSError):
            client.send(json.dumps({"checkpointed": {"step": number}}).encode() + b"\n")
        client.socket.close()

    told: list[Checkpointed] = []
    for _ in attempts():  # as a training does that was turned away
        newest = Client(world)
        with contextlib.suppress(OSError):
            newest.hello(saved={"step": rounds + 1, "path": "/saved/newest"})
        newest.socket.close()
        told = [m for m in tuple(world.head.received) if isinstance(m, Checkpointed)]
        if told and told[-1].path == "/saved/newest":
            break

    assert told[-1].path == "/saved/newest"
    assert len(told) < rounds // 2
    ended(world)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_another_user_cannot_speak_for_a_training(open_world: GnodeWorld) -> None:
    world = open_world
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    # root may speak for everybody, but here the job is root's and the peer is not
    code = (
        "import os, socket; os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"s.connect({socket_path(str(world.state))!r})\n"
        's.sendall(b\'{"hello": {"version": 1, "job": 1, "attempt": 1, "saved": {"step": 9}}}\'\n'
        '          b"\\n")\n'
        "print(s.recv(999).decode())"
    )
    said = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)

    assert b"attempt 1.1 of uid 54321 does not run here" in said.stdout
    world.head.send(TakeCheckpoint(job=1, attempt=1, request=1))
    assert world.head.wait_for(Checkpointed)[0].step != 9
    ended(world)


SQUAT = """
import os, socket, sys
os.setgroups([]); os.setgid(54321); os.setuid(54321)
path = sys.argv[1]
def tried(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return type(error).__name__
    return "done"
listener = socket.socket(socket.AF_UNIX)
print(tried(listener.bind, path), tried(listener.bind, path + ".new"), tried(os.unlink, path),
      tried(os.rename, path, path + "~"), tried(os.chmod, path, 0))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_nobody_takes_the_sockets_place_while_gnode_is_away(open_world: GnodeWorld) -> None:
    """A training that comes back finds the new gnode and nobody else."""
    world = open_world
    world.start()
    train(world)
    world.head.wait_for(TrainingProgress)
    path = socket_path(str(world.state))
    world.kill()

    done = subprocess.run(
        [sys.executable, "-I", "-c", SQUAT, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["OSError", *["PermissionError"] * 4]
    world.start()

    heard(world, "connected", count=2)
    ended(world)


def test_a_path_that_is_too_long_for_a_socket_is_none_for_a_training(tmp_path: Path) -> None:
    """The kernel takes addresses of 107 bytes; state directories may be longer."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    path = socket_path(str(directory))
    for _ in range(2):  # the second takes the place of the first
        with listen(path) as listener:
            link = NodeLink(path)
            conversation = Conversation({}, wake=link.wake, refuse=lambda _: None)
            link.start(conversation)
            listener.settimeout(PATIENCE_S)
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(100).startswith(b'{"hello"')
            link.close()

    assert os.listdir(directory) == ["elastic.sock"]
    assert os.stat(path).st_mode & 0o777 == 0o666


# --- jobs that only know a signal ---


def test_a_job_is_sent_the_signal_of_its_move_once_and_its_end_says_so(world: GnodeWorld) -> None:
    world.start()
    script = (
        "trap 'echo saved >> saved; sleep 0.5; exit 7' USR1; echo ready; "
        "while :; do sleep 0.1; done"
    )
    world.launch(1, script)
    heard(world, "ready")
    order = TakeCheckpoint(job=1, attempt=1, request=3, signal=signal.SIGUSR1)

    world.head.send(order, order)
    world.kill()
    world.start()
    world.head.send(order)

    record = world.head.wait_for_exit(1).record
    assert (record.exit_code, record.requested, record.stop_reason) == (7, 3, None)
    assert record.started_s < record.requested_s < record.ended_s
    assert (world.work / "saved").read_text() == "saved\n"
    assert not [m for m in world.head.received if isinstance(m, CheckpointFailed)]
