"""A real head whose clock stands still, and nodes that are played by hand over the real wire.

What its commands print is the same each time: only the script turns the clock, nodes say what the
script says, and the script goes on when the head has taken that in. What still depends on the
machine, the user or the version is replaced by words in one place, `steady`.
"""

import asyncio
import os
import pwd
import re
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self, TypeVar

import aiohttp
from msgspec import Struct

from gsched.client import HeadClient
from gsched.errors import GschedError
from gsched.model.job import ExitRecord
from gsched.model.resources import Inventory, Load, Usage
from gsched.model.states import OutcomeKind
from gsched.protocol import job_rows
from gsched.protocol import node as n
from gsched.protocol.actions import ReleaseJob
from gsched.version import VERSION
from tests.support.dialler import Dialler, registration

BIN: Final = Path(sys.executable).parent
ROOT: Final = Path(__file__).resolve().parents[2]
#: The clock at the beginning, seconds since the epoch: 2026-09-21 14:13:20 UTC.
BEGIN_S: Final = 1_790_000_000.0
#: After which a head or a command counts as stuck, seconds. It is no measure of speed.
PATIENCE_S: Final = 120.0
LOOK_S: Final = 0.02
#: The number of no job: an action on it passes through the head's loop and changes nothing.
NO_JOB: Final = "999999"
CONFIG: Final = """\
[head]
server_name = "head"
socket = "{directory}/head.sock"
state_dir = "{directory}/state"
node_port = 0
single_user = true
allow_root_jobs = true
node_timeout_s = 100000.0

[[queue]]
name = "batch"

[[queue]]
name = "urgent"
priority = 10
max_walltime_s = 7200.0
"""

M = TypeVar("M")


class StuckError(Exception):
    """The head, or a command, has not done in time what the script waits for."""


class Said(Struct, frozen=True, kw_only=True):
    """What a command printed, made steady, and the status with which it ended."""

    status: int
    stdout: str
    stderr: str


def steady(text: str, directory: Path) -> str:
    """Return a reply with words for what depends on the machine, the user, the version or chance.

    Nothing else is taken out of a reply: its times and numbers follow from the script.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    text = text.replace(str(directory), "/DIRECTORY").replace(f" by {user}", " by USER")
    text = text.replace(f'"kind":"{os.getuid()}:', '"kind":"UID:')
    for word, value, fields in (
        ("USER", re.escape(user), "user|by|PBS_O_LOGNAME"),
        ("HOST", re.escape(socket.gethostname()), "submit_host|PBS_O_HOST"),
        ("VERSION", re.escape(VERSION), "gsched|head"),
        ("KEY", "[0-9a-f]{32}", "key"),  # of a submission, from the client
        ("PYTHON", '[^"]+', "python"),
        ("SQLITE", '[^"]+', "sqlite"),
    ):
        text = re.sub(rf'"({fields})":"{value}"', rf'"\1":"{word}"', text)
    return text


class StillWorld:
    """A head and nodes in a temporary directory, for as long as a block lasts.

    Attributes:
        directory: where its files lie.
        now_s: what the head's clock shows, seconds since the epoch.
        head: a client of the head.
    """

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="gsched-still-")
        self.directory = Path(self._temporary.name).resolve()
        self.now_s = BEGIN_S
        self.head = HeadClient(str(self.directory / "head.sock"))
        self._process: asyncio.subprocess.Process | None = None
        self._nodes: dict[str, Dialler] = {}
        self._sessions: list[aiohttp.ClientSession] = []
        self._readers: list[asyncio.Task[None]] = []
        self._heard: list[tuple[str, n.HeadMessage]] = []
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for dialler in self._nodes.values():
            await dialler.socket.close()
        for session in self._sessions:
            await session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._temporary.cleanup()

    async def _start(self) -> None:
        config = self.directory / "gsched.toml"
        config.write_text(CONFIG.format(directory=self.directory), encoding="utf-8")
        self._turn_clock()
        still = [sys.executable, "-m", "scripts.reproduce.still_clock", str(self._moment)]
        with (self.directory / "head.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *still,
                *("gschedd.main", "--config", str(config)),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        await self._until(self._answers, "the head to answer")

    async def _answers(self) -> bool:
        assert self._process is not None, "it was started"
        if self._process.returncode is not None:
            log = (self.directory / "head.log").read_text(encoding="utf-8", errors="replace")
            raise StuckError(f"the head ended with {self._process.returncode}:\n{log}")
        try:
            await asyncio.to_thread(self.head.status)
        except GschedError:
            return False
        return True

    async def _until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await is_so():  # noqa: ASYNC110 - what is waited for is in another process
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise StuckError(f"waited {PATIENCE_S:.0f} s for {what}") from None

    # --- the clock ---

    @property
    def _moment(self) -> Path:
        return self.directory / "moment"

    def _turn_clock(self) -> None:
        new = self._moment.with_suffix(".new")
        new.write_text(repr(self.now_s), encoding="ascii")
        new.replace(self._moment)

    async def pass_time(self, delay_s: float) -> None:
        """Turn the clock, and let the head do what is due by then."""
        self.now_s += delay_s
        self._turn_clock()
        await self.settle()

    # --- the head, through its commands and its API ---

    async def command(self, name: str, *arguments: str) -> Said:
        """Run one of gsched's commands on this head."""
        process = await asyncio.create_subprocess_exec(
            str(BIN / name),
            *arguments,
            cwd=self.directory,
            env={
                "PATH": os.defpath,
                "HOME": str(self.directory),
                "TZ": "UTC",
                "LANG": "C.UTF-8",
                "GSCHED_CONFIG": str(self.directory / "gsched.toml"),
                "GSCHED_HEAD": str(self.directory / "head.sock"),
            },
            umask=0o022,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise StuckError(
                f"{name} {' '.join(arguments)}: no end in {PATIENCE_S:.0f} s"
            ) from None
        assert process.returncode is not None, "it has ended"
        return Said(
            status=process.returncode,
            stdout=steady(out.decode(), self.directory),
            stderr=steady(err.decode(), self.directory),
        )

    async def settle(self) -> None:
        """Wait until the head has done and decided all that follows from what it was told.

        An input is answered before the cycle that it brings about, and the next one after that.
        """
        nothing = ReleaseJob(ids=(NO_JOB,))
        for _ in range(2):
            await asyncio.to_thread(self.head.act, nothing)

    async def until(self, job: int, is_so: Callable[[job_rows.JobStory], bool], what: str) -> None:
        """Wait until a job's story is as it should be, and the head has settled."""

        async def look() -> bool:
            return is_so(await asyncio.to_thread(self.head.job, job))

        await self._until(look, f"job {job}: {what}")
        await self.settle()

    # --- nodes ---

    async def connect(self, name: str, inventory: Inventory) -> None:
        """Let a node of this name register."""
        session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self.directory / "head-node.sock"))
        )
        self._sessions.append(session)
        socket_ = await session.ws_connect("http://head/v1/node")
        dialler = Dialler(socket_, node=name)
        await dialler.call()
        self._nodes[name] = dialler
        self._readers.append(asyncio.create_task(self._read(name, dialler)))
        identity = name.encode().hex().ljust(32, "0")
        await dialler.say(*[registration(identity=identity, inventory=inventory)])
        await self.hears(n.Welcome)

        async def is_up() -> bool:
            nodes = await asyncio.to_thread(self.head.nodes)
            return any(row.name == name and row.state == "up" for row in nodes.nodes)

        await self._until(is_up, f"node {name} to be up")
        await self.settle()

    async def disconnect(self, name: str) -> None:
        """Let a node's connection break."""
        await self._nodes.pop(name).socket.close()

        async def is_gone() -> bool:
            nodes = await asyncio.to_thread(self.head.nodes)
            return any(row.name == name and row.state != "up" for row in nodes.nodes)

        await self._until(is_gone, f"node {name} to be unreachable")
        await self.settle()

    async def _read(self, name: str, dialler: Dialler) -> None:
        async for frame in dialler.socket:
            for message in n.decode_from_head(frame.data):
                if isinstance(message, n.Ping):
                    await dialler.say(n.Pong(number=message.number))
                async with self._news:
                    self._heard.append((name, message))
                    self._news.notify_all()

    async def hears(self, kind: type[M]) -> tuple[str, M]:
        """Return the next order of a kind, and the node that has got it."""

        def find() -> int | None:
            found = (i for i, (_, heard) in enumerate(self._heard) if isinstance(heard, kind))
            return next(found, None)

        try:
            async with asyncio.timeout(PATIENCE_S), self._news:
                await self._news.wait_for(lambda: find() is not None)
                at = find()
        except TimeoutError:
            seen = ", ".join(f"{node}: {type(heard).__name__}" for node, heard in self._heard)
            raise StuckError(f"no {kind.__name__} came to a node; heard were {seen}") from None
        assert at is not None, "it was waited for"
        node, message = self._heard.pop(at)
        assert isinstance(message, kind), "it was looked for"
        return node, message

    async def tell(self, node: str, *messages: n.NodeMessage) -> None:
        """Let a node say something."""
        await self._nodes[node].say(*messages)

    async def starts(self) -> n.Launch:
        """Let the next attempt that is launched run, on one node; return its launch."""
        node, launch = await self.hears(n.Launch)
        await self.tell(
            node,
            n.Started(
                job=launch.job,
                attempt=launch.attempt,
                pid=1000 + launch.job,
                started_s=self.now_s,
                stdout_path=f"/data/{launch.spec.name}.o{launch.job}",
                stderr_path=f"/data/{launch.spec.name}.e{launch.job}",
                token=launch.token,
            ),
        )
        await self.until(launch.job, lambda story: story.row.state == "running", "to run")
        return launch

    async def ends(self, launch: n.Launch, ran_s: float, **how: object) -> None:
        """Let an attempt end, after so many seconds by its node's clock."""
        record = ExitRecord(
            job=launch.job,
            attempt=launch.attempt,
            started_s=self.now_s - ran_s,
            ended_s=self.now_s,
            wall_s=ran_s,
            cpu_s=0.9 * ran_s,
            memory_peak_bytes=2**30,
            **({"kind": OutcomeKind.EXITED, "exit_code": 0} | how),  # type: ignore[arg-type]  # the Struct checks nothing, the codec does
        )
        usage = Usage(
            wall_s=ran_s,
            cpu_s=0.9 * ran_s,
            cpu_peak_cores=1.5,
            memory_peak_bytes=2**30,
            memory_mean_bytes=2**29,
            samples=int(ran_s // 10),
        )
        node = launch.share.node
        await self.tell(node, n.Exited(record=record, usage=usage, load=Load(), token=launch.token))
        await self.hears(n.ExitAck)
        await self.settle()

    async def obeys_stop(self, launch: n.Launch, ran_s: float) -> None:
        """Let an attempt end by the order to stop that has come for it, a second later."""
        _, order = await self.hears(n.StopAttempt)
        await self.pass_time(1.0)
        await self.ends(
            launch,
            ran_s,
            kind=OutcomeKind.SIGNALLED,
            exit_code=None,
            signal=15,
            stop_reason=order.reason,
        )
