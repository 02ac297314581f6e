"""The step agent of an attempt on a node: it starts tasks for programs of the job on other nodes.

It is the process of the attempt's part here, started by the supervisor as the job's owner: in the
attempt's control group, with its limits and variables, and killed with it. gnode tells it over the
node's socket which programs want it (`gsched.protocol.node.StepOrder`); it connects to each of them
(`gsched.protocol.steps`) and starts what they ask for. It only uses the standard library.

A program that is gone takes its tasks with it: they get TERM, and KILL after some seconds. Output
waits in the tasks' pipes when its reader is slow; no more than 256 KiB of it is kept here.
"""

import contextlib
import json
import os
import queue
import secrets
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial

from gsched import step_process
from gsched.protocol import steps as wire
from gsched.protocol.sealing import Opener, Sealer, SealError, challenge_key, session_keys

CONNECT_S = 20.0
KILL_AFTER_S = 5.0
GNODE_PAUSE_S = 1.0  # between two attempts to reach a gnode that is being restarted
DIALS_AT_ONCE = 64
_READ_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 16
_NEVER_RAN = 127
#: A job's signals go to all of its processes; these are for its tasks and not for the agent.
_LEFT_TO_TASKS = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


class StepTask:
    """A process that was started for a program, and its pipes."""

    def __init__(self, number: int, process: "subprocess.Popen[bytes]") -> None:
        self.number = number
        self.process = process
        self.waiting = bytearray()  # input that it has not read yet
        self.input_ends = False
        self.kill_at_s: float | None = None
        self.is_reported = False

    def send(self, number: int) -> None:
        """Send a signal to the task and all that it has started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class StepProgram:
    """A connection to a program of the job that starts tasks here.

    Args:
        channel: connected, and both sides have proven who they are.
        node: where the program runs.
    """

    def __init__(self, channel: socket.socket, opener: Opener, sealer: Sealer, node: str) -> None:
        channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.channel = channel
        self.node = node
        self.tasks: dict[int, StepTask] = {}
        self.received = bytearray()
        self.unsent = bytearray()
        self.gone = False
        self._opener, self._sealer = opener, sealer

    def put(self, payload: bytes) -> None:
        """Queue a message."""
        if not self.gone:
            self.unsent += wire.framed(self._sealer.seal(payload))

    def take(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with what has come."""
        self.received += data
        return [bytes(self._opener.open(frame)) for frame in wire.take_frames(self.received)]


class StepAgent:
    """Everything that the agent knows; one method per kind of event."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._programs: set[StepProgram] = set()
        self._reached: queue.SimpleQueue[StepProgram] = queue.SimpleQueue()
        self._dials = threading.BoundedSemaphore(DIALS_AT_ONCE)
        self._gnode: socket.socket | None = None
        self._received = bytearray()
        self._call_gnode_at_s = 0.0
        self._ends = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._watch(self._wake_reader, selectors.EVENT_READ, self._woken)

    def run(self) -> None:
        """Serve until TERM has come and no task is left."""
        step_process.leave_signals(_LEFT_TO_TASKS)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        while not self._ends or any(program.tasks for program in self._programs):
            if self._gnode is None and not self._ends:
                self._call_gnode()
            for key, events in self._selector.select(self._patience_s()):
                key.data(events)
            self._reap()
            for program in list(self._programs):
                self._serve(program)

    def _patience_s(self) -> float | None:
        now_s = time.monotonic()
        due_s = [
            task.kill_at_s
            for program in self._programs
            for task in program.tasks.values()
            if task.kill_at_s is not None
        ]
        if self._gnode is None and not self._ends:
            due_s.append(self._call_gnode_at_s)
        return max(0.0, min(due_s) - now_s) if due_s else None

    def _terminated(self, *_: object) -> None:
        self._ends = True

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass
        while not self._reached.empty():
            program = self._reached.get()
            self._programs.add(program)
            program.put(wire.READY)

    def _watch(self, fd: socket.socket | int, events: int, on: Callable[[int], None]) -> None:
        """Have ``on`` called for these events of a descriptor; none: not at all."""
        known = self._selector.get_map().get(fd)
        if known is None and events:
            self._selector.register(fd, events, on)
        elif known is not None and not events:
            self._selector.unregister(fd)
        elif known is not None and known.events != events:
            self._selector.modify(fd, events, on)

    # --- gnode ---

    def _call_gnode(self) -> None:
        """Connect to gnode; while it is being restarted, try again."""
        now_s = time.monotonic()
        if now_s < self._call_gnode_at_s:
            return
        self._call_gnode_at_s = now_s + GNODE_PAUSE_S
        job, _, attempt = os.environ["GSCHED_ATTEMPT_KEY"].partition(".")
        hello = {"version": wire.VERSION, "job": int(job), "attempt": int(attempt)}
        try:
            channel = connect_unix(os.environ["GSCHED_NODE_SOCKET"], CONNECT_S)
            channel.sendall(json.dumps({"agent": hello}).encode() + b"\n")
        except OSError:
            return
        channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._gnode = channel
        self._received.clear()
        self._watch(channel, selectors.EVENT_READ, self._hear_gnode)

    def _hear_gnode(self, _events: int) -> None:
        assert self._gnode is not None, "it is watched while it is there"
        try:
            data = self._gnode.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if not data or len(self._received) > _LINE_BYTES_MAX:
            self._selector.unregister(self._gnode)
            self._gnode.close()
            self._gnode = None
            return
        *lines, rest = bytes(self._received).split(b"\n")
        self._received[:] = rest
        for line in lines:
            fields = json.loads(line)
            if "step" in fields:
                self._dial(fields["step"])

    def _tell_failure(self, order: dict[str, object], message: str) -> None:
        """Tell gnode that a program cannot be reached; it tells the program's node."""
        fields = {"origin": order["node"], "step": order["step"], "message": message[:500]}
        if self._gnode is not None:
            with contextlib.suppress(OSError):
                self._gnode.sendall(json.dumps({"failed": fields}).encode() + b"\n")

    # --- programs ---

    def _dial(self, order: dict[str, object]) -> None:
        if not self._dials.acquire(blocking=False):
            self._tell_failure(order, "too many programs want the step agent at once")
            return
        threading.Thread(target=self._reach, args=(order,), daemon=True).start()

    def _reach(self, order: dict[str, object]) -> None:
        """Connect to a program: in a thread of its own, as it may take long."""
        try:
            program = dial(order)
        except (OSError, SealError, wire.StepProtocolError) as error:
            where = f"{order['address']} port {order['port']}"
            self._tell_failure(
                order,
                f"cannot connect back to {where}: {error}: nodes of a job must reach each other",
            )
        else:
            self._reached.put(program)
            with contextlib.suppress(BlockingIOError):
                self._wake_writer.send(b"\0")
        finally:
            self._dials.release()

    def _serve(self, program: StepProgram) -> None:
        """Send what waits, and decide what is to be watched now."""
        if program.unsent and not program.gone:
            try:
                sent = program.channel.send(program.unsent)
                del program.unsent[:sent]
            except BlockingIOError:
                pass
            except OSError:
                self._lose(program)
        if program.gone:
            if not program.tasks:
                self._programs.discard(program)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if program.unsent else 0)
        self._watch(program.channel, events, partial(self._hear, program))
        for task in program.tasks.values():
            self._watch_pipes(program, task)

    def _watch_pipes(self, program: StepProgram, task: StepTask) -> None:
        is_full = len(program.unsent) >= wire.OUTPUT_BYTES_MAX and not program.gone
        for kind, pipe in ((wire.OUTPUT, task.process.stdout), (wire.ERRORS, task.process.stderr)):
            if pipe is not None and not pipe.closed:
                wanted = 0 if is_full else selectors.EVENT_READ
                on = partial(self._read_pipe, program, task, kind)
                self._watch(pipe.fileno(), wanted, on)
        stdin = task.process.stdin
        if stdin is not None and not stdin.closed:
            if not task.waiting and task.input_ends:
                self._close(stdin.fileno(), stdin.close)
            else:
                wanted = selectors.EVENT_WRITE if task.waiting else 0
                self._watch(stdin.fileno(), wanted, partial(self._write_pipe, program, task))

    def _close(self, fd: int, close: Callable[[], None]) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        with contextlib.suppress(OSError):
            close()

    def _lose(self, program: StepProgram) -> None:
        """The program has ended, or its node: so do its tasks."""
        program.gone = True
        if program.channel.fileno() >= 0 and program.channel in self._selector.get_map():
            self._selector.unregister(program.channel)
        program.channel.close()
        program.unsent.clear()
        for task in program.tasks.values():
            task.send(signal.SIGTERM)
            task.send(signal.SIGCONT)
            task.kill_at_s = time.monotonic() + KILL_AFTER_S

    def _hear(self, program: StepProgram, events: int) -> None:
        if not events & selectors.EVENT_READ or program.gone:
            return
        try:
            data = program.channel.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("closed")
            for payload in program.take(data):
                self._obey(program, payload)
        except BlockingIOError:
            pass
        except (OSError, SealError, wire.StepProtocolError):
            self._lose(program)

    def _obey(self, program: StepProgram, payload: bytes) -> None:
        kind = payload[:1]
        if kind == wire.SPAWN:
            self._spawn(program, wire.decode_spawn(payload))
        elif kind == wire.SIGNAL:
            fields = wire.decode_object(payload)
            task = program.tasks.get(int(str(fields.get("task"))))
            if task is not None:
                task.send(int(str(fields.get("signal"))))
        elif kind in {wire.INPUT, wire.INPUT_END}:
            number, data = wire.decode_data(payload)
            task = program.tasks.get(number)
            if task is None:
                return
            if len(task.waiting) + len(data) > wire.INPUT_WINDOW_BYTES:
                raise wire.StepProtocolError("more input than was allowed")
            task.waiting += data
            task.input_ends |= kind == wire.INPUT_END
        else:
            raise wire.StepProtocolError(f"unknown message {kind!r}")

    # --- tasks ---

    def _spawn(self, program: StepProgram, spawn: wire.Spawn) -> None:
        if spawn.task in program.tasks:
            raise wire.StepProtocolError("a task's number is used twice")
        try:
            process = start_task(spawn)
        except OSError as error:
            what = spawn.cwd if error.filename == spawn.cwd else spawn.argv[0]
            fields = {"task": spawn.task, "code": _NEVER_RAN}
            message = f"{what}: {error.strerror}"
            program.put(wire.encode_object(wire.FAILED, {**fields, "message": message}))
            return
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        program.tasks[spawn.task] = StepTask(spawn.task, process)
        program.put(wire.encode_object(wire.STARTED, {"task": spawn.task, "pid": process.pid}))

    def _read_pipe(self, program: StepProgram, task: StepTask, kind: bytes, _events: int) -> None:
        self._read_once(program, task, kind)

    def _read_once(self, program: StepProgram, task: StepTask, kind: bytes) -> bool:
        """Pass a piece of output on; return whether there may be more of it now."""
        pipe = task.process.stdout if kind == wire.OUTPUT else task.process.stderr
        if pipe is None or pipe.closed:
            return False
        try:
            data = os.read(pipe.fileno(), wire.CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(pipe.fileno(), pipe.close)
            return False
        program.put(wire.encode_data(kind, task.number, data))
        return True

    def _write_pipe(self, program: StepProgram, task: StepTask, _events: int) -> None:
        stdin = task.process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            count = os.write(stdin.fileno(), task.waiting)
        except BlockingIOError:
            return
        except OSError:  # it does not read any more: what is left is for nobody
            count = len(task.waiting)
            self._close(stdin.fileno(), stdin.close)
        del task.waiting[:count]
        taken = count.to_bytes(4, "big")
        program.put(wire.encode_data(wire.TAKEN, task.number, taken))

    def _reap(self) -> None:
        now_s = time.monotonic()
        for program in self._programs:
            for task in list(program.tasks.values()):
                status = task.process.poll()
                if status is None:
                    if task.kill_at_s is not None and now_s >= task.kill_at_s:
                        task.send(signal.SIGKILL)
                        task.kill_at_s = now_s + KILL_AFTER_S
                elif program.gone or self._has_passed_on(program, task):
                    self._finish(program, task, status)

    def _has_passed_on(self, program: StepProgram, task: StepTask) -> bool:
        """Pass on what a task has written before its end; return whether that is all of it."""
        for kind in (wire.OUTPUT, wire.ERRORS):
            while len(program.unsent) < wire.OUTPUT_BYTES_MAX:
                if not self._read_once(program, task, kind):
                    break
            else:
                return False
        return True

    def _finish(self, program: StepProgram, task: StepTask, status: int) -> None:
        del program.tasks[task.number]
        for pipe in (task.process.stdin, task.process.stdout, task.process.stderr):
            if pipe is not None and not pipe.closed:
                self._close(pipe.fileno(), pipe.close)
        code = 128 - status if status < 0 else status
        program.put(wire.encode_object(wire.ENDED, {"task": task.number, "code": code}))


def connect_unix(path: str, timeout_s: float) -> socket.socket:
    """Return a connection to a Unix socket, however long its path is.

    Raises:
        OSError: nobody listens there.
    """
    directory, name = os.path.split(path)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(timeout_s)
        channel.connect(f"/proc/self/fd/{place}/{name}")  # an address has 107 bytes at most
    except BaseException:
        channel.close()
        raise
    finally:
        os.close(place)
    return channel


def dial(order: dict[str, object]) -> StepProgram:
    """Connect to a program, and prove to each other who both are.

    Raises:
        OSError: it cannot be reached, or does not answer.
        SealError: it does not know the secret.
        StepError: it says something else.
    """
    address, port = str(order["address"]), int(str(order["port"]))
    secret = bytes.fromhex(str(order["secret"]))
    channel = socket.create_connection((address, port), timeout=CONNECT_S)
    try:
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        hello = json.dumps(
            {
                "version": wire.VERSION,
                "node": os.environ["GSCHED_NODE"],
                "nonce": secrets.token_hex(wire.NONCE_BYTES),
            }
        ).encode()
        channel.sendall(wire.framed(hello))
        challenge = _receive_frame(channel)
        Opener(challenge_key(secret, hello)).open(challenge)
        from_agent, from_program = session_keys(secret, hello, challenge)
    except BaseException:
        channel.close()
        raise
    return StepProgram(channel, Opener(from_program), Sealer(from_agent), str(order["node"]))


def _receive_frame(channel: socket.socket) -> bytes:
    buffer = bytearray()
    while True:
        data = channel.recv(wire.MAX_HELLO_BYTES)
        if not data:
            raise ConnectionError("it has closed the connection")
        buffer += data
        for frame in wire.take_frames(buffer, wire.MAX_HELLO_BYTES):
            if buffer:
                raise wire.StepProtocolError("it does not wait for its turn")
            return frame


def start_task(spawn: wire.Spawn) -> "subprocess.Popen[bytes]":
    """Start a task in a session of its own.

    Raises:
        OSError: it cannot be started.
    """
    env = wire.node_environment(spawn.env, os.environ)
    spawn = spawn._replace(cwd=_own_directory(spawn))
    out, err = (_opened(spawn, path) for path in (spawn.stdout_path, spawn.stderr_path))
    try:
        return step_process.start(
            spawn.argv,
            env,
            cwd=spawn.cwd,
            streams=(
                subprocess.PIPE if spawn.has_input else subprocess.DEVNULL,
                subprocess.PIPE if out is None else out,
                err if err is not None else (out if out is not None else subprocess.PIPE),
            ),
            start_new_session=True,
        )
    finally:
        for fd in (out, err):
            if fd is not None:
                os.close(fd)


def _own_directory(spawn: wire.Spawn) -> str:
    """Return a task's directory; one in the job's code snapshot is in this node's copy of it."""
    theirs, ours = spawn.env.get("GSCHED_SNAPSHOT_DIR"), os.environ.get("GSCHED_SNAPSHOT_DIR")
    if theirs and ours and f"{spawn.cwd}/".startswith(f"{theirs}/"):
        return ours + spawn.cwd[len(theirs) :]
    return spawn.cwd


def _opened(spawn: wire.Spawn, path: str) -> int | None:
    if not path:
        return None
    how = os.O_APPEND if spawn.append else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how
    return os.open(os.path.join(spawn.cwd, path), flags, 0o666)


def main() -> None:
    """Run the agent."""
    StepAgent().run()


if __name__ == "__main__":
    main()
