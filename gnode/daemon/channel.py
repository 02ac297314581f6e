"""The connection to the head: dial, register, then carry messages both ways.

Nothing is kept for a head that is away: what must arrive is repeated after the next welcome.
"""

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec

from gnode.core.inputs import (
    Disconnected,
    HeadOffered,
    HeadOrder,
    Input,
    LeaseRenewed,
    SurveyReceived,
)
from gnode.core.inputs import Welcomed as WelcomedInput
from gnode.daemon.accounts import Arrivals, Lookup
from gnode.daemon.certificates import Certificates
from gnode.daemon.heads import Heads
from gnode.daemon.peer import NotTheHeadError, check_directory, check_peer
from gsched.errors import ConfigError
from gsched.failpoint import failpoint
from gsched.model.ids import short_job_id
from gsched.owner_files import OwnerFiles
from gsched.pki.contexts import explain
from gsched.pki.names import CertificateError
from gsched.protocol.code import CodeRead
from gsched.protocol.deliveries import FileOrder, PieceDelivered, StagedRead
from gsched.protocol.framing import frames_from_node
from gsched.protocol.job_steps import LoginAnswer, StepMessage, StepOrder, StepRefused
from gsched.protocol.joining import (
    CertificateIssued,
    CertificateState,
    CertificateWanted,
    TrustChanged,
)
from gsched.protocol.node import (
    KEEPALIVE_S,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Challenge,
    ExitAck,
    Exited,
    HeadMessage,
    Hello,
    Launch,
    NodeMessage,
    Ping,
    Pong,
    Prepare,
    Refused,
    Register,
    Renewed,
    Started,
    SurveyAttempts,
    Welcome,
    decode_from_head,
    encode,
)
from gsched.protocol.reading import named, read_from_head
from gsched.protocol.relays import RelayAnswer
from gsched.protocol.settings import ClusterSettings, SettingsRead, SettingsWanted

log = logging.getLogger(__name__)

GATHER_S = 0.002  # from one frame to the next: ends that come in bursts share one
BACKOFF_FIRST_S = 0.2
BACKOFF_LONGEST_S = 10.0
BACKOFF_FLAPPING_S = 2.0  # the longest pause after connections that were short
STEADY_S = 10.0  # a connection that has lasted so long was none of those
BACKOFF_FATAL_S = 60.0  # the head said that trying again is of no use: somebody must change things
LOOPBACK = "127.0.0.1"  # where a node that reaches the head by a Unix socket is reached itself
BACKOFF_SEVERAL_S = 2.0  # the longest pause where another head may rule in a moment
CONNECT_TIMEOUT_S = 10.0
CONNECT_ONE_S = 3.0  # to one of several heads, before the next one is tried
HANDSHAKE_TIMEOUT_S = 15.0
SETTINGS_TIMEOUT_S = 4.0  # for programs of the site on a file system that hangs; pings wait, too


#: asyncio sends no alert when it does not take a certificate.
_CUT_OFF = (
    "the head ended the connection when it saw this host's certificate, and its log says why: most "
    "often it is of an authority that does not count any more, or the clocks differ; join again: "
    "gsched token create on the head, then gsched join on this host"
)
#: Without one of these there is no connection.
_OF_HANDSHAKE = frozenset({"challenge", "welcome", "refused", "survey"})


SettingsMessage = ClusterSettings | SettingsWanted
#: Takes settings of the cluster, and returns the answer to a question for them.
TakeSettings = Callable[[SettingsMessage], Awaitable[SettingsRead | None]]


class HandshakeError(Exception):
    """The connection must be closed; the message says why."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class Channel:
    """Keeps one connection to the head.

    Args:
        heads: where the heads' node channels are.
        trusted: uids whose head is obeyed on a Unix socket.
        node: this node's name.
        certificates: of this node, for a head that is reached by TCP.
        post: takes inputs for the agent.
        on_job: takes what is for programs of jobs: step agents, code snapshots, staged files.
        on_relay: takes answers about commands of users on this host.
        lookup: finds the owners of launches.
        files: reads and writes files of users for the head.
        on_delivery: takes answers about output that returns to its host of submission.
        on_settings: takes settings of the cluster.
        path: of the head's API on its node port.

    Attributes:
        is_local: the head is on this machine, by the addresses of the last connection.
    """

    def __init__(  # noqa: PLR0913 - what the shell puts together
        self,
        *,
        heads: Heads,
        trusted: frozenset[int],
        node: str,
        certificates: Certificates,
        post: Callable[[Input], None],
        on_job: Callable[[StepMessage | CodeRead | StagedRead], None],
        on_relay: Callable[[RelayAnswer], None],
        lookup: Lookup,
        files: OwnerFiles,
        on_delivery: Callable[[PieceDelivered], None],
        on_settings: TakeSettings,
        path: str = "/v1/node",
    ) -> None:
        self._heads, self._path, self._trusted = heads, heads.socket, trusted
        self._route = path
        self._node, self._certificates = node, certificates
        self._post = post
        self._on_job = on_job
        self._on_relay = on_relay
        self._files = files
        self._on_delivery = on_delivery
        self._on_settings = on_settings
        self._orders: set[asyncio.Task[None]] = set()
        self._arrivals = Arrivals(lookup, post)
        self._out: list[NodeMessage] = []
        self._wake = asyncio.Event()
        self._random = random.Random(secrets.randbits(64))
        self._address = ""
        self.is_local = False
        self._registered = False
        self._greeted = False
        self._welcomed = self._packs = False
        self._refusal: str | None = None
        self._errors: dict[str, str] = {}

    def send(self, message: NodeMessage) -> None:
        """Send a message on the present connection; before its registration it is dropped."""
        if self._registered:
            self._out.append(message)
            self._wake.set()

    def register(self, register: Callable[[str], Register]) -> None:
        """Answer the head's challenge; ``register`` gets this side's address."""
        self._registered = True
        self.send(register(self._address))

    def refuse(self, message: str) -> None:
        """Close the connection to a head that must not be obeyed."""
        self._refusal = message
        self._wake.set()

    def renew(self, why: str) -> None:
        """Connect again, as the registration has changed."""
        if self._registered:
            self.refuse(f"{why}: registering again")

    async def run(self) -> None:
        """Connect again and again, with a growing and jittered pause between."""
        wait_s = BACKOFF_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            several = self._heads.are_several
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_ONE_S if several else CONNECT_TIMEOUT_S
            )
            connector = aiohttp.UnixConnector(self._path) if self._path else None
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                self._greeted = self._welcomed = self._registered = self._packs = False
                begun_s, fatal = loop.time(), False
                try:
                    await self._connection(session)
                except HandshakeError as error:
                    fatal = error.fatal
                    self._complain(str(error))
                except NotTheHeadError as error:
                    fatal = True
                    self._complain(str(error))
                except CertificateError as error:  # gsched join repairs it
                    self._complain(str(error))
                except ConfigError as error:
                    self._complain(f"{error}: {error.hint}")
                except (aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
                    self._complain(f"{error}" if self._path or self._greeted else _CUT_OFF)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    self._complain(explain(error) or _reason(error, is_here=bool(self._path)))
            self._post(Disconnected())
            if self._welcomed:
                lasted_s = loop.time() - begun_s
                longest_s = BACKOFF_FIRST_S if lasted_s >= STEADY_S else BACKOFF_FLAPPING_S
                wait_s = min(wait_s, longest_s)
            elif not self._heads.turn():
                continue  # the next one at once
            pause_s = BACKOFF_FATAL_S if fatal and not several else wait_s
            await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, BACKOFF_SEVERAL_S if several else BACKOFF_LONGEST_S)

    def _complain(self, text: str) -> None:
        """Log why there is no connection, once for each reason in a row."""
        head = self._heads.current
        if text != self._errors.get(head):
            log.warning("no connection to the head at %s: %s", head, text)
            self._errors[head] = text

    # --- one connection ---

    async def _connection(self, session: aiohttp.ClientSession) -> None:
        self._out.clear()
        self._wake.clear()
        self._refusal = None
        if self._path:
            check_directory(self._path, self._trusted)
        async with session.ws_connect(
            f"{'ws://head' if self._path else f'wss://{self._heads.current}'}{self._route}",
            heartbeat=KEEPALIVE_S,
            max_msg_size=MAX_FRAME_BYTES,
            compress=0,
            ssl=True if self._path else self._certificates.context(),
        ) as socket:
            if self._path:
                check_peer(socket.get_extra_info("socket"), self._trusted)
            else:
                self._certificates.check_head(socket.get_extra_info("peercert"))
            self._greeted = True
            await self._say_hello(socket)
            reader = asyncio.create_task(self._read(socket))
            writer = asyncio.create_task(self._write(socket))
            work = {reader, writer}
            if not self._path:
                work.add(asyncio.create_task(self._certificates.keep(self._request_certificate)))
            try:
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                self._arrivals.forget()
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
        if self._welcomed:
            log.warning("the connection to the head is lost (%s)", socket.close_code)
            self._errors.clear()

    async def _say_hello(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        here, there = (socket.get_extra_info(name) for name in ("sockname", "peername"))
        is_tcp = isinstance(here, tuple) and isinstance(there, tuple)
        self._address = here[0] if is_tcp else LOOPBACK
        self.is_local = not is_tcp or here[0] == there[0]
        hello = Hello(version=PROTOCOL_VERSION, node=self._node)
        await socket.send_str(encode([hello]).decode())

    def _request_certificate(self, message: CertificateWanted | CertificateState) -> None:
        if self._welcomed:
            self.send(message)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        loop = asyncio.get_running_loop()
        sent_s = 0.0
        while True:
            await self._wake.wait()
            pause_s = sent_s + GATHER_S - loop.time()
            if pause_s > 0.0:
                await asyncio.sleep(pause_s)
            sent_s = loop.time()
            self._wake.clear()
            if self._refusal is not None:
                raise HandshakeError(self._refusal)
            messages, self._out = self._out, []
            for payload, sent in frames_from_node(messages, _left_out, packs=self._packs):
                await self._send_frame(socket, payload, sent)

    async def _send_frame(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        payload: bytes,
        messages: Sequence[NodeMessage],
    ) -> None:
        if any(isinstance(message, Exited) for message in messages):
            failpoint("node.exit.before_report")
        await socket.send_bytes(payload)
        for message in messages:
            if isinstance(message, Started):
                failpoint("node.launch.after_report")
            elif isinstance(message, Exited):
                failpoint("node.exit.after_report")

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            self._on_answer(await _frame(socket))
            while not self._welcomed:
                await self._handshake_frame(self._open(await _frame(socket)))
        while True:
            await self._take(self._open(await _frame(socket)))

    def _open(self, frame: str | bytes) -> list[HeadMessage]:
        """Return the messages of a frame.

        One that cannot be read is set aside, and the head is told which: it would send the same
        again over the next connection.
        """
        if isinstance(frame, str):
            raise HandshakeError("a frame came as text: it is not obeyed")
        try:
            messages, unreadable = read_from_head(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HandshakeError(f"the head's frame cannot be read: {error}") from error
        for each in unreadable:
            if not self._registered or each.of in _OF_HANDSHAKE:
                raise HandshakeError(f"the head's message {each.of} cannot be read: {each.reason}")
            about = f" of job {short_job_id(each.job)}" if each.job else ""
            log.error("the head's message %s%s cannot be read: %s", each.of, about, each.reason)
            self.send(each)
        return messages

    def _on_answer(self, frame: str | bytes) -> None:
        """Take in the answer to the hello: a challenge, or a refusal."""
        match _decoded(frame):
            case [Refused() as refused]:
                raise HandshakeError(f"refused: {refused.message}", fatal=refused.fatal)
            case [Challenge() as challenge] if isinstance(frame, bytes):
                self._on_challenge(challenge)
            case _:
                raise HandshakeError("the head has not answered with a challenge")

    async def _handshake_frame(self, messages: Sequence[HeadMessage]) -> None:
        for number, message in enumerate(messages):
            match message:
                case Welcome():
                    if not self._registered:
                        raise HandshakeError("the head welcomes a node that has not registered")
                    self._welcomed, self._packs = True, message.packs
                    self._errors.clear()
                    head = self._heads.current
                    log.info("registered with the head at %s, epoch %d", head, message.epoch)
                    self._heads.stay(message.heads)
                    self._post(
                        WelcomedInput(
                            cluster=message.cluster,
                            epoch=message.epoch,
                            epoch_id=message.epoch_id,
                            seq=message.seq,
                            next_job=message.next_job,
                        )
                    )
                    await self._take(messages[number + 1 :])
                    return
                case SurveyAttempts():
                    if not self._registered:
                        raise HandshakeError("the head asks a node that has not registered")
                    self._welcomed = True
                    log.warning(
                        "the head at %s asks what this node knows: safe mode", self._heads.current
                    )
                    self._on_orders(messages[number:])
                    return
                case Refused():
                    raise HandshakeError(f"refused: {message.message}", fatal=message.fatal)
                case _:
                    raise HandshakeError(f"{type(message).__name__} before the welcome")

    def _on_challenge(self, message: Challenge) -> None:
        if message.version != PROTOCOL_VERSION:
            raise HandshakeError(
                f"the head speaks version {message.version} of the node protocol, "
                f"this gnode {PROTOCOL_VERSION}: install the same gsched on both",
                fatal=True,
            )
        self._post(
            HeadOffered(cluster=message.cluster, epoch=message.epoch, epoch_id=message.epoch_id)
        )

    async def _take(self, messages: Sequence[HeadMessage]) -> None:
        """Take orders in; a launch after settings has these, unless reading them takes long."""
        begun = 0
        for number, message in enumerate(messages):
            if isinstance(message, ClusterSettings | SettingsWanted):
                self._on_orders(messages[begun:number])
                begun = number + 1
                task = asyncio.create_task(self._settle(message))
                self._orders.add(task)
                task.add_done_callback(self._orders.discard)
                await asyncio.wait([task], timeout=SETTINGS_TIMEOUT_S)
        self._on_orders(messages[begun:])

    async def _settle(self, message: SettingsMessage) -> None:
        answer = await self._on_settings(message)
        if answer is not None:
            self.send(answer)

    def _on_orders(  # noqa: C901, PLR0912 # one line a message
        self, messages: Sequence[HeadMessage]
    ) -> None:
        for message in messages:
            match message:
                case Launch():
                    failpoint("node.launch.received")
                    self._arrivals.take(message)
                case Prepare():
                    self._arrivals.take(message)
                case SurveyAttempts():
                    self._post(SurveyReceived(survey=message))
                case Refused():
                    raise HandshakeError(
                        f"the head sends this node away: {message.message}", fatal=message.fatal
                    )
                case Renewed():
                    self._post(LeaseRenewed(number=message.number))
                case Ping():
                    self.send(Pong(number=message.number))
                case TrustChanged() | CertificateIssued():
                    self._certificates.take(message, self._request_certificate)
                case StepOrder() | StepRefused() | LoginAnswer() | CodeRead() | StagedRead():
                    self._on_job(message)
                case RelayAnswer():
                    self._on_relay(message)
                case PieceDelivered():
                    self._on_delivery(message)
                case FileOrder():
                    task = asyncio.create_task(self._act(message))
                    self._orders.add(task)
                    task.add_done_callback(self._orders.discard)
                case Challenge() | Welcome() | ClusterSettings() | SettingsWanted():
                    log.warning("%s in the middle of a connection: ignored", type(message).__name__)
                case _:
                    self._post(HeadOrder(message=message))
                    if isinstance(message, ExitAck):
                        failpoint("node.exit.after_ack")

    async def _act(self, order: FileOrder) -> None:
        done = await self._files.do(order)
        failpoint("staging.host.after_read" if order.tree else "delivery.host.after_write")
        self.send(done)


def _left_out(message: NodeMessage, reason: str) -> None:
    """Log that a message, or a part of it, is not sent, as the head could not read it."""
    part = named(message, reason)
    about = f" of job {short_job_id(part.job)}" if part.job else ""
    log.error("a part of the message %s%s is left out: %s", part.of, about, reason)


async def _frame(socket: aiohttp.ClientWebSocketResponse) -> str | bytes:
    """Return the next frame.

    Raises:
        HandshakeError: the connection is closed.
    """
    frame = await socket.receive()
    match frame.type:
        case aiohttp.WSMsgType.TEXT | aiohttp.WSMsgType.BINARY:
            data: str | bytes = frame.data
            return data
        case aiohttp.WSMsgType.ERROR:
            raise HandshakeError(f"the connection broke: {socket.exception()}")
        case _:
            why = f": {frame.extra}" if frame.extra else ""
            raise HandshakeError(f"the head closed the connection ({socket.close_code}){why}")


def _decoded(payload: str | bytes) -> list[HeadMessage]:
    """Return the messages of a frame.

    Raises:
        HandshakeError: it cannot be read.
    """
    try:
        return decode_from_head(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HandshakeError(f"the head's message cannot be read: {error}") from error


def _reason(error: Exception, *, is_here: bool) -> str:
    """Return why the head was not reached, in the same words for each attempt."""
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 401:
        return (
            "this is the head's port for programs ([https]): name the one for nodes, node_port of "
            "the head's configuration, in head of [node]"
        )
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    words = str(error) or type(error).__name__
    if isinstance(cause, OSError) and cause.errno is not None:
        by_name = str(cause.strerror or cause)  # of a name service below 0
        words = os.strerror(cause.errno) if cause.errno > 0 else by_name
    elif not isinstance(error, TimeoutError):
        return words
    remote = "" if is_here else ", node_host in [head], firewalls between"
    return f"{words}: check head in [node], whether gschedd runs{remote}"
