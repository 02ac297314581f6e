"""torch for unit tests, imported by the first test that uses it: a worker without one has none.

The tests of all such files run in one worker (`IN_ONE_WORKER`): torch takes seconds and 200 MB.
"""

import importlib
import importlib.util
from typing import Any

import pytest

#: The first of them imports torch within its time limit.
IN_ONE_WORKER = [pytest.mark.xdist_group("torch"), pytest.mark.timeout(120)]

if importlib.util.find_spec("torch") is None:
    pytest.skip("no torch here", allow_module_level=True)


class _Late:
    """A module that needs torch, from the first use of one of its names on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks at all that a file has: none of it is torch's
            raise AttributeError(name)
        importlib.import_module("torch").set_num_threads(
            1
        )  # two threads for 8 samples only wait for each other
        return getattr(importlib.import_module(self._name), name)


torch: Any = _Late("torch")
models: Any = _Late("tests.support.adaptive_models")
