"""Modules that click and msgspec import and most commands never use: they load when they are used.

`inspect` alone, with `ast`, `dis` and `tokenize`, is a fifth of the start of a command.
(`importlib.util.LazyLoader` of Python 3.11 loads a module as soon as another one imports it.)
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


def load_late(*names: str) -> None:
    """Put a stand-in for each module that is not loaded; its first use loads the module."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _stand_in(name)


def _stand_in(name: str) -> ModuleType:
    module = ModuleType(name)

    def load(attribute: str) -> object:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        loaded = importlib.import_module(name)
        vars(module).update(vars(loaded))
        return getattr(loaded, attribute)

    module.__getattr__ = load  # type: ignore[method-assign]  # PEP 562: for what it does not have
    return module


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Let imports of a module fail in the block, for those who do without it; no-op if loaded."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # the import system's own sign for this
    try:
        yield
    finally:
        del sys.modules[name]
