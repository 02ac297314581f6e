"""Sends one of the worst requests to a head again and again, until it is killed.

``python -m tests.support.flood SOCKET NUMBER``: the number is that of `worst_requests.WORST`.
"""

import contextlib
import itertools
import socket
import sys

from tests.support.processes import PATIENCE_S
from tests.support.worst_requests import WORST


def main() -> None:
    """Send and read, for ever."""
    path, worst = sys.argv[1], WORST[int(sys.argv[2])]
    body = worst.make()
    head = f"{worst.method} {worst.target} HTTP/1.1\r\nHost: head\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    for _ in itertools.count():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(path)
            with contextlib.suppress(OSError):  # it may be refused before all of it is sent
                client.sendall(request)
            while client.recv(65536):
                pass


if __name__ == "__main__":
    main()
