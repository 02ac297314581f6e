"""The interception library under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE, build, find_compiler
from tests.support.gpu_device import SharedGpu, build_driver
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.xdist_group("gpushare")]

SANITIZERS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *("-fno-omit-frame-pointer", "-O1"),
)
CLIENT = Path(__file__).resolve().parents[1] / "support" / "gpu_sanitized.c"


def test_a_client_beside_a_high_job_meets_no_error_of_memory(
    shared_gpu: Callable[..., SharedGpu], tmp_path: Path
) -> None:
    """Four threads launch and allocate while a high job takes the token again and again."""
    compiler = find_compiler()
    assert compiler is not None
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    tried = subprocess.run(
        [compiler, *SANITIZERS, str(probe), "-o", str(tmp_path / "probe")],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip("the C compiler has no sanitizers (libasan, libubsan)")
    folder = tmp_path / "driver"
    folder.mkdir()
    driver = build_driver(folder, flags=SANITIZERS)
    library = build(tmp_path / "lib", compiler, extra_flags=SANITIZERS)
    client = tmp_path / "client"
    subprocess.run(
        [
            *(compiler, *SANITIZERS, "-w", "-pthread", f"-I{NATIVE}", str(CLIENT)),
            *(str(library / "libcuda.so.1"), f"-Wl,-rpath,{library}", "-o", str(client)),
        ],
        check=True,
    )
    gpu = shared_gpu()
    high = gpu.run(gpu.task("1", ShareClass.HIGH))
    environment = gpu.admit(gpu.task("2"))
    high.send("len(cuda.train(200, 5, 5, 2.0))")
    ran = subprocess.run(
        [str(client)],
        env={
            **os.environ,
            **{name: value for name, value in environment.items() if not name.startswith("LD_")},
            "GSCHED_REAL_LIBCUDA": str(driver),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert "ERROR" not in ran.stderr
    assert "runtime error" not in ran.stderr
    assert high.receive()
    assert int(gpu.metrics()["gpus"]["GPU-fake"]["preemptions"]) > 0
