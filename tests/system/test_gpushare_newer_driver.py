"""A driver that is newer than gsched: none of its entry points is missing in the library."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare.build import LIBRARY, build, exported_functions
from gnode.gpushare.errors import NativeBuildError
from gnode.gpushare.interception import InterceptionRuntime
from gsched.config.nodes import GpuShareConfig
from tests.support.gpu_device import build_driver
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler

__all__ = ["fake_driver", "library_cache"]
pytestmark = needs_compiler

NEWER = """
#include "fake.h"
FAKE_API int cudbgIpcFlag = 1; /* data, which cannot be passed on */
FAKE_API long cudbgGetAPI(long a, long b, double c, long d, long e, long f, double g, long h) {
    return a + 2 * b + (long)(3 * c) + 4 * d + 5 * e + 6 * f + (long)(7 * g) + 8 * h;
}
FAKE_API CUresult cuMemAlloc_v3(CUdeviceptr *pointer, size_t bytes, int where) {
    *pointer = 4096;
    return CUDA_SUCCESS;
}
"""
CALLS = """
import ctypes, sys
api = ctypes.CDLL("libcuda.so.1")
d, pointer = ctypes.c_double, ctypes.c_uint64()
api.cudbgGetAPI.restype = ctypes.c_long
print(api.cudbgGetAPI(1, 1, d(1), 1, 1, 1, d(1), 1))
for _ in range(2):
    print(api.cuMemAlloc_v3(ctypes.byref(pointer), ctypes.c_size_t(1), 0), pointer.value)
"""
VERSIONS = "CUDA_DRIVER_14 { global: cu*; local: *; };"
PROGRAM = "extern int cuInit(unsigned int); int main(void) { return cuInit(0); }"


QUICKLY = ("-O0",)  # compiled: what is found by name is the same


def compiler() -> str:
    """Return the C compiler."""
    found = find_compiler()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a driver that is newer than gsched."""
    folder = tmp_path_factory.mktemp("newer")
    (folder / "newer.c").write_text(NEWER)
    return build_driver(folder, flags=(*QUICKLY, str(folder / "newer.c")))


def preloaded(library: Path, driver: Path) -> dict[str, str]:
    """Return the environment of a process that loads the library, and shares nothing."""
    names = f"{library / 'libcuda.so.1'}:{library / 'libcuda.so'}"
    return {**os.environ, "LD_PRELOAD": names, "GSCHED_REAL_LIBCUDA": str(driver)}


def test_entry_points_that_only_the_nodes_driver_has_are_passed_on(
    newer: Path, library_cache: Path
) -> None:
    """With all arguments, of debuggers, too; those that take memory or launch are said, once."""
    library = build(library_cache, compiler(), driver=newer)

    ran = subprocess.run(
        [sys.executable, "-c", CALLS],
        env=preloaded(library, newer),
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == ["36", "0", "4096", "0", "4096"]
    assert ran.stderr.count("cuMemAlloc_v3 is newer than gsched: its calls are not limited") == 1
    assert "cudbgGetAPI" not in ran.stderr


def test_the_library_has_all_functions_of_the_driver_and_no_data(
    newer: Path, fake_driver: Path, library_cache: Path
) -> None:
    """A copy of a debugger's variable would be another variable."""
    library = exported_functions(build(library_cache, compiler(), driver=newer) / LIBRARY)
    plain = build(library_cache, compiler(), extra_flags=QUICKLY)
    known = exported_functions(plain / LIBRARY)

    entry_points = {name for name in exported_functions(newer) if name.startswith("cu")}
    assert set(library) == entry_points
    assert set(library) - set(known) == {"cudbgGetAPI", "cuMemAlloc_v3"}
    listed = subprocess.run(
        ["nm", "-D", str(build(library_cache, compiler(), driver=newer) / LIBRARY)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "cudbgIpcFlag" not in listed.stdout


def test_a_program_that_wants_the_drivers_versions_runs(tmp_path: Path) -> None:
    """Its names have versions, as the C library's have."""
    script = tmp_path / "versions"
    script.write_text(VERSIONS)
    (tmp_path / "driver").mkdir()
    driver = build_driver(tmp_path / "driver", flags=(f"-Wl,--version-script={script}", *QUICKLY))
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(PROGRAM)
    subprocess.run([compiler(), str(source), str(driver), "-o", str(program)], check=True)
    library = build(tmp_path / "lib", compiler(), driver=driver, extra_flags=QUICKLY)

    ran = subprocess.run(
        [str(program)], env=preloaded(library, driver), capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert set(exported_functions(driver).values()) == {"CUDA_DRIVER_14"}
    assert exported_functions(library / LIBRARY) == exported_functions(driver)


def test_another_driver_at_the_same_path_is_another_build(
    newer: Path, fake_driver: Path, library_cache: Path, tmp_path: Path
) -> None:
    """An upgrade while gnode runs: the next job gets a library with the new entry points."""
    driver = tmp_path / LIBRARY
    (tmp_path / "gpushare").mkdir()
    (tmp_path / "gpushare" / "lib").symlink_to(library_cache)
    shutil.copy(fake_driver, driver)
    runtime = InterceptionRuntime(GpuShareConfig(driver=str(driver)), tmp_path / "gpushare")
    first = runtime.library()
    assert runtime.library() == first

    shutil.copy(newer, tmp_path / "new")
    os.replace(tmp_path / "new", driver)

    second = runtime.library()
    assert second != first
    assert "cuMemAlloc_v3" in exported_functions(second / LIBRARY)
    shutil.copy(fake_driver, tmp_path / "old")
    os.replace(tmp_path / "old", driver)
    assert runtime.library() == first


@pytest.mark.parametrize(
    "content",
    [b"", b"GROUP ( libcuda.so.1 )", b"\x7fELF\x02\x01" + b"\xff" * 60],
    ids=["empty", "script", "damaged"],
)
def test_a_driver_that_is_no_library_is_said(content: bytes, tmp_path: Path) -> None:
    driver = tmp_path / LIBRARY
    driver.write_bytes(content)

    with pytest.raises(NativeBuildError, match=f"the CUDA driver {driver} is not used") as refused:
        build(tmp_path / "lib", compiler(), driver=driver)

    assert "[gpu_share]" in (refused.value.hint or "")
