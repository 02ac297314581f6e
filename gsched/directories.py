"""Whether two hosts have the same directory at a path: found by looking, not by configuration.

A submission notes a *mark* of its directory: the boot id of the kernel, and for each directory on
the way device, inode and whether it lies on a network file system. A node compares the mark with
what it has there:

* Under one kernel, device and inode name a directory: bind mounts, mount namespaces, overlays and
  other disks at the same path are told apart.
* Under two kernels only a network file system can be shared, and its inodes are the server's. Disks
  of cloned machines have the same inodes, and are local, so they are not the same. One of the two
  may be the server itself, where the file system is local.
* A file system whose inodes are those of each client (sshfs) is known by its source.
* A directory that does not exist, or was made again, is the same if it would lie on the same file
  system below a directory that is.

It uses the standard library only, as supervisors do. A comparison takes some microseconds; the
table of mounts is read only where inodes do not tell.
"""

import os
from collections.abc import Sequence
from typing import Final

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MOUNTS: Final = "/proc/self/mountinfo"
#: File systems whose files other machines have, too; all of FUSE counts.
NETWORK: Final = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "9p",
            "virtiofs",
            "afs",
            "coda",
            "ceph",
            "lustre",
        ),
        *(
            "gpfs",
            "beegfs",
            "beegfs_nodev",
            "panfs",
            "pvfs2",
            "orangefs",
            "ocfs2",
            "gfs2",
            "wekafs",
        ),
        *("glusterfs", "dvs", "exfs", "snfs", "vxfs", "fuse", "fuseblk"),
    }
)
_LOCAL_FUSE: Final = frozenset(
    {"fuseblk", "fuse.overlayfs", "fuse.fuse-overlayfs", "fuse.squashfuse"}
)

Part = tuple[int, int, bool]  # device, inode, on a network file system


class _Mounts:
    """The table of mounts, read when it is first needed."""

    def __init__(self) -> None:
        self._lines: list[list[str]] | None = None

    def table(self) -> list[list[str]]:
        """Return the lines, in words."""
        if self._lines is None:
            try:
                with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
                    self._lines = [line.split() for line in file]
            except OSError:
                self._lines = []
        return self._lines

    def _of(self, device: int) -> list[list[str]]:
        name = f"{os.major(device)}:{os.minor(device)}"
        return [words for words in self.table() if words[2] == name]

    def is_network(self, device: int) -> bool:
        """Return whether a device is a network file system; disks have other numbers."""
        return os.major(device) == 0 and any(map(_is_network, self._of(device)))

    def source(self, path: str, device: int) -> str:
        """Return type, source and place of a directory on its file system; empty: unknown."""
        real, best = os.path.realpath(path), ""
        found = ""
        for words in self._of(device):
            root, point = words[3], words[4]
            if len(point) >= len(best) and f"{real}/".startswith(f"{point.rstrip('/')}/"):
                best = point
                below = real[len(point.rstrip("/")) :]
                kind, source = _after_dash(words)[:2]
                found = f"{kind} {source} {root.rstrip('/')}{below}"
        return found


def network_mounts() -> dict[str, str]:
    """Return the network file systems of this host: type and source, by their mount points."""
    return {
        words[4]: " ".join(_after_dash(words)[:2])
        for words in _Mounts().table()
        if _is_network(words)
    }


def _after_dash(words: list[str]) -> list[str]:
    return words[words.index("-") + 1 :]


def _is_network(words: list[str]) -> bool:
    kind = _after_dash(words)[0]
    return kind not in _LOCAL_FUSE and (kind in NETWORK or kind.startswith("fuse."))


def _look(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def _way(path: str) -> list[str]:
    """Return the directories on the way to a path, from the root to itself."""
    found = ["/"]
    for name in filter(None, path.split("/")):
        found.append(os.path.join(found[-1], name))
    return found


def is_on_network(path: str) -> bool:
    """Return whether the directory or file is on a network file system.

    Raises:
        OSError: it cannot be looked at.
    """
    return _Mounts().is_network(os.stat(path).st_dev)


def mark_of(path: str) -> str:
    """Return the mark of a directory; empty: it has none, as it cannot be looked at."""
    mounts = _Mounts()
    parts: list[Part] = []
    known: dict[int, bool] = {}
    for each in _way(path):
        found = _look(each)
        if found is None:
            return ""
        device, inode = found
        if device not in known:
            known[device] = mounts.is_network(device)
        parts.append((device, inode, known[device]))
    source = mounts.source(path, parts[-1][0]) if parts[-1][2] else ""
    try:
        boot_id = _boot_id()
    except OSError:
        return ""
    return written(boot_id, parts, source)


def written(boot_id: str, parts: Sequence[Part], source: str) -> str:
    """Return a mark: ``BOOT-ID DEVICE.INODE,DEVICE.INODEn SOURCE``, with n on network ones."""
    words = (f"{device:x}.{inode:x}{'n' * network}" for device, inode, network in parts)
    return f"{boot_id} {','.join(words)} {source}"


def read(mark: str) -> tuple[str, list[Part], str]:
    """Return boot id, directories and source of a mark.

    Raises:
        ValueError: it is none.
    """
    boot_id, words, source = mark.split(" ", 2)
    parts = []
    for word in words.split(","):
        device, inode = word.removesuffix("n").split(".")
        parts.append((int(device, 16), int(inode, 16), word.endswith("n")))
    return boot_id, parts, source


def has_same(path: str, mark: str) -> bool:
    """Return whether this host has the directory of a mark at a path, or would have it.

    A mark that cannot be read says nothing: then it counts as the same.
    """
    try:
        boot_id, noted, source = read(mark)
    except ValueError:
        return True
    way = _way(path)
    if len(way) != len(noted):
        return True
    mounts = _Mounts()
    same_kernel = boot_id == _boot_id()
    here: list[tuple[int, int] | None] = []  # from the directory upwards
    for each, part in zip(reversed(way), reversed(noted), strict=True):
        here.append(_look(each))
        if _is_equal(here[-1], part, mounts, same_kernel=same_kernel):
            if _stays_on_device(here, noted[-len(here) :]):
                return True
            break
    last = here[0]
    if not source or last is None:
        return False
    return mounts.is_network(last[0]) and mounts.source(path, last[0]) == source


def _is_equal(
    here: tuple[int, int] | None, noted: Part, mounts: _Mounts, *, same_kernel: bool
) -> bool:
    if here is None or here[1] != noted[1]:
        return False
    if same_kernel and here[0] == noted[0]:
        return True
    return noted[2] or mounts.is_network(here[0])


def _stays_on_device(here: list[tuple[int, int] | None], noted: list[Part]) -> bool:
    """Return whether all below an equal directory, the last here, is on its file system there."""
    top = here[-1]
    assert top is not None, "it is equal"
    return all(device == noted[0][0] for device, _, _ in noted) and all(
        each is None or each[0] == top[0] for each in here
    )
