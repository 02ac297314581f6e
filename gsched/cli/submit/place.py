"""Where a user stands who submits a job, and what relative paths mean there."""

import os
from collections.abc import Mapping


class SubmitContext:
    """Where the user submits from: the directory, the environment, the time, the umask."""

    __slots__ = ("cwd", "environment", "now_s", "umask")

    def __init__(self, *, cwd: str, environment: Mapping[str, str], now_s: float, umask: int):
        self.cwd = cwd
        self.environment = environment
        self.now_s = now_s
        self.umask = umask


def absolute(path: str, place: SubmitContext) -> str:
    """Return ``path`` with ``~`` expanded, from the directory of submission; a final / stays."""
    expanded = os.path.expanduser(path)
    return expanded if expanded.startswith("/") else os.path.join(place.cwd, expanded)
