"""Files of the token daemon, and addresses of Unix sockets in directories with long names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CONTROL_SOCKET: Final = "control.sock"
GROUPS_FILE: Final = "groups.json"


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield an address for a socket at a path, however long that is.

    The address of a Unix socket holds 107 bytes; it leads through a descriptor of the directory.

    Raises:
        OSError: there is no such directory.
    """
    place = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{path.name}"
    finally:
        os.close(place)
