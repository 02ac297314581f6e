"""The usual course of a plain job, by a library in C: start, wait, exit record.

What Python does for a job that needs nothing special is four fifths of a supervisor's CPU time.
The library (``native/``, which gnode compiles: `gnode.daemon.native_build`) does that part, writes
the same lines into the journal, and returns with whatever is not the usual course: an order, an
alarm, a failure, another end than by exit. `gnode.supervisor.supervise` goes on from there. Without
the library it does all of it, to the same effect.

The library gives up no rights: a plain job is one of this process's own user.
"""

import ctypes
import json
import os
import sys
from typing import Final

from gnode.supervisor import away, direct, kernel
from gnode.supervisor.child import Surroundings
from gnode.supervisor.ending import Ending
from gnode.supervisor.journal import Journal
from gnode.task import Task
from gsched import failpoint, trust

ABI: Final = 1  # of attempt.h
UNTOUCHED, ANNOUNCED, RUNS, ENDED = range(4)
_FILES_MAX = 8
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


class _NativeFile(ctypes.Structure):
    _fields_ = [  # type: ignore[mutable-override]  # ctypes' own way
        ("name", ctypes.c_char_p),
        ("content", ctypes.c_char_p),
        ("content_bytes", ctypes.c_uint64),
        ("mode", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    ]


class _NativeAttempt(ctypes.Structure):
    """``struct gsv_attempt``: attempt.h says what the fields are."""

    _fields_ = [  # type: ignore[mutable-override]  # ctypes' own way
        ("programs", ctypes.c_char_p),
        ("programs_bytes", ctypes.c_uint64),
        ("argv", ctypes.c_char_p),
        ("argv_bytes", ctypes.c_uint64),
        ("env", ctypes.c_char_p),
        ("env_bytes", ctypes.c_uint64),
        ("cwd", ctypes.c_char_p),
        ("out_path", ctypes.c_char_p),
        ("err_path", ctypes.c_char_p),
        ("user_dir", ctypes.c_char_p),
        ("files", _NativeFile * _FILES_MAX),
        ("cgroup", ctypes.c_char_p),
        ("cpuset", ctypes.c_char_p),
        ("cpu_mask", ctypes.c_char_p),
        ("cpu_mask_bytes", ctypes.c_uint64),
        ("info_start", ctypes.c_char_p),
        ("core_soft", ctypes.c_uint64),
        ("core_hard", ctypes.c_uint64),
        ("open_files", ctypes.c_uint64),
        ("job", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("journal_bytes", ctypes.c_int64),
        ("look_s", ctypes.c_double),
        ("walltime_s", ctypes.c_double),
        ("failpoint", _Point),
        ("programs_count", ctypes.c_int32),
        ("argv_count", ctypes.c_int32),
        ("env_count", ctypes.c_int32),
        ("files_count", ctypes.c_int32),
        ("place_fd", ctypes.c_int32),
        ("journal_fd", ctypes.c_int32),
        ("append", ctypes.c_int32),
        ("umask", ctypes.c_int32),
        ("set_core", ctypes.c_int32),
        ("no_new_privileges", ctypes.c_int32),
        ("half_record", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("started_s", ctypes.c_double),
        ("started_boottime_s", ctypes.c_double),
        ("cpu_s", ctypes.c_double),
        ("memory_peak_bytes", ctypes.c_int64),
        ("info", ctypes.c_char_p),
        ("record", ctypes.c_char_p),
        ("user_dir_fd", ctypes.c_int32),
        ("job_pid", ctypes.c_int32),
        ("has_status", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("is_over", ctypes.c_int32),
    ]


class Course:
    """How far an attempt has come.

    Attributes:
        stage: UNTOUCHED; ANNOUNCED: its directory, its group and the line ``starting`` are there;
            RUNS: its program was started, and something came up; ENDED.
        info: the record of its start, as it is in the journal; empty: it is not.
        record: the exit record, likewise.
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
        *(
            "cpu_s",
            "info",
            "is_over",
            "job_pid",
            "memory_peak_bytes",
            "paths",
            "record",
            "signal",
            "stage",
        ),
        *("started_boottime_s", "started_s", "status", "user_dir_fd"),
    )

    def __init__(self, stage: int, made: _NativeAttempt, paths: tuple[str, str]) -> None:
        self.stage = stage
        self.info, self.record = made.info or b"", made.record or b""
        self.paths = paths
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
    made = _NativeAttempt()


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
        size = ctypes.c_uint32.in_dll(library, "gsv_attempt_bytes").value
    except (OSError, ValueError) as error:
        return f"{path} cannot be used: {error}"
    if (abi, size) != (ABI, ctypes.sizeof(_NativeAttempt)):
        return f"{path} is of another version ({abi}, {size} bytes)"
    library.gsv_run.argtypes = [ctypes.POINTER(_NativeAttempt)]
    _Loaded.library, _Loaded.path = library, path
    return ""


def is_possible(task: Task, around: Surroundings) -> bool:
    """Return whether the library can take an attempt through its usual course."""
    if _Loaded.library is None or not direct.is_possible(task, around):
        return False
    if task.stage_out or task.removal or task.programs or task.failure_report:
        return False  # there is work before the program, or after it
    if task.fence or len(task.files) > _FILES_MAX:
        return False
    return not away.look(task)


def run(
    task: Task, around: Surroundings, journal: Journal, ending: Ending, own: tuple[int, int]
) -> Course:
    """Take an attempt through its usual course, as far as that goes.

    Args:
        task: for which `is_possible` holds.
        around: see `Surroundings`.
        journal: whose orders were read and obeyed.
        ending: of the attempt.
        own: pid and start ticks of this process.
    """
    made, library = _Loaded.made, _Loaded.library
    assert library is not None, "it is possible"
    paths = (task.stdout_path, task.stderr_path)
    made.place_fd = -1
    try:
        paths = _set_output(made, task, own)
        _set_program(made, task)
        _set_files(made, task)
        _set_limits(made, task, around)
        _set_moments(made, ending)
        _set_points(made)
        made.job, made.number = task.job, task.attempt
        made.journal_fd, made.journal_bytes = journal.place()
        return Course(library.gsv_run(made), made, paths)
    except (OSError, ValueError):  # Python's part finds it again, and says what it means
        return Course(UNTOUCHED, _NativeAttempt(user_dir_fd=-1), paths)
    finally:
        if made.place_fd >= 0:
            os.close(made.place_fd)


def _text(text: str) -> bytes:
    """Return a text as C reads it.

    Raises:
        ValueError: C would read another one.
    """
    if "\0" in text:
        raise ValueError(text)
    return _bytes(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _set_output(made: _NativeAttempt, task: Task, own: tuple[int, int]) -> tuple[str, str]:
    """Set the paths of the output files, and what the record of the start begins with."""
    out, err = (
        path + name if path.endswith("/") else path
        for path, name in (
            (task.stdout_path, task.stdout_name),
            (task.stderr_path, task.stderr_name),
        )
    )
    if task.join == "eo":
        out = err
    elif task.join == "oe" or task.stderr_path == out:
        err = out
    made.out_path = _text(out)
    made.err_path = None if err == out else _text(err)
    made.append = task.append
    info = {"stdout_path": out, "stderr_path": err, "away": False}
    info |= {"pid": own[0], "start_ticks": own[1]}
    made.info_start = json.dumps(info)[:-1].encode()
    return out, err


def _set_files(made: _NativeAttempt, task: Task) -> None:
    made.files_count = len(task.files)
    if not task.files:
        return
    for slot, file in zip(made.files, task.files, strict=False):
        if "/" in file.name:
            raise ValueError(file.name)
        content = _bytes(file.content)
        slot.name, slot.mode = _text(file.name), file.mode
        slot.content, slot.content_bytes = content, len(content)
    place, name = os.path.split(task.user_dir)
    made.user_dir = _text(name)
    made.place_fd = trust.open_directory(place)


def _set_limits(made: _NativeAttempt, task: Task, around: Surroundings) -> None:
    made.cwd = _text(task.cwd)
    made.umask, made.open_files = task.umask, task.open_files
    made.core_soft, made.core_hard = (limit & (1 << 64) - 1 for limit in around.core_limits)
    made.set_core = around.core_limits[0] != 0
    made.no_new_privileges = task.no_new_privileges
    made.cgroup = _text(task.cgroup) if task.cgroup else None
    _set_cpus(made, task)


def _set_program(made: _NativeAttempt, task: Task) -> None:
    program = task.argv[0]
    if "/" in program:
        candidates = [program]
    else:
        places = task.env.get("PATH", os.defpath).split(":")
        candidates = [f"{place}/{program}" for place in places]
    variables = [f"{name}={value}" for name, value in task.env.items()]
    for field, texts in (("programs", candidates), ("argv", task.argv), ("env", variables)):
        content = _bytes("\0".join(texts))
        setattr(made, field, content)
        setattr(made, f"{field}_bytes", len(content))
        setattr(made, f"{field}_count", len(texts))


def _set_cpus(made: _NativeAttempt, task: Task) -> None:
    mask = sum(1 << cpu for cpu in task.cpus)
    words = (mask.bit_length() + 63) // 64  # the kernel takes whole ones
    each = (mask >> 64 * number & (1 << 64) - 1 for number in range(words))
    made.cpu_mask = b"".join(word.to_bytes(8, sys.byteorder) for word in each)
    made.cpu_mask_bytes = 8 * words
    # of version 2, or it is no plain job: the group is that for tracking
    confines = task.cpuset is not None and task.cpus
    made.cpuset = ",".join(map(str, task.cpus)).encode() if confines else None


def _set_moments(made: _NativeAttempt, ending: Ending) -> None:
    """Say when somebody has to look: at the spool, the lease, and when the walltime ends."""
    look_s = kernel.boottime_s() + _LOOK_S
    until_s = ending.lease_until_s
    made.look_s = look_s if until_s is None else min(look_s, until_s)
    due_s = ending.due_after_s()
    made.walltime_s = -1.0 if due_s is None else due_s


def _set_points(made: _NativeAttempt) -> None:
    armed = any(map(failpoint.is_armed, _POINTS))
    made.failpoint = _pass_point if armed else _Point()
    made.half_record = armed and failpoint.is_armed(_HALF_RECORD)


def _pass(point: int) -> None:
    failpoint.failpoint(_POINTS[point])


_pass_point = _Point(_pass)
