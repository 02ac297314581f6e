"""The few kernel calls that Python 3.11 has no function for, by ctypes.

Constants are Linux's ABI; none of them differs between architectures unless a table says so.
"""

import ctypes
import errno
import fcntl
import functools
import os
import signal
import struct
import time

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_MAX = 64  # capability sets are 64 bits wide
_CAPABILITY_VERSION_3 = 0x20080522
_SIGSET_BYTES = 128  # glibc's and musl's sigset_t
_SFD_CLOEXEC = 0o2000000
_SFD_NONBLOCK = 0o4000
_TIMER_ABSTIME = 1
_KEYCTL_JOIN_SESSION_KEYRING = 1
_FALLOC_FL_KEEP_SIZE = 1
_PASSWD_BUFFER_BYTES = 1 << 16
_PASSWD_BYTES_MAX = 256  # struct passwd has 48
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes): Linux 6.13; the exit since 6.15
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_BYTES = 64
_STATFS_BYTES = 256  # struct statfs has 120
# linux/magic.h: ext3 and ext4, XFS, Btrfs, F2FS, tmpfs
_NAMED_BY_FSYNC = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
_KEYCTL_BY_MACHINE = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271}

#: One record that a signalfd returns; the signal's number is its first 32 bits.
SIGNALFD_RECORD_BYTES = 128


def _library(symbol: str) -> ctypes.CDLL:
    """Return the C library that has ``symbol``: timers lived in librt before glibc 2.34."""
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, symbol) else ctypes.CDLL("librt.so.1", use_errno=True)


_libc = ctypes.CDLL(None, use_errno=True)
_librt = _library("timer_create")
_fallocate = getattr(_libc, "fallocate64", _libc.fallocate)
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_prctl_text = _libc["prctl"]  # another object, with other types
_prctl_text.argtypes = [ctypes.c_int, ctypes.c_char_p, *[ctypes.c_ulong] * 3]


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def become_subreaper() -> None:
    """Make orphans below this process its children, so that it sees all of them end."""
    _checked(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def forbid_dumps() -> None:
    """Keep others of the same user from tracing or dumping this process; exec undoes it."""
    _checked(_prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def forbid_new_privileges() -> None:
    """Let no program that this process or its children exec gain rights (setuid); for good."""
    _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def set_name(name: bytes) -> None:
    """Show ``name`` (its first 15 bytes) for this process in ps and top."""
    _prctl_text(_PR_SET_NAME, name, 0, 0, 0)


def drop_capabilities_for_good() -> None:
    """Empty the bounding set and the ambient set: no later exec gains any capability."""
    _checked(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    for capability in range(_CAPABILITIES_MAX):
        if _prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _checked(_prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl(PR_CAPBSET_DROP)")


def clear_capabilities() -> None:
    """Give up the permitted, effective and inheritable capabilities; the last survive a setuid."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def join_new_keyring() -> bool:
    """Leave the daemon's session keyring for an empty one; return False where there are none."""
    number = _KEYCTL_BY_MACHINE.get(os.uname().machine)
    if number is None:
        return False
    return int(_libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)) >= 0


def open_signalfd(signals: tuple[int, ...]) -> int:
    """Return a non-blocking descriptor that becomes readable when one of ``signals`` pends."""
    mask = bytearray(_SIGSET_BYTES)
    for number in signals:
        mask[(number - 1) // 8] |= 1 << ((number - 1) % 8)
    buffer = (ctypes.c_char * _SIGSET_BYTES).from_buffer(mask)
    return _checked(_libc.signalfd(-1, buffer, _SFD_CLOEXEC | _SFD_NONBLOCK), "signalfd")


def name_service_error(user: str) -> int:
    """Return why the name service does not say that there is no such user; 0: it says so.

    To be asked after Python's own functions, which say "not found" in both cases. It may hang.
    """
    buffer = ctypes.create_string_buffer(_PASSWD_BUFFER_BYTES)
    entry = ctypes.create_string_buffer(_PASSWD_BYTES_MAX)
    result = ctypes.c_void_p()
    name = user.encode("utf-8", "surrogateescape")
    size = ctypes.c_size_t(len(buffer))
    number = int(_libc.getpwnam_r(name, entry, buffer, size, ctypes.byref(result)))
    return errno.EAGAIN if result.value else number  # found now, so it was not answering just now


def reserve(fd: int, size: int) -> None:
    """Reserve blocks for the first ``size`` bytes of a file, whose length stays as it is.

    Nothing is reserved where the file system cannot do that.

    Raises:
        OSError: there is no space.
    """
    if _fallocate(fd, _FALLOC_FL_KEEP_SIZE, 0, size) < 0:
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise OSError(number, f"fallocate: {os.strerror(number)}")


def names_go_with_files(fd: int) -> bool:
    """Return whether flushing this file also flushes its name and the new directories above it.

    POSIX wants a flush of the directory for that. These file systems write the names of a new file
    with it: the log is written up to it (XFS, ext4), or its parents go along (ext4 without a
    journal, Btrfs, F2FS).
    """
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, status) < 0:
        return False
    kind = ctypes.c_long.from_buffer(status).value
    return kind & 0xFFFFFFFF in _NAMED_BY_FSYNC


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of a process that somebody else has reaped, None if not known.

    Args:
        pidfd: opened while the process was alive.
    """
    info = bytearray(struct.pack("=Q", _PIDFD_INFO_EXIT).ljust(_PIDFD_INFO_BYTES, b"\0"))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:  # not reaped yet (ESRCH), or a kernel without it (ENOTTY)
        return None
    (mask,) = struct.unpack_from("=Q", info)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    return int(struct.unpack_from("=i", info, _PIDFD_INFO_BYTES - 4)[0])


@functools.cache
def tells_exit_status() -> bool:
    """Return whether this kernel tells the exit status of processes that are not our children.

    Linux does from 6.15 on. Tests can pretend an older one.
    """
    if os.environ.get("GSCHED_TEST_OLD_KERNEL"):
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    pidfd = os.pidfd_open(pid)
    try:
        os.waitpid(pid, 0)
        return exit_status(pidfd) == 7 << 8
    finally:
        os.close(pidfd)


def boottime_s() -> float:
    """Return seconds of CLOCK_BOOTTIME: never jumps and goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class BootTimer:
    """Sends SIGALRM to this process at a moment of CLOCK_BOOTTIME.

    ``setitimer`` and the time-outs of Python's waits stand still while the machine is suspended;
    a walltime must not.
    """

    __slots__ = ("_armed_s", "_id")

    def __init__(self) -> None:
        self._id: ctypes.c_void_p | None = None
        self._armed_s: float | None = None

    def arm(self, at_s: float | None) -> None:
        """Fire once at ``at_s`` (seconds of CLOCK_BOOTTIME, past ones at once); None disarms."""
        if at_s == self._armed_s:
            return
        if self._id is None:
            self._id = ctypes.c_void_p()
            created = _librt.timer_create(time.CLOCK_BOOTTIME, None, ctypes.byref(self._id))
            _checked(created, "timer_create")
        # A value of zero would disarm, so the earliest moment is one nanosecond after boot.
        nanoseconds = 0 if at_s is None else max(1, int(at_s * 1e9))
        when = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, 1_000_000_000))
        _checked(_librt.timer_settime(self._id, _TIMER_ABSTIME, when, None), "timer_settime")
        self._armed_s = at_s


#: Blocked in the launcher and every supervisor, so that none is lost and none kills by surprise.
BLOCKED_SIGNALS = (
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
)
