"""What a supervisor gets from its launcher: a request, and what was opened for it."""

import os
import pathlib
import socket
from collections.abc import Iterator

import pytest

from gnode.supervisor import pool

REQUEST = b"1.1\0/spool/1.1\0" + b"0 1000 0"


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_both_descriptors_come_with_a_request(
    channel: tuple[socket.socket, socket.socket], tmp_path: pathlib.Path
) -> None:
    ours, theirs = channel
    (tmp_path / "task").write_text("the task")
    place = os.open(tmp_path, os.O_PATH)
    task = os.open(tmp_path / "task", os.O_RDONLY)
    socket.send_fds(ours, [REQUEST], [place, task])
    os.close(place)
    os.close(task)

    request, opened = pool._receive(theirs)

    assert request == REQUEST
    assert opened is not None
    assert os.path.samestat(os.fstat(opened[0]), os.stat(tmp_path))
    assert os.read(opened[1], 100) == b"the task"
    assert not any(map(os.get_inheritable, opened)), "no program of a job may have them"
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("count", [0, 1])
def test_without_both_the_supervisor_opens_the_task_itself(
    channel: tuple[socket.socket, socket.socket], count: int
) -> None:
    """As after an idle supervisor was killed, or where it has no room for another descriptor."""
    ours, theirs = channel
    before = open_files()
    socket.send_fds(ours, [REQUEST], [0] * count)

    assert pool._receive(theirs) == (REQUEST, None)
    assert open_files() == before


def test_the_launcher_s_end_is_an_empty_request(
    channel: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = channel
    ours.close()

    assert pool._receive(theirs) == (b"", None)
