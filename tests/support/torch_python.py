"""A Python that has torch, for tests that train."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: In PYTHONPATH it makes torch start faster.
TORCH_START = str(ROOT / "tests" / "support" / "torch_start")
#: PYTHONPATH of trainings with gsched.
TRAINING_PATH = f"{TORCH_START}:{ROOT}"


@functools.cache
def torch_python(*modules: str) -> str:
    """Return an interpreter that has torch: GSCHED_TEST_TORCH_PYTHON or this one; else skip."""
    python = os.environ.get("GSCHED_TEST_TORCH_PYTHON", sys.executable)
    wanted = ("torch", *modules)
    look = f"import importlib.util as u; raise SystemExit(not all(map(u.find_spec, {wanted!r})))"
    if shutil.which(python) and subprocess.run([python, "-c", look], check=False).returncode == 0:
        return python
    pytest.skip(
        f"no {' and '.join(wanted)} here: set GSCHED_TEST_TORCH_PYTHON to an interpreter with them"
        " (GSCHED_TEST_FRAMEWORKS=1 scripts/test installs transformers and lightning)"
    )
