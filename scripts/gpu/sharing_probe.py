# mypy: allow-untyped-defs, allow-untyped-calls
"""What a process sees of the driver and the kernel without a context: see `sharing_questions`.

python sharing_probe.py QUESTION ARGUMENTS...     prints one JSON value
"""

import ctypes
import json
import os
import sys
from pathlib import Path

MEMBARRIER = {"x86_64": 324, "aarch64": 283}
PRIVATE_EXPEDITED = 1 << 3


def lookups(driver, table):
    """Return hooked entry points whose addresses by name and by cuGetProcAddress differ.

    Those that the driver does not export are nobody's: they are told, and nothing is wrong.
    """
    api = ctypes.CDLL(driver)
    if result := api.cuInit(0):
        sys.exit(f"cuInit: CUDA error {result}")
    ask = api.cuGetProcAddress_v2
    differing, missing, unknown, count = [], [], [], 0
    hooked = set(Path(table).with_name("hooks.txt").read_text().split())
    for line in Path(table).read_text().splitlines():
        if line.startswith("#") or line.split()[0] not in hooked:
            continue
        name, base, version, suffix = line.split()
        count += 1
        found, status = ctypes.c_void_p(), ctypes.c_int()
        flags = 2 if suffix in ("_ptsz", "_ptds") else 1
        result = ask(
            *(base.encode(), ctypes.byref(found), int(version)),
            *(ctypes.c_uint64(flags), ctypes.byref(status)),
        )
        own = getattr(api, name, None)
        address = ctypes.cast(own, ctypes.c_void_p).value if own is not None else None
        if address is None:
            unknown.append(name)
        elif result or not found.value:
            missing.append(name)
        elif address != found.value:
            differing.append(name)
    told = {"differing": differing, "missing": missing, "not_in_the_driver": unknown}
    return {"asked": count, **told}


def membarrier():
    """Return whether the kernel has the barrier that a closed gate needs."""
    number = MEMBARRIER.get(os.uname().machine)
    if number is None:
        return {"known": False}
    commands = ctypes.CDLL(None, use_errno=True).syscall(number, 0, 0, 0)
    said = Path("/proc/version").read_text().strip()
    return {"private_expedited": commands >= 0 and bool(commands & PRIVATE_EXPEDITED), "on": said}


def main():
    """Answer one question."""
    known = {question.__name__: question for question in (lookups, membarrier)}
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"a question of {', '.join(known)}")
    print(json.dumps(known[sys.argv[1]](*sys.argv[2:])), flush=True)


if __name__ == "__main__":
    main()
