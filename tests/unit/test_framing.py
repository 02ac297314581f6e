"""Frames of the node channel: bounded by their bytes, in order, with nothing lost."""

import msgspec
import pytest

from gsched.model.states import PartState
from gsched.protocol.deliveries import FileDone
from gsched.protocol.framing import (
    FRAME_BYTES,
    FRAME_MESSAGES,
    frames_from_head,
    frames_from_node,
    known_pieces,
)
from gsched.protocol.node import (
    MAX_FRAME_BYTES,
    HeadMessage,
    KnownAttempt,
    KnownAttempts,
    NodeMessage,
    Ping,
    Pong,
    decode_from_head,
    decode_from_node,
    encode,
)
from gsched.protocol.reading import read_from_head, read_from_node
from tests.support.agent_driver import order

MIB = 1024 * 1024


def refuse(message: object, reason: str) -> None:
    raise AssertionError(f"{message}: {reason}")


def known(job: int, size: int) -> KnownAttempt:
    return KnownAttempt(
        job=job, attempt=1, state=PartState.ENDED, stdout_path="/home/" + "o" * size
    )


def test_the_frames_of_many_and_of_large_messages_are_bounded() -> None:
    """20,000 messages of 4 KiB are 80 MiB: 2,000 of them would be 8 MiB; 2,000 of 64 KiB, 125."""
    messages: list[NodeMessage] = []
    for job in range(20_000):
        size = 9 * MIB if job in {0, 7_000, 7_001, 19_999} else 64 * 1024 if job < 200 else 4_000
        messages.append(KnownAttempts(attempts=(known(job, size),)))

    made = list(frames_from_node(messages, refuse))

    assert max(len(frame.payload) for frame in made) < MAX_FRAME_BYTES // 2
    assert all(len(frame.payload) <= FRAME_BYTES for frame in made if len(frame.messages) > 1)
    heard: list[NodeMessage] = []
    for frame in made:
        found = decode_from_node(frame.payload)
        assert len(found) == len(frame.messages) <= FRAME_MESSAGES
        heard += found
    assert heard == messages


def test_launches_with_the_largest_scripts_go_one_by_one() -> None:
    messages: list[HeadMessage] = []
    for job in range(1, 4):
        messages += [Ping(number=job), order(job, script="x" * (16 * MIB))]

    made = list(frames_from_head(messages, refuse))

    assert [len(frame.messages) for frame in made] == [1] * 6
    assert [each for frame in made for each in decode_from_head(frame.payload)] == messages
    assert all(len(frame.payload) < MAX_FRAME_BYTES for frame in made)


def test_small_messages_share_a_frame_and_it_is_encoded_as_ever() -> None:
    messages = [Ping(number=number) for number in range(FRAME_MESSAGES)]

    (frame,) = frames_from_head(messages, refuse)

    assert frame.payload == encode(messages)
    assert list(frames_from_head([], refuse)) == []


@pytest.mark.parametrize("size", [0, 40_000, 5 * MIB])
def test_an_answer_to_a_survey_is_cut_by_bytes(size: int) -> None:
    attempts = [known(job, size) for job in range(1_000 if size < MIB else 8)]

    pieces = list(known_pieces(attempts))

    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [each for piece in pieces for each in piece.attempts] == attempts
    assert all(len(encode([each])) <= FRAME_BYTES for each in pieces if len(each.attempts) > 1)
    assert list(known_pieces([])) == [KnownAttempts(attempts=(), done=True)]


@pytest.mark.parametrize("packs", [False, True])
def test_a_piece_of_a_file_goes_alone_as_it_is_to_who_can_read_that(*, packs: bool) -> None:
    """All arrives in order, and an older peer gets JSON."""
    data = bytes(range(256)) * 4096
    messages: list[NodeMessage] = [
        Pong(number=1),
        FileDone(request=2, path="ü", data=data),
        Pong(number=3),
        FileDone(request=4, data=b""),
    ]

    made = list(frames_from_node(messages, refuse, packs=packs))

    assert [each for frame in made for each in decode_from_node(frame.payload)] == messages
    assert [frame.payload[:1] == b"[" for frame in made] == (
        [True, False, True, False] if packs else [True]
    )
    assert not packs or len(made[1].payload) < len(data) + 200


@pytest.mark.parametrize(
    ("payload", "of"),
    [
        (msgspec.msgpack.encode([{"type": "file_done", "request": "x", "job": 7}]), "file_done"),
        (msgspec.msgpack.encode([{"type": "of a later version", "job": 7}]), "of a later version"),
    ],
)
def test_a_packed_message_that_cannot_be_read_is_set_aside(payload: bytes, of: str) -> None:
    read, incomplete, (unreadable,) = read_from_node(payload)

    assert (read, incomplete, unreadable.of, unreadable.job) == ([], [], of, 7)
    assert read_from_head(payload)[1][0].of == of


@pytest.mark.parametrize(
    "payload", [b"\x91", b"\x91" * 100_000, b"\x91\xdd\x01\x00\x00\x00" + b"\x01" * 9]
)
def test_what_is_no_packed_frame_is_an_error_of_the_connection(payload: bytes) -> None:
    for read in (read_from_node, read_from_head):
        with pytest.raises(msgspec.MsgspecError):
            read(payload)
