"""The page with a job's gate: the daemon writes it, and processes of the job can only read it."""

import ctypes
import fcntl
import mmap
import os
from typing import Final

PAGE_BYTES: Final = 4096
_F_ADD_SEALS: Final = 1033  # of fcntl.h; Python has names for them from 3.9 on, without the last
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
#: Numbers of 32 bits, see native/gpushare.h; the first two are for libraries of version 1.
_GATE_1, _EPOCH_1, _WINDOW, _GATE = 0, 1, 2, 3
_OPEN: Final = 1
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAKE: Final = 1
_ALL: Final = 2**31 - 1
_libc = ctypes.CDLL(None, use_errno=True)


class GatePage:
    """One page: gate and window, each stored by one aligned write of 32 bits.

    The lowest bit of the gate says whether it is open, the others are the number of the grant.
    Threads of jobs sleep on it (see ``futex(2)``) and are woken when it opens. Libraries of version
    1 of the messages have a gate of their own in the page, which is 0 or 1.

    It is mapped before it is sealed: later mappings and writes of anybody are refused.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("gsched-gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, PAGE_BYTES)
            self._map = mmap.mmap(self.descriptor, PAGE_BYTES)
        except OSError:
            os.close(self.descriptor)
            raise
        self._words = memoryview(self._map).cast("I")
        # No reference to the buffer is kept, which would keep the map open.
        gate = ctypes.addressof(ctypes.c_uint32.from_buffer(self._map, 4 * _GATE))
        self._address = ctypes.c_void_p(gate)
        fcntl.fcntl(
            self.descriptor,
            _F_ADD_SEALS,
            _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE,
        )

    def open(self, epoch: int) -> None:
        """Let launches pass."""
        self._words[_EPOCH_1], self._words[_GATE_1] = epoch & 0xFFFFFFFF, 1
        self._words[_GATE] = (epoch << 1 | _OPEN) & 0xFFFFFFFF
        if _SYS_FUTEX is not None:  # elsewhere they look again after some time
            _libc.syscall(_SYS_FUTEX, self._address, _FUTEX_WAKE, _ALL, None, None, 0)

    def shut(self) -> None:
        """Let no further launch pass."""
        self._words[_GATE] &= ~_OPEN & 0xFFFFFFFF
        self._words[_GATE_1] = 0

    def set_window(self, window: int) -> None:
        """Limit the unfinished launches of each process; 0: no limit."""
        self._words[_WINDOW] = window

    def close(self) -> None:
        """Give the page back; processes that map it keep it."""
        self._words.release()
        self._map.close()
        os.close(self.descriptor)
