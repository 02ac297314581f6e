"""The random number generators of a process: Python's, NumPy's, and PyTorch's on CPU and GPU."""

import random
import sys

from gsched.elastic.samples import order_seed

State = dict[str, object]

GENERATORS = frozenset({"python", "numpy", "torch", "cuda"})


def generators_state() -> State:
    """Return the state of Python's, NumPy's and torch's generators in this process.

    NumPy's only if it was imported, CUDA's (of the current device) only if it is in use.
    """
    import torch

    state: State = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_generators(state: State) -> None:
    """Set this process's generators to what `generators_state` has returned."""
    import torch

    random.setstate(state["python"])  # type: ignore[arg-type]  # what getstate has returned
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_generators(seed: int, step: int, rank: int) -> None:
    """Seed the generators of a rank that did not exist when the checkpoint was saved."""
    import torch

    mixed = order_seed(seed ^ (rank << 40), step)
    random.seed(mixed)
    torch.manual_seed(mixed)  # CUDA's, too
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(mixed & 0xFFFF_FFFF)
