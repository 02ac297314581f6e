"""HyperQueue as a system under measurement, from its wheel, in an environment of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from missing import NotHereError

DRIVER = Path(__file__).with_name("hyperqueue_driver.py")
VERSION = "0.27.0"


class HyperQueue:
    """A server and a worker in one process, as HyperQueue's own ``LocalCluster`` starts them."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def cpu_s(self) -> float:
        """Return the CPU time of server, worker and ended tasks up to now."""
        return sum(psutil.Process(self._process.pid).cpu_times()[:4])

    def measure(self, tasks: int) -> float:
        """Return the seconds from before the submission until the server says that all ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{tasks}\n")
        self._process.stdin.flush()
        return float(_line(self._process))


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise NotHereError(f"its driver ended with {process.wait()}")
    return line


def install(directory: Path) -> Path:
    """Return the interpreter of an environment in ``directory`` that has HyperQueue."""
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    present = [python, "-c", "import hyperqueue"]
    if subprocess.run(present, check=False, stderr=subprocess.DEVNULL).returncode:
        pip = [python, "-m", "pip", "install", "--quiet", f"hyperqueue=={VERSION}"]
        done = subprocess.run(pip, check=False, stderr=subprocess.PIPE, encoding="utf-8")
        if done.returncode:
            raise NotHereError(f"pip cannot install it: {done.stderr.strip()[-200:]}")
    return python


@contextmanager
def running(*, cpus: int, environment: Path) -> Iterator[HyperQueue]:
    """Yield a HyperQueue of so many CPUs.

    Raises:
        NotHereError: it cannot be installed, or does not start.
    """
    with subprocess.Popen(
        [install(environment), DRIVER, str(cpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="ascii",
    ) as process:
        try:
            _line(process)
            yield HyperQueue(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
