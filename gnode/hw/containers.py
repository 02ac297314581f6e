"""Which container runtimes this machine has."""

import os
import shutil
from collections.abc import Sequence
from typing import Final

from gnode.core.containers import ContainerRuntime

#: Where administrators install programs, whatever gnode's own PATH is.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_INITS: Final = (
    "/usr/libexec/podman/catatonit",
    "/usr/lib/podman/catatonit",
    "/usr/local/libexec/podman/catatonit",
    "/usr/bin/catatonit",
)


def find_runtimes(names: Sequence[str], *, path: str = "") -> tuple[ContainerRuntime, ...]:
    """Return those of the runtimes that are installed, in this order.

    Args:
        names: of `gsched.model.container.RUNTIMES`.
        path: where they are looked for; empty: where administrators install programs.
    """
    found: list[ContainerRuntime] = []
    path = path or _PATH
    for name in names:
        program = shutil.which(name, path=path)
        if program is None and name == "apptainer":
            program = shutil.which("singularity", path=path)
        if program is not None:
            found.append(
                ContainerRuntime(
                    name=name, program=program, cdi=_has_cdi(), init=name == "podman" and _init()
                )
            )
    return tuple(found)


def _has_cdi() -> bool:
    """Return whether NVIDIA's devices are described for CDI."""
    for directory in _CDI_DIRECTORIES:
        try:
            if any("nvidia" in name for name in os.listdir(directory)):
                return True
        except OSError:
            continue
    return False


def _init() -> bool:
    return any(os.access(path, os.X_OK) for path in _INITS)
