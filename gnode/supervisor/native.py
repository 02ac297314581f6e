"""Plain jobs by a library in C: from the launcher's request to its answer.

What Python does for a job that needs nothing special is most of a supervisor's CPU time. The
library (``native/``, which gnode compiles: `gnode.daemon.native_build`) takes the requests, runs
the jobs that need no more than it can do, writes the same lines into the journal, and returns with
whatever is not the usual course: a task with a field that no plain job has, an order, an alarm, a
failure, another end than by exit. `gnode.supervisor.supervise` goes on from there. Without the
library it does all of it, to the same effect. Limits of control groups are Python's also with it: a
call back sets them.

Jobs of other users it runs if this process is root's and `Surroundings.owners` knows the groups of
the owner: a process that Python has forked asks the name service, and tells.
"""

import ctypes
import os
from typing import Any, Final

from gnode.supervisor import cgroup
from gnode.supervisor.child import Surroundings
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.privilege import check_owner
from gnode.task import TaskCgroups, decode
from gsched import failpoint, trust

ABI: Final = 4  # of attempt.h
UNTOUCHED, ANNOUNCED, RUNS, ENDED = range(4)
_CLOSED, _RULES, _ATTEMPT = range(3)
_REQUEST_BYTES = 8192
_LEAST_MEMORY_BYTES = 32 << 20  # by far more than a process uses before it is the program
_LOOK_S = 10.0  # then Python looks after the attempt: see `supervise`
_POINTS = (
    "supervisor.start.before_fork",
    "supervisor.start.after_fork",
    "supervisor.exit.before_groups",
    "supervisor.exit.before_record",
    "supervisor.exit.half_record",
    "supervisor.exit.after_record",
)
_HALF_RECORD = _POINTS[4]
_Point = ctypes.CFUNCTYPE(None, ctypes.c_int)
_OpenPlace = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_FindGroups = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
    *(ctypes.POINTER(ctypes.c_uint32), ctypes.c_int),
)
_PrepareCgroups = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)


class _NativeServer(ctypes.Structure):
    """``struct gsv_server``: attempt.h says what the fields are."""

    _fields_ = [  # type: ignore[mutable-override]  # ctypes' own way
        ("own", ctypes.c_char_p),
        ("rules", ctypes.c_char_p),
        ("failpoint", _Point),
        ("open_place", _OpenPlace),
        ("find_groups", _FindGroups),
        ("prepare_cgroups", _PrepareCgroups),
        ("core_soft", ctypes.c_uint64),
        ("core_hard", ctypes.c_uint64),
        ("look_s", ctypes.c_double),
        ("place_kept_s", ctypes.c_double),
        ("channel", ctypes.c_int32),
        ("half_record", ctypes.c_int32),
        ("has_groups", ctypes.c_int32),
        ("set_core", ctypes.c_int32),
        ("allow_root", ctypes.c_int32),
        ("has_request", ctypes.c_int32),
        ("request_bytes", ctypes.c_int32),
        ("stage", ctypes.c_int32),
        ("request", ctypes.c_char * _REQUEST_BYTES),
        ("last", ctypes.c_char * _REQUEST_BYTES),
        ("place_fd", ctypes.c_int32),
        ("task_fd", ctypes.c_int32),
        ("journal_fd", ctypes.c_int32),
        ("user_dir_fd", ctypes.c_int32),
        ("job_pid", ctypes.c_int32),
        ("has_status", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("is_over", ctypes.c_int32),
        ("oom_score_adj", ctypes.c_int32),
        ("started_s", ctypes.c_double),
        ("started_boottime_s", ctypes.c_double),
        ("cpu_s", ctypes.c_double),
        ("memory_peak_bytes", ctypes.c_int64),
        ("info", ctypes.c_char_p),
        ("out_path", ctypes.c_char_p),
        ("err_path", ctypes.c_char_p),
    ]


class Course:
    """How far the library has taken an attempt.

    Attributes:
        stage: ANNOUNCED: its directory, its group and the line ``starting`` are there; RUNS: its
            program was started, and something came up.
        journal_fd: its journal, of whose orders none was read.
        info: the record of its start, as it is in the journal; empty: it is not.
        paths: of its output files.
        user_dir_fd: its directory, open; None: it has none, or has ended.
        started_s, started_boottime_s: when its program was started.
        job_pid: of its program.
        status: wait status of that, None while it runs.
        cpu_s, memory_peak_bytes: of all its processes that have ended.
        signal: what came up, 0: no signal.
        is_over: nothing of it was left; its exit record is not written, or was not to be.
    """

    __slots__ = (
        *("cpu_s", "info", "is_over", "job_pid", "journal_fd", "memory_peak_bytes", "paths"),
        *("signal", "stage", "started_boottime_s", "started_s", "status", "user_dir_fd"),
    )

    def __init__(self, made: _NativeServer) -> None:
        self.stage = made.stage
        self.journal_fd = made.journal_fd
        self.info = made.info or b""
        self.paths = (os.fsdecode(made.out_path), os.fsdecode(made.err_path))
        self.user_dir_fd = made.user_dir_fd if made.user_dir_fd >= 0 else None
        self.started_s, self.started_boottime_s = made.started_s, made.started_boottime_s
        self.job_pid = made.job_pid
        self.status = made.status if made.has_status else None
        self.cpu_s, self.memory_peak_bytes = made.cpu_s, made.memory_peak_bytes
        self.signal, self.is_over = made.signal, bool(made.is_over)


class _Loaded:
    """The library of this process, if it has one."""

    library: ctypes.CDLL | None = None
    path = ""


def loaded() -> str:
    """Return the path of the library that is used, empty: none."""
    return _Loaded.path


def load(path: str) -> str:
    """Load the library, or do without one if ``path`` is empty; return why not, in words."""
    if path == _Loaded.path:
        return ""
    _Loaded.library, _Loaded.path = None, ""
    if not path:
        return ""
    try:
        fd = trust.open_file(path)
        try:
            library = ctypes.CDLL(f"/proc/self/fd/{fd}")  # the very file that was looked at
        finally:
            os.close(fd)
        abi = ctypes.c_uint32.in_dll(library, "gsv_abi").value
        size = ctypes.c_uint32.in_dll(library, "gsv_server_bytes").value
    except (OSError, ValueError) as error:
        return f"{path} cannot be used: {error}"
    if (abi, size) != (ABI, ctypes.sizeof(_NativeServer)):
        return f"{path} is of another version ({abi}, {size} bytes)"
    library.gsv_serve.argtypes = [ctypes.POINTER(_NativeServer)]
    _Loaded.library, _Loaded.path = library, path
    return ""


class NativeServer:
    """The library, as it serves the launcher for this process."""

    __slots__ = ("_around", "_library", "_made")

    def __init__(
        self, library: ctypes.CDLL, channel: int, around: Surroundings, own: tuple[int, int]
    ) -> None:
        self._library = library
        self._around = around
        self._made = made = _NativeServer(channel=channel, own=_own(own), rules=b"")
        made.core_soft, made.core_hard = (limit & (1 << 64) - 1 for limit in around.core_limits)
        made.set_core = around.core_limits[0] != 0
        made.has_groups = around.home.is_known
        made.look_s, made.place_kept_s = _LOOK_S, trust.WAY_KEPT_S
        made.open_place = _open_place_in_c
        made.find_groups = _FindGroups(self._find_groups)
        made.prepare_cgroups = _prepare_cgroups_in_c
        made.oom_score_adj = around.oom_score_adj
        if any(map(failpoint.is_armed, _POINTS)):
            made.failpoint = _pass_in_c
            made.half_record = failpoint.is_armed(_HALF_RECORD)

    def obey(self, rules: bytes, around: Surroundings) -> None:
        """Serve requests with these rules from now on."""
        self._made.rules = rules
        self._made.allow_root = around.rules.allow_root

    def wait(self, last: str) -> tuple[bytes, tuple[int, int] | None, Course | None, str]:
        """Serve until something comes that the library does not do.

        Args:
            last: the directory of the last attempt that has ended here.

        Returns:
            A request; what `spool.open_task` has returned for its attempt, if that came with it;
            how far the attempt has come, None: it is untouched; and the directory of the last
            attempt that has ended. The request is empty once the launcher is gone. It is also
            returned when its rules are others than `obey` was told, to be obeyed; then it is still
            the next one.
        """
        made = self._made
        made.last = os.fsencode(last)
        came = self._library.gsv_serve(made)
        last = os.fsdecode(made.last)
        if came == _CLOSED:
            return b"", None, None, last
        request = ctypes.string_at(ctypes.addressof(made) + _REQUEST_AT, made.request_bytes)
        if came == _RULES:
            return request, None, None, last
        opened = (made.place_fd, made.task_fd) if made.task_fd >= 0 else None
        course = None if made.stage == UNTOUCHED else Course(made)
        return request, opened, course, last

    def is_pending(self) -> bool:
        """Return whether the request that was returned is still the next one."""
        return bool(self._made.has_request)

    def _find_groups(self, user: bytes, uid: int, gid: int, groups: Any, most: int) -> int:
        """Write the groups of an owner whose jobs run here; return how many, -1: ask for them."""
        try:
            check_owner(uid, gid, self._around.rules, switch_user=True)
        except LaunchError:
            return -1
        found = self._around.owners.groups(os.fsdecode(user), uid, gid)
        if found is None or len(found) > most:
            return -1
        for place, group in enumerate(found):
            groups[place] = group
        return len(found)


_REQUEST_AT = _NativeServer.request.offset


def server(channel: int, around: Surroundings, own: tuple[int, int]) -> NativeServer | None:
    """Return what serves the launcher in place of Python; None: there is no library.

    Args:
        channel: descriptor of the launcher's requests.
        around: see `Surroundings`.
        own: pid and start ticks of this process.
    """
    if _Loaded.library is None:
        return None
    return NativeServer(_Loaded.library, channel, around, own)


def _own(own: tuple[int, int]) -> bytes:
    return b'"pid": %d, "start_ticks": %d' % own


def _open_place(path: bytes) -> int:
    try:
        return trust.open_directory(os.fsdecode(path))
    except OSError:  # Python's part finds it again, and says what it means
        return -1


def _prepare_cgroups(text: bytes) -> int:
    """Make an attempt's control groups and set their limits; return 1 if that is done.

    The job's process may share the supervisor's memory at first: were it killed for its limit then,
    the kernel would kill both.
    """
    try:
        task = decode(TaskCgroups, text)
        if task.memory_cgroup and task.memory_cgroup.limit_bytes < _LEAST_MEMORY_BYTES:
            return 0
        cgroup.prepare(task)
    except (LaunchError, OSError, ValueError):  # Python's part finds it again, and says what it is
        return 0
    return 1


def _pass(point: int) -> None:
    failpoint.failpoint(_POINTS[point])


_open_place_in_c, _pass_in_c = _OpenPlace(_open_place), _Point(_pass)
_prepare_cgroups_in_c = _PrepareCgroups(_prepare_cgroups)
