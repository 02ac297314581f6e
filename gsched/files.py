"""Small files that others read while they are replaced. Standard library only."""

import os


def replace_file(path: str, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace a file in one step: readers, and a crash, find the old content or the new.

    Args:
        path: of the file; only its owner may write its directory.
        content: all of it.
        mode: of a new file, less the umask.
        durable: it outlives a loss of power when this returns.

    Raises:
        OSError: it cannot be written; the old file is still there.
    """
    temporary = f"{path}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(temporary, flags, mode), "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        if durable:
            os.fsync(file.fileno())
    os.rename(temporary, path)
    if durable:
        flush_directory(os.path.dirname(path))


def flush_directory(path: str) -> None:
    """Make the names in a directory outlive a loss of power."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
