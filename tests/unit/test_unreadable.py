"""Messages that the peer cannot read: set aside with their job, and all others go on."""

import json

import msgspec
import pytest
from msgspec import structs

from gsched.model.gpu_tokens import GpuSharing, TokenUse
from gsched.model.job import LaunchFailure
from gsched.model.resources import Load, Usage
from gsched.model.states import HoldKind, LaunchStage, PartState, Subject
from gsched.protocol import node as n
from gsched.protocol.framing import frames_from_head, frames_from_node
from gsched.protocol.reading import named, read_from_head, read_from_node, salvaged
from gsched.protocol.unreadable import Unreadable
from tests.contract.test_node_protocol import NODE_MESSAGES
from tests.support.agent_driver import order, record
from tests.support.dialler import registration
from tests.support.world import World, node

FAR = 2**60
WILD = order(3, environment={"NAME": "\udc80"})
LARGE = order(4, checkpoint_interval_s=1e301)
USE = TokenUse(job=5, attempt=1, index=0)


def sent(messages: list[n.HeadMessage]) -> tuple[list[n.HeadMessage], list[Unreadable]]:
    """Return what a node gets of messages, and what the head sets aside."""
    aside: list[Unreadable] = []
    made = frames_from_head(messages, lambda message, why: aside.append(named(message, why)))
    return [each for frame in made for each in n.decode_from_head(frame.payload)], aside


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (LARGE, "1e+300 - at `$[0].origin.spec.checkpoint_interval_s`"),
        (WILD, "surrogates not allowed"),
        (order(6, script="x" * n.MAX_FRAME_BYTES), "the limit is"),
        (order(7, grace_s=float("inf")), "got `null` - at `$[0].origin.spec.grace_s`"),
    ],
    ids=["number", "text", "size", "infinity"],
)
def test_the_head_sends_no_message_that_its_node_cannot_read(bad: n.Launch, reason: str) -> None:
    others: list[n.HeadMessage] = [n.Ping(number=1), order(9)]
    for readable in ([], others):
        got, aside = sent([*readable[:1], bad, *readable[1:]])

        assert got == readable
        assert [(each.of, each.job) for each in aside] == [("launch", bad.job)]
        assert reason in aside[0].reason


def test_a_preparation_is_named_by_the_job_of_its_launch() -> None:
    _, aside = sent([n.Prepare(launch=LARGE)])
    assert [(each.of, each.job, each.attempt) for each in aside] == [("prepare", 4, 1)]


def test_a_node_sends_a_report_without_the_parts_that_the_head_cannot_read() -> None:
    good = (1, 2, Usage(wall_s=2.0))
    sharing = GpuSharing(words="w", jobs=(USE, structs.replace(USE, job=6, launches=FAR)))
    said = n.Heartbeat(
        load=Load(load1=1.0),
        usage=(good, (3, 4, Usage(wall_s=1e301, cpu_s=5.0)), (-1, 1, Usage())),
        gpu_sharing=structs.replace(sharing, unhooked_symbols=FAR),
    )
    faults: list[str] = []

    (frame,) = frames_from_node([said], lambda _, reason: faults.append(reason))

    (got,) = n.decode_from_node(frame.payload)
    assert isinstance(got, n.Heartbeat)
    assert got.load == said.load
    assert got.usage == (good, (3, 4, Usage(cpu_s=5.0)))
    assert got.gpu_sharing is not None
    assert got.gpu_sharing.jobs == (USE, structs.replace(USE, job=6))
    assert got.gpu_sharing.unhooked_symbols == 0
    assert len(faults) == 1


def test_a_registration_keeps_every_attempt_whose_job_it_can_name() -> None:
    """An attempt that is left out would count as lost, and run twice."""
    attempts = tuple(
        n.AttemptReport(
            job=job,
            attempt=1,
            state=PartState.ENDED,
            exit=structs.replace(record(job), message="\udc80" if job == 2 else ""),
            usage=Usage(read_bytes=FAR if job == 1 else 0),
        )
        for job in (1, 2, 3)
    )
    found = salvaged(registration(attempts=attempts))

    assert found is not None
    assert isinstance(found.message, n.Register)
    assert [each.job for each in found.message.attempts] == [1, 2, 3]
    assert [each.exit is not None for each in found.message.attempts] == [True] * 3
    assert {part.job for part in found.lost} >= {2}


def test_the_head_takes_what_it_can_read_of_a_frame() -> None:
    bad = json.loads(n.encode([n.Exited(record=record(8), usage=Usage(), load=Load())]))[0]
    bad["usage"] = {"wall_s": "long"}
    frame = [json.loads(n.encode([n.Pong(number=1)]))[0], bad, {"type": "started", "job": 9}, 5]
    frame += [{"type": "of another version", "job": 3}, {}]

    read, incomplete, unreadable = read_from_node(json.dumps(frame).encode())

    assert [type(each) for each in read] == [n.Pong, n.Exited]
    assert isinstance(read[1], n.Exited)
    assert read[1].record.job == 8
    assert [part.where for part in incomplete[0].lost] == ["$.usage.wall_s"]
    assert [(each.of, each.job) for each in unreadable] == [
        *(("started", 9), ("", 0), ("of another version", 3), ("", 0))
    ]


@pytest.mark.parametrize("text", ["", "[", "5", '{"type":"pong"}', "[" * 5000, "\udc80"])
def test_what_is_no_list_ends_the_connection(text: str) -> None:
    frame = text.encode("utf-8", "surrogateescape")
    for read in (read_from_head, read_from_node):
        with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
            read(frame)


@pytest.mark.parametrize("message", NODE_MESSAGES, ids=lambda each: type(each).__name__)
def test_a_report_that_can_be_read_loses_nothing(message: n.NodeMessage) -> None:
    found = salvaged(message)
    assert found is not None
    assert found.message == message
    assert found.lost == ()


def test_a_job_whose_launch_no_node_can_read_is_held_at_once_with_its_reason() -> None:
    world = World(node("n1"), node("n2"))
    machines = world.machines.values()
    for machine in machines:
        machine.launch_fault = "node n1 cannot read the message that starts it: too large"
        machine.fault = LaunchFailure(stage=LaunchStage.MESSAGE, subject=Subject.JOB)
    job = world.submit("nodes=1")
    world.run_for(3600.0)

    assert sum(len(machine.launches) for machine in machines) == 1
    assert world.job(job).holds == (HoldKind.SYSTEM,)
    assert "LAUNCH_BAD" in world.why(job)
    assert "too large" in world.why(job)
    assert not any(world.seen_node(name).drained for name in ("n1", "n2"))
