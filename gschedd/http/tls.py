"""TLS of connections that a head has accepted, on asyncio."""

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Final

CLOSING_S: Final = 2.0  # for the peer's part in the end of a connection
#: What asyncio reads into, for each connection; its own 256 KiB are 250 MiB for 1,000 hosts.
BUFFER_BYTES: Final = 64 * 1024
_HANDSHAKE: Final = b"\x16"  # how each TLS connection begins


class _Tls(SSLProtocol):
    """TLS as asyncio has it, with a smaller buffer."""

    max_size = BUFFER_BYTES


async def shake_hands(
    visitor: asyncio.Protocol, connection: socket.socket, context: ssl.SSLContext, most_s: float
) -> None:
    """Serve a connection by TLS, as `connect_accepted_socket` of asyncio does for its own class.

    Args:
        most_s: how long the handshake may take.

    Raises:
        OSError: there is no TLS connection.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    tls = _Tls(
        loop,
        visitor,
        context,
        done,
        server_side=True,
        ssl_handshake_timeout=most_s,  # type: ignore[arg-type] # fractions, too
        ssl_shutdown_timeout=CLOSING_S,
    )
    transport, _ = await loop.connect_accepted_socket(lambda: tls, connection)
    try:
        await done
    except BaseException:
        transport.abort()
        raise


async def begins_tls(connection: socket.socket) -> bool:
    """Return whether a TLS handshake comes; wait for the first byte, which stays to be read."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        await readable.wait()
        return connection.recv(1, socket.MSG_PEEK) == _HANDSHAKE
    finally:
        loop.remove_reader(connection.fileno())
