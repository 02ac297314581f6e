"""GPU sharing on a node: several jobs on one GPU. `make_runtime` is the entrance.

A `Runtime` isolates the jobs that share a GPU; the node's configuration names it.
"""

from gnode.gpushare.errors import GpuFullError, ShareRefusedError
from gnode.gpushare.runtime import Contained, Runtime, RuntimeSite
from gnode.gpushare.runtimes import make_runtime
from gnode.gpushare.task import SharedTask
from gsched.model.states import ShareClass

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
