"""The gate at which a training waits that was started before its attempt was launched.

The node starts the next attempt's processes while the one before still trains. What a script does
before it calls `ready` is done meanwhile; what comes after it begins with the launch.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys

from gsched.elastic.ahead import ProofAhead
from gsched.elastic.errors import BadEnvironmentError, ElasticError

_GATE = "GSCHED_GATE"
_DRIVER = "libcuda.so.1"
_RANKS = (("RANK", 0), ("WORLD_SIZE", 1))


class _Called:
    """Whether this process has said where it can wait, and what it has proven while it waited."""

    value = False
    ahead: ProofAhead | None = None


def is_called() -> bool:
    """Return whether the script has called `ready` where the node daemon can start it warm."""
    return _Called.value


def is_waiting() -> bool:
    """Return whether this process was started before its launch, and still has to wait."""
    return ":" in os.environ.get(_GATE, "")


def ready() -> None:
    """Wait until this attempt of the job is launched; return at once where it is already.

    Call it on all ranks, once, after imports and other preparations, and before the script uses a
    GPU, creates a process group, opens its data, reads a checkpoint or writes anything: all that
    comes before may run while the attempt before still trains.

    Raises:
        ElasticError: CUDA was used already, so that this process could not use its GPUs.
        BadEnvironmentError: ``GSCHED_GATE`` is not as gsched sets it.
    """
    descriptors = os.environ.pop(_GATE, "")
    if ":" not in descriptors:
        _Called.value = bool(descriptors) and _is_early()
        return
    try:
        gate, ready_fd = map(int, descriptors.split(":"))
    except ValueError:
        raise BadEnvironmentError(f"{_GATE}={descriptors!r}: should be two descriptors") from None
    if _has_used_cuda():
        raise ElasticError(
            "the script has used CUDA before elastic.ready(): it is started cold; call "
            "elastic.ready() before anything that requests a GPU, as torch.cuda.is_available()"
        )
    if "torch" in sys.modules:  # reading a checkpoint needs it; a cold start imports it then
        importlib.import_module("torch.distributed.checkpoint.state_dict")
    os.write(ready_fd, b".")
    os.close(ready_fd)
    _Called.ahead = _prove_ahead()
    with os.fdopen(gate, "rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):  # the attempt is not launched: nobody waits for this process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    words = json.loads(line)
    for name in words["removed"]:
        os.environ.pop(name, None)
    os.environ.update(words["environment"])
    os.environ.pop(_GATE, None)
    _Called.value = True
    if _Called.ahead is not None:
        _Called.ahead.end()


def proof_ahead() -> ProofAhead | None:
    """Return what this process has proven while it waited; None: it did not wait."""
    return _Called.ahead


def _prove_ahead() -> ProofAhead | None:
    directory = os.environ.get("GSCHED_CHECKPOINT_DIR")
    if not directory:
        return None
    ranks = (int(os.environ.get(name) or default) for name, default in _RANKS)
    return ProofAhead(directory, *ranks)


def _is_early() -> bool:
    """Return whether nothing was used before that waiting is for; say so once otherwise."""
    late = "CUDA was used" if _has_used_cuda() else ""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        late = "the process group was created"
    if late and os.environ.get("RANK", "0") == "0":
        sys.stderr.write(
            f"gsched.elastic: {late} before elastic.ready(): a move of this job starts cold\n"
        )
    return not late


def _has_used_cuda() -> bool:
    """Return whether this process has initialised CUDA: its driver knows its devices then.

    A driver that is only loaded answers CUDA_ERROR_NOT_INITIALIZED.
    """
    try:
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        count = ctypes.c_int()
        return int(driver.cuDeviceGetCount(ctypes.byref(count))) == 0
    except (OSError, AttributeError):  # it is not loaded, or is no driver
        return False
