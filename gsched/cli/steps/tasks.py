"""Runs tasks on nodes of a job, and passes their input and output on."""

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from gsched import step_process
from gsched.cli.steps.job import JobNodes
from gsched.cli.steps.reach import AGENTS_S, AgentLink, reach
from gsched.errors import UsageError
from gsched.protocol import steps as wire
from gsched.protocol.sealing import SealError

_READ_BYTES = 1 << 18
_LOST = 255  # the code of a task whose node is gone, as ssh's
_NEVER_RAN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A task to be run.

    Attributes:
        number: which of the command's tasks.
        node: where.
        argv: program and arguments.
        env: its variables; those of its node replace them there.
        cwd: its working directory; empty: the command's own.
        has_input: it gets this command's standard input.
        stdout_path, stderr_path: files on its node; empty: it writes to this command's.
        append: these files are continued.
    """

    number: int
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = ""
    has_input: bool = False
    stdout_path: str = ""
    stderr_path: str = ""
    append: bool = False


def write_through(_task: int, kind: bytes, data: bytes) -> None:
    """Write what a task says to this command's own output, however slow its reader is."""
    fd = 2 if kind == wire.ERRORS else 1
    (sys.stderr if fd == 2 else sys.stdout).flush()
    while data:
        data = data[os.write(fd, data) :]


class Tasks:
    """Tasks that run, here and on other nodes.

    Args:
        job: whose nodes they are.
        on_output: takes number, kind and bytes of what a task says; by default it is written.
        on_end: is told number and exit code of a task that has ended.
        relay: the output of tasks on this node takes the same way; else they have this command's.
        timeout_s: for step agents to come.
    """

    def __init__(
        self,
        job: JobNodes,
        *,
        on_output: Callable[[int, bytes, bytes], None] = write_through,
        on_end: Callable[[int, int], None] | None = None,
        relay: bool = False,
        timeout_s: float = AGENTS_S,
    ) -> None:
        self._job = job
        self._on_output = on_output
        self._on_end = on_end
        self._relay = relay
        self._timeout_s = timeout_s
        self._selector = selectors.DefaultSelector()
        self._links: dict[str, AgentLink] = {}
        self._running: dict[int, AgentLink | subprocess.Popen[bytes]] = {}
        self._input_task: int | None = None
        self._input_allowed = wire.INPUT_WINDOW_BYTES
        self.codes: dict[int, int] = {}

    def open(self, nodes: Iterable[str]) -> None:
        """Connect to the step agents of these nodes, but for this one.

        Raises:
            GschedError: one cannot be reached.
        """
        wanted = [node for node in dict.fromkeys(nodes) if node != self._job.here]
        links = reach(self._job, wanted, self._timeout_s)
        for node, link in links.items():
            link.channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
            self._links[node] = link
            self._watch_link(link)

    def close(self) -> None:
        """Give up the connections; tasks that still run there are ended."""
        for link in self._links.values():
            link.channel.close()
        self._links.clear()
        self._selector.close()

    def start(self, wanted: TaskRequest) -> None:
        """Start a task.

        Raises:
            UsageError: it cannot be started on this node.
        """
        if wanted.node == self._job.here:
            self._start_here(wanted)
            return
        link = self._links[wanted.node]
        link.put(
            wire.encode_spawn(
                wire.Spawn(
                    task=wanted.number,
                    argv=list(wanted.argv),
                    env=dict(wanted.env),
                    cwd=wanted.cwd or os.getcwd(),
                    has_input=wanted.has_input,
                    stdout_path=wanted.stdout_path,
                    stderr_path=wanted.stderr_path,
                    append=wanted.append,
                )
            )
        )
        self._running[wanted.number] = link
        if wanted.has_input:
            self._input_task = wanted.number
            self._watch_input()
        self._watch_link(link)

    def signal(self, number: int, which: Iterable[int] | None = None) -> None:
        """Send a signal to tasks; by default to all that run."""
        for task in list(self._running) if which is None else which:
            place = self._running.get(task)
            if isinstance(place, AgentLink):
                message = {"task": task, "signal": number}
                place.put(wire.encode_object(wire.SIGNAL, message))
                self._watch_link(place)
            elif place is not None:
                with contextlib.suppress(ProcessLookupError):
                    place.send_signal(number)

    def wait(self, tasks: Iterable[int] | None = None) -> int:
        """Wait until tasks have ended; return the highest of their exit codes."""
        wanted = set(self._running if tasks is None else tasks)
        while wanted & self._running.keys():
            for key, events in self._selector.select():
                key.data(events)
        return max((self.codes.get(task, 0) for task in wanted), default=0)

    # --- here ---

    def _start_here(self, wanted: TaskRequest) -> None:
        out = _opened(wanted, wanted.stdout_path)
        err = _opened(wanted, wanted.stderr_path)
        piped = subprocess.PIPE if self._relay else None
        beside = piped if out is None else subprocess.STDOUT
        try:
            process = step_process.start(
                wanted.argv,
                wanted.env,
                cwd=wanted.cwd or None,
                streams=(
                    None if wanted.has_input else subprocess.DEVNULL,
                    piped if out is None else out,
                    beside if err is None else err,
                ),
            )
        except OSError as error:
            what = wanted.cwd if error.filename == wanted.cwd else wanted.argv[0]
            raise UsageError(f"cannot run {what}: {error.strerror}") from None
        finally:
            for fd in (out, err):
                if fd is not None:
                    os.close(fd)
        self._running[wanted.number] = process
        for kind, pipe in ((wire.OUTPUT, process.stdout), (wire.ERRORS, process.stderr)):
            if pipe is not None:
                on = partial(self._read_pipe, wanted.number, kind, pipe.fileno())
                self._selector.register(pipe.fileno(), selectors.EVENT_READ, on)
        ended = os.pidfd_open(process.pid)
        self._selector.register(
            ended, selectors.EVENT_READ, partial(self._ended_here, wanted.number, ended, process)
        )

    def _read_pipe(self, task: int, kind: bytes, fd: int, _events: int) -> None:
        if not self._read_once(task, kind, fd):
            self._selector.unregister(fd)

    def _read_once(self, task: int, kind: bytes, fd: int) -> bool:
        data = os.read(fd, wire.CHUNK_BYTES)
        if data:
            self._on_output(task, kind, data)
        return bool(data)

    def _ended_here(
        self, task: int, pidfd: int, process: "subprocess.Popen[bytes]", _events: int
    ) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        status = process.wait()
        for kind, pipe in ((wire.OUTPUT, process.stdout), (wire.ERRORS, process.stderr)):
            if pipe is None:
                continue
            fd = pipe.fileno()
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
                os.set_blocking(fd, False)
                with contextlib.suppress(BlockingIOError):
                    while self._read_once(task, kind, fd):
                        pass
            pipe.close()
        self._ended(task, 128 - status if status < 0 else status)

    def _ended(self, task: int, code: int) -> None:
        self._running.pop(task, None)
        self.codes[task] = code
        if task == self._input_task:
            self._input_task = None
            self._watch_input()
        if self._on_end is not None:
            self._on_end(task, code)

    # --- elsewhere ---

    def _watch_link(self, link: AgentLink) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        known = self._selector.get_map().get(link.channel)
        if known is None:
            self._selector.register(link.channel, events, partial(self._serve, link))
        elif known.events != events:
            self._selector.modify(link.channel, events, known.data)

    def _serve(self, link: AgentLink, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and link.unsent:
                sent = link.channel.send(link.unsent)
                del link.unsent[:sent]
            if events & selectors.EVENT_READ:
                data = link.channel.recv(_READ_BYTES)
                for payload in link.take(data):
                    self._take(payload)
                if not data:
                    self._lose(link, "its step agent has ended")
                    return
        except BlockingIOError:
            pass
        except (ConnectionError, TimeoutError, SealError, wire.StepProtocolError) as error:
            self._lose(link, str(error))
            return
        self._watch_link(link)

    def _take(self, payload: bytes) -> None:
        kind = payload[:1]
        if kind in {wire.OUTPUT, wire.ERRORS}:
            task, data = wire.decode_data(payload)
            self._on_output(task, kind, data)
        elif kind == wire.TAKEN:
            _, data = wire.decode_data(payload)
            self._input_allowed += int.from_bytes(data, "big")
            self._watch_input()
        elif kind == wire.ENDED:
            message = wire.decode_object(payload)
            self._ended(int(str(message["task"])), int(str(message["code"])))
        elif kind == wire.FAILED:
            message = wire.decode_object(payload)
            task = int(str(message["task"]))
            link = self._running.get(task)
            where = f" on {link.node}" if isinstance(link, AgentLink) else ""
            text = f"cannot run a task{where}: {message['message']}\n"
            self._on_output(task, wire.ERRORS, text.encode("utf-8", "backslashreplace"))
            self._ended(task, _NEVER_RAN)

    def _lose(self, link: AgentLink, why: str) -> None:
        self._selector.unregister(link.channel)
        link.channel.close()
        self._links.pop(link.node, None)
        lost = [task for task, place in self._running.items() if place is link]
        if lost:
            text = f"lost the connection to node {link.node}: {why}\n"
            self._on_output(lost[0], wire.ERRORS, text.encode())
        for task in lost:
            self._ended(task, _LOST)

    # --- input ---

    def _watch_input(self) -> None:
        """Read this command's input while a task wants it and has read what came before."""
        is_watched = 0 in self._selector.get_map()
        wanted = self._input_task is not None and self._input_allowed > 0
        if wanted and not is_watched:
            try:
                self._selector.register(0, selectors.EVENT_READ, self._read_input)
            except (OSError, ValueError):  # a plain file, or closed: epoll does not know it
                self._pass_file_on()
        elif is_watched and not wanted:
            self._selector.unregister(0)

    def _pass_file_on(self) -> None:
        """Pass on as much of a plain file as the task may have now."""
        while self._input_task is not None and self._input_allowed > 0:
            self._read_input(0)

    def _read_input(self, _events: int) -> None:
        task = self._input_task
        link = self._running.get(task) if task is not None else None
        if task is None or not isinstance(link, AgentLink):
            return
        try:
            data = os.read(0, min(wire.CHUNK_BYTES, self._input_allowed))
        except OSError:
            data = b""
        if data:
            self._input_allowed -= len(data)
            link.put(wire.encode_data(wire.INPUT, task, data))
        else:
            link.put(wire.encode_data(wire.INPUT_END, task))
            self._input_task = None
        self._watch_link(link)
        if 0 in self._selector.get_map():
            self._watch_input()


def _opened(wanted: TaskRequest, path: str) -> int | None:
    if not path:
        return None
    how = os.O_APPEND if wanted.append else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how
    full = os.path.join(wanted.cwd, path) if wanted.cwd else path
    try:
        return os.open(full, flags, 0o666)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
