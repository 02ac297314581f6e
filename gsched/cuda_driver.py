"""Where the library of the CUDA driver is on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

from gsched.config.environment import full_environment
from gsched.config.nodes import SHARE_DRIVERS

_TIMEOUT_S: Final = 20.0
#: A process of its own loads the driver: it would stay in this one for ever.
_LOADED: Final = """
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit(1)
for line in open("/proc/self/maps"):
    path = line.rstrip("\\n")[line.find("/"):]
    if path.rpartition("/")[2].startswith("libcuda.so"):
        print(path)
        break
"""


def find_driver(places: Iterable[str] = SHARE_DRIVERS) -> str | None:
    """Return the path of ``libcuda.so.1``, or None.

    Where it is in none of the usual places the dynamic loader is asked, which knows
    /etc/ld.so.conf and LD_LIBRARY_PATH.

    Args:
        places: the usual ones, in order.
    """
    found = next((path for path in places if os.access(path, os.R_OK)), None)
    return found or _loaded_driver()


def _loaded_driver() -> str | None:
    environment = full_environment()
    environment.pop("LD_PRELOAD", None)  # in a job that shares a GPU it has another driver's name
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _LOADED],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    path = ran.stdout.strip()
    return path if path and os.access(path, os.R_OK) else None
