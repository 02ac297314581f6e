"""The head's sockets: where users and nodes come in, and how many of them."""

import contextlib
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from gsched.config.tables import HeadConfig
from gsched.config.words import node_socket_of
from gsched.errors import NO_ROOM, ConfigError
from gsched.files import replace_file
from gsched.model.limits import (
    MAX_CONNECTIONS,
    MAX_UNPROVEN,
    MAX_UNPROVEN_OF_ADDRESS,
    MAX_USER_CONNECTIONS,
)
from gsched.unix_address import BACKLOG, listen_at, peer_ids
from gschedd.http.answers import errors
from gschedd.http.door import Door, Doors, Rules, Source
from gschedd.http.handshake import refuse_clear_text

log = logging.getLogger("gschedd")

USERS_MODE: Final = 0o666  # anybody may ask; who asks is known from the kernel
NODES_MODE: Final = 0o600  # gnode runs as root, or as the head does
OWN_FILES: Final = 64  # database, log, readers, and some to spare


def raise_open_files() -> int:
    """Allow as many open files as the system does, and return how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def rules_for_users(open_files: int) -> Rules:
    """Return what connections of users are allowed; a quarter of all files is kept for nodes."""
    in_all = max(16, min(MAX_CONNECTIONS, open_files - open_files // 4 - OWN_FILES))
    return Rules(
        of_source=max(4, min(MAX_USER_CONNECTIONS, in_all // 4)),
        in_all=in_all,
        reserved=in_all // 16,
    )


def rules_for_nodes(open_files: int) -> Rules:
    """Return what connections are allowed that have not proven that they are nodes."""
    in_all = max(8, min(MAX_UNPROVEN, open_files // 16))
    return Rules(of_source=min(MAX_UNPROVEN_OF_ADDRESS, in_all), in_all=in_all, evict=True)


class UserSource:
    """Tells who is at the other end of a Unix socket; ``operator_uids`` returns who is one now."""

    def __init__(self, operator_uids: Callable[[], frozenset[int]]) -> None:
        self._operator_uids = operator_uids

    def __call__(self, connection: socket.socket) -> Source:
        """Return the user, as the kernel saw it when the other side connected."""
        uid, gid = peer_ids(connection)
        operator = uid in self._operator_uids()
        return Source(name=f"uid {uid}", uid=uid, gid=gid, operator=operator)


def address_source(connection: socket.socket) -> Source:
    """Return the address at the other end of a TCP connection."""
    try:
        return Source(name=str(connection.getpeername()[0]))
    except OSError:  # it has gone already
        return Source(name="unknown")


def node_socket_path(head: HeadConfig) -> str:
    """Return the path of the Unix socket for nodes of this machine; empty: there is none."""
    if head.node_socket == "none":
        return ""
    return head.node_socket or node_socket_of(head.socket)


def listen_on_path(path: str, *, mode: int, key: str) -> socket.socket:
    """Return a listening Unix socket, of commands or of nodes; ``key`` names it in errors.

    Raises:
        ConfigError: it cannot be made there.
    """
    try:
        return listen_at(path, mode=mode)
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error}", hint=f"see [head] {key}") from error


def listen_for_nodes(head: HeadConfig, port: int) -> socket.socket:
    """Return the listening TCP socket of the node channel.

    Raises:
        ConfigError: another program has the port, or there is no such address here.
    """
    family = socket.AF_INET6 if ":" in head.node_host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((head.node_host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {head.node_host}:{head.node_port}: {error.strerror}",
            hint="if another program uses the port, change [head] node_port",
        ) from error
    return listener


async def serve_users(
    doors: Doors,
    app: web.Application,
    path: str,
    *,
    operator_uids: Callable[[], frozenset[int]],
    open_files: int,
    listener: socket.socket | None = None,
) -> Door:
    """Let users in, on the commands' Unix socket.

    Args:
        listener: the socket, if it listens there already; connections that wait are kept.

    Raises:
        ConfigError: the socket cannot be made there.
    """
    if listener is None:
        listener = listen_on_path(path, mode=USERS_MODE, key="socket")
    return await doors.serve(app, listener, UserSource(operator_uids), rules_for_users(open_files))


async def serve_nodes(
    doors: Doors,
    head: HeadConfig,
    *,
    routes: Sequence[web.RouteDef],
    open_files: int,
    tls: Callable[[], ssl.SSLContext],
) -> int:
    """Let nodes in, on the Unix socket of this machine and over TLS; return the port.

    Raises:
        ConfigError: as `listen_for_nodes` and `listen_on_path`.
    """
    rules, path = rules_for_nodes(open_files), node_socket_path(head)
    if path:
        app = web.Application(middlewares=[errors], logger=log)
        app.add_routes(routes)
        listener = listen_on_path(path, mode=NODES_MODE, key="node_socket")
        await doors.serve(app, listener, UserSource(frozenset), rules)
    port_path = os.path.join(head.state_dir, "gschedd.port")
    listener = listen_for_nodes(head, free_port_like(head, port_path))
    port = int(listener.getsockname()[1])
    app = web.Application(middlewares=[refuse_clear_text, errors], logger=log)
    app.add_routes(routes)
    await doors.serve(app, listener, address_source, rules, tls)
    note_port(port_path, port)
    return port


def free_port_like(head: HeadConfig, port_path: str) -> int:
    """Return the configured port; for 0 that of the last start: nodes look for it there."""
    if head.node_port:
        return head.node_port
    try:
        with open(port_path, encoding="ascii") as file:
            port = int(file.read())
    except (OSError, ValueError):
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((head.node_host, port))
        except OSError:
            return 0
    return port


def note_port(port_path: str, port: int) -> None:
    """Write the port to the file from which the next start reads it."""
    try:
        replace_file(port_path, f"{port}\n".encode(), mode=0o644)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        log.warning("%s is not written: %s", port_path, error.strerror)


def listen_on_address(text: str, port_before: int, *, keys: str = "[web] listen") -> socket.socket:
    """Return a listening TCP socket; for port 0 with the port of the last start, if it is free.

    Args:
        keys: the table and the key that state it.

    Raises:
        ConfigError: another program has the port, or there is no such address here.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    wanted = int(port)
    for number in [wanted] if wanted or not port_before else [port_before, 0]:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            listener.bind((host, number))
            listener.listen(BACKLOG)
            return listener
        listener.close()
    raise ConfigError(
        f"cannot listen on {text}: another program uses it, or it is no address of this machine",
        hint=f"see {keys} in gsched.toml(5)",
    )


def host_in(authority: str) -> str:
    """Return the name in ``name:port``, in lower case, also of ``[::1]:port``."""
    name = authority.rpartition(":")[0] if authority.rpartition(":")[2].isdecimal() else authority
    return name.removeprefix("[").removesuffix("]").lower()


def web_port_path(state_dir: str) -> str:
    """Return the file with the port that the monitor chose; it takes that again."""
    return os.path.join(state_dir, "monitor.port")


def web_port(state_dir: str) -> int:
    """Return the port that the monitor chose when it started last; 0: none."""
    try:
        with open(web_port_path(state_dir), encoding="ascii") as file:
            return int(file.read(8))
    except (OSError, ValueError):
        return 0
