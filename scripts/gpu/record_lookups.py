"""Records what the CUDA runtimes 11.8 to 13.0 look up in the driver, for tests without them.

    scripts/gpu/record_lookups DIR > tests/support/cudart_lookups.txt

The runtimes are downloaded with pip and unpacked below DIR, which the tests of the same thing take
as GSCHED_TEST_CUDA_RUNTIMES. Each runs with the interception library and a driver without a GPU.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gnode.compiling import find_compiler
from gnode.gpushare.build import build
from tests.support.gpu_device import build_driver

RUNTIMES = {
    "11.8": "nvidia-cuda-runtime-cu11==11.8.89",
    "12.1": "nvidia-cuda-runtime-cu12==12.1.105",
    "12.4": "nvidia-cuda-runtime-cu12==12.4.127",
    "12.8": "nvidia-cuda-runtime-cu12==12.8.90",
    "13.0": "nvidia-cuda-runtime==13.0.96",
}
HEADER = """\
# What the CUDA runtimes 11.8 to 13.0 look up with cuGetProcAddress before anything else, 11.8 with
# its first version and the others with _v2: symbol, version, flags, runtimes. Written by
# scripts/gpu/record_lookups."""


def main() -> None:
    """Print the record."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    compiler = find_compiler()
    if compiler is None:
        sys.exit("no C compiler")
    found: dict[tuple[str, int, int], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        driver = build_driver(Path(folder))
        library = build(Path(folder, "lib"), compiler)
        for version, package in RUNTIMES.items():
            runtime = fetch(package, Path(sys.argv[1], version))
            trace = Path(folder, version)
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import ctypes; ctypes.CDLL({str(runtime)!r}).cudaFree(None)",
                ],
                env={
                    **os.environ,
                    "LD_PRELOAD": str(library / "libcuda.so.1"),
                    "GSCHED_REAL_LIBCUDA": str(driver),
                    "GSCHED_FAKE_TRACE": str(trace),
                },
                check=True,
            )
            for line in trace.read_text(encoding="ascii").splitlines():
                _, symbol, number, flags = line.split()
                found.setdefault((symbol, int(number), int(flags)), []).append(version)
    print(HEADER)
    for (symbol, number, flags), versions in sorted(found.items()):
        print(symbol, number, flags, ",".join(dict.fromkeys(versions)))


def fetch(package: str, folder: Path) -> Path:
    """Return the runtime's library below ``folder``, downloaded if it is not there."""
    if not any(folder.rglob("libcudart.so*")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", package]
        subprocess.run([*command, "-d", str(folder)], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder)
    return next(folder.rglob("libcudart.so*"))


if __name__ == "__main__":
    main()
