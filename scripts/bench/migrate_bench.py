"""What a move of a real training costs, in phases, beside the least that it could cost.

A head and two nodes on loopback; two torchrun training jobs of --ranks ranks, whose states have the
given size (parameters, and AdamW's two numbers beside each), go from one node to the other and
back, --rounds times for each size: one starts cold there, the other one warm, as it calls
elastic.ready. While one moves, the other one is stopped by SIGSTOP. Time without progress is from
the end of the last step at the old place to the end of the first one at the new place, less what a
step takes. Its phases:

save       last step done, until the head knows the checkpoint: written, flushed, published
stop       until the head has proof that nothing of the old attempt is left
start      until the new rank's process runs: placed, sent to the node, supervisor, agent; of a
           warm start until the prepared process goes on
import     until it has imported torch; of a warm start before
prepare    until process group, model and optimiser are made: the script's own work, of which a warm
           start has only the process group and DistributedDataParallel left
restore    gsched.elastic.start: checkpoint found, proven good, loaded
step       the first step, less what one takes on average

"heard" is how long the training went on with its steps after the request; it costs nothing. Of a
warm start also: what CPU time and memory a rank had used when it came to its gate, and by how much
longer the old attempt's own work took for a step meanwhile, than before the request.

The floor is measured before each move, in the same directory, while the training is stopped by
SIGSTOP, with plain torch alone: writing a state of this size and flushing it, a new process that
imports torch, reading the state. "training" has, instead of the import, what this training needs
before it has anything to load its state into: torch, a process group, the network in
DistributedDataParallel, the optimiser. None of that is torchrun's own start.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from cluster import Cluster
from elastic_floor import floor_of_move, network_of, ready_seconds

from gsched.cli.local.layout import layout_of
from gsched.client import HeadClient, new_job
from gsched.protocol import actions as a
from gsched.protocol.job_rows import JobStory, MoveRow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve().parent / "migrate_train.py"
STARTS = ("cold", "warm")
PHASES = ("save", "stop", "start", "import", "prepare", "restore", "step")
LOOK_S = 0.02
WAIT_S = 600.0
STEPS_BEFORE = 10
STEPS_ALONE = 40

T = TypeVar("T")
Figures = dict[str, float]


class BenchError(Exception):
    """The training did not do what was waited for."""


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="10,100,1000", metavar="MB,MB", help="of the state")
    parser.add_argument("--rounds", type=int, default=3, help="moves of each size")
    parser.add_argument(
        "--starts",
        default=",".join(STARTS),
        metavar="START,START",
        help="cold, warm (default: both)",
    )
    parser.add_argument("--ranks", type=int, default=1, help="on each node")
    parser.add_argument(
        "--frozen", type=float, default=0.0, metavar="PERCENT", help="parameters not trained"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there, too")
    args = parser.parse_args()
    args.starts = args.starts.split(",")
    if not set(args.starts) <= set(STARTS):
        parser.error(f"--starts {','.join(args.starts)}: known are {', '.join(STARTS)}")
    return args


@contextmanager
def two_nodes(directory: str, ranks: int) -> Iterator[tuple[HeadClient, list[str]]]:
    """Yield a head and the names of its two nodes; all ends afterwards."""
    cluster = Cluster(layout_of(directory))
    try:
        each = ("--cpus", str(2 * ranks), "--gpus", str(2 * ranks))
        cluster.up("--nodes", "2", *each, "--memory", "16gb")
        head = HeadClient(cluster.address)
        yield head, sorted(row.name for row in head.nodes().nodes)
    finally:
        cluster.down()


class Course:
    """One training, which starts ``cold`` or ``warm``, and what it and the head say of it."""

    def __init__(
        self,
        head: HeadClient,
        directory: Path,
        size_bytes: int,
        args: argparse.Namespace,
        *,
        start: str,
    ) -> None:
        self._head = head
        self._start = start
        directory = directory / start
        directory.mkdir()
        self._events = directory / "events"
        layers, width = network_of(size_bytes, args.frozen / 100)
        ranks = args.ranks
        job = new_job(
            name="move",
            workdir=str(directory),
            launch="torchrun",
            python=sys.executable,
            arguments=(
                str(SCRIPT),
                f"--layers={layers}",
                f"--width={width}",
                f"--frozen={round(layers * args.frozen / 100)}",
                f"--events={self._events}",
                *(("--warm",) if start == "warm" else ()),
            ),
            resources=(f"nodes=1:ppn={ranks}:gpus={ranks}",),
            environment={
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "PATH": os.environ["PATH"],
            },
            movable=True,
            grace_s=30.0,
            join="oe",
        )
        result = head.submit([job]).results[0]
        if result.error is not None:
            raise BenchError(result.error.message)
        self.number = str(result.id)
        self._wait(lambda: len(self._times(1, "step")) >= STEPS_BEFORE, "its first steps")

    def story(self) -> JobStory:
        """Return what the head knows."""
        return self._head.job(self.number)

    def move(self, nodes: Sequence[str]) -> Figures:
        """Move it to that one of ``nodes`` where it is not; return the phases, seconds."""
        story = self.story()
        before = story.row.attempt
        target = next(name for name in nodes if name not in story.row.nodes)
        request = a.MigrateJob(ids=(self.number,), nodes=(target,))
        error = self._head.act(request).results[0].error
        if error is not None:
            raise BenchError(error.message)
        done = self._wait(self._moved, "the end of its move")
        after = self.story().row.attempt
        self._wait(lambda: len(self._times(after, "step")) >= STEPS_BEFORE, "steps after its move")
        return self._phases(done, before, after)

    def rest(self) -> None:
        """Stop it, so that it takes nothing from what is measured beside it."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        attempt = self.story().row.attempt
        steps = len(self._times(attempt, "step"))
        self._signal(signal.SIGCONT)
        self._wait(
            lambda: len(self._times(attempt, "step")) >= steps + STEPS_BEFORE, "its going on"
        )

    def end(self) -> None:
        """Delete it."""
        self._head.act(a.DeleteJob(ids=(self.number,), grace_s=0.0))

    def _signal(self, number: int) -> None:
        request = a.SignalJob(ids=(self.number,), signal=number)
        error = self._head.act(request).results[0].error
        if error is not None:
            raise BenchError(error.message)

    def _moved(self) -> MoveRow | None:
        story = self.story()
        is_over = story.move is not None and story.row.state == "running" and story.move.resumed_s
        return story.move if is_over else None

    def _phases(self, move: MoveRow, before: int, after: int) -> Figures:
        saved_s, left_s = move.saved_s or 0.0, move.left_s or 0.0
        if not move.start.startswith(self._start):
            raise BenchError(f"it was to start {self._start}: {move.start or 'nothing is known'}")
        last_s = max(at_s for at_s in self._times(before, "step") if at_s < saved_s)
        steps = self._times(after, "step")
        usual_s = statistics.median(b - a for a, b in pairwise(steps[1:]))
        moments = {what: self._times(after, what)[0] for what in ("process", "imported")}
        if self._start == "warm":
            moments = dict.fromkeys(moments, self._times(after, "launched")[0])
        moments |= {what: self._times(after, what)[0] for what in ("ready", "restored")}
        marks = (last_s, saved_s, left_s, *moments.values(), steps[0] - usual_s)
        figures = {
            phase: end_s - begin_s
            for phase, (begin_s, end_s) in zip(PHASES, pairwise(marks), strict=True)
        }
        return {
            "heard": last_s - move.requested_s,
            **figures,
            "total": sum(figures.values()),
            "size_bytes": float(move.size_bytes),
            "save_alone": move.save_s,
            "restore_alone": move.restore_s,
            **self._taken(move, before, after),
        }

    def _taken(self, move: MoveRow, before: int, after: int) -> Figures:
        """Return what a rank had used at its gate, and how much slower steps were meanwhile."""
        gate = self._those(after, "gate")[0]
        steps = self._those(before, "step")
        until_s = move.prepared_s or move.requested_s
        beside = [each["busy_s"] for each in steps if move.requested_s < each["at_s"] < until_s]
        alone = [each["busy_s"] for each in steps if each["at_s"] < move.requested_s][-STEPS_ALONE:]
        return {
            "prepared": until_s - move.requested_s,
            "gate_cpu_s": gate["cpu_s"],
            "gate_resident_bytes": gate["resident_bytes"],
            "step_alone_s": statistics.median(alone),
            "step_beside_s": statistics.median(beside or alone),
        }

    def _output(self) -> str:
        files = self._events.parent.glob("move.o*")
        return "".join(path.read_text(errors="replace")[-2000:] for path in files)

    def _times(self, attempt: int, what: str) -> list[float]:
        return [event["at_s"] for event in self._those(attempt, what)]

    def _those(self, attempt: int, what: str) -> list[dict[str, float]]:
        if not self._events.exists():
            return []
        lines = self._events.read_text(encoding="ascii").split("\n")[:-1]
        events = [json.loads(line) for line in lines]
        return [event for event in events if event["attempt"] == attempt and event["what"] == what]

    def _wait(self, look: Callable[[], T | None], what: str) -> T:
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            found = look()
            if found:
                return found
            if self.story().row.state == "done":
                raise BenchError(f"the training has ended, before {what}: {self._output()}")
            time.sleep(LOOK_S)
        raise BenchError(f"waited {WAIT_S:.0f} s for {what}")


def floor_now(size_bytes: int, directory: str) -> Figures:
    """Return the floor, measured once."""
    floor = floor_of_move(size_bytes, directory=directory)
    ready_s = ready_seconds(size_bytes, directory=directory)
    training_s = floor["save_s"] + ready_s + floor["load_s"]
    return {**floor, "ready_s": ready_s, "training_s": training_s}


def measured(args: argparse.Namespace, size_mb: float) -> dict[str, Any]:
    """Return the floor and the moves of one size."""
    size_bytes = int(size_mb * 1e6)
    with tempfile.TemporaryDirectory(prefix="gsched-bench-") as directory:
        floors: list[Figures] = []
        moves: dict[str, list[Figures]] = {start: [] for start in args.starts}
        with two_nodes(directory, args.ranks) as (head, nodes):
            courses = {}
            for start in args.starts:
                courses[start] = Course(head, Path(directory), size_bytes, args, start=start)
                courses[start].rest()
            for _ in range(args.rounds):
                floors.append(floor_now(size_bytes, directory))
                for start, course in courses.items():
                    course.go_on()
                    moves[start].append(course.move(nodes))
                    course.rest()
            for course in courses.values():
                course.end()
    floor = medians_of(floors)
    return {
        "size_mb": size_mb,
        "floor": floor,
        "floors": floors,
        "load_average": os.getloadavg()[0],
        **{start: figures_of(moves[start], floor) for start in args.starts},
    }


def medians_of(figures: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    return {key: statistics.median(each[key] for each in figures) for key in figures[0]}


def figures_of(moves: Sequence[Figures], floor: Figures) -> dict[str, object]:
    """Return what there is to say of moves of one kind."""
    medians = medians_of(moves)
    return {
        "moves": moves,
        "median": medians,
        "ratio": medians["total"] / floor["floor_s"],
        "ratio_training": medians["total"] / floor["training_s"],
    }


def show(found: dict[str, Any]) -> None:
    """Print one size."""
    floor = found["floor"]
    median: Figures = {}
    for start in filter(found.get, STARTS):
        median = found[start]["median"]
        cells = "".join(f"{median[name]:9.2f}" for name in (*PHASES, "total"))
        print(f"{found['size_mb']:>6g} {start}{cells}", end="")
        print(f"{floor['floor_s']:9.2f}{floor['training_s']:10.2f}", end="")
        print(f"{found[start]['ratio']:7.2f}{found[start]['ratio_training']:10.2f}", flush=True)
    print(
        f"{'':11} prepared in {median['prepared']:.2f} s: {median['gate_cpu_s']:.2f} s of CPU time "
        f"and {median['gate_resident_bytes'] / 1e6:.0f} MB of a rank at its gate; a step's own "
        f"work took {1e3 * median['step_beside_s']:.1f} ms beside it, "
        f"{1e3 * median['step_alone_s']:.1f} ms before",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    args = options()
    sizes = [float(text) for text in args.sizes.split(",")]
    columns = "".join(f"{name:>9}" for name in (*PHASES, "total"))
    print(f"seconds, medians of {args.rounds} moves, {args.ranks} rank(s) on a node")
    print(f"{'MB':>6} start{columns}{'floor':>9}{'training':>10}{'ratio':>7}{'training':>10}")
    results = []
    for size_mb in sizes:
        found = measured(args, size_mb)
        results.append(found)
        show(found)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
