"""Connections to the step agents of a job's other nodes: they connect to this command.

gnode, the head and the other nodes' gnodes only pass on that this command wants them, with a
secret; see docs/adr/0022-job-steps.md.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
from collections.abc import Sequence

from gsched.cli.steps.job import JobNodes
from gsched.clock import SystemClock
from gsched.errors import BadStateError, GschedError
from gsched.protocol import steps as wire
from gsched.protocol.sealing import Opener, Sealer, SealError, challenge_key, session_keys

#: A step agent starts within a second; a name service or file server may take its time.
AGENTS_S = 90.0
_READ_BYTES = 1 << 16
_STRANGERS_MAX = 64  # connections beside the agents' that have proven nothing yet


class AgentLink:
    """A connection to the step agent of a node."""

    def __init__(self, node: str, channel: socket.socket, opener: Opener, sealer: Sealer) -> None:
        self.node = node
        self.channel = channel
        self.unsent = bytearray()
        self._received = bytearray()
        self._opener, self._sealer = opener, sealer

    def put(self, payload: bytes) -> None:
        """Queue a message."""
        self.unsent += wire.framed(self._sealer.seal(payload))

    def take(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with what has come.

        Raises:
            SealError: they are not the agent's.
            StepError: they are too large.
        """
        self._received += data
        return [bytes(self._opener.open(frame)) for frame in wire.take_frames(self._received)]


class _Arrival:
    """A connection that has not proven yet whose it is."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.received = bytearray()
        self.link: AgentLink | None = None


class _Reaching:
    """Waits until the step agents of some nodes have connected."""

    def __init__(self, job: JobNodes, nodes: Sequence[str]) -> None:
        self._job = job
        self._missing = set(nodes)
        self._links: dict[str, AgentLink] = {}
        self._secret = secrets.token_bytes(wire.SECRET_BYTES)
        self._selector = selectors.DefaultSelector()
        self._arrivals: set[_Arrival] = set()
        self._received = bytearray()
        self._failures: dict[str, str] = {}

    def run(self, timeout_s: float) -> dict[str, AgentLink]:
        """Return the connections, by node.

        Raises:
            GschedError: an agent has not come.
        """
        with _listener() as listener, _gnode(self._job) as gnode:
            gnode.sendall(self._call(int(listener.getsockname()[1])))
            gnode.setblocking(False)  # noqa: FBT003 - the socket's own signature
            self._selector.register(listener, selectors.EVENT_READ)
            self._selector.register(gnode, selectors.EVENT_READ)
            clock = SystemClock()
            end_s = clock.monotonic_s() + timeout_s
            while self._missing - self._failures.keys():
                left_s = end_s - clock.monotonic_s()
                if left_s <= 0:
                    break
                for key, _ in self._selector.select(left_s):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif key.fileobj is gnode:
                        self._hear_gnode(gnode)
                    else:
                        self._hear(key.data)
        for arrival in self._arrivals:
            arrival.channel.close()
        self._selector.close()
        if self._missing:
            self._give_up(timeout_s)
        return self._links

    def _give_up(self, timeout_s: float) -> None:
        for link in self._links.values():
            link.channel.close()
        node = min(self._missing)
        for failed, message in self._failures.items():
            raise BadStateError(f"cannot start tasks on {failed}: {message}")
        raise BadStateError(
            f"the step agent on {node} has not connected within {timeout_s:.0f} s",
            hint="nodes of a job must reach each other by TCP; see the logs of gnode there",
        )

    def _call(self, port: int) -> bytes:
        job, _, attempt = self._job.key.partition(".")
        request = {
            "version": wire.VERSION,
            "job": int(job),
            "attempt": int(attempt),
            "nodes": sorted(self._missing),
            "port": port,
            "secret": self._secret.hex(),
        }
        return json.dumps({"step": request}).encode() + b"\n"

    def _hear_gnode(self, gnode: socket.socket) -> None:
        data = gnode.recv(_READ_BYTES)
        self._received += data
        *lines, rest = bytes(self._received).split(b"\n")
        self._received[:] = rest
        for line in lines:
            message = json.loads(line)
            if "failed" in message:
                self._failures[message["failed"]["node"]] = message["failed"]["message"]
            elif "refused" in message:
                raise BadStateError(f"gnode refuses: {message['refused']['message']}")
        if not data:
            for node in self._missing:
                self._failures.setdefault(node, "gnode on this node has ended: try again")

    def _accept(self, listener: socket.socket) -> None:
        channel, _ = listener.accept()
        channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
        if len(self._arrivals) >= len(self._missing) + _STRANGERS_MAX:
            channel.close()
            return
        arrival = _Arrival(channel)
        self._arrivals.add(arrival)
        self._selector.register(channel, selectors.EVENT_READ, arrival)

    def _hear(self, arrival: _Arrival) -> None:
        try:
            data = arrival.channel.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("closed")
            if arrival.link is None:
                self._greet(arrival, data)
            elif wire.READY in arrival.link.take(data):
                self._admit(arrival, arrival.link)
        except BlockingIOError:
            pass
        except (OSError, ValueError, SealError, wire.StepProtocolError):
            self._forget(arrival)
            arrival.channel.close()

    def _greet(self, arrival: _Arrival, data: bytes) -> None:
        """Answer an agent's hello; what it sends next proves that it knows the secret."""
        arrival.received += data
        for hello in wire.take_frames(arrival.received, wire.MAX_HELLO_BYTES):
            node = str(json.loads(hello)["node"])
            if node not in self._missing or arrival.received:
                raise wire.StepProtocolError("nobody waits for it")
            nonce = json.dumps({"nonce": secrets.token_hex(wire.NONCE_BYTES)}).encode()
            challenge = Sealer(challenge_key(self._secret, hello)).seal(nonce)
            from_agent, from_program = session_keys(self._secret, hello, challenge)
            arrival.channel.sendall(wire.framed(challenge))
            link = AgentLink(node, arrival.channel, Opener(from_agent), Sealer(from_program))
            arrival.link = link
            return

    def _admit(self, arrival: _Arrival, link: AgentLink) -> None:
        self._forget(arrival)
        if link.node not in self._missing:
            arrival.channel.close()
            return
        self._missing.remove(link.node)
        self._links[link.node] = link
        with contextlib.suppress(OSError):
            link.channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _forget(self, arrival: _Arrival) -> None:
        self._selector.unregister(arrival.channel)
        self._arrivals.discard(arrival)


def reach(job: JobNodes, nodes: Sequence[str], timeout_s: float = AGENTS_S) -> dict[str, AgentLink]:
    """Return connections to the step agents of nodes of the job, by node.

    Raises:
        GschedError: one cannot be reached; the message says which and why.
    """
    if not nodes:
        return {}
    if not job.socket or not job.key:
        raise BadStateError(
            "this job cannot start tasks on other nodes: the gnode of this node is too old",
            hint="upgrade it, and submit the job again",
        )
    try:
        return _Reaching(job, nodes).run(timeout_s)
    except OSError as error:
        raise BadStateError(f"cannot start tasks on other nodes: {error}") from None


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    return socket.create_server(("", 0), backlog=1024)


def _gnode(job: JobNodes) -> socket.socket:
    """Return a connection to gnode, however long the path of its socket is."""
    directory, name = os.path.split(job.socket)
    try:
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_gnode(job, error) from None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(AGENTS_S)
        channel.connect(f"/proc/self/fd/{place}/{name}")  # an address has 107 bytes at most
    except OSError as error:
        channel.close()
        raise _no_gnode(job, error) from None
    finally:
        os.close(place)
    return channel


def _no_gnode(job: JobNodes, error: OSError) -> GschedError:
    return BadStateError(
        f"cannot reach gnode on {job.here}: {error.strerror or error}",
        hint="it may be being restarted: try again",
    )
