"""Fixtures for tests of GPU sharing: the fake driver and the library are built once a run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare.build import build
from tests.support.builds import one_at_a_time
from tests.support.gpu_device import BUILDS, FAKE_DRIVER, SharedGpu, build_driver

NO_COMPILER = "no C compiler: the library for GPU sharing cannot be built"
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the fake driver's library."""
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    with one_at_a_time(tmp_path_factory) as top:
        driver = top.joinpath(*FAKE_DRIVER)
        if not driver.exists():
            driver.parent.mkdir(exist_ok=True)
            build_driver(driver.parent)
    return driver


@pytest.fixture(scope="session")
def library_cache(tmp_path_factory: pytest.TempPathFactory, fake_driver: Path) -> Path:
    """Return a directory for builds of the library, with the one for the fake driver."""
    compiler = find_compiler()
    assert compiler is not None
    with one_at_a_time(tmp_path_factory) as top:
        folder = top / BUILDS
        build(folder, compiler, driver=fake_driver)
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
