"""Objects beside model and optimisers whose state is saved: schedulers, averages, generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol, cast

from gsched.elastic.errors import BadArgumentError


class Stateful(Protocol):
    """Anything whose state can be taken and given back: a scheduler, a gradient scaler."""

    def state_dict(self) -> dict[str, object]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, object], /) -> object:
        """Take over a state."""


def statefuls(argument: str, things: Mapping[str, object]) -> dict[str, Stateful]:
    """Return what a script gives to `start`, random number generators in a wrapper.

    Args:
        argument: of `start`, for the words.
        things: by name.

    Raises:
        BadArgumentError: something has no state that can be taken and given back.
    """
    return {name: _stateful(argument, name, thing) for name, thing in things.items()}


def generators_of(things: Mapping[str, Stateful]) -> list[Stateful]:
    """Return the random number generators among what `statefuls` has returned."""
    return [thing for thing in things.values() if isinstance(thing, _Generator)]


class _Generator:
    """torch's, NumPy's or Python's generator with the methods of a `Stateful`."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, object]:
        """Return the generator's state."""
        generator = self._generator
        if isinstance(generator, random.Random):
            return {"state": generator.getstate()}
        if hasattr(generator, "bit_generator"):
            return {"state": generator.bit_generator.state}
        return {"state": generator.get_state()}

    def load_state_dict(self, state: dict[str, object], /) -> None:
        """Set the generator."""
        generator = self._generator
        if isinstance(generator, random.Random):
            generator.setstate(cast("tuple[Any, ...]", state["state"]))
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = state["state"]
        else:
            generator.set_state(state["state"])


def _stateful(argument: str, name: str, thing: object) -> Stateful:
    import torch

    numpy = sys.modules.get("numpy")
    generators: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        generators = (*generators, numpy.random.Generator)
    if isinstance(thing, generators):
        return _Generator(thing)
    if isinstance(thing, type) or not all(
        callable(getattr(thing, method, None)) for method in ("state_dict", "load_state_dict")
    ):
        raise BadArgumentError(
            f"{argument}={{{name!r}: …}}: {_what(thing)} cannot be saved, as it has no "
            "state_dict() and load_state_dict(): give an object that has both, or leave it out"
        )
    return cast("Stateful", thing)


def _what(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
