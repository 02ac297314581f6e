"""Jobs of another user than gnode's share a GPU, too."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.gpushare import ShareClass, SharedTask
from gnode.gpushare.interception import InterceptionRuntime
from gsched.config.nodes import GpuShareConfig
from tests.support.gpu_device import Device
from tests.support.gpu_fixtures import fake_driver, needs_compiler

__all__ = ["fake_driver"]

NOBODY = 65534
CODE = """
import ctypes as c
api, context, pointer = c.CDLL("libcuda.so.1"), c.c_void_p(), c.c_uint64()
api.cuInit(0), api.cuDevicePrimaryCtxRetain(c.byref(context), 0), api.cuCtxSetCurrent(context)
print(api.cuMemAlloc_v2(c.byref(pointer), c.c_size_t(65 << 20)))
print(api.cuMemAlloc_v2(c.byref(pointer), c.c_size_t(64 << 20)))
print(api.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a directory that all users may enter; those of pytest are closed."""
    folder = Path(tempfile.mkdtemp(prefix="gsched-gpushare-"))
    folder.chmod(0o755)
    before = os.umask(0o077)
    yield folder
    os.umask(before)
    shutil.rmtree(folder)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can run a process as another user")
@needs_compiler
def test_a_job_of_another_user_is_limited_and_launches_under_any_umask(
    open_folder: Path, fake_driver: Path
) -> None:
    drivers = open_folder / "driver"
    drivers.mkdir()
    driver = Path(shutil.copy(fake_driver, drivers))
    for path in (drivers, driver):
        path.chmod(0o755)
    device = Device(open_folder / "device")
    device.path.chmod(0o666)
    runtime = InterceptionRuntime(GpuShareConfig(driver=str(driver)), open_folder / "gpushare")
    task = SharedTask(
        job="1",
        attempt=1,
        gpu_index=0,
        gpu_uuid="GPU-fake",
        percent=50,
        memory_bytes=64 << 20,
        share_class=ShareClass.LOW,
    )
    environment = runtime.admit(task)
    try:
        ran = subprocess.run(
            [os.path.realpath(sys.executable), "-c", CODE],
            env={**os.environ, **environment, "GSCHED_FAKE_STATE": str(device.path)},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        runtime.release(task)
        runtime.close()

    assert ran.stdout.split() == ["2", "0", "0"], ran.stderr
    assert (open_folder / "gpushare" / "control.sock").stat().st_mode & 0o077 == 0
    assert (open_folder / "gpushare" / "groups.json").stat().st_mode & 0o077 == 0
