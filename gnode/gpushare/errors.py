"""Errors of GPU sharing on a node."""

from gsched.errors import GschedError


class ShareRefusedError(GschedError):
    """A task cannot share a GPU of this node."""

    code = "share_refused"


class GpuFullError(ShareRefusedError):
    """Nothing that this task needs is free on a GPU: the node is not broken."""


class NativeBuildError(ShareRefusedError):
    """The interception library cannot be built on this node."""

    code = "native_build"
