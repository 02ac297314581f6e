"""NVIDIA's management library as a fake, compiled: see fake_nvml."""

import subprocess
from pathlib import Path

import pytest

from gnode.compiling import find_compiler

SOURCES = Path(__file__).with_name("fake_nvml")


def build_nvml(directory: Path) -> Path:
    """Compile the library into a directory, which then belongs into LD_LIBRARY_PATH; return it."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler here")
    sources = sorted(map(str, SOURCES.glob("*.c")))
    target = str(directory / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, *sources], check=True)
    return directory
