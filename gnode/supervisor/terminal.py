"""The terminal of an interactive program: its keeper, a process beside the program.

The job's process, once it is its owner's, opens a pseudo-terminal, starts the program on it and
stays as its keeper: it ends as the program did. So the supervisor sees what it sees of any job.
The keeper depends on nobody else: gnode connects to its socket in the attempt's spool, where only
gnode can, and may be killed and come back. While nobody is attached, the program goes on, and the
newest output is kept for who comes next; while somebody is attached who does not read, the program
waits for that, as on any terminal.

The keeper has the rights of the job's owner and no descriptor that is not its own.
"""

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import NoReturn

from gnode.supervisor import kernel
from gsched import terminal as t
from gsched.terminal import FrameKind, TerminalSize

MAIN_SOCKET = "tty"  # of the terminal of an interactive job; others have a name of their own
_BACKLOG = 8
_READ_BYTES = 16 * 1024
_UNSENT_FRAMES_MAX = 8  # then the program waits
_UNTYPED_BYTES_MAX = t.MAX_CONTENT_BYTES  # then the user waits
_LAST_WORDS_S = 10.0  # how long the end of the output may take to reach the user
_CLOSING_S = 2.0  # for gnode to read what was sent last
_HANG_UP_S = 10.0  # from the hang-up to KILL
_PATIENCE_S = 10.0  # for the first to attach; then the program starts without
_FIRST_USER_S = 60.0  # then at the earliest the program is hung up because nobody came
_USUAL_SIZE = (24, 80)  # rows and columns, until somebody attaches
_TOO_LATE_S = 1e9
_LAST_BYTES_MAX = 2 * 64 * 1024  # what a terminal holds; others may still write into it
_NEVER_STARTED = 254  # of a process that nobody asks for its code
_STOPPED = "the job is being stopped"
_UNUSED = "the session is ended: nobody was attached for {:.0f} s"
_TAKEN = "another client has attached to the session"


def socket_name(session: str) -> str:
    """Return the name of a terminal's socket in the attempt's directory; empty: of the job's."""
    return f"{MAIN_SOCKET}-{session}" if session else MAIN_SOCKET


def listen(directory: str, session: str = "") -> socket.socket:
    """Return the listening socket of a terminal: only this process's user can reach it there.

    Raises:
        OSError: it cannot be made.
    """
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    umask = os.umask(0o077)
    try:
        # By a descriptor, since the address of a Unix socket holds 107 bytes at most.
        listener.bind(f"/proc/self/fd/{place}/{socket_name(session)}")
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(umask)
        os.close(place)
    return listener


def close_all_but(*kept: int) -> None:
    """Close every descriptor above 2 that is not ours: the supervisor's lock, journal, channel."""
    for name in os.listdir("/proc/self/fd"):
        if (fd := int(name)) > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(fd)


def hold(
    listener: socket.socket, start: Callable[[], NoReturn], *, channel: int, detach_timeout_s: float
) -> NoReturn:
    """Keep a terminal, start a program on it, and end as the program does.

    The program starts when somebody has attached, so that it knows the window and nothing that it
    shows is missed; if nobody comes, it starts soon all the same.

    Args:
        listener: where gnode connects.
        start: becomes the program; says itself on the terminal why that fails.
        channel: closed as soon as the terminal is there; negative: there is none.
        detach_timeout_s: the program is hung up when nobody was attached for so long, but not in
            its first minute unless somebody was; 0: never.

    Raises:
        OSError: there is no terminal to be had.
    """
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *_USUAL_SIZE, 0, 0))
    # What a user has no business with, as the signals that the supervisor takes one by one.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    signals = kernel.open_signalfd((signal.SIGCHLD, signal.SIGTERM))
    if channel >= 0:
        os.close(channel)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    kernel.set_name(b"gtty")

    def begin() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                os.login_tty(slave)
                start()
            finally:
                os._exit(_NEVER_STARTED)
        os.close(slave)
        os.chdir("/")  # or the user's file system would stay busy
        return pid

    status = _Keeper(listener, master, begin, signals, detach_timeout_s).run()
    _end_as(status)


_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGCONT})


def _end_as(status: int) -> NoReturn:
    """End this process with a wait status: with the same exit code, or by the same signal."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # KILL has no other action
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(128 + number)  # a signal that does not end a process cannot have ended the program


def refuse(listener: socket.socket, message: str) -> NoReturn:
    """Tell whoever connects first why there is no terminal, and end."""
    listener.settimeout(_LAST_WORDS_S)
    with contextlib.suppress(OSError):
        client, _ = listener.accept()
        client.settimeout(_LAST_WORDS_S)
        client.recv(t.MAX_FRAME_BYTES)
        client.send(
            t.frame(FrameKind.NOTE, message.encode("utf-8", "replace")[: t.MAX_CONTENT_BYTES])
        )
        client.send(t.end_frame(126))
    os._exit(126)


class _Client:
    """Who is attached: a connection of gnode, one frame to a packet."""

    __slots__ = ("channel", "unsent")

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.channel = channel
        self.unsent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        """Send a frame now or later."""
        self.unsent.append(frame)
        self.flush()

    def flush(self) -> bool:
        """Send what the connection takes; return False if it is gone."""
        while self.unsent:
            try:
                self.channel.send(self.unsent[0])
            except BlockingIOError:
                return True
            except OSError:
                return False
            del self.unsent[0]
        return True


def _close(channel: socket.socket) -> None:
    """Close a connection; what is typed meanwhile would take back what was sent last."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)
        channel.settimeout(_CLOSING_S)
        while channel.recv(t.MAX_FRAME_BYTES):
            pass
    channel.close()


class _Keeper:
    """One terminal, from the start of its program to its end."""

    def __init__(
        self,
        listener: socket.socket,
        master: int,
        begin: Callable[[], int],
        signals: int,
        detach_timeout_s: float,
    ) -> None:
        self._listener = listener
        self._master = master
        self._begin = begin
        self._pid = 0
        self._begin_s = time.monotonic() + _PATIENCE_S
        self._signals = signals
        self._detach_timeout_s = detach_timeout_s
        self._history = t.History()
        self._client: _Client | None = None  # attached
        self._arrived: _Client | None = None  # connected, has yet to say what it wants
        self._untyped = bytearray()
        self._left_s = time.monotonic() + max(0.0, _FIRST_USER_S - detach_timeout_s)
        self._kill_s = _TOO_LATE_S
        self._has_terminal = True
        self._status: int | None = None
        listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
        os.set_blocking(master, False)

    def run(self) -> int:
        """Return the program's wait status, once it has ended and the user has seen its output."""
        while self._status is None:
            self._step()
        self._finish(self._status)
        return self._status

    def _step(self) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        if self._has_terminal:
            poll.register(self._master, self._wanted())
        for each in filter(None, (self._client, self._arrived)):
            poll.register(each.channel, self._wanted_of(each))
        ready = dict(poll.poll(self._patience_ms()))
        if self._signals in ready:
            self._heed_signals()
        if self._has_terminal and self._master in ready:
            self._serve_terminal(ready[self._master])
        client, arrived = self._client, self._arrived
        if client is not None and client.channel.fileno() in ready:
            self._serve_client(client, ready[client.channel.fileno()])
        if arrived is not None and arrived.channel.fileno() in ready:
            self._welcome(arrived)
        if self._listener.fileno() in ready:
            self._accept()
        self._look_at_the_clock()

    def _wanted(self) -> int:
        """Return what is wanted of the terminal: output, unless the user is behind."""
        behind = self._client is not None and len(self._client.unsent) >= _UNSENT_FRAMES_MAX
        return (0 if behind else select.POLLIN) | (select.POLLOUT if self._untyped else 0)

    def _wanted_of(self, client: _Client) -> int:
        full = len(self._untyped) >= _UNTYPED_BYTES_MAX
        return (0 if full else select.POLLIN) | (select.POLLOUT if client.unsent else 0)

    def _patience_ms(self) -> int | None:
        due_s = self._kill_s if self._pid else self._begin_s
        if self._client is None and self._detach_timeout_s:
            due_s = min(due_s, self._left_s + self._detach_timeout_s)
        if due_s >= _TOO_LATE_S:
            return None
        return max(0, int((due_s - time.monotonic()) * 1000) + 1)

    # --- the program ---

    def _heed_signals(self) -> None:
        records = os.read(self._signals, 16 * kernel.SIGNALFD_RECORD_BYTES)
        for start in range(0, len(records), kernel.SIGNALFD_RECORD_BYTES):
            if int.from_bytes(records[start : start + 4], sys.byteorder) == signal.SIGTERM:
                self._note(_STOPPED)
                self._hang_up()
        if self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = status

    def _start(self) -> None:
        if not self._pid:
            self._pid = self._begin()

    def _hang_up(self) -> None:
        """Tell the program that its terminal goes: a shell does not end by TERM."""
        if not self._pid:
            self._status = int(signal.SIGHUP)
            return
        groups = {self._pid}
        with contextlib.suppress(OSError):
            groups.add(os.tcgetpgrp(self._master))
        for group in groups - {0}:
            for number in (signal.SIGHUP, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    os.killpg(group, number)
        self._kill_s = min(self._kill_s, time.monotonic() + _HANG_UP_S)

    def _look_at_the_clock(self) -> None:
        now_s = time.monotonic()
        if not self._pid and self._begin_s <= now_s and self._status is None:
            self._start()
        if self._kill_s <= now_s:
            self._kill_s = now_s + _HANG_UP_S
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
        elif (
            self._client is None
            and self._detach_timeout_s
            and self._left_s + self._detach_timeout_s <= now_s
        ):
            self._note(_UNUSED.format(self._detach_timeout_s))
            self._left_s = now_s
            self._hang_up()

    def _serve_terminal(self, events: int) -> None:
        if events & select.POLLOUT:
            try:
                del self._untyped[: os.write(self._master, self._untyped)]
            except BlockingIOError:
                pass
            except OSError:
                self._untyped.clear()
        if events & ~select.POLLOUT and not self._read():
            self._has_terminal = False  # no program has it open any more

    def _read(self) -> bool:
        """Take some output; return False if there is no more."""
        data, is_open = b"", True
        while is_open and len(data) < _READ_BYTES:  # the kernel gives 4 KiB at a time
            try:
                piece = os.read(self._master, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError:  # EIO: the other side is closed
                piece = b""
            is_open = bool(piece)
            data += piece
        self._history.add(data)
        if self._client is not None and data:
            self._client.send(t.frame(FrameKind.DATA, data))
        return is_open

    def _finish(self, status: int) -> None:
        """Pass on what the program has written last, and how it ended."""
        give_up_s = time.monotonic() + _LAST_WORDS_S
        last = self._history.end + _LAST_BYTES_MAX
        waiting = select.poll()
        waiting.register(self._master, select.POLLIN)
        while self._has_terminal and waiting.poll(0) and self._history.end < last:
            self._has_terminal = self._read()
        client = self._client
        if client is None:
            return
        client.unsent.append(t.end_frame(os.waitstatus_to_exitcode(status)))
        poll = select.poll()
        poll.register(client.channel, select.POLLOUT)
        while client.flush() and client.unsent and (left_s := give_up_s - time.monotonic()) > 0:
            poll.poll(int(left_s * 1000) + 1)
        _close(client.channel)

    # --- the user ---

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("iII", credentials)[1] not in (0, os.getuid()):
            channel.close()
            return
        if self._arrived is not None:
            self._arrived.channel.close()
        self._arrived = _Client(channel)

    def _frame_of(self, client: _Client) -> tuple[FrameKind, bytes] | None:
        """Return the next frame, None if there is none yet.

        Raises:
            OSError, FrameError: the connection is of no use any more.
        """
        try:
            message = client.channel.recv(t.MAX_FRAME_BYTES + 1)
        except BlockingIOError:
            return None
        if not message:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        return t.split(message)

    def _welcome(self, client: _Client) -> None:
        """Attach who has connected; whoever was attached before is told."""
        try:
            found = self._frame_of(client)
            if found is None:
                return
            if found[0] is not FrameKind.ATTACH:
                raise t.FrameError("no request to attach")  # noqa: TRY301 - as any other odd frame
            window, offset = t.attach_of(found[1])
        except (OSError, t.FrameError):
            client.channel.close()
            self._arrived = None
            return
        if self._client is not None:
            self._client.send(t.frame(FrameKind.TAKEN, _TAKEN.encode()))
            _close(self._client.channel)
        self._client, self._arrived = client, None
        begin, seen = self._history.since(offset)
        client.send(t.offset_frame(begin))
        for start in range(0, len(seen), t.MAX_CONTENT_BYTES):
            client.send(t.frame(FrameKind.DATA, seen[start : start + t.MAX_CONTENT_BYTES]))
        self._resize(window)
        self._start()
        with contextlib.suppress(OSError):  # also if the size is the same: programs draw again
            os.killpg(os.tcgetpgrp(self._master), signal.SIGWINCH)

    def _serve_client(self, client: _Client, events: int) -> None:
        is_full = len(self._untyped) >= _UNTYPED_BYTES_MAX
        try:
            is_gone = not client.flush()
            if not is_full and events & select.POLLIN:  # what was typed before it went counts
                found = self._frame_of(client)
                if found is not None:
                    self._heed(*found)
            elif is_gone or events & select.POLLHUP:
                raise ConnectionResetError(errno.ECONNRESET, "closed")
        except (OSError, t.FrameError):
            client.channel.close()
            self._client, self._left_s = None, time.monotonic()

    def _heed(self, kind: FrameKind, content: bytes) -> None:
        match kind:
            case FrameKind.DATA:
                self._untyped += content
            case FrameKind.WINDOW:
                self._resize(t.window_of(content))
            case FrameKind.HANG_UP:
                self._hang_up()
            case _:
                raise t.FrameError(f"{kind} from a user")

    def _resize(self, window: TerminalSize) -> None:
        """Set the terminal's size; the kernel signals WINCH if that changes it."""
        if not all(window):
            self._make_plain()
            return
        size = struct.pack("HHHH", window.rows, window.columns, 0, 0)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _make_plain(self) -> None:
        """Pass output on as it is written: the user has a pipe or a file, not a terminal."""
        with contextlib.suppress(termios.error):
            modes = termios.tcgetattr(self._master)
            modes[1] &= ~termios.OPOST
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(self._master, termios.TCSANOW, modes)

    def _note(self, text: str) -> None:
        if self._client is not None:
            self._client.send(t.frame(FrameKind.NOTE, text.encode()))
