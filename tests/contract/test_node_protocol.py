"""The node channel's messages: round trips, old and new peers, and what must not be accepted."""

import json
from dataclasses import MISSING, asdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnode import task as tasks
from gnode.core.effects import AcceptTask
from gnode.core.task import AcceptedTask, Command, RetimeCommand, SignalCommand, StopCommand
from gnode.supervisor import orders
from gnode.supervisor.asking import Asking
from gnode.supervisor.ending import Do, Ending
from gnode.task import SupervisorInfo, Task
from gsched.model.configuration import SettingRow
from gsched.model.job import EarlySignal, ExitRecord, LaunchFailure, Owner
from gsched.model.machine import Machine
from gsched.model.resources import Gpu, Inventory, LiveUse, Load, Share, Usage
from gsched.model.states import (
    Join,
    LaunchKind,
    LaunchStage,
    OutcomeKind,
    PartState,
    StopReason,
    Subject,
)
from gsched.model.training import Batching
from gsched.protocol.code import CodeRead, CodeWanted
from gsched.protocol.deliveries import (
    DeliverPiece,
    FileDone,
    FileOrder,
    PieceDelivered,
    StagedRead,
    StagedWanted,
)
from gsched.protocol.hosts import HostReport
from gsched.protocol.job_steps import (
    LoginAnswer,
    LoginRequest,
    StepFailed,
    StepOrder,
    StepRefused,
    StepRequest,
)
from gsched.protocol.joining import (
    CertificateIssued,
    CertificateState,
    CertificateWanted,
    TrustChanged,
)
from gsched.protocol.node import (
    MAX_FRAME_BYTES,
    AttemptReport,
    Challenge,
    Checkpointed,
    CheckpointFailed,
    ExitAck,
    Exited,
    GoOn,
    HeadMessage,
    Heartbeat,
    Hello,
    HighWater,
    KnownAttempt,
    KnownAttempts,
    Launch,
    NodeMessage,
    OutputRead,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Probe,
    Probed,
    ReadOutput,
    Refused,
    Register,
    Renew,
    Renewed,
    Retime,
    Signal,
    Started,
    StopAttempt,
    SurveyAttempts,
    TakeCheckpoint,
    TrainingProgress,
    TuneTraining,
    UnknownAttempt,
    Welcome,
    decode_from_head,
    decode_from_node,
    encode,
)
from gsched.protocol.relays import RelayAnswer, RelayRequest
from gsched.protocol.sessions import OpenSession, SessionFailed
from gsched.protocol.settings import ClusterSettings, SettingsRead, SettingsWanted
from gsched.protocol.unreadable import Unreadable
from gsched.protocol.uses import Uses
from tests.support.agent_driver import Driver, info, only, order, record
from tests.support.records import a_task

LOAD = Load(load1=1.5, cpu_percent=20.0, gpu_util_percent=(5.0,))
USAGE = Usage(wall_s=2.0, cpu_s=1.0, samples=3)

HEAD_MESSAGES: list[HeadMessage] = [
    Challenge(version=2, cluster="c", epoch=2, epoch_id="ef"),
    Welcome(cluster="c", epoch=2, epoch_id="ef", seq=5, next_job=3),
    HighWater(seq=7, next_job=4),
    TrustChanged(trusted="pem"),
    ClusterSettings(digest="ab", file="cd", settings={"node": {"sample_s": "5.0"}}),
    SettingsWanted(request=2),
    CertificateIssued(certificate="pem", trusted="pem", error="no"),
    StepOrder(
        job=1, attempt=1, node="n1", step=2, address="10.0.0.1", port=40000, secret="0f" * 16
    ),
    CodeRead(request=1, size_bytes=9, data=bytes(range(256))),
    StagedRead(request=1, data=b"x", error="no", later=True),
    PieceDelivered(request=1, end=9, taken=4, path="l1:/home/alice/a.o1", error="no", later=True),
    FileOrder(
        request=1,
        user="alice",
        uid=1000,
        gid=1000,
        path="~/",
        name="a.o1",
        offset=-9,
        max_bytes=9,
        writes=True,
        append=True,
        at=9,
        data=b"x",
        last=True,
        mode=0o644,
        umask=0o077,
        makes=2,
        below=b"a/\xff",
        kind="link",
        temporary="1.1.0",
        tree=True,
    ),
    StepRefused(job=1, attempt=1, node="n2", step=2, message="too old"),
    LoginAnswer(login=3, job=1, attempt=2),
    Renewed(number=4),
    SurveyAttempts(first_unknown=7, unfinished=(2, 3)),
    Refused(message="no", fatal=True),
    order(gpus=(0, 1), walltime_s=5.0, environment={"Ä": "\n"}, join=Join.INTO_ERR),
    Prepare(launch=order(1, 2), yields=True),
    StopAttempt(job=1, attempt=2, reason=StopReason.PEER_FAILED, grace_s=1.5),
    Signal(job=1, attempt=2, signal=10),
    Retime(job=1, attempt=2, walltime_s=None),
    ExitAck(job=1, attempt=2),
    ReadOutput(request=3, job=1, attempt=2, stream="stderr", offset=-5, max_bytes=10),
    TakeCheckpoint(job=1, attempt=2, request=3),
    GoOn(job=1, attempt=2, request=3),
    TuneTraining(job=1, attempt=2, batching=Batching(per_gpu=64, accumulation=1)),
    Probe(request=4),
    RelayAnswer(number=3, session="0a" * 16),
    RelayAnswer(number=4, code="not_permitted", message="no", hint="why"),
    OpenSession(
        session="0a" * 16,
        job=1,
        attempt=2,
        token="t",
        terminal="0b" * 16,
        start=True,
        arguments=("sh", "-c", "true"),
        variables={"TERM": "xterm"},
    ),
    Ping(number=4),
]
NODE_MESSAGES: list[NodeMessage] = [
    CertificateState(authority="0f" * 32, expires_s=5.0),
    CertificateWanted(request="pem"),
    Hello(version=2, node="n1", session="0a" * 16),
    Register(
        boot_id="b",
        incarnation="i",
        address="127.0.0.1",
        gnode_version="1",
        inventory=Inventory(cpus=2, memory_bytes=3, gpus=(Gpu(index=0, uuid="u"),)),
        attempts=(
            AttemptReport(job=1, attempt=1, state=PartState.ENDED, exit=record(), usage=USAGE),
        ),
        load=LOAD,
        identity="0" * 32,
        machine=Machine(product="p", macs=("m",), system="s"),
    ),
    Pong(number=4),
    Renew(number=4),
    Started(job=1, attempt=1, pid=5, started_s=1.0, stdout_path="/x"),
    Prepared(job=1, attempt=2),
    Exited(record=record(code=3), usage=USAGE, load=LOAD),
    KnownAttempts(
        attempts=(KnownAttempt(job=1, attempt=1, state=PartState.ENDED, exit=record()),),
        done=True,
    ),
    Heartbeat(load=LOAD, usage=((1, 1, USAGE),)),
    OutputRead(request=3, path="/x", data=bytes(range(256)), size_bytes=256),
    UnknownAttempt(job=1, attempt=1),
    Uses(uses=((1, 2, LiveUse(cpu_cores=1.5, memory_bytes=1)),), load=Load()),
    SessionFailed(session="0a" * 16, message="there is no such terminal"),
    RelayRequest(number=3, uid=1000, gid=100, user="alice"),
    SettingsRead(
        request=2,
        settings=(SettingRow(table="node", key="cpus", value="0", origin="head", pending="2"),),
    ),
    HostReport(sent_s=1.5, zone="CET+0100", users={"alice": 1000}, groups={"users": 1000}),
    Unreadable(of="launch", job=1, attempt=2, reason="a number is too large"),
    Probed(
        request=4,
        passed=False,
        message="cannot fork",
        failure=LaunchFailure(stage=LaunchStage.FORK, subject=Subject.NODE, errno=11),
    ),
    Checkpointed(job=1, attempt=1, request=3, step=4, work_done=5.0, path="/c", waits=True),
    CheckpointFailed(job=1, attempt=1, request=3, message="no room"),
    TrainingProgress(job=1, attempt=1, step=4, work_done=5.0, at_s=6.0, step_s=0.5, gpus=2),
    StepRequest(job=1, attempt=1, step=2, nodes=("n2", "n3"), port=40000, secret="0f" * 16),
    LoginRequest(login=3, uid=1000, address="10.0.0.1"),
    CodeWanted(request=1, job=1, attempt=1, offset=5),
    DeliverPiece(
        request=1,
        job=1,
        attempt=1,
        file="stdout",
        token="t",
        at=5,
        data=b"x",
        last=True,
        mode=0o644,
        name=b"a/\xff",
        kind="directory",
    ),
    StagedWanted(request=1, job=1, attempt=1, item=2, after=b"a/\xff", offset=5),
    FileDone(
        request=1, path="/a", offset=4, size_bytes=9, data=b"x", end=9, taken=1, error="no", errno=2
    ),
    StepFailed(job=1, attempt=1, node="n2", origin="n1", step=2, message="no route to host"),
]


@pytest.mark.parametrize("message", HEAD_MESSAGES, ids=lambda m: type(m).__name__)
def test_what_the_head_says_is_understood(message: HeadMessage) -> None:
    assert decode_from_head(encode([message])) == [message]


@pytest.mark.parametrize("message", NODE_MESSAGES, ids=lambda m: type(m).__name__)
def test_what_a_node_says_is_understood(message: NodeMessage) -> None:
    assert decode_from_node(encode([message])) == [message]


def test_every_kind_of_message_is_tried_here() -> None:
    assert {type(m) for m in HEAD_MESSAGES} == set(HeadMessage.__args__)
    assert {type(m) for m in NODE_MESSAGES} == set(NodeMessage.__args__)


@pytest.mark.parametrize("message", HEAD_MESSAGES, ids=lambda m: type(m).__name__)
def test_e16_a_head_does_not_take_a_heads_message(message: HeadMessage) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_from_node(encode([message]))


@pytest.mark.parametrize("message", NODE_MESSAGES, ids=lambda m: type(m).__name__)
def test_e16_a_node_does_not_take_a_nodes_message(message: NodeMessage) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_from_head(encode([message]))


@pytest.mark.parametrize(
    "message", [*HEAD_MESSAGES, *NODE_MESSAGES], ids=lambda m: type(m).__name__
)
def test_a20_fields_of_a_newer_peer_are_ignored(message: HeadMessage | NodeMessage) -> None:
    (fields,) = msgspec.json.decode(encode([message]))  # type: ignore[arg-type]  # either kind
    frame = msgspec.json.encode([{**fields, "added_in_version_9": [1, {"x": None}]}])
    decode = decode_from_head if message in HEAD_MESSAGES else decode_from_node

    assert decode(frame) == [message]


def test_order_is_kept_in_a_frame() -> None:
    assert decode_from_head(encode(HEAD_MESSAGES)) == HEAD_MESSAGES


BAD_FRAMES = [
    b"",
    b"{}",
    b"[1]",
    b"[{}]",
    b'[{"type":"stop"}]',
    b'[{"type":"stop","job":"1","attempt":1,"reason":"delete","grace_s":1}]',
    b'[{"type":"stop","job":1,"attempt":1,"reason":"because","grace_s":1}]',
    b'[{"type":"exit_ack","job":1,"attempt":1}] trailing',
    b'[{"type":"exit_ack","job":1,"attempt":1}',
    b"[" * 100_000,
    b'\xff\xfe[{"type":"exit_ack"}]',
    b'[{"type":"exit_ack","job":1e400,"attempt":1}]',
]


@pytest.mark.parametrize("frame", BAD_FRAMES, ids=range(len(BAD_FRAMES)))
def test_e15_a_frame_that_is_none_raises_one_kind_of_error(frame: bytes) -> None:
    for decode in (decode_from_head, decode_from_node):
        with pytest.raises((msgspec.DecodeError, RecursionError)):
            decode(frame)


def numbers_in(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return where numbers are in what JSON decodes to."""
    if isinstance(value, dict):
        return [found for key in value for found in numbers_in(value[key], (*path, key))]
    if isinstance(value, list):
        return [found for i, each in enumerate(value) for found in numbers_in(each, (*path, i))]
    return [path] if isinstance(value, int) and not isinstance(value, bool) else []


ENDED = ExitRecord(
    job=1, attempt=1, kind=OutcomeKind.EXITED, exit_code=1, signal=9, rank=1,
    memory_peak_bytes=5, requested=1,
    failure=LaunchFailure(stage=LaunchStage.ACCOUNT, subject=Subject.USER, errno=2),
)  # fmt: skip
BUSY = Usage(
    memory_peak_bytes=5, memory_mean_bytes=5, gpu_memory_peak_bytes=5, gpu_memory_mean_bytes=5,
    read_bytes=5, write_bytes=5, samples=5,
)  # fmt: skip
NUMBERED: list[NodeMessage] = [
    *NODE_MESSAGES,
    Exited(record=ENDED, usage=BUSY, load=Load(memory_used_bytes=5, gpu_memory_used_bytes=(5,))),
    KnownAttempts(
        attempts=(
            KnownAttempt(job=1, attempt=1, state=PartState.ENDED, pid=5, exit=ENDED, usage=BUSY),
        )
    ),
]


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**400], ids=("large", "negative", "huge"))
def test_a_number_that_the_database_cannot_hold_is_refused(number: int) -> None:
    """One such number in a report once stopped the head, again after each restart."""
    tried = 0
    for message in NUMBERED:
        frame = encode([message])
        assert decode_from_node(frame) == [message]
        for path in numbers_in(json.loads(frame)):
            changed = json.loads(frame)
            *way, last = path
            place = changed
            for key in way:
                place = place[key]
            place[last] = number
            tried += 1
            with pytest.raises(msgspec.DecodeError):
                decode_from_node(json.dumps(changed).encode())
    assert tried > 40


@given(st.binary(max_size=200))
def test_e15_no_bytes_make_another_error(frame: bytes) -> None:
    try:
        decode_from_head(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert frame.strip() == b"[]" or frame.strip().startswith(b"[")


def test_a_launch_with_everything_fits_into_a_frame() -> None:
    launch = order(script="x" * 1_000_000, environment={f"V{n}": "y" * 100 for n in range(5_000)})

    assert len(encode([launch])) < MAX_FRAME_BYTES


# --- the spool: what gnode and the supervisor read of each other ---


def test_a_supervisor_reads_the_task_that_gnode_writes() -> None:
    driver = Driver(cgroup_root="/g", memory_root=(2, "/g"), cpuset_root=(2, "/g"))
    signal = EarlySignal(signal=10, before_s=30.0)
    task = only(driver.launch(order(early_signal=signal)), AcceptTask)[0].task
    written = msgspec.json.encode(task)

    read = tasks.decode(Task, written)

    assert (read.argv, read.env, read.files) == (task.argv, task.env, task.files)
    assert {name: getattr(read, name) for name in Task.__dataclass_fields__} == {
        name: getattr(task, name) for name in Task.__dataclass_fields__
    }
    assert msgspec.json.decode(written, type=AcceptedTask) == task


def test_a_task_of_an_older_or_newer_gnode_is_read() -> None:
    """Launcher and supervisors outlive an upgrade of gnode, and tasks outlive both."""
    stated = asdict(a_task(early_signal={"signal": 10}))
    least = {name: stated[name] for name, each in Task.__dataclass_fields__.items()
             if each.default is MISSING} | {"early_signal": {"signal": 10}}  # fmt: skip
    newer = stated | {"added": 1, "early_signal": {**stated["early_signal"], "added": [2]}}

    for each in (least, newer):
        assert tasks.decode(Task, json.dumps(each).encode()) == a_task(early_signal={"signal": 10})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"job":1}', '{"job":1,"files":[3]}'])
def test_what_is_no_task_raises_one_kind_of_error(content: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        tasks.decode(Task, content.encode())


def test_what_the_supervisor_says_of_itself_is_what_gnode_reads() -> None:
    written = json.dumps(asdict(info())).encode()

    assert msgspec.json.decode(written, type=SupervisorInfo) == info()
    assert tasks.decode(SupervisorInfo, written) == info()


@pytest.mark.parametrize("reason", list(StopReason))
def test_the_supervisor_obeys_every_stop_that_gnode_writes(reason: StopReason) -> None:
    ending = Ending(walltime_s=None, grace_s=5.0, leftover_grace_s=1.0)
    ending.started(100.0)

    stop = _words(StopCommand(reason=reason, grace_s=2.0))
    assert orders.obey([stop], ending, Asking(), 110.0) == []

    assert ending.reason == reason
    assert ending.step(110.0) is Do.TERM
    assert ending.deadline_s() == pytest.approx(112.0)


def test_the_supervisor_obeys_signals_and_new_limits_that_gnode_writes() -> None:
    ending = Ending(walltime_s=None, grace_s=5.0, leftover_grace_s=1.0)
    ending.started(100.0)
    words = [_words(SignalCommand(signal=12)), _words(RetimeCommand(walltime_s=30.0))]

    assert orders.obey(words, ending, Asking(), 110.0) == [12], "to all processes"

    assert ending.deadline_s() == pytest.approx(130.0)
    orders.obey([_words(RetimeCommand(walltime_s=None))], ending, Asking(), 111.0)
    assert ending.deadline_s() is None


def test_the_supervisor_takes_the_signal_of_a_move_once() -> None:
    ending, asking = Ending(walltime_s=None, grace_s=5.0, leftover_grace_s=1.0), Asking(refused=1)
    ending.ask(3, 100.0)

    for request, due_s in ((1, None), (3, None), (4, 110.0)):
        word = _words(SignalCommand(signal=10, request=request))
        assert orders.obey([word, word], ending, asking, 110.0) == [], "not to all processes"
        assert asking.due_s == due_s

    asking.drop()
    word = _words(SignalCommand(signal=10, request=4))
    assert orders.obey([word], ending, asking, 111.0) == []
    assert asking.due_s is None


def _words(command: Command) -> object:
    """Return a command as the supervisor finds it in its file."""
    return json.loads(msgspec.json.encode(command))


def test_the_names_of_closed_sets_are_what_the_wire_has() -> None:
    assert msgspec.json.encode(OutcomeKind.LAUNCH_FAILED) == b'"launch_failed"'
    assert msgspec.json.encode(LaunchKind.TORCHRUN) == b'"torchrun"'
    assert issubclass(ExitRecord, msgspec.Struct)
    assert Launch.__struct_config__.tag == "launch"
    assert Owner.__struct_config__.frozen
    assert Share.__struct_config__.frozen
