"""Forwarded ports: records in a stream, options, and whose connection it is."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.cli.session.forward import ForwardRule, another, is_own, listen, read_rule
from gsched.errors import CannotWriteError, UsageError
from gsched.forwarding import (
    PIECE_BYTES,
    RecordError,
    RecordKind,
    Records,
    count_of,
    open_record,
    port_of,
    record,
    taken_record,
)

records = st.lists(
    st.tuples(st.sampled_from(RecordKind), st.integers(0, 2**32 - 1), st.binary(max_size=300)),
    max_size=8,
)


@given(records, st.integers(1, 50))
def test_records_come_out_as_they_went_in(
    sent: "list[tuple[RecordKind, int, bytes]]", size: int
) -> None:
    """However the stream is cut."""
    stream = b"".join(record(*each) for each in sent)
    reader = Records()

    found = [
        each for at in range(0, len(stream), size) for each in reader.feed(stream[at : at + size])
    ]

    assert found == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    try:
        for _, _, content in Records().feed(data):
            assert len(content) <= PIECE_BYTES
    except RecordError:
        pass


def test_ports_and_counts_are_read_back_and_no_other_length() -> None:
    [(part, number, content)] = Records().feed(open_record(7, 8888))
    assert (part, number, port_of(content)) == (RecordKind.OPEN, 7, 8888)
    [(_, _, content)] = Records().feed(taken_record(7, 2**20))
    assert count_of(content) == 2**20
    for read in (port_of, count_of):
        with pytest.raises(RecordError):
            read(b"123")
    with pytest.raises(RecordError, match="a record of 20000 bytes"):
        list(Records().feed(b"\x04" + bytes(4) + (20000).to_bytes(2, "big")))


@pytest.mark.parametrize("text", ["", "x", "0:1", "1:65536", "1:2:3", "8888:", "-1", "٣:3"])
def test_what_are_no_ports_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a pair of ports") as refused:
        read_rule(text)
    assert "8888:8888" in refused.value.hint


def test_ports_are_listened_to_on_loopback_only() -> None:
    assert (read_rule("8888:80"), read_rule("6006")) == (
        ForwardRule(8888, 80),
        ForwardRule(6006, 6006),
    )
    [(_, made)] = listen([ForwardRule(0, 80)])
    port = made.getsockname()[1]
    with made:
        assert made.getsockname()[0] == "127.0.0.1"
        with pytest.raises(CannotWriteError, match=f"port {port} of this machine: address already"):
            listen([ForwardRule(0, 1), ForwardRule(port, 80)])


@pytest.mark.parametrize(
    ("local", "proposed"),
    [(80, "8080:80"), (443, "8443:80"), (1023, "9023:80"), (8888, "8889:80"), (65535, "8000:80")],
)
def test_the_port_that_is_proposed_can_be_had(local: int, proposed: str) -> None:
    """Those below 1024 are root's, and none follows the last."""
    assert another(ForwardRule(local, 80)) == f"-L {proposed}"


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_a_connection_of_another_user_is_told_apart() -> None:
    """The first address is the other end's: /proc/net/tcp has its user."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    for line in lines:
        words = line.split()
        if words[7] not in {"0", str(os.geteuid())}:
            here, there = (_address(word) for word in words[1:3])
            assert not is_own(here, there)
    assert is_own(("127.0.0.1", 1), ("127.0.0.1", 2))


def _address(text: str) -> "tuple[str, int]":
    number, port = text.split(":")
    return socket.inet_ntoa(int(number, 16).to_bytes(4, "little")), int(port, 16)
