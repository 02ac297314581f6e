"""The connection to the launcher: the process that forks supervisors and outlives gnode."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

import gnode
from gnode.core.inputs import Input, Launched, LauncherDown, LauncherUp, LaunchFailed
from gnode.core.task import AttemptKey, parse_key
from gnode.supervisor import native, proc
from gsched.config.environment import environment
from gsched.errors import InvalidRequestError
from gsched.failpoint import failpoint
from gsched.model.job import LaunchFailure
from gsched.model.states import LaunchStage, Subject
from gsched.owner_files import OwnerFiles
from gsched.unix_address import address_of

log = logging.getLogger(__name__)

SOCKET = "launcher.sock"
RECORD = "launcher.json"
LOG = "launcher.log"
CONNECT_STEP_S = 0.02
CONNECT_TRIES = 500  # 10 s for a fresh interpreter on a busy machine
PAUSE_S = 1.0  # between two launchers that died
#: How long, and for how many attempts, the launcher may not know that exit records are durable:
#: that goes with a launch, so that it does not wake up for it.
KEPT_S = 1.0
KEPT_MAX = 256
MODULE = "gnode.supervisor.launcher"
# Isolated (-I), so that nothing of a user's reaches a process that may be root; therefore it
# must be told where this very gsched lies.
BOOT = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    f"runpy.run_module({MODULE!r}, run_name='__main__', alter_sys=True)"
)
KEPT_VARIABLES = ("GSCHED_FAIL", "GSCHED_TEST_MARKER", "GSCHED_TEST_OLD_KERNEL")


class LaunchRules(Struct, frozen=True, kw_only=True):
    """Whose jobs the launcher's supervisors start, whatever a task or the head says.

    Attributes:
        allow_root: jobs of uid 0.
        uid_min: the lowest uid of other users; 0: ``UID_MIN`` of /etc/login.defs.
    """

    allow_root: bool = False
    uid_min: int = 0

    def owner_files(self, outboxes: str = "") -> OwnerFiles:
        """Return what reads and writes files of the same users; see `OwnerFiles`."""
        return OwnerFiles(allow_root=self.allow_root, uid_min=self.uid_min, outboxes=outboxes)


class LauncherLine(Struct, frozen=True):
    """One line of the launcher: at most one of the first three is not empty.

    Attributes:
        record, info: the exit record of an attempt that has ended, and that of its start, if they
            are known.
        unflushed: the launcher flushes the record unless it hears that it is durable.
    """

    launched: str = ""
    failed: str = ""
    ended: str = ""
    epilog: str = ""
    record: msgspec.Raw = msgspec.Raw()
    info: msgspec.Raw = msgspec.Raw()
    unflushed: bool = False
    pid: int = 0
    start_ticks: int = 0
    message: str = ""
    errno: int = 0


class LauncherRecord(Struct, frozen=True):
    """``launcher.json``: which process the launcher is.

    Attributes:
        native: the version of the library for plain jobs that it can use; 0: it knows none.
    """

    pid: int
    start_ticks: int
    native: int = 0


_line_decoder = msgspec.json.Decoder(LauncherLine)


class LauncherClient:
    """Keeps a launcher alive and connected; reports what it says as inputs.

    Args:
        on_ended: takes the end of an attempt, and its exit record and that of its start if the
            launcher knows them.
        on_epilog: takes that a process is gone that ran the epilog of an attempt.
        find_library: returns the path of the library that runs plain jobs, empty: none; it may
            take a second.
    """

    def __init__(
        self,
        state_dir: str,
        post: Callable[[Input], None],
        on_ended: Callable[[AttemptKey, bytes, bytes], None],
        on_epilog: Callable[[AttemptKey], None],
        rules: LaunchRules,
        find_library: Callable[[], str] = str,
    ) -> None:
        self._find_library = find_library
        self._library: str | None = None  # its path, once that is known
        self._rules = b'{"rules":%s,"keeps":true}\n' % msgspec.json.encode(rules)
        self._state_dir = state_dir
        self._post = post
        self._on_ended = on_ended
        self._on_epilog = on_epilog
        self._pending: list[bytes] = []
        self._kept: list[str] = []
        self._awaits_kept = False  # one of an older version flushes all itself
        self._kept_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def lacks_library(self) -> bool:
        """Return whether the library that runs plain jobs was looked for, and cannot be had."""
        return self._library == ""

    def ask(self, key: AttemptKey, *, confined: bool = False) -> None:
        """Ask for a supervisor; the requests of one turn of the loop go in one write."""
        words = b',"confined":true' if confined else b""
        self._pending.append(b'{"launch":"%s"%s}\n' % (key.name.encode(), words))

    def clean(self, key: AttemptKey) -> None:
        """Have removed what the container of an attempt without a supervisor has left."""
        self._pending.append(b'{"clean":"%s"}\n' % key.name.encode())

    def run_epilog(self, key: AttemptKey) -> None:
        """Have the epilog of an ended attempt run, unless it does or did."""
        self._pending.append(b'{"epilog":"%s"}\n' % key.name.encode())

    def kept(self, key: AttemptKey) -> None:
        """Tell that the exit record of an attempt outlives a power loss: it need not flush it."""
        if self._awaits_kept:
            self._kept.append(key.name)

    def flush(self) -> None:
        """Send what was asked since the last time."""
        if self._kept and (self._pending or len(self._kept) >= KEPT_MAX):
            self._put_kept()
        elif self._kept and self._kept_timer is None:
            self._kept_timer = asyncio.get_running_loop().call_later(KEPT_S, self._send_kept)
        if not self._pending:
            return
        lines, self._pending = self._pending, []
        if self._transport is not None:  # otherwise it is requested again at the next LauncherUp
            self._transport.write(b"".join(lines))

    def _put_kept(self) -> None:
        self._pending.append(b'{"kept":%s}\n' % msgspec.json.encode(self._kept))
        self._kept.clear()

    def _send_kept(self) -> None:
        self._kept_timer = None
        if self._kept:
            self._put_kept()
            self.flush()

    async def run(self) -> None:
        """Connect, start a launcher where there is none, and begin again when it is gone."""
        loop = asyncio.get_running_loop()
        finding = loop.create_task(self._look_for_library())
        try:
            await self._keep_connected(loop)
        finally:
            finding.cancel()

    async def _look_for_library(self) -> None:
        """Find the library beside the first jobs, which do not wait for it."""
        self._library = await asyncio.to_thread(self._find_library)
        self._tell_library()

    def _tell_library(self) -> None:
        """Tell the launcher where the library is, if it can use this version."""
        record = self._record()
        if self._library is None or self._transport is None or record is None:
            return
        if record.native == native.ABI:
            self._transport.write(b'{"native":%s}\n' % msgspec.json.encode(self._library))
            if self._library:
                log.info("plain jobs are run by the native supervisor: %s", self._library)

    async def _keep_connected(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            gone = loop.create_future()
            try:
                transport = await self._connect(gone)
            except OSError as error:  # out of inodes, processes, memory: perhaps not for long
                log.error("no launcher can be started or reached: %s", error)
                transport = None
            if transport is None:
                await asyncio.sleep(PAUSE_S)
                continue
            self._transport = transport
            transport.write(self._rules)  # it may have been another gnode's, configured otherwise
            self._tell_library()
            self._post(LauncherUp())
            await gone
            self._transport = None
            self._pending.clear()
            self._kept.clear()
            self._awaits_kept = False
            log.warning("the launcher is gone; starting another")
            self._post(LauncherDown())

    def stop(self) -> None:
        """Have the launcher leave once it has nothing to look after any more."""
        if self._kept_timer is not None:
            self._kept_timer.cancel()
        if self._kept:
            self._put_kept()
        self.flush()
        if self._transport is not None:
            self._transport.write(b'{"stop":true}\n')

    def _take_end(self, line: LauncherLine) -> None:
        self._awaits_kept = self._awaits_kept or line.unflushed
        self._on_ended(parse_key(line.ended), bytes(line.record), bytes(line.info))

    async def _connect(self, gone: "asyncio.Future[None]") -> asyncio.WriteTransport | None:
        started = False
        for _ in range(CONNECT_TRIES):
            try:
                with address_of(os.path.join(self._state_dir, SOCKET)) as address:
                    transport, _ = await asyncio.get_running_loop().create_unix_connection(
                        lambda: _Lines(self._post, self._take_end, self._on_epilog, gone), address
                    )
            except (FileNotFoundError, ConnectionRefusedError):
                if not started and not self._launcher_lives():
                    self._start()
                    started = True
            else:
                return transport
            if self._process is not None and self._process.poll() is not None:
                log.error(
                    "the launcher ended with %s: see %s",
                    self._process.returncode,
                    os.path.join(self._state_dir, LOG),
                )
                self._process = None
                return None
            await asyncio.sleep(CONNECT_STEP_S)
        log.error("the launcher does not answer in %s", self._state_dir)
        return None

    def _record(self) -> LauncherRecord | None:
        try:
            content = Path(self._state_dir, RECORD).read_bytes()
            return msgspec.json.decode(content, type=LauncherRecord)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _launcher_lives(self) -> bool:
        if self._process is not None and self._process.poll() is None:
            return True
        record = self._record()
        return record is not None and proc.lives(record.pid, record.start_ticks)

    def _start(self) -> None:
        kept = {name: environment(name) for name in KEPT_VARIABLES if environment(name)}
        path = os.path.join(self._state_dir, LOG)
        # not for all users: it has the output of prolog and epilog
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o640)) as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-c", BOOT),
                    str(Path(gnode.__file__).resolve().parent.parent),
                    *("--socket", os.path.join(self._state_dir, SOCKET)),
                    *("--state", self._state_dir),
                ],
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **kept},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        log.info("started a launcher: process %d", self._process.pid)


class _Lines(asyncio.Protocol):
    """Cuts what the launcher says into lines, and lines into inputs."""

    def __init__(
        self,
        post: Callable[[Input], None],
        on_ended: Callable[[LauncherLine], None],
        on_epilog: Callable[[AttemptKey], None],
        gone: "asyncio.Future[None]",
    ) -> None:
        self._post = post
        self._on_ended = on_ended
        self._on_epilog = on_epilog
        self._gone = gone
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line:
                self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self._gone.done():
            self._gone.set_result(None)

    def _on_line(self, text: bytes) -> None:
        try:
            line = _line_decoder.decode(text)
            if line.launched:
                failpoint("node.launch.after_spawn")
                key = parse_key(line.launched)
                self._post(Launched(key=key, pid=line.pid, start_ticks=line.start_ticks))
            elif line.failed:
                failure = LaunchFailure(
                    stage=LaunchStage.FORK, subject=Subject.NODE, errno=line.errno
                )
                self._post(
                    LaunchFailed(key=parse_key(line.failed), message=line.message, failure=failure)
                )
            elif line.ended:
                self._on_ended(line)
            elif line.epilog:
                self._on_epilog(parse_key(line.epilog))
        except (msgspec.MsgspecError, InvalidRequestError) as error:
            log.warning("the launcher said something odd: %s", error)
