"""One user's jobs while another one attacks in every way at once, for minutes (root only).

``hostile_bench.py --minutes N``. A head, two nodes as root, and two accounts that exist for the
run: one attacks by all kinds of hostile_attacks.py at the same time, the other submits a small job
after the other and waits for each, with a notice of every tenth, beside one job that runs all the
time. A fifth of the time nobody attacks, first: what is slow there, too, is the machine's.

What must hold: no job of the other user is lost or run twice; no node is ever away; of two halves
of the attack, the second one needs no more memory, descriptors, inodes or log than the first.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from hostile_attacks import KINDS, PROXY

from gsched.protocol.actions import DeleteJob
from tests.support.cluster import Cluster
from tests.support.mailbox import MailServer, serving
from tests.support.processes import attempts, processes_of
from tests.support.users import User, Users

NODES = ("n1", "n2")
NODE_CPUS = 64
SAMPLE_S = 5.0
LATE_S = 2.0
ALONE_PART = 0.2
ENDED_S = 30.0
CODE_KEPT = "200mb"  # reached within a minute: a quota that the attack never meets shows nothing
JOBS_KEPT = 20_000  # finished ones of a user: the attacker has a thousand a second
ATTACKS = Path(__file__).with_name("hostile_attacks.py")
VICTIM = Path(__file__).with_name("hostile_victim.py")
#: What may grow between the halves of an attack, as a part of the first half's, and at least.
GROWTH, GROWTH_LEAST = 0.10, {"memory_mib": 16.0, "descriptors": 32, "inodes": 400, "log_mib": 2.0}

#: The module of a daemon, but those of attempts: supervisors come and go with them.
DAEMON = re.compile(r"(?:gschedd|gnode)\.(?!supervisor)[a-z_.]+|gnode\.supervisor\.launcher")

HOOK = """#!/bin/sh
cat >/dev/null
echo "$GSCHED_JOB_ID $GSCHED_EVENT $(date +%s.%N)" >> {file}
"""


@dataclass(slots=True)
class Samples:
    """What the cluster needed, every few seconds.

    Attributes:
        taken: for each moment: seconds since the start, and each figure by its name.
        away: seconds at which a node was not up, and which.
    """

    taken: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    away: list[tuple[float, str]] = field(default_factory=list)


class Siege:
    """One cluster, its two users, and what is measured."""

    def __init__(self, top: Path, given: argparse.Namespace) -> None:
        self._top = top
        self._given = given
        self._marker = f"siege-{os.getpid()}"
        self._users = Users(top)
        self.good = self._users.add("alice")
        self.bad = self._users.add("mallory")
        self.cluster = Cluster(top / "c", self._marker)
        self.cluster.wrapper = self._users.wrapper()
        self.cluster.head_settings["single_user"] = False
        self.told = top / "told"
        self.samples = Samples()
        self.counts: dict[str, object] = {}
        self.left = 0
        self.begin_s = self.attacked_from_s = self.attacked_s = 0.0

    def start(self, mail_port: int) -> None:
        """Start the daemons."""
        hook = self._top / "hook"
        hook.write_text(HOOK.format(file=self.told))
        hook.chmod(0o755)
        self.cluster.queues = (
            f'[notify]\ncommand = "{hook}"\nhook_jobs = "requested"\nsmtp_host = "127.0.0.1"\n'
            f'smtp_port = {mail_port}\nsender = "head@example.invalid"\n'
            f"[history]\nkeep_jobs_per_user = {JOBS_KEPT}\n"
            f'[limits]\nsnapshots_per_user_bytes = "{CODE_KEPT}"\n'
        )
        self.cluster.start_head()
        for name in NODES:
            self.cluster.start_node(name, cpus=NODE_CPUS, wait=False)
        for name in NODES:
            self.cluster.wait_for_node(name)
        home = self._users.home(self.bad)
        (home / ".ssh").mkdir()
        (home / "proxy").write_text(PROXY)
        (home / "proxy").chmod(0o755)
        (home / ".ssh" / "config").write_text(f"Host evil\n  ProxyCommand {home}/proxy\n")
        for path in (home / ".ssh", home / ".ssh" / "config", home / "proxy"):
            os.chown(path, self.bad.uid, self.bad.gid)

    def run(self) -> Path:
        """Measure alone, then under attack; return the file of the good user's jobs."""
        total_s = self._given.minutes * 60
        record = self._users.home(self.good) / "jobs.jsonl"
        self.begin_s = time.monotonic()
        with self._as(self.good, "victim", VICTIM, str(self.cluster.socket), str(record)):
            self._watch(total_s * ALONE_PART)
            self.attacked_s = time.time()
            self.attacked_from_s = time.monotonic() - self.begin_s
            kinds = [kind for kind in KINDS if self._given.only in kind]
            with contextlib.ExitStack() as attacks:
                for kind in kinds:
                    words = (kind, str(self.cluster.socket), str(self._users.home(self.bad)))
                    started = self._as(self.bad, kind, ATTACKS, *words, str(self._given.seed))
                    attacks.enter_context(started)
                self._watch(total_s * (1 - ALONE_PART))
            self._end_jobs()
        return record

    @contextmanager
    def _as(self, user: User, name: str, program: Path, *words: str) -> Iterator[None]:
        """Run a program as a user meanwhile; what it prints at its end is kept by ``name``."""
        process = subprocess.Popen(
            [sys.executable, str(program), *words],
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            cwd=self._users.home(user),
            env=os.environ | {"HOME": str(self._users.home(user))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.nice(self._given.nice if user is self.bad else 0),  # noqa: PLW1509 - no threads yet
        )
        try:
            yield
            assert process.poll() is None, f"{name} ended with {process.returncode}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                printed = process.communicate(timeout=60)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                printed = process.communicate()[0]
            self.counts[name] = json.loads(printed) if printed.strip() else "?"

    def _watch(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            since_s = now_s - self.begin_s
            try:
                for row in self.cluster.head.nodes().nodes:
                    if row.state != "up":
                        self.samples.away.append((since_s, f"{row.name} {row.state}"))
            except Exception as error:  # noqa: BLE001 - whatever keeps root from an answer counts
                self.samples.away.append((since_s, f"head: {error}"))
            self.samples.taken.append((since_s, self._needs()))
            if int(since_s / 60) != int((since_s - SAMPLE_S) / 60):
                print(f"  {since_s / 60:5.1f} min {_shown(self.samples.taken[-1][1])}", flush=True)
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - now_s)))

    def _needs(self) -> dict[str, float]:
        """Return what the daemons and their directories need now."""
        needs: dict[str, float] = {"memory_mib": 0, "descriptors": 0, "processes": 0}
        for process in processes_of(self._marker, self.cluster.directory):
            with contextlib.suppress(psutil.Error, OSError):
                needs["processes"] += 1
                daemon = DAEMON.search(" ".join(process.cmdline()))
                if daemon is not None and process.uids().real == 0:
                    pss_mib = process.memory_full_info().pss / 2**20
                    needs["memory_mib"] += pss_mib
                    needs[daemon[0]] = needs.get(daemon[0], 0.0) + pss_mib
                    needs["descriptors"] += process.num_fds()
        count = 0
        for place in (self.cluster.state_dir, self.cluster.directory / "nodes"):
            for _, folders, files in os.walk(place):
                count += len(folders) + len(files)
        needs["inodes"] = count
        logs = self.cluster.directory.glob("*.log")
        needs["log_mib"] = sum(path.stat().st_size for path in logs) / 2**20
        needs["head_mib"] = _size(self.cluster.state_dir) / 2**20
        return needs

    def _end_jobs(self) -> None:
        """Delete the attacker's jobs and count its processes that are left after their ends."""
        jobs = tuple(str(row.id) for row in self.cluster.head.jobs(user=self.bad.name).jobs)
        if jobs:
            self.cluster.head.act(DeleteJob(ids=jobs))
        for _ in attempts(ENDED_S):
            self.left = sum(_uid(process) == self.bad.uid for process in psutil.process_iter())
            if not self.left:
                return


def _shown(needs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in needs.items())


def _size(directory: Path) -> int:
    total = 0
    for path, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _uid(process: psutil.Process) -> int:
    try:
        return int(process.uids().real)
    except psutil.Error:
        return -1


def report(siege: Siege, record: Path) -> int:
    """Print what was found; return 1 if anything that must hold did not."""
    wrong: list[str] = []
    jobs = [json.loads(line) for line in record.read_text().splitlines()]
    for name, chosen in (
        ("alone", [job for job in jobs if job["submit_s"] < siege.attacked_s]),
        ("attacked", [job for job in jobs if job["submit_s"] >= siege.attacked_s]),
    ):
        done = [job for job in chosen if job["state"] == "done"]
        lost = [job for job in chosen if job["state"] != "done" or job["outcome"] != 0]
        twice = [job for job in done if job["attempts"] != 1]
        wrong += [f"{name}: job {job['id']}: {job}" for job in (*lost, *twice)]
        for what in ("ack_ms", "start_ms", "end_ms"):
            values = sorted(job[what] for job in done)
            late = sum(value > LATE_S * 1000 for value in values)
            print(
                f"{name:9} {what:9} jobs {len(values):5}  p50 {statistics.median(values):8.1f}  "
                f"p99 {values[int(len(values) * 0.99)]:8.1f}  max {values[-1]:8.1f}  "
                f"later than {LATE_S:.0f} s: {late}"
            )
            if late and what == "start_ms" and name == "attacked":
                wrong.append(f"{late} jobs started later than {LATE_S:.0f} s")
    wrong += [f"at {since_s:.0f} s: {what}" for since_s, what in siege.samples.away]
    wrong += _growth(siege)
    for kind, counts in siege.counts.items():
        print(f"{kind:10} {counts}")
    print(_notices(siege, jobs))
    for log in siege.cluster.directory.glob("*.log"):
        if count := log.read_text(errors="replace").count("Traceback"):
            wrong.append(f"{log.name}: {count} tracebacks")
    for line in wrong[:40]:
        print(f"WRONG: {line}")
    print(f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


def _growth(siege: Siege) -> list[str]:
    begin_s, end_s = siege.attacked_from_s, siege.samples.taken[-1][0]
    middle_s = (begin_s + end_s) / 2
    first = [
        n
        for at_s, n in siege.samples.taken
        if begin_s + (middle_s - begin_s) / 3 < at_s <= middle_s
    ]
    second = [n for at_s, n in siege.samples.taken if at_s > middle_s + (end_s - middle_s) / 2]
    wrong = []
    for name in siege.samples.taken[-1][1]:
        before = statistics.median(n.get(name, 0.0) for n in first)
        after = statistics.median(n.get(name, 0.0) for n in second)
        print(f"{name:26} first half {before:10.1f}  end {after:10.1f}  ({after - before:+.1f})")
        if name in GROWTH_LEAST and after - before > max(GROWTH_LEAST[name], GROWTH * before):
            wrong.append(f"{name} grew from {before:.1f} to {after:.1f}")
    if siege.left:
        wrong.append(f"{siege.left} processes outlive their jobs")
    return wrong


def _notices(siege: Siege, jobs: Sequence[dict]) -> str:
    """Return how long the good user's notices took."""
    told: dict[str, float] = {}
    if siege.told.exists():
        for line in siege.told.read_text().splitlines():
            job, event, at_s = line.split()
            if event == "end":
                told[job.partition(".")[0]] = float(at_s)
    chosen = [job for job in jobs if job["notice"]]
    taken = [told[str(j["id"])] - j["ended_s"] for j in chosen if str(j["id"]) in told]
    most = f", p50 {statistics.median(taken):.2f} s, max {max(taken):.2f} s" if taken else ""
    return f"notices of the other user: {len(taken)} of {len(chosen)}{most}"


def main(given: argparse.Namespace) -> int:
    """Run it all."""
    if os.getuid() != 0:
        print("hostile: --minutes needs root: two accounts are made for it", file=sys.stderr)
        return 2
    top = Path(tempfile.mkdtemp(prefix="gsched-siege-"))
    top.chmod(0o755)
    siege = Siege(top, given)
    try:
        with serving(MailServer()) as mails:
            siege.start(mails.port)
            record = siege.run()
            status = report(siege, record)
    finally:
        siege.cluster.stop()
        for process in psutil.process_iter():  # what attacks have left
            with contextlib.suppress(psutil.Error):
                if process.uids().real == siege.bad.uid:
                    process.kill()
    if status:
        print(f"hostile: everything is in {top}")
    else:
        shutil.rmtree(top)
    return status
