"""The file systems that a database must not lie on."""

from collections.abc import Collection
from pathlib import Path

import psutil

#: Where SQLite's locks or its shared memory do not work.
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"})


def file_system(path: Path) -> str:
    """Return the type of the file system that holds ``path``, or the empty string."""
    best, kind = "", ""
    for part in psutil.disk_partitions(all=True):
        if path.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(best):
            best, kind = part.mountpoint, part.fstype
    return kind


def objection(path: Path, kinds: Collection[str] = NETWORK_FILE_SYSTEMS) -> str:
    """Return why a database must not lie in ``path``; empty: it may."""
    kind = file_system(path.resolve())
    if kind not in kinds:
        return ""
    return f"{path} lies on {kind}, where SQLite's locks and shared memory do not work"
