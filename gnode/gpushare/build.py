"""Builds the interception library with the C compiler of the node; its path names its content.

The sources are few and need no header of NVIDIA, so they are compiled where they are used: the
result fits the node's C library and processor, and no binary has to be shipped (decision 18).
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gnode.gpushare.errors import NativeBuildError
from gsched.clock import SystemClock
from gsched.config_gpu_share import SHARE_COMPILERS

NATIVE: Final = Path(__file__).with_name("native")
LIBRARY: Final = "libcuda.so.1"
ALIAS: Final = "libcuda.so"
COMPILE_TIMEOUT_S: Final = 300.0
SCRATCH: Final = "build-"  # begins the names of directories in which something is compiled
SUFFIXES: Final = {"-": 0, "_ptds": 2, "_ptsz": 2}  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
_OWN: Final = frozenset({"alias.c"})
FLAGS: Final = (
    *("-std=gnu11", "-O2", "-g", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wno-unused-parameter"),
)
LINK_FLAGS: Final = ("-shared", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-ldl")


def find_compiler(path: str | None = None) -> str | None:
    """Return the path of a C compiler, or None; ``path`` is searched instead of $PATH."""
    return next(
        (found for name in SHARE_COMPILERS if (found := shutil.which(name, path=path))), None
    )


def symbol_table(symbols: Iterable[str], hooks: Iterable[str]) -> str:
    """Return ``symbols.inc``: one macro call for each entry point of the driver, in order.

    Args:
        symbols: lines of ``cuda_symbols.txt``: exported name, base, CUDA version, suffix.
        hooks: names that the library defines itself.

    Raises:
        ValueError: a hook is not an entry point.
    """
    hooked = set(hooks)
    rows = [line.split() for line in symbols if line.strip() and not line.startswith("#")]
    unknown = hooked - {row[0] for row in rows}
    if unknown:
        raise ValueError(f"hooks that the driver does not export: {', '.join(sorted(unknown))}")
    lines = [
        f'GS_SYMBOL({index}, {name}, "{base}", {version}, {SUFFIXES[suffix]}, '
        f"{'HOOK' if name in hooked else 'FORWARD'})"
        for index, (name, base, version, suffix) in enumerate(rows)
    ]
    return "\n".join([*lines, ""])


def sources(native: Path = NATIVE) -> Iterator[Path]:
    """Yield the files that the library is made of."""
    for path in sorted(native.iterdir()):
        if path.suffix in {".c", ".h", ".S", ".txt"}:
            yield path


def version_of(compiler: str) -> str:
    """Return what a compiler says of its version; empty: it says nothing.

    Raises:
        NativeBuildError: it cannot be run.
    """
    return _run([compiler, "--version"]).stdout


def digest(compiler: str, version: str, flags: Sequence[str], native: Path = NATIVE) -> str:
    """Return what names a build: the contents of all sources, the compiler and its flags.

    The version is part of it, as an upgrade puts another compiler at the same path.
    """
    content = hashlib.sha256("\0".join([compiler, version, *flags]).encode())
    for path in sources(native):
        content.update(f"\0{path.name}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


def build(cache: Path, compiler: str, *, extra_flags: Sequence[str] = ()) -> Path:
    """Return the directory with the library and its alias; compile them if it is not there.

    Args:
        cache: directory for builds; every user must be able to read it.
        compiler: path of a C compiler.
        extra_flags: more flags, such as those of a sanitizer.

    Raises:
        NativeBuildError: the compiler fails; the message has its first lines.
        OSError: the directory cannot be written.
    """
    flags = (*FLAGS, *extra_flags)
    target = cache / digest(compiler, version_of(compiler), (*flags, *LINK_FLAGS))
    if target.is_dir():
        return target
    if not cache.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o755)  # whatever the umask
    _remove_abandoned(cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix=SCRATCH) as folder:
        work = Path(folder, "done")
        work.mkdir()
        _compile(Path(folder), work, compiler, flags)
        for path in (work, *work.iterdir()):  # jobs of all users load it, whatever the umask
            path.chmod(0o755)
        try:
            os.rename(work, target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
    return target


def _compile(scratch: Path, done: Path, compiler: str, flags: Sequence[str]) -> None:
    table = symbol_table(
        (NATIVE / "cuda_symbols.txt").read_text(encoding="ascii").splitlines(),
        (NATIVE / "hooks.txt").read_text(encoding="ascii").split(),
    )
    (scratch / "symbols.inc").write_text(table, encoding="ascii")
    common = [compiler, *flags, f"-I{scratch}", f"-I{NATIVE}"]
    files = [str(path) for path in sources() if path.suffix in {".c", ".S"}]
    files = [path for path in files if Path(path).name not in _OWN]
    library = done / LIBRARY
    _run([*common, *files, *LINK_FLAGS, f"-Wl,-soname,{LIBRARY}", "-o", str(library)])
    alias = ["-Wl,--no-as-needed", str(library), f"-Wl,-soname,{ALIAS}", "-Wl,-rpath,$ORIGIN"]
    _run([*common, str(NATIVE / "alias.c"), "-shared", *alias, "-o", str(done / ALIAS)])


def _remove_abandoned(cache: Path) -> None:
    """Remove what is left of builds that were killed: older than any build may be."""
    for path in cache.glob(f"{SCRATCH}*"):
        try:
            if SystemClock().wall_s() - path.stat().st_mtime > 2 * COMPILE_TIMEOUT_S:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:  # its build has just ended
            continue


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(
            f"{command[0]} cannot compile the library for GPU sharing: {error}"
        ) from error
    if ran.returncode:
        lines = "\n".join(ran.stderr.splitlines()[:20])
        raise NativeBuildError(
            f"{command[0]} cannot compile the library for GPU sharing:\n{lines}",
            hint="install a C compiler with its library headers (gcc and libc6-dev)",
        )
    return ran
