"""What a report takes out of a year of attempts, and what one sum in SQL takes.

A head and its monitor run; --attempts rows of usage of a year are put into ``monitor.db``, of 200
users in 4 queues, at random moments. Then greport runs --rounds times for each report, and the
same database is opened to add up hours and jobs of the period in one statement (the floor).

wall       from the start of greport to its end, median
greport    the largest resident set of greport (VmHWM)
monitor    the same of the monitor since its start
floor      one statement on a new connection, median
"""

import argparse
import contextlib
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from gsched.cli.commands.greport import period_of
from gsched.config.words import monitor_socket_of

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
USERS, QUEUES = 200, ("batch", "long", "gpu", "debug")
COLUMNS = (
    *("job", "attempt", "ended_s", "jobs", "submitted_s", "wait_s", "user", "account", "queue"),
    *("name", "node", "nodes", "cpus", "gpus", "gpu_type", "memory_bytes", "walltime_s", "wall_s"),
    *("cpu_used_s", "gpu_used_s", "memory_peak_bytes", "memory_mean_bytes", "outcome", "cause"),
    *("exit_status", "deadline_s", "met", "guaranteed", "predicted_wall_s"),
    *("predicted_wall_high_s", "predicted_memory_bytes", "predicted_memory_high_bytes"),
)
FLOOR = (
    "SELECT user, sum(cpus * wall_s), sum(gpus * wall_s), sum(jobs) FROM usage "
    "WHERE ended_s >= ? AND ended_s < ? GROUP BY user"
)
#: Runs greport, and writes its largest resident set as the last line of standard error.
GREPORT = """
import os, sys
leave = os._exit
def note(code):
    with open('/proc/self/status') as file:
        print(next(line for line in file if line.startswith('VmHWM')), file=sys.stderr, flush=True)
    leave(code)
os._exit = note
from gsched.cli.commands.greport import main
main()
"""


def rows(count: int, now_s: float, seed: int) -> Iterator[tuple[object, ...]]:
    """Yield rows of a year in the order of their ends."""
    draw = random.Random(seed)
    ends = sorted(now_s - draw.random() * YEAR_S for _ in range(count))
    for number, ended_s in enumerate(ends, start=1):
        wall_s = draw.expovariate(1 / 3600.0)
        wait_s = draw.expovariate(1 / 900.0)
        gpus = draw.choice((0, 0, 1, 1, 2, 4, 8))
        cpus = draw.choice((1, 2, 4, 8, 16))
        memory = cpus << 32
        fails = draw.random() < 0.1
        user = int(draw.paretovariate(1.2)) % USERS
        deadline_s = ended_s + draw.uniform(-600, 3600) if draw.random() < 0.1 else 0.0
        met = int(not fails and ended_s <= deadline_s) if deadline_s else None
        yield (
            *(number, 1, ended_s, 1, ended_s - wall_s - wait_s, wait_s, f"user{user}"),
            *(f"account{user % 12}", draw.choice(QUEUES), f"job{number % 997}"),
            *(f"node{number % 64}", 1, cpus, float(gpus), "h100" if gpus else "", memory, 86400.0),
            *(wall_s, cpus * wall_s * draw.random(), gpus * wall_s * draw.random() or None),
            *(int(memory * draw.random()), memory // 3),
            *(("exited", "user program", 1) if fails else ("exited", "", 0)),
            *(deadline_s, met, met, wall_s * draw.uniform(0.6, 1.6), wall_s * 2.0),
            *(memory * 0.4, memory * 0.8),
        )


class Head:
    """A head with its monitor, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "head.sock"
        self.database = directory / "head" / "monitor.db"
        self.log = directory / "head.log"
        self._config = directory / "head.toml"
        self._config.write_text(
            f'[head]\nserver_name = "bench"\nsocket = "{self.socket}"\nsingle_user = true\n'
            f'state_dir = "{directory}/head"\nnode_port = 0\n'
            "[history]\nkeep_days = 0\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for its monitor."""
        path = Path(monitor_socket_of(str(self.socket)))
        path.unlink(missing_ok=True)  # of the last start
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "gschedd.main", "--config", str(self._config)]
            self._process = subprocess.Popen(command, stderr=log, stdout=log)
        end_s = time.monotonic() + 60
        while not path.exists():
            if self._process.poll() is not None or time.monotonic() > end_s:
                sys.exit(self.log.read_text())
            time.sleep(0.05)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def monitor(self) -> psutil.Process:
        """Return the monitor's process."""
        assert self._process is not None, "it runs"
        (found,) = (
            each
            for each in psutil.Process(self._process.pid).children()
            if "gschedd.monitor.worker" in each.cmdline()
        )
        return found


def high_water_mb(process: psutil.Process) -> float:
    """Return the largest resident set of a process so far."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return 0.0


def greport(head: Head, *words: str) -> tuple[float, float, int]:
    """Return the wall time of a report, the largest resident set of greport, and its bytes."""
    started_s = time.perf_counter()
    environment = {**os.environ, "GSCHED_HEAD": str(head.socket)}
    ran = subprocess.run(
        [sys.executable, "-c", GREPORT, *words], env=environment, capture_output=True, check=False
    )
    if ran.returncode:
        sys.exit(f"greport {' '.join(words)}: {ran.stderr.decode()}")
    peak_mb = int(ran.stderr.split()[-2]) / 1000
    return time.perf_counter() - started_s, peak_mb, len(ran.stdout)


def floor_s(head: Head, since_s: float, until_s: float) -> float:
    """Return what one statement takes on a new connection."""
    started_s = time.perf_counter()
    db = sqlite3.connect(f"file:{head.database}?mode=ro", uri=True)
    db.execute(FLOOR, (since_s, until_s)).fetchall()
    db.close()
    return time.perf_counter() - started_s


def main() -> None:
    """Measure and print a line for each report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=1_000_000, help="(default 1000000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each report (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the rows (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    now_s = time.time()
    half_ago = time.strftime("%Y-%m-%d", time.localtime(now_s - YEAR_S / 2))
    year = ("--since", f"@{int(now_s - YEAR_S)}", "--by", "user")
    reports = {
        "weekly": (("weekly",), period_of("weekly", "", now_s)),
        "weekly, half a year ago": (
            ("weekly", "--of", half_ago),
            period_of("weekly", half_ago, now_s),
        ),
        "monthly --html": (("monthly", "--html"), period_of("monthly", "", now_s)),
        "a year by user": (year, (now_s - YEAR_S, now_s)),
    }
    with tempfile.TemporaryDirectory() as name:
        head = Head(Path(name))
        head.start()
        head.stop()
        with contextlib.closing(sqlite3.connect(head.database)) as db, db:
            marks = ", ".join("?" * len(COLUMNS))
            query = f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES ({marks})"
            db.executemany(query, rows(options.attempts, now_s, options.seed))
        head.start()
        try:
            found = {each: measure(head, *reports[each], options.rounds) for each in reports}
            size_mb = head.database.stat().st_size / 1e6
        finally:
            head.stop()
    if options.json:
        print(json.dumps(found))
        return
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"{options.attempts} attempts, monitor.db {size_mb:.0f} MB, {options.rounds} rounds, "
        f"load averages {load}:"
    )
    for each, figures in found.items():
        print(
            f"{each:24} wall {figures['wall_s']:.2f} s, greport {figures['greport_mb']:.1f} MB, "
            f"monitor {figures['monitor_mb']:.1f} MB, {figures['bytes']:.0f} bytes; "
            f"floor {figures['floor_s']:.3f} s"
        )


def measure(
    head: Head, words: tuple[str, ...], period: tuple[float, float], rounds: int
) -> dict[str, float]:
    """Return the figures of one report."""
    runs = [greport(head, *words) for _ in range(rounds)]
    return {
        "wall_s": statistics.median(wall_s for wall_s, _, _ in runs),
        "greport_mb": max(peak_mb for _, peak_mb, _ in runs),
        "monitor_mb": high_water_mb(head.monitor()),
        "bytes": float(runs[0][2]),
        "floor_s": statistics.median(floor_s(head, *period) for _ in range(rounds)),
    }


if __name__ == "__main__":
    main()
