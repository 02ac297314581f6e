"""The library that runs plain jobs (`gnode.supervisor.native`), compiled on the node."""

import logging
import os
from pathlib import Path
from typing import Final

import gnode.supervisor
from gnode import compiling
from gnode.compiling import CompilerError, find_compiler

log = logging.getLogger(__name__)

SOURCES: Final = Path(gnode.supervisor.__file__).with_name("native")
LIBRARY: Final = "supervisor.so"
FOLDER: Final = "native"  # in the state directory
FLAGS: Final = (
    *("-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"),
    *("-shared", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now"),
)


def library(state_dir: str) -> str:
    """Return the path of the library, compiled unless it is there; empty: it cannot be had."""
    compiler = find_compiler()
    if compiler is None:
        log.info("there is no C compiler: plain jobs are run without the native supervisor")
        return ""
    try:
        path = build(Path(state_dir, FOLDER), compiler)
    except (CompilerError, OSError) as error:
        log.warning("plain jobs are run without the native supervisor: %s: %s", compiler, error)
        return ""
    return str(path)


def build(cache: Path, compiler: str) -> Path:
    """Return the path of the library below ``cache``; compile it if it is not there.

    Raises:
        CompilerError: the compiler fails.
        OSError: the directory cannot be written.
    """
    version = compiling.run([compiler, "--version"])
    sources = sorted(SOURCES.glob("*.[ch]"))
    name = compiling.digest([compiler, version, *FLAGS], sources)

    def compile_into(_scratch: Path, done: Path) -> None:
        files = [str(path) for path in sources if path.suffix == ".c"]
        compiling.run([compiler, *files, *FLAGS, "-o", os.fspath(done / LIBRARY)])

    return compiling.kept(cache, name, compile_into) / LIBRARY
