"""Keep an attempt's processes from the GPUs of others: open(2) of their device files fails (EPERM).

Version 1 of the control groups has a controller for that (devices); in version 2 a BPF program of
type CGROUP_DEVICE decides, see bpf(2) and "Device controller" in the kernel's cgroup-v2 document.
What is open already stays open, so a fence is set up before anything of the job runs.
"""

import ctypes
import os
import struct
from collections.abc import Iterable

from gnode.supervisor.errors import LaunchError, reason
from gnode.task import GpuFence

_PROG_LOAD, _PROG_ATTACH, _PROG_GET_FD_BY_ID, _PROG_QUERY = 5, 8, 13, 16
_TYPE_CGROUP_DEVICE = 15
_ATTACH_CGROUP_DEVICE = 6
_ALLOW_MULTI, _REPLACE = 1 << 1, 1 << 2
_CHARACTER_DEVICE = 2
_PROGRAMS_MAX = 64
_BPF_BY_MACHINE = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361}
_NAME = b"gsched_gpus"
# Instructions of BPF, of linux/bpf.h and linux/bpf_common.h.
_LOAD_WORD, _AND, _MOVE, _EXIT = 0x61, 0x57, 0xB7, 0x95
_JUMP_UNEQUAL, _JUMP_BELOW, _JUMP_UP_TO = 0x55, 0xA5, 0xB5
_R0, _CONTEXT, _TYPE, _MAJOR, _MINOR = 0, 1, 2, 3, 4  # registers

#: The kernel answers in it: some versions write up to its end.
_QUERY = "=IIIIQI36x"

_libc = ctypes.CDLL(None, use_errno=True)


def set_up(fence: GpuFence | None) -> None:
    """Fence an attempt's group, which exists, or change its fence; None: it has none.

    Raises:
        LaunchError: the kernel refuses; the job does not run with the GPUs of others.
    """
    if fence is None:
        return
    try:
        if fence.version == 1:
            _write_rules(fence)
        else:
            attach(fence.path, fence.denied)
    except OSError as error:
        raise LaunchError(
            f"cannot keep the job from other GPUs, in {fence.path}: {reason(error)}: "
            "see gpu_fence in gsched.toml(5)",
            stage="group",
            subject="node",
            errno=error.errno or 0,
        ) from error


def _write_rules(fence: GpuFence) -> None:
    """Write the rules of version 1: its groups begin with those of the group above, all allowed."""
    for name, devices in (("devices.allow", fence.allowed), ("devices.deny", fence.denied)):
        fd = os.open(f"{fence.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for major, first, last in map(_numbers, devices):
                for minor in range(first, last + 1):  # one rule each: there are no ranges
                    os.write(fd, f"c {major}:{minor} rwm".encode())
        finally:
            os.close(fd)


def attach(path: str, denied: Iterable[str]) -> None:
    """Attach the program that denies these devices to a group of version 2, or replace it.

    Raises:
        OSError: the kernel refuses, or gsched does not know its system call on this machine.
    """
    group = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    program = before = -1
    try:
        program = _load(program_of(denied))
        before = _attached(group)
        flags = _ALLOW_MULTI if before < 0 else _ALLOW_MULTI | _REPLACE
        words = (group, program, _ATTACH_CGROUP_DEVICE, flags, max(before, 0))
        _bpf(_PROG_ATTACH, struct.pack("=5I", *words))
    finally:
        for fd in (group, program, before):
            if fd >= 0:
                os.close(fd)


def program_of(denied: Iterable[str]) -> bytes:
    """Return the BPF program that denies these character devices, ``MAJOR:FIRST-LAST``."""
    by_major: dict[int, list[tuple[int, int]]] = {}
    for device in denied:
        major, first, last = _numbers(device)
        by_major.setdefault(major, []).append((first, last))
    length = sum(1 + 2 * len(minors) for minors in by_major.values())
    code = [
        _instruction(_LOAD_WORD, _TYPE, _CONTEXT, 0),
        _instruction(_AND, _TYPE, constant=0xFFFF),  # access << 16 | type
        _instruction(_LOAD_WORD, _MAJOR, _CONTEXT, 4),
        _instruction(_LOAD_WORD, _MINOR, _CONTEXT, 8),
        _instruction(_JUMP_UNEQUAL, _TYPE, offset=length, constant=_CHARACTER_DEVICE),
    ]
    left = length
    for major, minors in sorted(by_major.items()):
        code.append(_instruction(_JUMP_UNEQUAL, _MAJOR, offset=2 * len(minors), constant=major))
        left -= 1
        for first, last in minors:
            left -= 2
            code.append(_instruction(_JUMP_BELOW, _MINOR, offset=1, constant=first))
            # behind what is left of the comparisons and the two instructions that allow
            code.append(_instruction(_JUMP_UP_TO, _MINOR, offset=left + 2, constant=last))
    for answer in (1, 0) if by_major else (1,):  # the kernel refuses what cannot be reached
        code += [_instruction(_MOVE, _R0, constant=answer), _instruction(_EXIT, _R0)]
    return b"".join(code)


def _numbers(device: str) -> tuple[int, int, int]:
    """Return major number, first and last minor number of ``MAJOR:FIRST-LAST``."""
    major, _, minors = device.partition(":")
    first, _, last = minors.partition("-")
    return int(major), int(first), int(last or first)


def _instruction(
    code: int, target: int, source: int = 0, offset: int = 0, *, constant: int = 0
) -> bytes:
    return struct.pack("=BBhi", code, target | source << 4, offset, constant)


def _load(code: bytes) -> int:
    """Load a program and return its descriptor."""
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "=IIQQIIQII16s",
        _TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        *(0, 0, 0),  # no log
        *(0, 0),
        _NAME,
    )
    return _bpf(_PROG_LOAD, attributes)


def _attached(group: int) -> int:
    """Return a descriptor of the program that is attached to the group itself, -1 for none."""
    found = (ctypes.c_uint32 * _PROGRAMS_MAX)()
    query = struct.pack(
        _QUERY, group, _ATTACH_CGROUP_DEVICE, 0, 0, ctypes.addressof(found), _PROGRAMS_MAX
    )
    buffer = ctypes.create_string_buffer(query, len(query))
    _bpf_in(_PROG_QUERY, buffer)
    if struct.unpack(_QUERY, buffer.raw)[5] == 0:
        return -1
    return _bpf(_PROG_GET_FD_BY_ID, struct.pack("=III", found[0], 0, 0))


def _bpf(command: int, attributes: bytes) -> int:
    return _bpf_in(command, ctypes.create_string_buffer(attributes, len(attributes)))


def _bpf_in(command: int, attributes: "ctypes.Array[ctypes.c_char]") -> int:
    number = _BPF_BY_MACHINE.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"bpf(2) on {os.uname().machine}")
    result = int(_libc.syscall(number, command, attributes, len(attributes)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
