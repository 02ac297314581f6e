"""Ports for tests that let programs listen on loopback."""

import contextlib
import itertools
import os
import socket

#: Below those that Linux gives to any connection, and those of `cluster.MASTER_PORT_FIRST`.
FIRST, PORTS, BLOCKS = 10_000, 100, 100

_turns = itertools.count()


def free_port() -> int:
    """Return a port on which nobody listens.

    It stays free until a program listens there: no connection gets it by chance, another process of
    these tests has other ports, and this one comes back to it after a hundred calls.
    """
    first = FIRST + os.getpid() % BLOCKS * PORTS
    for _ in range(PORTS):
        port = first + next(_turns) % PORTS
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no port from {first} to {first + PORTS - 1} is free")
