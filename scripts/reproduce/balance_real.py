"""The experiment with real jobs: a head and four gnodes here, each gnode in its control groups.

The jobs' inputs are streams, which come in at a fixed rate, so that each job needs a part of a core
and several share a node: a batch job would fill any of these nodes by itself. What is used is read
once a second from the control groups, not from the scheduler; a node's own daemons count, too.
"""

import importlib.util
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean, pstdev

from msgspec import Struct

from gsched.cli.local.toml import head_toml, node_toml
from gsched.client import HeadClient, new_job
from gsched.config.nodes import NodeConfig
from gsched.config.tables import HeadConfig, QueueConfig
from gsched.errors import GschedError, TryAgainError, UsageError
from gsched.protocol.job_rows import JobRow
from scripts.reproduce.balance_groups import NodeGroups, parents, remove_leftovers
from scripts.reproduce.balance_jobs import SIZE_SPREAD, order_of
from scripts.reproduce.balance_runs import Curves, Run

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
#: Of each node: percent of a core. Together less than this experiment may take of two cores, so
#: that the head and the measuring do not take it from the nodes.
QUOTAS_PERCENT = {"node1": 36, "node2": 15, "node3": 42, "node4": 27}
SLOT_PERCENT = 3  # of a core, for each CPU that a node offers
SLOT_MEMORY_BYTES = 200 * MIB
JOBS = 60
#: CPU that jobs want while they are being submitted, over what the nodes may use.
LOAD = 0.9
RUN_S = 40.0
#: What a job of each kind keeps busy of a core, measured; only the rate of submission follows it.
CORES = {"h264": 0.1, "convolution": 0.035}
#: Reports are 300 s apart by default, for jobs of hours; these run for a minute.
HEARTBEAT_S = 10.0
SAMPLE_S = 2.0
START_TIMEOUT_S = 60.0
#: Run by a shell that enters control groups before it becomes a daemon: nothing runs outside.
ENTER = (
    'for file in "$@"; do echo $$ > "$file" || exit 1; done; exec "$0" -m $MAIN --config "$TOML"'
)
LONGEST_S = 1800.0  # a run that takes longer has gone wrong


class RealJob(Struct, frozen=True, kw_only=True):
    """One job of the list."""

    submit_s: float
    kind: str
    arguments: tuple[str, ...]


def check_possible() -> None:
    """Check that this machine can run the experiment.

    Raises:
        GschedError: it cannot; the message says what is missing and what to do.
    """
    parents()
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise UsageError("--real needs ffmpeg", hint="on Debian or Ubuntu: apt-get install ffmpeg")
    encoders = subprocess.run([ffmpeg, "-encoders"], capture_output=True, text=True, check=False)
    if "libx264" not in encoders.stdout:
        raise UsageError(
            f"{ffmpeg} has no libx264", hint="install an ffmpeg that was built with it"
        )
    if importlib.util.find_spec("numpy") is None:
        raise UsageError("--real needs numpy", hint="pip install numpy")


def draw(seed: int) -> list[RealJob]:
    """Return a list of jobs in random order, of random lengths, at random moments."""
    chance = random.Random(seed)
    capacity_cores = sum(QUOTAS_PERCENT.values()) / 100
    gap_s = fmean(CORES.values()) * RUN_S / (LOAD * capacity_cores)
    jobs: list[RealJob] = []
    submit_s = 0.0
    for kind in order_of(dict.fromkeys(CORES, 1 / len(CORES)), JOBS, chance):
        submit_s += chance.expovariate(1 / gap_s)
        seconds = round(RUN_S * chance.lognormvariate(0, SIZE_SPREAD), 1)
        if kind == "h264":
            arguments = _encoding(seconds)
        else:
            arguments = _convolution(seconds, chance.randint(80, 160), chance.randint(0, 999))
        jobs.append(RealJob(submit_s=submit_s, kind=kind, arguments=arguments))
    return jobs


def _encoding(seconds: float) -> tuple[str, ...]:
    """Return the encoding of a generated film that comes in as it is shown."""
    source = ("-re", "-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25")
    codec = ("-c:v", "libx264", "-preset", "veryfast", "-threads", "2")
    words = ("ffmpeg", "-nostdin", "-v", "error", *source, "-t", str(seconds), *codec)
    return (*words, "-f", "null", "-")


def _convolution(seconds: float, memory_mb: int, seed: int) -> tuple[str, ...]:
    program = str(ROOT / "scripts" / "reproduce" / "balance_convolution.py")
    options = ("--seconds", str(seconds), "--memory-mb", str(memory_mb), "--seed", str(seed))
    return (sys.executable, program, *options)


def described() -> str:
    """Return the nodes in a few words."""
    nodes = ", ".join(
        f"{name} {percent} % of a core, {slots(name) * SLOT_MEMORY_BYTES // MIB} MiB, "
        f"{slots(name)} slots"
        for name, percent in QUOTAS_PERCENT.items()
    )
    return f"{nodes}; heartbeats every {HEARTBEAT_S:.0f} s, samples every {SAMPLE_S:.0f} s"


def slots(node: str) -> int:
    """Return how many CPUs a node offers."""
    return QUOTAS_PERCENT[node] // SLOT_PERCENT


def run(policy: str, jobs: Sequence[RealJob], seed: int) -> Run:
    """Run the jobs on a fresh cluster under a policy; nothing of it is left when this returns.

    Raises:
        GschedError: the cluster did not come up, or the jobs did not end.
    """
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="gsched-balance-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        groups = stack.enter_context(node_groups())
        head = stack.enter_context(head_running(directory, policy))
        for name in groups:
            stack.enter_context(node_running(directory, name, groups[name]))
        wait_for_nodes(head, directory, len(groups))
        return measure(head, directory, policy, jobs, groups, seed)


@contextmanager
def node_groups() -> Iterator[dict[str, NodeGroups]]:
    """Make the control groups of all nodes; in the end they go with whatever runs in them."""
    found = parents()
    remove_leftovers(found)
    made: dict[str, NodeGroups] = {}
    try:
        for name, percent in QUOTAS_PERCENT.items():
            made[name] = NodeGroups(
                name,
                cores=percent / 100,
                memory_bytes=slots(name) * SLOT_MEMORY_BYTES,
                found=found,
            )
        yield made
    finally:
        for each in made.values():
            each.remove()


@contextmanager
def head_running(directory: Path, policy: str) -> Iterator[HeadClient]:
    """Run a head without any history, with one queue of that policy."""
    config = HeadConfig(
        server_name="balance",
        socket=str(directory / "head.sock"),
        node_port=0,
        state_dir=str(directory),
        single_user=True,
        allow_root_jobs=True,
    )
    text = head_toml(config, (QueueConfig(name="batch"),))
    text += f"[balance]\nwindow_s = {SAMPLE_S}\n"
    with daemon(
        directory, "gschedd", text, entrances=(), main=f"scripts.reproduce.balance_head {policy}"
    ) as process:
        head = HeadClient(config.socket)
        until(lambda: _answers(head), process, directory / "gschedd.log")
        yield head


def _answers(head: HeadClient) -> bool:
    try:
        head.status()
    except GschedError:
        return False
    return True


@contextmanager
def node_running(directory: Path, name: str, groups: NodeGroups) -> Iterator[None]:
    """Run a gnode in its groups; it finds its quotas there."""
    state_dir = directory / name
    state_dir.mkdir()
    config = NodeConfig(
        name=name,
        head=f"unix:{directory}/head-node.sock",
        state_dir=str(state_dir),
        address="127.0.0.1",
        allow_root_jobs=True,
        cpus=slots(name),
        cgroup="none",
        heartbeat_s=HEARTBEAT_S,
        sample_s=SAMPLE_S,
    )
    with daemon(directory, "gnode", node_toml(config), groups.entrances(), label=name):
        yield


@contextmanager
def daemon(
    directory: Path,
    module: str,
    text: str,
    entrances: Sequence[str],
    label: str = "",
    main: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon with a configuration, within control groups; in the end it is stopped."""
    name = label or module
    config = directory / f"{name}.toml"
    config.write_text(text, encoding="utf-8")
    with open(directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, sys.executable, *entrances],
            cwd=ROOT,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "MAIN": main or f"{module}.main",
                "TOML": str(config),
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for this script, which then stops it
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something holds.

    Raises:
        TryAgainError: it did not in time, or the process ended; with the end of its log.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline_s:
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise TryAgainError(f"{log.stem} did not come up:\n{tail}", hint="")
        time.sleep(0.1)


def wait_for_nodes(head: HeadClient, directory: Path, count: int) -> None:
    """Wait until all nodes are up.

    Raises:
        TryAgainError: they were not in time; with the ends of their logs.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while sum(row.state == "up" for row in head.nodes().nodes) < count:
        if time.monotonic() > deadline_s:
            logs = [log.read_text(errors="replace")[-500:] for log in directory.glob("node*.log")]
            raise TryAgainError("not all nodes came up:\n" + "\n".join(logs), hint="")
        time.sleep(0.2)


class Meter:
    """What the nodes use, read from their control groups."""

    def __init__(self, groups: Mapping[str, NodeGroups]) -> None:
        self._groups = groups
        self._at_s = time.monotonic()
        self._cpu_s = {name: each.cpu_s() for name, each in groups.items()}
        self.cpu: dict[str, list[float]] = {name: [] for name in groups}
        self.memory: dict[str, list[float]] = {name: [] for name in groups}

    def read(self) -> None:
        """Take in what was used since the last time."""
        now_s = time.monotonic()
        for name, each in self._groups.items():
            cpu_s = each.cpu_s()
            used = (cpu_s - self._cpu_s[name]) / ((now_s - self._at_s) * each.cores)
            self._cpu_s[name] = cpu_s
            self.cpu[name].append(round(used, 4))
            self.memory[name].append(round(each.memory_bytes() / each.limit_bytes, 4))
        self._at_s = now_s


def imbalance(shares: Mapping[str, Sequence[float]]) -> float:
    """Return standard deviation over mean of the nodes' shares, averaged over time."""
    moments = [each for each in zip(*shares.values(), strict=True) if sum(each) > 0]
    return fmean(pstdev(each) / fmean(each) for each in moments) if moments else 0.0


def measure(
    head: HeadClient,
    directory: Path,
    policy: str,
    jobs: Sequence[RealJob],
    groups: Mapping[str, NodeGroups],
    seed: int,
) -> Run:
    """Submit the jobs when their time comes, measure until the last has ended."""
    work = directory / "work"
    work.mkdir()
    begin_s = time.monotonic()
    meter = Meter(groups)
    waiting = list(jobs)
    turn = 0
    while waiting or head.jobs().jobs:
        elapsed_s = time.monotonic() - begin_s
        if elapsed_s > LONGEST_S:
            raise TryAgainError(f"jobs still run after {LONGEST_S:.0f} s", hint="")
        while waiting and waiting[0].submit_s <= elapsed_s:
            submit(head, waiting.pop(0), work)
        soon_s = waiting[0].submit_s if waiting else turn + 1.0
        if elapsed_s >= turn + 1:
            meter.read()
            turn = int(elapsed_s)
        time.sleep(max(0.01, min(soon_s, turn + 1.0) - (time.monotonic() - begin_s)))
    ended = list(head.jobs(finished=True).jobs)
    return Run(
        policy=policy,
        seed=seed,
        jobs=len(ended),
        failed=sum(_failed(row) for row in ended),
        makespan_s=round(time.monotonic() - begin_s, 1),
        completion_s=round(fmean((row.ended_s or 0.0) - row.submitted_s for row in ended), 2),
        cpu_imbalance=round(imbalance(meter.cpu), 4),
        memory_imbalance=round(imbalance(meter.memory), 4),
        nodes={
            name: Curves(step_s=1.0, cpu=meter.cpu[name], memory=meter.memory[name])
            for name in groups
        },
    )


def submit(head: HeadClient, job: RealJob, work: Path) -> None:
    """Submit one job, which requests one CPU."""
    made = new_job(
        name=job.kind,
        workdir=str(work),
        resources=("nodes=1:ppn=1",),
        launch="command",
        arguments=job.arguments,
        kind=job.kind,
        join="oe",
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1"},
    )
    (result,) = head.submit([made]).results
    if result.error is not None:
        raise UsageError(f"the head refused a job: {result.error.message}")


def _failed(row: JobRow) -> bool:
    return row.outcome is None or row.outcome.exit_code != 0
