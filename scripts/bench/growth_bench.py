"""How the head grows with its queue and its nodes: all nodes are full, and jobs wait.

For each size a database is made: nodes, each full with two jobs that run, and jobs of 100 users in
40 requests that wait. The first jobs come through the head's core and its store, further ones are
copies of their rows with other numbers and client keys. Then, each in a process of its own:

core    the state is loaded, and the nodes register with what they run. Medians of 20, CPU time:
        "cycle": a scheduling cycle after one job has ended, in which another one starts.
        "wide": one (not 20) in which the first job is a new one that requests half of the nodes;
        "slice": its longest slice, as the head does it.
        "heartbeat": what a node reports is taken in. "question": the longest piece of work for
        the forecast of one job's start.
head    a head is started on the database with `watched_head.py`. "restart": its CPU time until it
        has answered, and the wall time. "memory": its resident set. "list": CPU time of the head
        for a list of one user's jobs. "gsub": wall time of a submission. "turn": the longest turn
        of its loop by CPU time in the two seconds after the first answer, with 10 lists, with 10
        submissions and stories of a job, and with a list of all jobs. The nodes are not connected.

Exponents are slopes of a line through the logarithms: 1 for linear growth, 0 for none. The first
row of a table, where constants are most of it, does not count for them.
"""

import argparse
import gc
import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - the path comes first
import psutil  # noqa: E402 - as above
from msgspec import structs  # noqa: E402 - as above
from sim_bench import exponent  # noqa: E402 - as above
from watched_head import LongestTurn  # noqa: E402 - as above

from gsched.client import HeadClient, new_job  # noqa: E402 - as above
from gsched.config.tables import Config, HeadConfig, QueueConfig  # noqa: E402 - as above
from gsched.model.job import ExitRecord, JobSpec  # noqa: E402 - as above
from gsched.model.resources import Inventory, Load, Usage  # noqa: E402 - as above
from gsched.model.states import OutcomeKind, PartState  # noqa: E402 - as above
from gsched.protocol import node as n  # noqa: E402 - as above
from gsched.protocol.submissions import SubmitJob  # noqa: E402 - as above
from gschedd.core.cycle.run import snapshot  # noqa: E402 - as above
from gschedd.core.forecast.question import questions_of  # noqa: E402 - as above
from gschedd.core.head import Head  # noqa: E402 - as above
from gschedd.core.requests import commands as c  # noqa: E402 - as above
from gschedd.core.state.settings import Caller, Settings  # noqa: E402 - as above
from gschedd.core.state.state import State  # noqa: E402 - as above
from gschedd.core.state.step import Step  # noqa: E402 - as above
from gschedd.daemon.garbage import GC_THRESHOLDS  # noqa: E402 - as above
from gschedd.engine.slices import Slices  # noqa: E402 - as above
from gschedd.policies.registry import chosen_policy  # noqa: E402 - as above
from gschedd.store.rows import JOB_COLUMNS, spec_blob  # noqa: E402 - as above
from gschedd.store.seals import seal  # noqa: E402 - as above
from gschedd.store.sqlite import DATABASE, Store  # noqa: E402 - as above
from tests.support.books import batch_of  # noqa: E402 - as above
from tests.support.cluster import Cluster  # noqa: E402 - as above

USERS, REQUESTS = 100, 40
ON_NODE = 2  # jobs that fill a node
FIRST = 2000  # jobs that come through the core
REPEATS = 20
BATCH = 500
BEGIN_S = float(int(time.time()))
DIGEST = "0" * 64
MEASURES = ("cycle", "wide", "slice", "heartbeat", "question", "list", "turn", "memory", "restart")
WATCHED = str(Path(__file__).with_name("watched_head.py"))

Values = dict[str, float]


def new_head(state: State) -> Head:
    """Return a head as the daemon makes it."""
    config = Config(head=HeadConfig(max_queued_per_user=10**8))
    chosen = chosen_policy(config)
    return Head(
        state=state,
        settings=Settings(
            server="bench", config=config, queues={"batch": QueueConfig(name="batch")}
        ),
        policy=chosen.plan,
        model=chosen.make_model(),
    )


def registration(name: str, attempts: Sequence[n.AttemptReport] = ()) -> n.Register:
    """Return what a node says of itself."""
    return n.Register(
        identity=name.rjust(32, "0"),
        boot_id=name,
        incarnation=name,
        address="127.0.0.1",
        gnode_version="simulated",
        inventory=Inventory(cpus=ON_NODE, memory_bytes=64 << 30),
        attempts=tuple(attempts),
        load=Load(),
        probes=True,
    )


class Filling:
    """A head that is filled, with its store."""

    def __init__(self, directory: Path) -> None:
        self._store = Store(str(directory))
        self._store.open()
        self.head = new_head(State())
        self._steps: list[Step] = []

    def take(self, step: Step) -> Step:
        """Make a step durable, with others."""
        if step.error is not None:
            raise step.error
        self._steps.append(step)
        if len(self._steps) >= BATCH:
            self.commit()
        return step

    def commit(self) -> None:
        """Make everything durable."""
        facts = [fact for step in self._steps for fact in step.facts]
        self._store.commit(batch_of(facts, self.head.state))
        self._steps = []

    def submit(self, number: int, resources: str) -> None:
        """Submit a job."""
        user = number % USERS
        job = SubmitJob(
            key=f"growth-{number}",
            name=f"train-{number}",
            workdir="/",
            resources=(resources,),
            launch="script",
            script="#!/bin/sh\n",
            environment={"HOME": "/", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        )
        caller = Caller(user=f"user{user}", uid=2000 + user, gid=2000)
        submit = c.Submit(caller=caller, submitted=job, digests=(DIGEST, DIGEST))
        self.take(self.head.command(submit, BEGIN_S))

    def close(self) -> None:
        """Make everything durable and close the database."""
        self.commit()
        self._store.close()


def fill(directory: Path, queued: int, nodes: int) -> None:
    """Make a database with full nodes and a queue."""
    filling = Filling(directory)
    head = filling.head
    for number in range(nodes):
        filling.take(head.registered(f"n{number:05d}", registration(f"n{number:05d}"), BEGIN_S))
    for number in range(ON_NODE * nodes):
        filling.submit(FIRST + number, f"nodes=1:ppn=1,walltime={100 + number % 50}:0:0")
    while True:
        filling.take(head.cycle(BEGIN_S + 1))
        if not head.unfinished:
            break
    for number in range(min(queued, FIRST)):
        request = number % REQUESTS
        filling.submit(number, f"nodes=1:ppn={1 + request % 2},walltime={1 + request // 2}:0:0")
    last, count = head.state.next_job - 1, min(queued, FIRST)
    filling.close()
    if queued > count:
        copy_rows(directory, last - count + 1, count, queued - count)


def copy_rows(directory: Path, first: int, count: int, more: int) -> None:
    """Copy the rows of jobs so often that there are so many more."""
    db = sqlite3.connect(directory / DATABASE, isolation_level=None)
    names = ", ".join(JOB_COLUMNS)
    found = f"SELECT {names} FROM jobs WHERE id >= ? ORDER BY id"
    jobs = [list(row) for row in db.execute(found, (first,))]
    found_specs = db.execute("SELECT spec FROM specs WHERE job >= ? ORDER BY job", (first,))
    specs = [msgspec.json.decode(data, type=JobSpec) for (data,) in found_specs]
    key = JOB_COLUMNS.index("client_key")

    def key_of(number: int) -> str:
        return f"{number:032x}"  # as long as those of gsub

    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(more):
            row = jobs[number % count]
            row[0], row[key] = first + count + number, key_of(number)
            yield (*row, seal(row))

    def spec_rows() -> Iterator[tuple[object, ...]]:
        for number in range(more):
            spec = structs.replace(specs[number % count], client_key=key_of(number))
            row = (first + count + number, spec_blob(spec))
            yield (*row, seal(row))

    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    marks = ", ".join("?" * (len(JOB_COLUMNS) + 1))
    db.executemany(f"INSERT INTO jobs ({names}, seal) VALUES ({marks})", rows())
    db.executemany("INSERT INTO specs (job, spec, seal) VALUES (?, ?, ?)", spec_rows())
    next_job = str(first + count + more)
    db.execute("REPLACE INTO meta (key, value) VALUES ('next_job', ?)", (next_job,))
    db.execute("COMMIT")
    db.close()


# --- the core ---


def core(directory: Path, queued: int) -> Values:
    """Return what the core takes, CPU time in microseconds."""
    state = State()
    store = Store(str(directory))
    store.open()
    store.load(state)
    store.close()
    head = new_head(state)
    for _ in head.begin(BEGIN_S + 2):
        pass
    for name in list(state.nodes):
        attempts = [
            n.AttemptReport(
                job=job.id,
                attempt=job.attempts,
                state=PartState.RUNNING,
                pid=1,
                started_s=BEGIN_S + 1,
                token=job.current_attempt.token,
            )
            for job in state.by_node.get(name, {}).values()
        ]
        step = head.registered(name, registration(name, attempts), BEGIN_S + 3)
        assert step.error is None, step.error
        clean(state)
    while True:
        head.cycle(BEGIN_S + 4)
        clean(state)
        if not head.unfinished:
            break
    assert len(state.running) >= len(state.nodes), "the nodes are full"
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    first = next(iter(state.nodes))
    usage = Usage(wall_s=60.0, cpu_s=30.0, samples=3)
    found = {
        "cycle": measured(lambda: head.cycle(BEGIN_S + 5), lambda: end_one(head, usage)),
        "heartbeat": measured(lambda: head.note_load(first, Load(cpu_percent=50.0), BEGIN_S + 6)),
        "question": longest_piece(head),
    }
    found["wide"], found["slice"] = wide_cycle(head)
    return {name: 1e6 * value for name, value in found.items()} | {"queued": float(queued)}


def clean(state: State) -> None:
    """Do what the shell does after a commit."""
    state.unstored.forget_records()
    state.unstored.finished.clear()


def end_one(head: Head, usage: Usage) -> None:
    """Let the oldest running job end."""
    job = head.state.jobs[next(iter(head.state.running))]
    name = next(iter(job.current_attempt.parts))
    record = ExitRecord(
        job=job.id, attempt=job.attempts, kind=OutcomeKind.EXITED, exit_code=0, wall_s=60.0
    )
    step = head.reported(name, n.Exited(record=record, usage=usage, load=Load()), BEGIN_S + 5)
    assert step.error is None, step.error
    clean(head.state)


def measured(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Return the median CPU time of some work, seconds."""
    times_s: list[float] = []
    for _ in range(REPEATS):
        before()
        begin_s = time.thread_time()
        work()
        times_s.append(time.thread_time() - begin_s)
    return median(times_s)


def wide_cycle(head: Head) -> tuple[float, float]:
    """Return what a cycle takes that reserves half of the nodes for a job, CPU seconds.

    The second value is that of its longest slice: others have their turns between these.
    """
    nodes = max(2, len(head.state.nodes) // 2)
    job = SubmitJob(
        key="growth-wide",
        name="wide",
        workdir="/",
        resources=(f"nodes={nodes}:ppn={ON_NODE},walltime=1:0:0",),
        launch="script",
        script="#!/bin/sh\n",
        priority=1000,
    )
    caller = Caller(user="user0", uid=2000, gid=2000, operator=True)
    step = head.command(c.Submit(caller=caller, submitted=job, digests=(DIGEST, DIGEST)), BEGIN_S)
    assert step.error is None, step.error
    clean(head.state)
    slices, ends_s = Slices(), [Slices.cpu_s]
    ends_s += [Slices.cpu_s for _ in slices.of(lambda: head.cycle(BEGIN_S + 8))]
    ends_s.append(Slices.cpu_s)
    slices.close()
    assert any(wait.first == step.job and wait.reserved for wait in head.waits.values())
    return ends_s[-1] - ends_s[0], max(end - begin for begin, end in pairwise(ends_s))


def longest_piece(head: Head) -> float:
    """Return the longest piece of the question about the first job that waits, CPU seconds."""
    state = head.state
    _, job = min(state.ordered(group)[0] for group in state.groups.values())
    longest_s = 0.0
    begin_s = time.thread_time()
    seen = snapshot(state, head.settings, BEGIN_S + 7, head.model)
    steps = questions_of([state.jobs[job]], state=state, settings=head.settings, seen=seen)
    while True:
        try:
            next(steps)
        except StopIteration:
            return max(longest_s, time.thread_time() - begin_s)
        longest_s = max(longest_s, time.thread_time() - begin_s)
        begin_s = time.thread_time()


# --- a head ---


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process, seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def real_head(directory: Path) -> Values:
    """Return what a head on a database takes."""
    turns = LongestTurn(directory / "turns")
    cluster = Cluster(directory, f"growth-{os.getpid()}")
    cluster.wrapper = cluster.wrapper.after(sys.executable, WATCHED, str(directory / "turns"))
    begin_s = time.monotonic()
    try:
        cluster.start_head(wait=False)
        client = HeadClient(str(cluster.socket), patience_s=600.0)
        client.status()
        wall_s = time.monotonic() - begin_s
        process = psutil.Process(cluster.head_process.pid)
        restart_s = cpu_s(process)
        memory_mb = process.memory_info().rss / 1e6
        turns.take()  # before the first answer nobody waits for another one
        time.sleep(2.0)  # what it does after the first answer
        begun_turn_s = turns.take()[1]
        before_s = cpu_s(process)
        for _ in range(10):
            client.jobs(user="user7")
        list_s = (cpu_s(process) - before_s) / 10
        listed_turn_s = turns.take()[1]
        gsub_s: list[float] = []
        for _ in range(10):
            sent_s = time.monotonic()
            reply = client.submit([plain()])
            gsub_s.append(time.monotonic() - sent_s)
            client.job(reply.results[0].id)
        used_turn_s = turns.take()[1]
        client.jobs()
        return {
            "restart": restart_s,
            "restart, wall": wall_s,
            "memory": memory_mb,
            "list": list_s * 1e3,
            "gsub": median(gsub_s) * 1e3,
            "turn after start": begun_turn_s * 1e3,
            "turn, lists of a user": listed_turn_s * 1e3,
            "turn, gsub": used_turn_s * 1e3,
            "turn, list of all": turns.take()[1] * 1e3,
        }
    finally:
        cluster.stop()


def plain() -> object:
    """Return a job."""
    return new_job(
        name="plain", workdir="/", script="#!/bin/sh\n", resources=("nodes=1:ppn=1,walltime=1:0:0",)
    )


# --- the tables ---


def apart(work: Callable[[], Values]) -> Values:
    """Return what some work in a process of its own returns, with that process's memory."""
    here, there = multiprocessing.get_context("fork").Pipe()

    def run(connection: Connection) -> None:
        connection.send(work())

    process = multiprocessing.get_context("fork").Process(target=run, args=(there,))
    process.start()
    there.close()
    try:
        return dict(here.recv())
    except EOFError:
        sys.exit("growth: a measurement has failed, see above")
    except BaseException:  # who ended this one wants the end of that one as well
        process.terminate()
        raise
    finally:
        process.join()


def of_size(queued: int, nodes: int) -> Values:
    """Return all measures of one size."""
    with tempfile.TemporaryDirectory(prefix="gsched-growth-") as name:
        state_dir = Path(name, "c", "head")
        state_dir.mkdir(parents=True)

        def filled() -> Values:
            fill(state_dir, queued, nodes)
            return {}

        apart(filled)
        values = real_head(Path(name, "c"))
        values |= apart(lambda: core(state_dir, queued))
    turns = [value for each, value in values.items() if each.startswith("turn")]
    return values | {"turn": max(turns)}


def table(title: str, sizes: Sequence[int], measure: Callable[[int], Values]) -> list[Values]:
    """Print a row for each size, and the exponents."""
    print(f"\n{title}")
    print(
        f"{'':>9} {'cycle':>8} {'wide':>8} {'its':>8} {'heartbeat':>9} "
        f"{'question':>8} {'list of a':>9} "
        f"{'gsub':>7} {'longest':>8} {'memory':>7} {'restart':>8} {'wall':>6}  {'load':>4}"
    )
    print(
        f"{'':>9} {'us':>8} {'ms':>8} {'slice ms':>8} {'us':>9} "
        f"{'piece ms':>8} {'user ms':>9} {'ms':>7} "
        f"{'turn ms':>8} {'MB':>7} {'CPU s':>8} {'s':>6}"
    )
    rows: list[Values] = []
    for size in sizes:
        row = measure(size)
        rows.append(row)
        print(
            f"{size:9} {row['cycle']:8.0f} {row['wide'] / 1e3:8.1f} {row['slice'] / 1e3:8.1f} "
            f"{row['heartbeat']:9.1f} "
            f"{row['question'] / 1e3:8.1f} {row['list']:9.1f} {row['gsub']:7.0f} "
            f"{row['turn']:8.1f} {row['memory']:7.0f} "
            f"{row['restart']:8.2f} {row['restart, wall']:6.1f}  {os.getloadavg()[0]:4.0f}",
            flush=True,
        )
        turns = ", ".join(
            f"{name[5:]} {row[name]:.1f}" for name in row if name[:5] in {"turn ", "turn,"}
        )
        print(f"{'':9} turns: {turns}", flush=True)
    if len(sizes) > 2:
        slopes = {name: exponent(sizes[1:], [row[name] for row in rows[1:]]) for name in MEASURES}
        print("exponents: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items()))
    return rows


def numbers(text: str) -> list[int]:
    """Return numbers that are separated by commas."""
    return [int(each) for each in text.split(",") if each]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=numbers, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--nodes", type=numbers, default=[10, 100, 1_000, 10_000])
    parser.add_argument("--beside-nodes", type=int, default=200, help="of the queues (200)")
    parser.add_argument("--beside-queue", type=int, default=10_000, help="of the nodes (10000)")
    parser.add_argument("--json", metavar="FILE", help="also write all values there")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    found: dict[str, list[Values]] = {}
    if given.queues:
        found["queues"] = table(
            f"queued jobs, {given.beside_nodes} full nodes",
            given.queues,
            lambda queued: of_size(queued, given.beside_nodes),
        )
    if given.nodes:
        found["nodes"] = table(
            f"full nodes, {given.beside_queue} queued jobs",
            given.nodes,
            lambda nodes: of_size(given.beside_queue, nodes),
        )
    if given.json:
        Path(given.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
