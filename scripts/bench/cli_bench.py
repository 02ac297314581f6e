"""Wall time of gstat and gsub over that of `python -c "import click"`, as a ratio (aim: < 1.6).

Commands run against the head that $GSCHED_HEAD names; without one, `gsched up` starts a cluster of
one node in a temporary directory, and `gsched down` ends it. gsub really submits: short jobs, held,
which are deleted at the end. The medians of the rounds are compared, and in every round all of the
commands run one after the other, so that a busy moment of the machine meets all of them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import BIN, one_node

ROOT = Path(__file__).resolve().parents[2]
AIM = 1.6


def run(command: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """Return the wall time of one run, and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(
        command, check=True, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    )
    return time.perf_counter() - started, done.stdout


@contextmanager
def head(environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of a head: that of $GSCHED_HEAD, or of one started for this."""
    if environment.get("GSCHED_HEAD"):
        yield environment["GSCHED_HEAD"]
        return
    with one_node(cpus=1) as cluster:
        yield cluster.address


def main() -> None:
    """Measure and print one line for each command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21, help="at least 15 (default 21)")
    rounds = max(15, parser.parse_args().rounds)
    environment = dict(os.environ)
    # As it is after an installation: byte code lies beside the source.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", str(ROOT / "gsched")],
        check=True,
        env=environment,
    )
    with head(environment) as address, tempfile.TemporaryDirectory() as work:
        environment["GSCHED_HEAD"] = address
        script = Path(work) / "job.sh"
        script.write_text(f"#!/bin/sh\n#PBS -h -N bench-cli\n#PBS -o {work}/ -e {work}/\nexit 0\n")
        commands = {
            "import click": [sys.executable, "-c", "import click"],
            "gstat": [str(BIN / "gstat")],
            "gsub": [str(BIN / "gsub"), str(script)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        submitted: list[str] = []
        for turn in range(rounds + 1):
            for name, command in commands.items():
                taken_s, printed = run(command, environment)
                submitted += printed.split() if name == "gsub" else []
                if turn:  # the first one only warms the file cache
                    times[name].append(taken_s)
        subprocess.run([str(BIN / "gdel"), *submitted], check=False, env=environment)
    base_s = statistics.median(times["import click"])
    for name, taken in times.items():
        median_s = statistics.median(taken)
        line = f"{name:14} {median_s * 1000:6.1f} ms  {median_s / base_s:5.2f} x"
        print(line + ("" if name == "import click" else f"  (aim: below {AIM})"))


if __name__ == "__main__":
    main()
