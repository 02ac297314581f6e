"""What is compiled once for all tests of a run."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnode.daemon import native_build
from gnode.gpushare.interception import FOLDER


@contextmanager
def one_at_a_time(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the directory of all workers of this run, while no other one is here."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "builds.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def native_library(factory: pytest.TempPathFactory, compiler: str) -> str:
    """Return the path of the library that runs plain jobs."""
    with one_at_a_time(factory) as top:
        return str(native_build.build(top / native_build.FOLDER, compiler))


def give_native_library(library: str, state_dir: Path) -> None:
    """Let a node find the library as one that it has compiled at an earlier start."""
    built = Path(library).parent
    shutil.copytree(built, state_dir / native_build.FOLDER / built.name)


def give_share_library(cache: Path, state_dir: Path) -> None:
    """Let a node keep its builds of the library for GPU sharing in a directory that has one."""
    folder = state_dir / FOLDER
    folder.mkdir(parents=True)
    (folder / "lib").symlink_to(cache)
