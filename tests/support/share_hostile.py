"""Users attack the token daemon of a node while the jobs of others train on its shared GPU."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from gnode.gpushare.interception import FOLDER
from gnode.gpushare.keeper import LOG_FILE, DaemonKeeper
from gsched.client import HeadClient, new_job
from gsched.errors import HeadUnreachableError, TryAgainError
from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.gpu_device import Device
from tests.support.judge import Judge, facts_of, verdict
from tests.support.share_program import KERNELS

NODE: Final = "n1"
STEPS: Final = 60
#: Options of each kind of jobs; `hostile` ones attack from inside.
SHARES: Final = {
    "high": "gpu_share=30%:2gb:high",
    "low": "gpu_share=30%:2gb:low",
    "exits": "gpu_share=20%:2gb:low",
    "hostile": "gpu_share=10%:1gb:low",
}
EXITS: Final = 50  # processes of one job of the kind
HOSTILE_S: Final = 8.0
OUTSIDERS: Final = 3
FIRST_UID: Final = 64_001
LOOK_S: Final = 0.5
END_S: Final = 120.0
#: What may grow from the second quarter of a run to its last one.
MEMORY_GROWTH_BYTES: Final = 4 << 20
LOG_BYTES_MAX: Final = 1 << 20
REST_S: Final = 3.0  # until nobody's connection is left that has said nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The token daemon at one moment."""

    rss_bytes: int
    descriptors: int
    cpu_s: float


@dataclass(slots=True, kw_only=True)
class Program:
    """One honest program."""

    pid: int
    began_ns: int
    ended_ns: int = 2**63
    kernels: int = 0


@dataclass(slots=True)
class ShareHostile:
    """One cluster of a node with a shared GPU, honest jobs, and attackers inside and outside.

    Attributes:
        cluster: of which nothing is started yet.
        seed: of what is attacked when.
        attacks: how often each was done.
        looks: the daemon during the attack.
    """

    cluster: Cluster
    driver: Path
    libraries: Path
    seed: int
    attacks: Counter[str] = field(default_factory=Counter)
    jobs: dict[int, str] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    exits: int = 0
    seconds: float = 0.0
    _keeper: DaemonKeeper = field(init=False)
    _device: Device = field(init=False)
    _journal: Path = field(init=False)
    _judge: Judge = field(init=False)
    _problems: list[str] = field(default_factory=list)
    _programs: list[Program] = field(default_factory=list)
    _last: dict[int, Program] = field(default_factory=dict)  # of each process id
    _kernels_seen: int = 0
    _journal_read: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _broken: list[BaseException] = field(default_factory=list)

    def run(self, seconds: float) -> list[str]:
        """Attack for so long, let the cluster come to rest, and return what is wrong."""
        self._set_up()
        before = self._look()
        daemon = self._daemon()
        began_s = time.monotonic()
        outside = [self._outsider(number, seconds) for number in range(OUTSIDERS)]
        users = [
            threading.Thread(target=self._submit, args=(name,), name=f"share-{name}", daemon=True)
            for name in SHARES
        ]
        for user in users:
            user.start()
        while time.monotonic() < began_s + seconds and not self._broken:
            self.looks.append(self._look())
            self._count_kernels()
            self._look_at_node()
            time.sleep(LOOK_S)
        self.seconds = time.monotonic() - began_s
        self._over.set()
        for attacker in outside:
            text, _ = attacker.communicate(timeout=END_S)
            self.attacks.update(json.loads(text))
        for user in users:
            user.join(END_S)
        assert not self._broken, self._broken
        wait_until(self._is_over, END_S, what="all jobs to end")
        self._count_kernels()
        time.sleep(REST_S)
        looks = []
        for _ in range(10):  # in some of them a question of the node may be open
            looks.append(self._look())
            time.sleep(LOOK_S)
        after = min(looks, key=lambda one: one.descriptors)
        self._judge_daemon(daemon, before, after)
        self._judge_jobs()
        return self._problems

    def _set_up(self) -> None:
        cluster = self.cluster
        self.libraries.mkdir(exist_ok=True)
        cluster.cuda_driver = str(self.driver)
        cluster.share_runtimes[NODE] = "interception"
        folder = self._folder()
        folder.mkdir(parents=True)
        (folder / "lib").symlink_to(self.libraries)
        self._keeper = DaemonKeeper(folder)  # asks, and starts nothing
        self._device = Device(cluster.directory / "device")
        self._journal = cluster.directory / "programs"
        self._journal.touch()
        self._judge = Judge(cluster.jobs)
        cluster.start_head()
        cluster.start_node(NODE, cpus=16, gpus=1)
        self._wait_for_one_job()

    def _wait_for_one_job(self) -> None:
        """The token daemon starts with the first job."""
        self._end_of(self._submit_one("low", 0))

    def _folder(self) -> Path:
        return self.cluster.node_dir(NODE) / FOLDER

    def _daemon(self) -> int:
        metrics = self._keeper.look()
        assert metrics is not None
        return int(str(metrics["pid"]))

    def _outsider(self, number: int, seconds: float) -> "subprocess.Popen[str]":
        """Start a process of another user; where that needs root and there is none, of this one."""
        words = [sys.executable, "-m", "tests.support.share_attacks", str(self._folder())]
        words += [str(self.seed * 100 + number), str(seconds)]
        if os.getuid() == 0:
            words += ["--uid", str(FIRST_UID + number)]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    # ---- jobs ----

    def _submit(self, name: str) -> None:
        """Submit one job of a kind after the other."""
        chance = random.Random(f"{self.seed} {name}")
        try:
            while not self._over.is_set():
                self._end_of(self._submit_one(name, chance.getrandbits(16)))
        except BaseException as error:  # noqa: BLE001 - is raised again by the main thread
            self._broken.append(error)

    def _submit_one(self, name: str, seed: int) -> int:
        job = new_job(
            name=name,
            workdir=str(self.cluster.jobs),
            script=self._script(name, seed),
            resources=(SHARES[name],),
        )
        (result,) = HeadClient(str(self.cluster.socket)).submit([job]).results
        assert result.error is None, result.error
        self.jobs[result.id] = name
        return result.id

    def _script(self, name: str, seed: int) -> str:
        programs = {
            "exits": f"share_exits {EXITS} {seed}",
            "hostile": f'share_attacks "${{GSCHED_SHARE_SOCKET%/*}}" {seed} {HOSTILE_S}',
        }
        program = programs.get(name, f"share_program {self._journal} --steps {STEPS}")
        lines = [
            f'export GSCHED_FAKE_STATE="{self._device.path}" PYTHONPATH="{ROOT}"',
            f"{sys.executable} -m tests.support.{program}",
            "code=$?",
        ]
        return self._judge.script("\n".join(lines), code="$code")

    def _end_of(self, job: int) -> None:
        def is_over() -> bool:
            with contextlib.suppress(HeadUnreachableError, TryAgainError):
                rows = HeadClient(str(self.cluster.socket)).jobs([job]).jobs
                return all(row.state == "done" for row in rows)
            return False

        wait_until(is_over, END_S, what=f"the end of job {job} ({self.jobs[job]})")

    def _is_over(self) -> bool:
        metrics = self._keeper.look()
        return not self.cluster.head.jobs().jobs and metrics is not None and not metrics["groups"]

    # ---- what is seen ----

    def _look(self) -> Look:
        process = psutil.Process(self._daemon())
        times = process.cpu_times()
        return Look(
            rss_bytes=process.memory_info().rss,
            descriptors=process.num_fds(),
            cpu_s=times.user + times.system,
        )

    def _look_at_node(self) -> None:
        (row,) = self.cluster.head.nodes().nodes
        if row.state != "up":
            self._wrong(f"node {NODE} was {row.state}")

    def _wrong(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)

    # ---- the end ----

    def _judge_daemon(self, daemon: int, before: Look, after: Look) -> None:
        if self._daemon() != daemon:
            self._wrong("the token daemon has died")
        log = (self._folder() / LOG_FILE).read_text(errors="replace")
        if "Traceback" in log:
            self._wrong(f"the token daemon has failed: {log[-2000:]}")
        if len(log) > LOG_BYTES_MAX:
            self._wrong(f"the token daemon has written {len(log)} bytes")
        quarter = len(self.looks) // 4
        early = max(look.rss_bytes for look in self.looks[quarter : 2 * quarter])
        late = max(look.rss_bytes for look in self.looks[-quarter:])
        if late > early + MEMORY_GROWTH_BYTES:
            self._wrong(f"the token daemon has grown from {early} to {late} bytes")
        if after.descriptors > before.descriptors:
            self._wrong(f"descriptors are left: {before.descriptors}, now {after.descriptors}")
        for name in ("head.log", f"{NODE}.log"):
            for text in ("Traceback", "unreadable message"):
                if text in self.cluster.log(name):
                    self._wrong(f"{name}: {text}")

    def _judge_jobs(self) -> None:
        database = self.cluster.state_dir / "gsched.db"
        for problem in verdict(self._judge, database, self.jobs, attempts_max=1):
            self._wrong(problem)
        for fact in facts_of(database):
            if isinstance(fact, f.JobEnded):
                outcome = fact.outcome
                if outcome.kind is not OutcomeKind.EXITED or outcome.exit_code != 0:
                    self._wrong(f"job {fact.job} ({self.jobs.get(fact.job)}) has {outcome}")
        honest = [job for job, name in self.jobs.items() if name in {"high", "low"}]
        for problem in self._work(len(honest)):
            self._wrong(problem)
        for path in self.cluster.jobs.glob("hostile.o*"):
            with contextlib.suppress(ValueError):
                self.attacks.update(json.loads(path.read_text()))
        self.exits = EXITS * sum(name == "exits" for name in self.jobs.values())

    def _count_kernels(self) -> None:
        """Count what each honest program has run; process ids are used again, and the log is."""
        self._kernels_seen, rows = self._device.since(self._kernels_seen)
        with self._journal.open() as journal:  # after the log: who has launched is in it
            journal.seek(self._journal_read)
            text = journal.read()
        self._journal_read += len(text)
        for line in text.splitlines():
            row = json.loads(line)
            if row["what"] == "begin":
                one = Program(pid=row["pid"], began_ns=row["at_ns"])
                self._programs.append(one)
                self._last[one.pid] = one
            elif row["what"] == "end":
                self._last[row["pid"]].ended_ns = row["at_ns"]
        for ran in rows:
            program = self._last.get(ran.pid)
            if program is not None and program.began_ns <= ran.called_ns <= program.ended_ns:
                program.kernels += 1

    def _work(self, honest: int) -> Iterator[str]:
        """Compare what honest programs say with what the device has run of them."""
        rows = [json.loads(line) for line in self._journal.read_text().splitlines()]
        if len(self._programs) != honest:
            yield f"{len(self._programs)} programs of {honest} honest jobs have begun"
        for one in self._programs:
            if one.kernels != STEPS * KERNELS:
                yield f"process {one.pid} has run {one.kernels} kernels, not {STEPS * KERNELS}"
        for row in rows:
            if row["what"] == "wrong":
                yield f"process {row['pid']}: {row['text']}"
            elif row["what"] == "waited":
                self.waits_s.append(row["s"])


def quarters(looks: Sequence[Look]) -> list[tuple[int, int]]:
    """Return the most memory, bytes, and descriptors in each quarter of a run."""
    size = max(1, len(looks) // 4)
    parts = [looks[begin : begin + size] for begin in range(0, 4 * size, size)]
    return [
        (max(one.rss_bytes for one in part), max(one.descriptors for one in part))
        for part in parts
        if part
    ]
