"""Fixtures for tests of GPU sharing: the fake driver and the library are built once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnode.gpushare.build import LIBRARY, find_compiler
from tests.support.gpu_device import SharedGpu, build_driver

NO_COMPILER = "no C compiler: the library for GPU sharing cannot be built"
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the fake driver's library."""
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    folder = tmp_path_factory.getbasetemp() / "fake-driver"
    if not folder.is_dir():  # each module that imports this has a fixture of its own
        folder.mkdir()
        build_driver(folder)
    return folder / LIBRARY


@pytest.fixture(scope="session")
def library_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for builds of the library."""
    folder = tmp_path_factory.getbasetemp() / "gpushare-lib"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def shared_gpu(
    tmp_path: Path, fake_driver: Path, library_cache: Path
) -> Iterator[Callable[..., SharedGpu]]:
    """Return a function that makes a node with a shared GPU; keywords are of [gpu_share]."""
    made: list[SharedGpu] = []

    def make(
        *,
        below: str = "",
        options: tuple[str, ...] = (),
        total_bytes: int = 16 << 30,
        **settings: object,
    ) -> SharedGpu:
        folder = tmp_path / below / f"gpu{len(made)}"
        folder.mkdir(parents=True)
        gpu = SharedGpu(
            folder, fake_driver, library_cache, settings, options, total_bytes=total_bytes
        )
        made.append(gpu)
        return gpu

    yield make
    for gpu in made:
        gpu.close()
