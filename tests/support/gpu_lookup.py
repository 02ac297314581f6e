# mypy: allow-untyped-defs, allow-untyped-calls
"""Looks entry points of the CUDA driver up as runtimes do, and prints whose function each is.

It runs alone: ``python gpu_lookup.py < LOOKUPS``; a line is ``CALL SYMBOL VERSION FLAGS`` with CALL
``v1``, ``v2`` or ``dlsym``. The answer is ``hook NAME``, ``driver NAME``, ``driver ?`` or ``none``.
The two functions for look-ups are found with ``cuGetProcAddress`` itself, as the runtimes do.
"""

import ctypes
import os
import sys


def addresses(library, names):
    """Return the exported names of a library by address."""
    found: dict[int | None, str] = {}
    for name in names:
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        found.setdefault(ctypes.cast(function, ctypes.c_void_p).value, name)
    return found


def resolver(library, version):
    """Return the function that the library hands out for cuGetProcAddress of a version."""
    pointer, status = ctypes.c_void_p(), ctypes.c_int()
    if version < 12000:
        first = library.cuGetProcAddress
        result = first(b"cuGetProcAddress", ctypes.byref(pointer), version, ctypes.c_uint64(0))
        prototype = ctypes.CFUNCTYPE(
            *(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
        )
    else:
        result = library.cuGetProcAddress_v2(
            *(b"cuGetProcAddress", ctypes.byref(pointer), version, ctypes.c_uint64(0)),
            ctypes.byref(status),
        )
        prototype = ctypes.CFUNCTYPE(
            *(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64),
            ctypes.c_void_p,
        )
    if result or not pointer.value:
        sys.exit(f"cuGetProcAddress@{version} is not there: {result}")
    return prototype(pointer.value)


def main():
    with open(sys.argv[1], encoding="ascii") as table:
        names = [line.split()[0] for line in table if not line.startswith("#")]
    seen = ctypes.CDLL("libcuda.so.1")
    real = ctypes.CDLL(os.environ["GSCHED_REAL_LIBCUDA"])
    hooks, functions = addresses(seen, names), addresses(real, names)
    calls = {"v1": resolver(seen, 11030), "v2": resolver(seen, 12000)}
    for line in sys.stdin:
        call, symbol, version, flags = line.split()
        pointer = ctypes.c_void_p()
        if call == "dlsym":
            pointer.value = ctypes.cast(getattr(seen, symbol), ctypes.c_void_p).value
        else:
            text = b"" if symbol == "-" else symbol.encode()
            rest = [] if call == "v1" else [None]
            calls[call](text, ctypes.byref(pointer), int(version), int(flags), *rest)
        if not pointer.value:
            print("none")
        elif pointer.value in hooks:
            print("hook", hooks[pointer.value])
        else:
            print("driver", functions.get(pointer.value, "?"))


if __name__ == "__main__":
    main()
