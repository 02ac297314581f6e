"""Frames of the node channel: without the key none can be added, changed, dropped or repeated."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.protocol.sealing import (
    HEADER_BYTES,
    MAC_BYTES,
    Opener,
    Sealer,
    SealError,
    challenge_key,
    session_keys,
)

KEY = b"k" * 32


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_what_was_sealed_is_opened_in_order(payloads: list[bytes]) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)

    frames = [sealer.seal(payload) for payload in payloads]

    assert [bytes(opener.open(frame)) for frame in frames] == payloads


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda frame: b"",
    "MAC alone": lambda frame: frame[:MAC_BYTES],
    "MAC of no bytes": lambda frame: frame[MAC_BYTES:],
    "MAC cut by one byte": lambda frame: frame[1:],
    "MAC of zeros": lambda frame: bytes(MAC_BYTES) + frame[MAC_BYTES:],
    "byte appended": lambda frame: frame + b" ",
    "last byte cut": lambda frame: frame[:-1],
    "payload cut": lambda frame: frame[:HEADER_BYTES],
    "another number": lambda frame: frame[:MAC_BYTES] + bytes([0] * 7 + [1]) + frame[HEADER_BYTES:],
    "twice": lambda frame: frame + frame,
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_frame_that_was_changed_is_refused(how: str) -> None:
    """T12, T14: bytes added, a short or empty MAC."""
    frame = Sealer(KEY).seal(b"payload")

    with pytest.raises(SealError):
        Opener(KEY).open(SPOILT[how](frame))


def test_a_changed_bit_anywhere_is_noticed() -> None:
    frame = Sealer(KEY).seal(b"payload")
    for place in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[place] ^= 1 << bit
            with pytest.raises(SealError):
                Opener(KEY).open(bytes(changed))


def test_frames_that_are_repeated_left_out_or_exchanged_are_refused() -> None:
    """T11, E8, E9."""
    sealer = Sealer(KEY)
    frames = [sealer.seal(b"%d" % number) for number in range(3)]
    for order in ([0, 0], [1], [0, 2], [1, 0]):
        opener = Opener(KEY)
        for number in order[:-1] if order[0] == 0 else []:
            opener.open(frames[number])
        with pytest.raises(SealError):
            opener.open(frames[order[-1] if order[0] == 0 else order[0]])


def test_keys_differ_by_key_hello_challenge_and_direction() -> None:
    """T13, T15: what was sealed for one connection, role or cluster is worthless elsewhere."""
    keys = [
        challenge_key(KEY, b"hello"),
        challenge_key(KEY, b"hello "),
        challenge_key(b"x" * 32, b"hello"),
        *session_keys(KEY, b"hello", b"challenge"),
        *session_keys(KEY, b"hello", b"challeng"),
        *session_keys(KEY, b"helloc", b"hallenge"),
        *session_keys(b"x" * 32, b"hello", b"challenge"),
    ]

    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}


def test_the_derivation_is_hkdf_sha256() -> None:
    """The values are those of openssl kdf, so a node can be written elsewhere."""
    assert challenge_key(bytes(32), b"hello").hex() == (
        "c7f63b60d26de6525ee6e5348f893b598a9aaa8a994239b19749eb624e0ec3b4"
    )


@given(st.binary(max_size=200))
def test_nothing_made_up_opens(frame: bytes) -> None:
    with pytest.raises(SealError):
        Opener(KEY).open(frame)
