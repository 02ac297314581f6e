"""The interception library under the sanitizers of memory, undefined behaviour and threads."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE, build
from tests.support.gpu_device import SharedGpu, build_driver
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.xdist_group("gpushare")]

COMMON = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1")
SANITIZERS = {
    "memory": ("-fsanitize=address,undefined", *COMMON),
    "threads": ("-fsanitize=thread", *COMMON),
}
#: ThreadSanitizer maps its shadow where a random layout may have put the program.
WITHOUT_RANDOM_LAYOUT = ("setarch", "-R")
OPTIONS = {"TSAN_OPTIONS": "die_after_fork=0 halt_on_error=0 exitcode=66"}
CLIENT = Path(__file__).resolve().parents[1] / "support" / "gpu_sanitized.c"


@pytest.mark.parametrize("kind", sorted(SANITIZERS))
def test_a_client_beside_a_high_job_meets_no_error_of_memory_and_no_race(
    kind: str, shared_gpu: Callable[..., SharedGpu], tmp_path: Path
) -> None:
    """Four threads launch and allocate while a high job takes the token again and again."""
    flags = SANITIZERS[kind]
    before = WITHOUT_RANDOM_LAYOUT if kind == "threads" else ()
    compiler = find_compiler()
    assert compiler is not None
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    tried = subprocess.run(
        [compiler, *flags, str(probe), "-o", str(tmp_path / "probe")],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip("the C compiler has no sanitizers (libasan, libubsan, libtsan)")
    run = [*before, str(tmp_path / "probe")]
    if subprocess.run(run, capture_output=True, check=False).returncode:
        pytest.skip(f"programs with this sanitizer do not run here: {' '.join(run)}")
    folder = tmp_path / "driver"
    folder.mkdir()
    driver = build_driver(folder, flags=flags)
    library = build(tmp_path / "lib", compiler, extra_flags=flags)
    client = tmp_path / "client"
    subprocess.run(
        [
            *(compiler, *flags, "-w", "-pthread", f"-I{NATIVE}", str(CLIENT)),
            *(str(library / "libcuda.so.1"), f"-Wl,-rpath,{library}", "-o", str(client)),
        ],
        check=True,
    )
    gpu = shared_gpu()
    high = gpu.run(gpu.task("1", ShareClass.HIGH))
    environment = gpu.admit(gpu.task("2"))
    high.send("len(cuda.train(200, 5, 5, 2.0))")
    ran = subprocess.run(
        [*before, str(client)],
        env={
            **os.environ,
            **OPTIONS,
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
    assert "WARNING: ThreadSanitizer" not in ran.stderr
    assert "runtime error" not in ran.stderr
    assert high.receive()
    assert int(gpu.metrics()["gpus"]["GPU-fake"]["preemptions"]) > 0
