"""What ordinary users send to the token daemon: ``python -m tests.support.share_attacks``.

``share_attacks FOLDER SEED SECONDS [--uid N]`` attacks the socket in FOLDER, and prints how often
it did what, as JSON. With the secret of a job in its environment it does what only a process of
that job can. It enters FOLDER before it becomes another user, as the directories of tests are
closed to others.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

from gnode.gpushare import wire
from gnode.gpushare.wire import Message, MessageKind

SOCKET = "token.sock"
ANSWER_S = 2.0
LARGE = (2**31, 2**53, 2**53 + 1, 2**60, 2**63, 2**64 - 1)
FLOOD_S = 1.0
KINDS = list(MessageKind)


class Attacker:
    """One process that attacks at random."""

    def __init__(self, seed: int, secret: str) -> None:
        self.chance = random.Random(seed)
        self.secret = secret.encode()
        self.counts: Counter[str] = Counter()
        self.kept: list[socket.socket] = []

    def run(self, seconds: float) -> None:
        """Attack for so long."""
        outside: list[Callable[[], None]] = [
            *(self.noise, self.half_open, self.wrong_secrets, self.other_versions),
            *(self.descriptors, self.in_the_handshake, self.connects, self.stopped, self.gnodes),
        ]
        inside: list[Callable[[], None]] = [
            *(self.numbers, self.forged, self.flood, self.claims, self.many, self.memory),
            *(self.holder_stopped, self.in_the_handshake, self.reads_nothing),
        ]
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            attack = self.chance.choice(inside if self.secret else outside)
            with contextlib.suppress(OSError):
                attack()
            self.counts[attack.__name__] += 1
            self.let_go(keep=40)
            time.sleep(self.chance.uniform(0, 0.02))

    def let_go(self, keep: int = 0) -> None:
        """Close the oldest connections."""
        while len(self.kept) > keep:
            self.kept.pop(0).close()

    # ---- what is sent ----

    def connect(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(ANSWER_S)
        channel.connect(SOCKET)
        return channel

    @contextlib.contextmanager
    def member(self, channel: int = wire.CHANNEL_LAUNCH, flags: int = 0) -> Iterator[socket.socket]:
        """Yield a connection that says it is of the job."""
        with self.connect() as one:
            hello = Message(kind=MessageKind.HELLO, flags=flags, a=self.number(), b=channel)
            one.send(wire.pack(hello) + self.secret)
            self.read(one)
            yield one

    def read(self, one: socket.socket) -> bytes:
        data, descriptors, _, _ = socket.recv_fds(one, 512, 8)
        for descriptor in descriptors:
            os.close(descriptor)
        return data

    def number(self) -> int:
        return self.chance.choice([0, 1, self.chance.getrandbits(64), *LARGE])

    def message(self, kind: MessageKind | None = None) -> bytes:
        return wire.pack(
            Message(
                kind=kind or self.chance.choice(KINDS),
                flags=self.chance.getrandbits(32),
                pid=self.chance.getrandbits(32),
                client=self.chance.randrange(200),
                epoch=self.chance.choice([self.chance.randrange(5000), self.number()]),
                a=self.number(),
                b=self.number(),
                c=self.number(),
            )
        )

    # ---- of anybody ----

    def noise(self) -> None:
        for _ in range(20):
            with self.connect() as one:
                one.send(self.chance.randbytes(self.chance.choice([1, 2, 63, 64, 65, 192, 9000])))
                self.read(one)

    def half_open(self) -> None:
        self.kept += [self.connect() for _ in range(20)]

    def wrong_secrets(self) -> None:
        hello = wire.pack(Message(kind=MessageKind.HELLO))
        for secret in (b"", b"\xff" * 64, b"0" * 64, self.chance.randbytes(128), b"x" * 4000):
            with self.connect() as one:
                one.send(hello + secret)
                self.read(one)

    def other_versions(self) -> None:
        for version in (0, wire.VERSION + 1, 0xFFFF):
            with self.connect() as one:
                one.send(wire.pack(Message(kind=MessageKind.HELLO), version) + b"0" * 64)
                self.read(one)

    def descriptors(self) -> None:
        """Pass descriptors that nobody has asked for."""
        with self.connect() as one, open(os.devnull) as file:
            for _ in range(10):
                socket.send_fds(one, [self.message()], [file.fileno()] * 200)

    def in_the_handshake(self) -> None:
        """End before, or while, the daemon answers."""
        hello = wire.pack(
            Message(kind=MessageKind.HELLO, flags=self.chance.choice([0, wire.CLAIM_HELD]))
        )
        for _ in range(10):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    one = self.connect()
                    one.send(hello + self.secret)
                    if self.chance.random() < 0.5:
                        one.recv(1)
                os._exit(0)
            os.waitpid(child, 0)

    def connects(self) -> None:
        for _ in range(500):
            self.connect().close()

    def stopped(self) -> None:
        """A process with connections is stopped for a while, and killed."""
        self._stopped_child(self.half_open)

    def gnodes(self) -> None:
        """Give an order that only gnode may give."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect("control.sock")
            one.send(b'{"order": "finish"}')

    # ---- of a process of a job ----

    def numbers(self) -> None:
        """Report more than anybody can have launched."""
        with self.member() as one:
            for _ in range(20):
                one.send(self.message(MessageKind.STAT))

    def forged(self) -> None:
        """Say what only a holder may say, and what only the daemon may."""
        with self.member(self.chance.choice([wire.CHANNEL_LAUNCH, wire.CHANNEL_MEMORY])) as one:
            for _ in range(50):
                one.send(self.message())
        with self.member() as one:
            for _ in range(100):
                kinds = [
                    MessageKind.RELEASED,
                    MessageKind.YIELD,
                    MessageKind.REQUEST,
                    MessageKind.STAT,
                ]
                one.send(self.message(self.chance.choice(kinds)))

    def flood(self) -> None:
        """Ask for the token as fast as possible, and read the answers."""
        kind = self.chance.choice([MessageKind.REQUEST, MessageKind.YIELD, MessageKind.STAT])
        with self.member() as one:
            self._flood(one, kind)
        with self.member(wire.CHANNEL_MEMORY) as one:
            self._flood(one, self.chance.choice([MessageKind.RESERVE, MessageKind.FREE]))

    def _flood(self, one: socket.socket, kind: MessageKind) -> None:
        end_s = time.monotonic() + FLOOD_S
        data = wire.pack(Message(kind=kind, a=1))
        while time.monotonic() < end_s:
            for _ in range(50):
                one.send(data)
            one.settimeout(0.0)
            with contextlib.suppress(BlockingIOError):
                while self.read(one):
                    pass
            one.settimeout(ANSWER_S)

    def reads_nothing(self) -> None:
        with self.member(wire.CHANNEL_MEMORY) as one:
            one.settimeout(0.2)
            for _ in range(5000):
                one.send(wire.pack(Message(kind=MessageKind.RESERVE, a=1)))

    def claims(self) -> None:
        for _ in range(10):
            with self.member(flags=wire.CLAIM_HELD) as one:
                one.send(self.message(MessageKind.REQUEST))

    def many(self) -> None:
        for _ in range(60):
            one = self.connect()
            one.send(
                wire.pack(Message(kind=MessageKind.HELLO, b=self.chance.randrange(2))) + self.secret
            )
            self.kept.append(one)

    def memory(self) -> None:
        """Charge and free what nobody has."""
        with self.member(wire.CHANNEL_MEMORY) as one:
            for _ in range(50):
                kind = self.chance.choice([MessageKind.RESERVE, MessageKind.FREE])
                flags = self.chance.choice([0, wire.FORCED])
                one.send(wire.pack(Message(kind=kind, flags=flags, a=self.number())))
                if kind is MessageKind.RESERVE:
                    self.read(one)

    def holder_stopped(self) -> None:
        """Get the token, and be stopped with it."""

        def hold() -> None:
            one = self.connect()
            one.send(wire.pack(Message(kind=MessageKind.HELLO)) + self.secret)
            self.read(one)
            one.send(wire.pack(Message(kind=MessageKind.REQUEST)))
            self.read(one)
            self.kept.append(one)

        self._stopped_child(hold)

    def _stopped_child(self, work: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                work()
                os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        process = os.pidfd_open(child)
        try:
            os.waitid(os.P_PIDFD, process, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            time.sleep(self.chance.uniform(0, 1.0))
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.waitpid(child, 0)
        finally:
            os.close(process)


def main() -> None:
    """Attack, and say how often."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("seed", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--uid", type=int, default=os.getuid())
    given = parser.parse_args()
    os.chdir(given.folder)
    if given.uid != os.getuid():
        os.setgroups([])
        os.setgid(given.uid)
        os.setuid(given.uid)
    attacker = Attacker(given.seed, os.environ.get("GSCHED_SHARE_SECRET", ""))
    attacker.run(given.seconds)
    print(json.dumps(attacker.counts), flush=True)


if __name__ == "__main__":
    main()
