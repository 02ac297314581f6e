"""Ports for tests that let programs listen on loopback."""

import socket


def free_port() -> int:
    """Return a port that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
