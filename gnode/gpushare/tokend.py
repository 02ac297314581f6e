"""The token daemon of a node: ``python -m gnode.gpushare.tokend --dir D``.

gnode starts it with the first job that shares a GPU, and it outlives gnode. Processes of jobs
connect to ``token.sock``; whoever knows a job's secret is of that job. gnode admits and removes
jobs through ``control.sock``, which only gnode's own user can open. ``groups.json`` keeps the
admissions, so that the next daemon knows the same secrets.
"""

import argparse
import contextlib
import errno
import fcntl
import heapq
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from gnode.gpushare import wire
from gnode.gpushare.addresses import CONTROL_SOCKET
from gnode.gpushare.admissions import AdmissionsFile, admission_of
from gnode.gpushare.budgets import MESSAGES_AT_ONCE, Budget
from gnode.gpushare.clients import Client, Clients
from gnode.gpushare.gate import GatePage
from gnode.gpushare.listening import JobsListener, listen, places, turn_away
from gnode.gpushare.memory_book import MemoryBook
from gnode.gpushare.metrics import metrics_of
from gnode.gpushare.node_tokens import NodeTokens
from gnode.gpushare.token_model import (
    AskIdle,
    CloseGate,
    Effect,
    OpenGate,
    SetWindow,
    TokenSettings,
)
from gnode.gpushare.wire import BadMessageError, Message, MessageKind, OtherVersionError
from gsched.clock import Clock, SystemClock

log = logging.getLogger(__name__)

JOBS_SOCKET: Final = "token.sock"
RECOVERY_S: Final = 1.0  # for the claims of processes that outlived the last daemon
NICENESS: Final = -10
HELLO_WITHIN_S: Final = 2.0
CONTROL_BYTES_MAX: Final = 65536
#: Messages that are read before others are looked for again.
READ_AT_ONCE: Final = 16
_UCRED: Final = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)


@dataclass(slots=True)
class TokenDaemon:
    """Sockets around `NodeTokens`.

    Attributes:
        directory: with the sockets and the file of admissions.
        tokens: the state.
        clock: the daemon's own; processes say nothing about time that is believed.
        clients: connections of processes.
        edition: what gnode calls this code with these options.
    """

    directory: Path
    tokens: NodeTokens
    clock: Clock = field(default_factory=SystemClock)
    clients: Clients = field(default_factory=Clients)
    edition: str = ""
    pages: dict[str, GatePage] = field(default_factory=dict)
    finished: bool = False
    bad_messages: int = 0
    _budgets: dict[tuple[str, bool], Budget] = field(default_factory=dict)
    _later: dict[tuple[str, bool], deque[Client]] = field(default_factory=dict)
    _spare: int = -1  # a descriptor for a connection when there is no other
    _file: AdmissionsFile = field(init=False)
    _jobs: JobsListener = field(init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _effects: deque[Effect] = field(default_factory=deque)
    _carrying_out: bool = False

    def __post_init__(self) -> None:
        self._file = AdmissionsFile(self.directory)

    # ---- life ----

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until the order to finish; ``ready`` is called when both sockets listen."""
        admissions = self._file.load()
        if admissions:  # claims come before the first grant
            self.tokens.quiet_until_s = self.clock.monotonic_s() + RECOVERY_S
        for admission in admissions:
            self.tokens.admit(admission)
        token = listen(self.directory / JOBS_SOCKET, 0o666)
        self._jobs = JobsListener(
            token, self._selector, lambda: self._accept(token), self.clock.monotonic_s()
        )
        control = listen(self.directory / CONTROL_SOCKET, 0o600)
        self._selector.register(
            control, selectors.EVENT_READ, lambda: self._accept_control(control)
        )
        ready()
        self._keep_spare()
        while not self.finished:
            self.once()
        for client in self.clients:
            self._drop(client, "the daemon ends")
        for page in self.pages.values():
            page.close()
        self._jobs.close()
        for key in list(self._selector.get_map().values()):
            cast("socket.socket", key.fileobj).close()  # of gnode
        self._selector.close()

    def once(self) -> None:
        """Wait for the next events, or for the next time that matters."""
        due = [
            self.tokens.next_tick_s(),
            self._jobs.next_s(),
            *(one.hello_by_s for one in self.clients.first_silent()),
            *(self._budgets[key].next_s() for key in self._later),
        ]
        due_s = min((at for at in due if at is not None), default=None)
        wait_s = None if due_s is None else max(0.0, due_s - self.clock.monotonic_s())
        ready = self._selector.select(wait_s)
        if len(ready) > READ_AT_ONCE:  # the others are ready still, and come next
            ready = heapq.nlargest(READ_AT_ONCE, ready, key=_credit)
        for key, _ in ready:
            if isinstance(key.data, Client):
                self._read(key.data)
            else:
                cast("Callable[[], None]", key.data)()
        due_s = self.tokens.next_tick_s()
        now_s = self.clock.monotonic_s()
        self._read_again(now_s)
        self._jobs.look(now_s)
        for client in self.clients.first_silent():
            if now_s >= client.hello_by_s:
                self._drop(client, "it has said nothing")
        if due_s is not None and now_s >= due_s:
            self._carry_out(self.tokens.tick(now_s))

    # ---- processes of jobs ----

    def _accept(self, listener: socket.socket) -> None:
        if not self._jobs.may_accept(self.clock.monotonic_s()):
            return
        channel = self._accepted(listener)
        if channel is None:
            return
        if self._spare < 0 and not self._keep_spare():
            turn_away(channel)  # it has the last descriptor
            self._keep_spare()
            return
        pid, uid, _ = _UCRED.unpack(
            channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
        if (other := self.clients.in_the_way_of(uid)) is not None:
            self._turn_out(other)
        client = self.clients.add(channel, pid, uid, self.clock.monotonic_s() + HELLO_WITHIN_S)
        if self._wait_for(client):
            self._read(client)

    def _wait_for(self, client: Client) -> bool:
        """Wait for messages of a client; one for which there is no more room is turned away."""
        try:
            self._selector.register(client.channel, selectors.EVENT_READ, client)
        except OSError as error:
            log.debug("a connection cannot be waited for: %s", error)
            client.is_waited_for = False
            self._turn_out(client)
            return False
        client.is_waited_for = True
        return True

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        """Accept a connection; None: there is none any more, or no descriptor for it."""
        try:
            channel, _ = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                log.debug("a connection cannot be accepted: %s", error)
            elif silent := self.clients.first_silent():
                self._turn_out(silent[0])
            elif self._spare >= 0:
                os.close(self._spare)
                self._spare = -1
            return None  # the listener is ready still, and is asked again
        channel.settimeout(0.0)
        return channel

    def _keep_spare(self) -> bool:
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._spare >= 0

    def _turn_out(self, client: Client) -> None:
        """Give the place of a client that has said nothing yet to another one."""
        self._send(client, Message(kind=MessageKind.BUSY))
        self._drop(client, "others need its place")

    def _follow(self, client: Client) -> None:
        """Have the end of its process told, for a child may keep the connection open."""
        with contextlib.suppress(OSError):  # gone already, or a kernel without it: EOF remains
            pidfd = os.pidfd_open(client.pid)
            try:
                self._selector.register(
                    pidfd, selectors.EVENT_READ, lambda: self._drop(client, "its process ended")
                )
            except OSError:
                os.close(pidfd)
                raise
            client.pidfd = pidfd

    def _read(self, client: Client) -> None:
        if client not in self.clients:
            return
        if client.budget is not None and not client.budget.take(self.clock.monotonic_s()):
            self._read_later(client)
            return
        try:
            data = client.channel.recv(wire.MESSAGE_BYTES + wire.SECRET_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(client, str(error))
            return
        if not data:
            self._drop(client, "it hung up")
            return
        try:
            message, rest = wire.unpack(data)
            client.version = wire.version_of(data)
            self._handle(client, message, rest)
        except BadMessageError as error:
            self.bad_messages += 1
            if isinstance(error, OtherVersionError):
                served = Message(kind=MessageKind.VERSION, a=wire.OLDEST_VERSION, b=wire.VERSION)
                self._send(client, served)
            self._drop(client, f"bad message: {error}")

    def _read_later(self, client: Client) -> None:
        """Read no more of a client until its job may speak again; its end is told by its process.

        The budget is the job's, so that a job has not more of it with more processes.
        """
        self._selector.unregister(client.channel)
        client.is_waited_for = False
        self._later.setdefault((client.group, client.launches), deque()).append(client)

    def _read_again(self, now_s: float) -> None:
        for key, waiting in list(self._later.items()):
            budget = self._budgets[key]
            budget.fill(now_s)
            for _ in range(int(budget.left)):
                if not waiting:
                    del self._later[key]
                    break
                client = waiting.popleft()
                if client in self.clients:
                    self._wait_for(client)

    def _handle(self, client: Client, message: Message, rest: bytes) -> None:
        if not client.group:
            if message.kind is not MessageKind.HELLO:
                raise BadMessageError(f"{message.kind.name} before HELLO")
            self._greet(client, message, rest.decode("ascii", "replace"))
        elif client.launches:
            self._handle_launches(client, message)
        else:
            self._handle_memory(client, message)

    def _greet(self, client: Client, hello: Message, secret: str) -> None:
        group = self.tokens.group_of(secret)
        if group is None:
            self._send(client, Message(kind=MessageKind.REFUSED))
            self._drop(client, "unknown job")
            return
        self._jobs.proved()
        launches = hello.b == wire.CHANNEL_LAUNCH
        has_place = self.clients.has_place(group)
        self.clients.join(client, group)
        if not has_place or (launches and not self._has_page(group)):
            self._turn_out(client)
            return
        self._follow(client)
        client.launches = launches
        client.budget = self._budgets.setdefault(
            (group, launches), Budget(self.clock.monotonic_s())
        )
        limit = self.tokens.admissions[group].memory_bytes
        welcome = Message(kind=MessageKind.WELCOME, client=client.number, a=limit)
        if not client.launches:
            self.tokens.memory.reserve(group, client.number, hello.a, forced=True)
            self._send(client, welcome)
            return
        now_s = self.clock.monotonic_s()
        if not self._send(client, welcome, self._page(group).descriptor):
            return
        self._carry_out(self.tokens.join(client.number, client.pid, group, now_s))
        if hello.flags & wire.CLAIM_HELD and client in self.clients:
            self._carry_out(self.tokens.claim(client.number, now_s))

    def _has_page(self, group: str) -> bool:
        """Make a job's page unless it has one; a silent client's descriptor serves for it."""
        while True:
            try:
                self._page(group)
            except OSError as error:
                log.debug("no gate for job %s now: %s", group, error)
                silent = self.clients.first_silent()
                if not silent:
                    return False
                self._turn_out(silent[0])
            else:
                return True

    def _handle_launches(self, client: Client, message: Message) -> None:
        now_s, number = self.clock.monotonic_s(), client.number
        match message.kind:
            case MessageKind.REQUEST:
                self._carry_out(self.tokens.request(number, now_s))
            case MessageKind.YIELD:
                self._carry_out(self.tokens.idle(number, now_s))
            case MessageKind.RELEASED:
                self.tokens.stat(number, 0, 0)
                self._carry_out(
                    self.tokens.released(number, message.epoch, now_s, drain_s=message.b / 1e9)
                )
            case MessageKind.STAT:
                self.tokens.stat(number, message.a, message.b)
            case MessageKind.LOADING:
                self.tokens.loading(number, message.epoch)
            case MessageKind.PING:
                self._send(client, Message(kind=MessageKind.PONG))
            case _:
                raise BadMessageError(f"{message.kind.name} on a channel for launches")

    def _handle_memory(self, client: Client, message: Message) -> None:
        group, memory = client.group, self.tokens.memory
        match message.kind:
            case MessageKind.RESERVE:
                forced = bool(message.flags & wire.FORCED)
                granted = memory.reserve(group, client.number, message.a, forced=forced)
                answer = Message(
                    kind=MessageKind.RESERVED if granted else MessageKind.REFUSED,
                    seq=message.seq,
                    b=min(memory.used_bytes(group), wire.MAX_NUMBER),
                    c=memory.limits_bytes[group],
                )
                self._send(client, answer)
            case MessageKind.FREE:
                memory.free(group, client.number, message.a)
            case _:
                raise BadMessageError(f"{message.kind.name} on a channel for memory")

    def _drop(self, client: Client, why: str) -> None:
        """Forget a connection, and what its process held."""
        if not self.clients.remove(client):
            return
        log.debug("process %d of %s: %s", client.pid, client.group or "no job", why)
        if client.pidfd >= 0:
            self._selector.unregister(client.pidfd)
            os.close(client.pidfd)
        if client.is_waited_for:
            self._selector.unregister(client.channel)
        client.channel.close()
        self._keep_spare()
        if client.group:
            self.tokens.memory.drop(client.group, client.number)
        self._carry_out(self.tokens.leave(client.number, self.clock.monotonic_s()))

    # ---- what the state says has to be done ----

    def _carry_out(self, effects: list[Effect]) -> None:
        """Do what was decided, in the order of the decisions.

        Who cannot be told is dropped, which decides more: that comes last.
        """
        self._effects.extend(effects)
        if self._carrying_out:
            return
        self._carrying_out = True
        while self._effects:
            match self._effects.popleft():
                case OpenGate(group, epoch, client):
                    self._page(group).open(epoch)
                    self._tell(group, Message(kind=MessageKind.GRANT, epoch=epoch), client)
                case CloseGate(group, epoch):
                    self._page(group).shut()
                    self._tell(group, Message(kind=MessageKind.REVOKE, epoch=epoch))
                case AskIdle(group, client):
                    self._tell(group, Message(kind=MessageKind.WAITING), client)
                case SetWindow(group, window):
                    self._page(group).set_window(window)
        self._carrying_out = False

    def _page(self, group: str) -> GatePage:
        if group not in self.pages:
            self.pages[group] = GatePage()
        return self.pages[group]

    def _tell(self, group: str, message: Message, only: int = 0) -> None:
        for client in self.clients.of(group):
            if client.launches and only in {0, client.number}:
                self._send(client, message)

    def _send(self, client: Client, message: Message, descriptor: int = -1) -> bool:
        """Send without waiting; a process that has not read for long is disconnected.

        Returns:
            Whether it was sent; if not, the client is forgotten, and so is what it held.
        """
        passed = [descriptor] if descriptor >= 0 else []
        try:
            socket.send_fds(client.channel, [wire.pack(message, client.version)], passed)
        except OSError as error:
            self._drop(client, f"cannot be told: {error}")
            return False
        return True

    # ---- gnode ----

    def _accept_control(self, listener: socket.socket) -> None:
        channel = self._accepted(listener)
        if channel is None:
            return
        try:
            self._selector.register(
                channel, selectors.EVENT_READ, lambda: self._read_control(channel)
            )
        except OSError as error:
            log.error("gnode cannot be heard: %s", error)
            channel.close()

    def _read_control(self, channel: socket.socket) -> None:
        try:
            data = channel.recv(CONTROL_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(channel)
            channel.close()
            self._keep_spare()
            return
        try:
            answer = self._control(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            channel.send(json.dumps(answer).encode())

    def _control(self, order: Mapping[str, object]) -> dict[str, object]:
        if self._file.is_behind:
            self._file.save(self.tokens.admissions.values())
        match order["order"]:
            case "admit":
                fields = cast("dict[str, object]", order["admission"])
                self.tokens.admit(admission_of(fields))
                self._file.save(self.tokens.admissions.values())
            case "remove":
                self._remove(str(order["group"]))
            case "attend":
                now_s = self.clock.monotonic_s()
                until_s = now_s + float(cast("float", order["seconds"]))
                self._carry_out(self.tokens.attend(str(order["group"]), until_s, now_s))
            case "metrics":
                return self.metrics()
            case "finish":
                self.finished = not self.tokens.admissions
                return {"finished": self.finished}
            case unknown:
                raise ValueError(f"unknown order {unknown!r}")
        return {"ok": True}

    def _remove(self, group: str) -> None:
        for client in self.clients.of(group):
            self._drop(client, "its job was removed")
        self._carry_out(self.tokens.remove(group, self.clock.monotonic_s()))
        for key in ((group, False), (group, True)):
            self._budgets.pop(key, None)
            self._later.pop(key, None)
        page = self.pages.pop(group, None)
        if page is not None:
            page.shut()
            page.close()
        self._file.save(self.tokens.admissions.values())

    def metrics(self) -> dict[str, object]:
        """Return counters and the state of each GPU and job, for people and for the scheduler."""
        pids: dict[str, set[int]] = {}
        for client in self.clients:
            pids.setdefault(client.group, set()).add(client.pid)
        return {
            "pid": os.getpid(),
            "edition": self.edition,
            "bad_messages": self.bad_messages,
            **metrics_of(self.tokens, pids, self.clock.monotonic_s()),
        }


def _credit(ready: tuple[selectors.SelectorKey, int]) -> float:
    """Return what is left to who is ready: who has said the least of late is read first."""
    client = ready[0].data
    if not isinstance(client, Client):
        return MESSAGES_AT_ONCE  # a listener, gnode, or the end of a process
    return MESSAGES_AT_ONCE / 2 if client.budget is None else client.budget.left


def _take_over(process: int, lock: int) -> None:
    """End another daemon, stopped or not, and wait until the kernel has ended it.

    Its jobs connect to this one as to each daemon that is restarted, so that none is needed that
    serves them on beside this one. This one is ready, so they wait for milliseconds.
    """
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(process)


def main() -> None:
    """Run the daemon."""
    parser = argparse.ArgumentParser(prog="gnode.gpushare.tokend")
    parser.add_argument("--dir", required=True)
    parser.add_argument("--drain-max", type=float, default=TokenSettings().drain_max_s, metavar="S")
    parser.add_argument("--ready-fd", type=int, default=-1, help="is closed when it listens")
    parser.add_argument("--window", type=int, default=None, metavar="N", help="for benchmarks")
    parser.add_argument(
        "--overlaps-max", type=int, default=TokenSettings().overlaps_max, metavar="N"
    )
    parser.add_argument(
        "--opportunistic-percent", type=float, default=100 * TokenSettings().opportunistic_fraction
    )
    parser.add_argument("--context-bytes", type=int, default=0, metavar="B")
    parser.add_argument("--edition", default="", help="is told with the metrics")
    parser.add_argument("--replace-fd", type=int, default=-1, help="the process whose place it has")
    given = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    settings = TokenSettings(
        drain_max_s=given.drain_max,
        overlaps_max=given.overlaps_max,
        opportunistic_fraction=given.opportunistic_percent / 100,
        window_fixed=given.window,
    )
    lock = os.open(Path(given.dir, "tokend.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if given.replace_fd >= 0:
        _take_over(given.replace_fd, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another token daemon runs in {given.dir}")
    with contextlib.suppress(OSError):  # a full file system
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    tokens = NodeTokens(settings, memory=MemoryBook(context_bytes=given.context_bytes))
    daemon = TokenDaemon(Path(given.dir), tokens, clients=Clients(places()), edition=given.edition)
    with contextlib.suppress(PermissionError):  # jobs with many threads must not delay a grant
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)

    def finish(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, finish)
    log.info("token daemon %d in %s", os.getpid(), given.dir)
    daemon.run(lambda: os.close(given.ready_fd) if given.ready_fd >= 0 else None)


if __name__ == "__main__":
    main()
