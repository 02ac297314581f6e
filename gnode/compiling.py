"""C sources that gnode compiles on its node, and what is kept of that for the next start.

The sources are few, so they are compiled where they are used: the result fits the node's C library
and processor, and no binary has to be shipped (decisions 18 and 36).
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from gsched.clock import SystemClock
from gsched.config.nodes import SHARE_COMPILERS

COMPILE_TIMEOUT_S: Final = 300.0
SCRATCH: Final = "build-"  # begins the names of directories in which something is compiled
_LINES_MAX: Final = 20


class CompilerError(Exception):
    """A compiler cannot be run, or refuses the sources.

    Attributes:
        refused: it ran.
    """

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


def find_compiler(path: str | None = None) -> str | None:
    """Return the path of a C compiler, or None; ``path`` is searched instead of $PATH."""
    return next(
        (found for name in SHARE_COMPILERS if (found := shutil.which(name, path=path))), None
    )


def run(command: Sequence[str]) -> str:
    """Run a compiler; return what it prints.

    Raises:
        CompilerError: it cannot be run, or fails: with its first lines.
    """
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(str(error), refused=False) from error
    if ran.returncode:
        raise CompilerError("\n".join(ran.stderr.splitlines()[:_LINES_MAX]), refused=True)
    return ran.stdout


def digest(texts: Iterable[str], files: Iterable[Path]) -> str:
    """Return what names a build: all on which its result depends."""
    content = hashlib.sha256("\0".join(texts).encode())
    for path in files:
        content.update(f"\0{path.name}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


def kept(cache: Path, name: str, compile_into: Callable[[Path, Path], None]) -> Path:
    """Return the directory of a build; it is compiled if it is not there.

    Args:
        cache: directory for builds; every user can read it.
        name: of the build.
        compile_into: takes a directory for what is not kept, and one for the result.

    Raises:
        OSError: the directory cannot be written.
    """
    target = cache / name
    if target.is_dir():
        return target
    if not cache.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o755)  # whatever the umask
    _remove_abandoned(cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix=SCRATCH) as folder:
        work = Path(folder, "done")
        work.mkdir()
        compile_into(Path(folder), work)
        for path in (work, *work.iterdir()):  # jobs of all users load it, whatever the umask
            path.chmod(0o755)
        try:
            os.rename(work, target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
    return target


def _remove_abandoned(cache: Path) -> None:
    """Remove what is left of builds that were killed: older than any build may be."""
    for path in cache.glob(f"{SCRATCH}*"):
        try:
            if SystemClock().wall_s() - path.stat().st_mtime > 2 * COMPILE_TIMEOUT_S:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:  # its build has just ended
            continue
