"""CPU time of gstat and gsub over that of `python -c "import click"`, as a ratio.

Commands run against the head that $GSCHED_HEAD names; without one, `gsched up` starts a cluster of
one node in a temporary directory, and `gsched down` ends it. gsub really submits: short jobs, held,
which are deleted at the end. In every round all of the commands run one after the other, so that a
busy moment of the machine meets all of them; the medians of the rounds are compared, and the least.
--other measures the commands of another checkout as well, in the same rounds.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import BIN, one_node

ROOT = Path(__file__).resolve().parents[2]
#: Times `import click`, at most.
AIMS = {"gstat": 1.25, "gstat ID": 1.25, "gsub": 1.3}


def run(command: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """Return the CPU time of one run in seconds, user and system, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, check=True, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return taken_s, done.stdout


@contextmanager
def head(environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of a head: that of $GSCHED_HEAD, or of one started for this."""
    if environment.get("GSCHED_HEAD"):
        yield environment["GSCHED_HEAD"]
        return
    with one_node(cpus=1) as cluster:
        yield cluster.address


def commands_of(binaries: Path, script: Path, job: str) -> dict[str, list[str]]:
    """Return the commands that are measured, by their names."""
    return {
        "gstat": [str(binaries / "gstat")],
        "gstat ID": [str(binaries / "gstat"), job],
        "gsub": [str(binaries / "gsub"), str(script)],
    }


def main() -> None:
    """Measure and print one line for each command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21, help="at least 15 (default 21)")
    parser.add_argument("--other", type=Path, help="directory of the commands of another checkout")
    options = parser.parse_args()
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
        _, first = run([str(BIN / "gsub"), str(script)], environment)
        commands = {"import click": [sys.executable, "-c", "import click"]}
        commands |= commands_of(BIN, script, first.strip())
        if options.other is not None:
            others = commands_of(options.other, script, first.strip())
            commands |= {f"other {name}": command for name, command in others.items()}
        times: dict[str, list[float]] = {name: [] for name in commands}
        submitted = first.split()
        for turn in range(max(15, options.rounds) + 1):
            for name, command in commands.items():
                taken_s, printed = run(command, environment)
                submitted += printed.split() if name.endswith("gsub") else []
                if turn:  # the first one only warms the file cache
                    times[name].append(taken_s)
        subprocess.run([str(BIN / "gdel"), *submitted], check=False, env=environment)
    print(f"CPU time, median and least of {max(15, options.rounds)}; load {os.getloadavg()[0]:.1f}")
    base = times["import click"]
    for name, taken in times.items():
        median_s, least_s = statistics.median(taken), min(taken)
        ratio = f"{median_s / statistics.median(base):5.2f} x {least_s / min(base):5.2f} x"
        aim = f"  (aim: {AIMS[name]})" if name in AIMS else ""
        print(f"{name:16} {median_s * 1000:6.1f} {least_s * 1000:6.1f} ms  {ratio}{aim}")


if __name__ == "__main__":
    main()
