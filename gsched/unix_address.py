"""Addresses of Unix sockets in directories with long names; the standard library only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESS_BYTES_MAX = 107  # sun_path of unix(7), less its closing zero


@contextmanager
def address_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield an address for a socket at a path, however long that is, while the block lasts.

    A path that does not fit is reached by a descriptor of its directory.

    Raises:
        OSError: the directory of a long path cannot be opened.
    """
    text = os.fspath(path)
    if len(os.fsencode(text)) <= ADDRESS_BYTES_MAX:
        yield text
        return
    directory, name = os.path.split(text)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{name}"
    finally:
        os.close(place)
