"""Runs `elastic_train.py` as a job would: under torchrun, or alone, with gsched's environment."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.support.cluster import wait_until
from tests.support.elastic_listener import Listener
from tests.support.forks import ForkServer
from tests.support.ports import free_port
from tests.support.torch_python import TRAINING_PATH, torch_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "support" / "elastic_train.py"
TIMEOUT_S = 240.0  # an attempt, on a machine that does much else

RANKS_TIMEOUT_S = 900.0

Row = dict[str, Any]


def release(directory: pathlib.Path, step: int, *, when_asked: bool) -> None:
    """Let the script of a directory go on after it held at a step.

    Args:
        directory: of the script.
        step: it holds there.
        when_asked: not before it has heard that a checkpoint is requested. On a fast machine the
            rest of the training can be over before the request arrives.
    """
    go = directory / f"go-{step}"
    prepared = go.with_suffix(".new")
    prepared.write_text("when asked" if when_asked else "")
    prepared.rename(go)


class Ranks:
    """The processes of an attempt, with the variables that torchrun gives them."""

    def __init__(
        self,
        forks: ForkServer,
        script: list[str],
        environment: Mapping[str, str],
        output: pathlib.Path,
        world_size: int,
    ) -> None:
        """Start them; with ``world_size`` 0 a single one without such variables."""
        self._code: int | None = None
        common = {
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        ranks = [
            common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)
        ]
        with open(output, "wb") as stream:
            self._all = [
                forks.start(script, {**environment, **own}, stream) for own in ranks or [{}]
            ]

    def poll(self) -> int | None:
        """Return 0 once all have ended well, or the code of one that has not; the others end."""
        codes = [each.poll() for each in self._all]
        failed = [code for code in codes if code]
        if self._code is None and failed:
            self._code = failed[0]
            self.send_signal(signal.SIGKILL)
            for each in self._all:
                each.wait(TIMEOUT_S)
        elif None not in codes and not failed:
            self._code = 0
        return self._code

    def wait(self, timeout_s: float) -> int:
        """Wait until all have ended, or one has failed."""
        wait_until(lambda: self.poll() is not None, timeout_s, what="the end of the ranks")
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send all a signal."""
        for each in self._all:
            each.send_signal(number)


def run_ranks(
    forks: ForkServer, directory: pathlib.Path, *script: str, ranks: int, **variables: str
) -> tuple[int, str]:
    """Run a script on so many ranks; return how it ended, and the end of what it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", **variables}
    output = directory / "output"
    started = Ranks(forks, list(script), environment, output, ranks)
    return started.wait(RANKS_TIMEOUT_S), output.read_text(errors="replace")[-4000:]


class Run:
    """The attempts of one training; its directory holds logs, checkpoints and the result.

    Attributes:
        checkpoints: where they are.
        torchrun: it starts the ranks in any case.
    """

    def __init__(
        self, directory: pathlib.Path, *options: str, forks: ForkServer | None = None
    ) -> None:
        """Ranks are forks of ``forks``, if that is given: they start faster than under torchrun."""
        self.python = torch_python("sklearn")
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.attempt = 0
        self.torchrun = False
        self._options = options
        self._forks = forks
        self._process: subprocess.Popen[bytes] | Ranks | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, world_size: int, *options: str, **variables: str) -> None:
        """Start the next attempt on that many ranks; 0: one process without torchrun."""
        self.attempt += 1
        environment = {
            **os.environ,
            "GSCHED_JOB_NUMBER": "7",
            "GSCHED_ATTEMPT": str(self.attempt),
            "GSCHED_CHECKPOINT_DIR": str(self.checkpoints),
            "GSCHED_CHECKPOINT_INTERVAL_S": "0",
            "PYTHONPATH": TRAINING_PATH,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **variables,
        }
        script = [str(SCRIPT), str(self.directory), *self._options, *options]
        path = self.directory / f"output-{self.attempt}"
        if self._forks is not None and not (self.torchrun and world_size):
            self._process = Ranks(self._forks, script, environment, path, world_size)
            return
        command = [self.python]
        if world_size:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc-per-node={world_size}"]
        command += script
        with open(path, "wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def copy(self, directory: pathlib.Path) -> "Run":
        """Return the same in another directory, with all that the attempts have left."""
        shutil.copytree(self.directory, directory)
        run = Run(directory, *self._options, forks=self._forks)
        run.attempt = self.attempt
        return run

    def output(self) -> str:
        """Return what the current attempt has written."""
        return (self.directory / f"output-{self.attempt}").read_text(errors="replace")

    def wait(self) -> int:
        """Return the exit code of the current attempt, negative for a signal."""
        assert self._process is not None
        return self._process.wait(TIMEOUT_S)

    def finish(self) -> Row:
        """Return the result of the current attempt, which must succeed."""
        assert self.wait() == 0, self.output()
        result: Row = json.loads((self.directory / "result.json").read_text())
        return result

    def stop(self) -> None:
        """End the current attempt as gsched would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)

    def wait_until_held(self, step: int) -> None:
        """Return when rank 0 holds after ``step`` (an option of the script)."""
        held = self.directory / f"held-{step}"
        wait_until(lambda: held.exists() or self._is_over(), TIMEOUT_S, what=f"step {step}")
        assert held.exists(), self.output()

    def _is_over(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def release(self, step: int, *, when_asked: bool = False) -> None:
        """Let rank 0 go on after it held; or as soon as it has heard that a checkpoint is due."""
        release(self.directory, step, when_asked=when_asked)

    def wait_for_hello(self, listener: Listener) -> None:
        """Return when the current attempt has connected."""
        wait_until(
            lambda: any(hello["attempt"] == self.attempt for hello in listener.all("hello")),
            TIMEOUT_S,
            what="the connection",
        )

    def save_and_stop(self, listener: Listener, request: int, hold_at: int) -> Row:
        """Ask for a checkpoint after a step, as for a move; end the attempt; return the answer."""
        self.wait_until_held(hold_at)
        self.wait_for_hello(listener)
        listener.say(checkpoint={"request": request, "wait": True})
        self.release(hold_at, when_asked=True)
        wait_until(
            lambda: self._answers(listener, request) or self._is_over(), TIMEOUT_S, what="an answer"
        )
        assert self._answers(listener, request), self.output()
        self.stop()
        return self._answers(listener, request)[0]

    @staticmethod
    def _answers(listener: Listener, request: int) -> list[Row]:
        return [body for body in listener.all("checkpointed") if body["request"] == request]

    def rows(self) -> list[Row]:
        """Return what all ranks have logged in all attempts."""
        found: list[Row] = []
        for path in sorted(self.directory.glob("log-*")):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def names(self) -> list[str]:
        """Return what lies in the directory of checkpoints."""
        return sorted(path.name for path in self.checkpoints.iterdir())

    def published(self) -> list[pathlib.Path]:
        """Return the published checkpoints, oldest first."""
        return sorted(path for path in self.checkpoints.glob("checkpoint-*") if path.is_dir())


def used(rows: Iterable[Row]) -> dict[int, Counter[int]]:
    """Return how often each sample was used, for each epoch."""
    found: dict[int, Counter[int]] = {}
    for row in rows:
        found.setdefault(row["epoch"], Counter()).update(row["ids"])
    return found


def losses(rows: Sequence[Row]) -> dict[int, float]:
    """Return the mean loss of each step's global batch."""
    sums: dict[int, list[tuple[float, int]]] = {}
    for row in rows:
        sums.setdefault(row["step"], []).append((row["loss"] * len(row["ids"]), len(row["ids"])))
    return {
        step: sum(loss for loss, _ in parts) / sum(count for _, count in parts)
        for step, parts in sums.items()
    }
