"""Addresses of Unix sockets, whatever the length of their paths."""

import os
import socket
from pathlib import Path

import pytest

from gsched.unix_address import ADDRESS_BYTES_MAX, address_of


@pytest.mark.parametrize("long", [False, True])
def test_a_socket_is_bound_and_reached_by_a_path_of_any_length(*, long: bool) -> None:
    folder = Path(f"/tmp/gsched-address-{os.getpid()}", *(["x" * 100] if long else []))
    folder.mkdir(parents=True)
    path = folder / "a.sock"
    before = len(os.listdir("/proc/self/fd"))
    try:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
            with address_of(path) as address:
                listener.bind(address)
                assert len(os.fsencode(address)) <= ADDRESS_BYTES_MAX
                assert (address == str(path)) is not long
            listener.listen(1)
            assert path.is_socket()
            with address_of(str(path)) as address:
                caller.connect(address)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        path.unlink(missing_ok=True)
        for each in (folder, folder.parent) if long else (folder,):
            each.rmdir()


def test_the_limit_is_the_kernels() -> None:
    longest = "/" + "x" * (ADDRESS_BYTES_MAX - 1)
    with address_of(longest) as address, socket.socket(socket.AF_UNIX) as caller:
        assert address == longest
        with pytest.raises(FileNotFoundError):  # not refused for its length
            caller.connect(address)


def test_a_directory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError), address_of("/nowhere/" + "x" * 200 + "/a"):
        pass
