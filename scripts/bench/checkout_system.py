"""gsched of another checkout as a system under measurement: to compare two versions in one run."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import CpuTimes
from missing import NotHereError

DRIVER = Path(__file__).with_name("checkout_driver.py")


class Checkout:
    """One head and one node of another checkout, up.

    Attributes:
        used: CPU time of the last measurement.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.used = CpuTimes()

    def measure(self, tasks: int) -> float:
        """Return the seconds from before the submission until every outcome is durable."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{tasks}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise NotHereError(f"its driver ended with {self._process.wait()}")
        found = json.loads(line)
        self.used = CpuTimes(**found["used"])
        return float(found["elapsed_s"])


@contextmanager
def running(directory: Path, *, cpus: int, cgroup: str, user: str) -> Iterator[Checkout]:
    """Yield gsched of the checkout in ``directory``, with one node of so many CPUs.

    Its jobs are of ``user``, or of this one.

    Raises:
        NotHereError: there is no checkout that has been set up.
    """
    python = directory.resolve() / ".venv" / "bin" / "python"
    place = directory.resolve() / "scripts" / "bench"
    if not python.exists():
        raise NotHereError(f"{python} is not there: run scripts/test once in that checkout")
    with subprocess.Popen(
        [python, DRIVER, place, str(cpus), cgroup, user],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="ascii",
    ) as process:
        try:
            yield Checkout(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
