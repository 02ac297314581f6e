"""The CUDA driver is found where distributions put it, and where the dynamic loader finds it."""

import os
import subprocess
import sys
from pathlib import Path

from gsched.cuda_driver import find_driver
from tests.support.gpu_fixtures import fake_driver

__all__ = ["fake_driver"]


def test_the_first_place_that_has_it_counts(fake_driver: Path) -> None:
    assert find_driver(["/nowhere/libcuda.so.1", str(fake_driver)]) == str(fake_driver)


def test_the_dynamic_loader_is_asked_where_no_place_has_it(fake_driver: Path) -> None:
    """What has its name before it in LD_PRELOAD is not the driver."""
    program = "from gsched.cuda_driver import find_driver; print(find_driver([]))"
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": preloaded},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for folder, preloaded in ((fake_driver.parent, ""), (fake_driver.parent, "libm.so.6"))
    ]

    assert found == [str(fake_driver)] * 2
