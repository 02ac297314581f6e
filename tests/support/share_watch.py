"""What happens on shared GPUs, as the fake devices, the processes and the head's records show it.

None of it is told by the parts under test: devices count memory and write down each kernel, jobs
write who they are, and the kernel of this machine says which of them live. The head's books are
added up here from its facts, without the head's code.
"""

import contextlib
import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gsched.model.resources import WHOLE_PERCENT, Share
from gsched.model.states import ShareClass
from gschedd.core.state import facts as f
from tests.support.gpu_device import Device
from tests.support.judge import facts_of

LOOK_S: Final = 0.05
CARD_BYTES: Final = 16 << 30
GpuKey = tuple[str, int]  # node and index


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an attempt has of a GPU; ``share_class`` is empty for a whole one."""

    job: int
    attempt: int
    percent: int
    memory_bytes: int
    share_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A process that has said who it is."""

    pid: int
    gpu: GpuKey
    holding: Holding


def crowded(holdings: Iterable[Holding]) -> str:
    """Return what is wrong with these holdings of one GPU at one moment; empty: nothing."""
    held = list(holdings)
    percent = sum(each.percent for each in held)
    memory_bytes = sum(each.memory_bytes for each in held)
    high = [each.job for each in held if each.share_class == ShareClass.HIGH]
    whole = [each for each in held if not each.share_class]
    names = ", ".join(f"{each.job}.{each.attempt}" for each in held)
    if whole and len(held) > 1:
        return f"a whole GPU for {names}"
    if percent > WHOLE_PERCENT:
        return f"{percent} % for {names}"
    if memory_bytes > CARD_BYTES:
        return f"{memory_bytes} bytes for {names}"
    if len(high) > 1:
        return f"jobs of the class high: {high}"
    return ""


def book_problems(database: Path) -> Iterator[str]:
    """Add up what attempts own after each fact of the head; yield what was given twice."""
    owned: dict[tuple[int, int], list[tuple[GpuKey, Holding]]] = {}
    for number, fact in enumerate(facts_of(database), 1):
        match fact:
            case f.AttemptAssigned() | f.AttemptRecovered():
                key = fact.job, fact.attempt
                owned[key] = [each for share in fact.allocation for each in _held(share, *key)]
                for gpu in {place for place, _ in owned[key]}:
                    here = [
                        one for all_of in owned.values() for place, one in all_of if place == gpu
                    ]
                    if problem := crowded(here):
                        yield f"fact {number} gives {problem} on GPU {gpu[1]} of {gpu[0]}"
            case f.AttemptEnded():
                owned.pop((fact.job, fact.attempt), None)
            case _:
                pass
    if owned:
        yield f"attempts own GPUs at the end: {sorted(owned)}"


def _held(share: Share, job: int, attempt: int) -> Iterator[tuple[GpuKey, Holding]]:
    for part in share.gpu_shares:
        yield (
            (share.node, part.index),
            Holding(
                job=job,
                attempt=attempt,
                percent=part.percent,
                memory_bytes=part.memory_bytes,
                share_class=str(part.share_class),
            ),
        )
    for index in share.gpu_indices:
        whole = Holding(
            job=job, attempt=attempt, percent=WHOLE_PERCENT, memory_bytes=0, share_class=""
        )
        yield (share.node, index), whole


@dataclass(slots=True)
class Watch:
    """Looks at devices, processes and the head's tables again and again, in a thread.

    Attributes:
        devices: the fake GPUs.
        journal: in which jobs write who they are and what went wrong.
        database: of the head.
        began: processes by id.
        problems: what was wrong, each once.
        looks: how often it has looked.
    """

    devices: dict[GpuKey, Device]
    journal: Path
    database: Path
    began: dict[int, Began] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)
    problems: dict[str, None] = field(default_factory=dict)
    looks: int = 0
    sharers_max: int = 0
    _live: set[int] = field(default_factory=set)
    _read_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="share-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Take one look at everything."""
        used = {gpu: device.used_by_process() for gpu, device in self.devices.items()}
        self._read_journal()  # after it, as a process says who it is before it allocates
        self.looks += 1
        self._live = {pid for pid in self._live if lives(pid)}
        for gpu, by_pid in used.items():
            self._judge(gpu, {pid: size for pid, size in by_pid.items() if lives(pid)})
        self._look_at_tables()

    def _read_journal(self) -> None:
        with self.journal.open("rb") as file:
            file.seek(self._read_bytes)
            content = file.read()
        lines, newline, _ = content.rpartition(b"\n")
        self._read_bytes += len(lines) + len(newline)
        for line in lines.splitlines():
            row = json.loads(line)
            match row["what"]:
                case "begin":
                    self.began[row["pid"]] = _began(row)
                    self._live.add(row["pid"])
                case "waited":
                    self.waits_s.append(row["s"])
                case "end":
                    pass
                case _:
                    who = self.began.get(row["pid"])
                    self.problems[f"{who and who.holding}: {row['text']}"] = None

    def _judge(self, gpu: GpuKey, used: dict[int, int]) -> None:
        """Judge the memory and the owners of the live processes on one GPU."""
        here = {pid: self.began[pid] for pid in self._live if self.began[pid].gpu == gpu}
        bytes_of: dict[Holding, int] = defaultdict(int)
        for pid, size in used.items():
            if pid in self.began:
                bytes_of[self.began[pid].holding] += size
        if sum(used.values()) > CARD_BYTES:
            self.problems[f"{sum(used.values())} bytes are in use on {gpu}"] = None
        for holding, size in bytes_of.items():
            if holding.memory_bytes and size > holding.memory_bytes:
                self.problems[f"{holding} uses {size} bytes"] = None
        holdings = {one.holding for one in here.values()}
        self.sharers_max = max(self.sharers_max, len(holdings))
        if problem := crowded(holdings):
            # One of them may have ended while the others were looked at.
            alive = {one.holding for pid, one in here.items() if lives(pid)}
            if crowded(alive):
                self.problems[f"on {gpu} live at once: {problem}"] = None

    def _look_at_tables(self) -> None:
        """Add up the rows of the head's database, if it can be read right now."""
        query = "SELECT node, gpu, sum(percent), sum(memory_bytes) FROM gpu_owners GROUP BY 1, 2"
        with contextlib.suppress(sqlite3.Error):
            link = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=0.1)
            with contextlib.closing(link) as rows:
                for node, gpu, percent, memory_bytes in rows.execute(query):
                    if percent > WHOLE_PERCENT or memory_bytes > CARD_BYTES:
                        text = f"rows give {percent} % and {memory_bytes} bytes of {node}:{gpu}"
                        self.problems[text] = None

    # ---- at the end ----

    def log_problems(self) -> Iterator[str]:
        """Judge by the devices' logs which attempts have launched at the same time."""
        for gpu, device in self.devices.items():
            spans: dict[Holding, tuple[int, int]] = {}
            for ran in device.log():
                who = self.began.get(ran.pid)
                if who is None:
                    yield f"process {ran.pid} has launched on {gpu} and not said who it is"
                    return
                first, _ = spans.get(who.holding, (ran.called_ns, 0))
                spans[who.holding] = first, ran.called_ns
            for holding, (first, _) in spans.items():
                at_once = [one for one, (begin, end) in spans.items() if begin <= first <= end]
                if problem := crowded(at_once):
                    yield f"on {gpu} launched at once, at {holding.job}'s first kernel: {problem}"

    def memory_problems(self) -> Iterator[str]:
        """Judge the most that each process has ever had, as its device has counted it."""
        for pid, one in self.began.items():
            peak = self.devices[one.gpu].peak_bytes(pid)
            if one.holding.memory_bytes and peak > one.holding.memory_bytes:
                yield f"process {pid} of {one.holding} had {peak} bytes"

    def next_launch_ns(self, gpu: GpuKey, after_ns: int, jobs: set[str]) -> int | None:
        """Return when one of the attempts (``JOB.ATTEMPT``) has launched next on a GPU."""
        for ran in self.devices[gpu].log():
            who = self.began.get(ran.pid)
            if who is None or ran.called_ns <= after_ns:
                continue
            if f"{who.holding.job}.{who.holding.attempt}" in jobs:
                return ran.called_ns
        return None


def _began(row: dict[str, Any]) -> Began:
    return Began(
        pid=row["pid"],
        gpu=(row["node"], row["gpu"]),
        holding=Holding(
            job=row["job"],
            attempt=row["attempt"],
            percent=row["percent"],
            memory_bytes=row["memory_bytes"],
            share_class=row["share_class"],
        ),
    )


def lives(pid: int) -> bool:
    """Return whether a process has not ended; one that waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
