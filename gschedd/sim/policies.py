"""The policies that can be simulated."""

import importlib
import os
import sys
from typing import Final

from gschedd.policies.registry import INSTALLED, Registry

#: Files of a checkout of gsched that no installation has beside gschedd.
_CHECKOUT: Final = ("pyproject.toml", os.path.join("baselines", "registry.py"))


def _simulated() -> Registry:
    """Return the installed policies and, in a checkout of gsched, the baselines."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not all(os.path.isfile(os.path.join(root, name)) for name in _CHECKOUT):
        return INSTALLED
    if root not in sys.path:
        sys.path.append(root)
    registry: Registry = importlib.import_module("baselines.registry").ALL
    return registry


SIMULATED: Final = _simulated()
