"""What the scripts of frameworks leave behind: which samples each step has used, on which rank."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HOLD_TIMEOUT_S = 240.0


class Trace:
    """Lines of one rank of one attempt; rank 0 holds at steps until a file is there.

    Args:
        directory: of the script.
        holds: steps within which rank 0 waits for ``go-STEP``, and then for a request.
    """

    def __init__(self, directory: Path, holds: Sequence[int]) -> None:
        self._directory = directory
        self._holds = holds
        self._rank = int(os.environ.get("RANK", "0"))
        attempt = os.environ.get("GSCHED_ATTEMPT", "0")
        self._path = directory / f"trace-{attempt}-{self._rank}.jsonl"

    def step(self, step: int, ids: Sequence[int], has_request: Callable[[], bool]) -> None:
        """Note that a step, from 1, uses these samples on this rank."""
        row = {"step": step, "ids": list(ids), "world_size": int(os.environ.get("WORLD_SIZE", "1"))}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._rank == 0 and step in self._holds:
            self._hold(step, has_request)

    def _hold(self, step: int, has_request: Callable[[], bool]) -> None:
        (self._directory / f"held-{step}").touch()
        go = self._directory / f"go-{step}"
        until_s = time.monotonic() + HOLD_TIMEOUT_S
        while time.monotonic() < until_s:
            if go.exists() and ("when asked" not in go.read_text() or has_request()):
                return
            time.sleep(0.02)
        raise TimeoutError(f"nobody let it go on at step {step}")

    def end(self, steps: int, model: Any) -> None:
        """Write the result, on rank 0."""
        if self._rank == 0:
            weights = {name: tensor.double().sum().item() for name, tensor in model.items()}
            order = hashlib.sha256("".join(weights).encode()).hexdigest()
            result = {"steps": steps, "weights": list(weights.values()), "names": order}
            path = self._directory / "result.new"
            path.write_text(json.dumps(result))
            path.rename(self._directory / "result.json")
