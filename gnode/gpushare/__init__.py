"""GPU sharing on a node: several jobs on one GPU. `make_runtime` is the entrance.

A `Runtime` isolates the jobs that share a GPU; the node's configuration names it. The token daemon,
which each such node starts, has none: what runtimes import takes half of its start.
"""

import importlib
from typing import TYPE_CHECKING, Final

from gnode.gpushare.errors import GpuFullError, ShareRefusedError
from gnode.gpushare.task import SharedTask
from gsched.model.states import ShareClass

if TYPE_CHECKING:
    from gnode.gpushare.runtime import Contained, Runtime, RuntimeSite
    from gnode.gpushare.runtimes import make_runtime

__all__ = [
    "Contained",
    "GpuFullError",
    "Runtime",
    "RuntimeSite",
    "ShareClass",
    "ShareRefusedError",
    "SharedTask",
    "make_runtime",
]
_LATE: Final = {
    "Contained": "runtime",
    "Runtime": "runtime",
    "RuntimeSite": "runtime",
    "make_runtime": "runtimes",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
