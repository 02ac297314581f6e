"""GPU sharing on a node: several jobs on one GPU. `make_runtime` is the entrance.

A `Runtime` isolates the jobs that share a GPU; the node's configuration chooses which one it is.
"""

from gnode.gpushare.errors import ShareRefusedError
from gnode.gpushare.runtimes import make_runtime
from gnode.gpushare.task import Runtime, SharedTask
from gsched.model.states import ShareClass

__all__ = ["Runtime", "ShareClass", "ShareRefusedError", "SharedTask", "make_runtime"]
