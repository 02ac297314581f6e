"""Who uses this node's GPUs beside its jobs: compute processes in no control group of theirs."""

import logging
import os
import pwd
import signal
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from gnode.hw import cgroups
from gnode.hw.nvml import GpuSample
from gsched.config.nodes import OutsideConfig
from gsched.model.gpu_outside import MAX_OUTSIDE_ROWS, GpuUse, OutsideUse

log = logging.getLogger(__name__)

#: From TERM to KILL, seconds.
KILL_AFTER_S: Final = 10.0
_WORD_MAX = 256


class _Process(NamedTuple):
    """A process on a GPU; its start tells it from a later one with the same number."""

    gpu: int
    pid: int
    started_s: float


@dataclass(slots=True)
class OutsideWatch:
    """Looks at the processes on GPUs, again and again.

    A process counts once it was there at two looks: one of a job that has just started or ended
    may not be in its group for a moment.

    Attributes:
        config: what is done with them.
        group: the control group below which all attempts of this node are, as
            /proc/PID/cgroup names it; empty: there is none, and descent counts.
    """

    config: OutsideConfig
    group: str = ""
    _seen: dict[_Process, float] = field(default_factory=dict)
    _terminated: set[_Process] = field(default_factory=set)

    def look(
        self,
        samples: Sequence[GpuSample],
        supervisors: Collection[int],
        now_s: float,
    ) -> GpuUse | None:
        """Return who is on the GPUs beside the jobs; None where NVML tells nothing.

        Args:
            samples: of all GPUs, by index.
            supervisors: processes below which the jobs of this node run.
            now_s: seconds since the epoch.
        """
        if not samples:
            return None
        strangers = {} if self.config.action == "ignore" else self._strangers(samples, supervisors)
        rows: list[OutsideUse] = []
        seen: dict[_Process, float] = {}
        for process, program in strangers.items():
            before_s = self._seen.get(process)
            seen[process] = now_s if before_s is None else before_s
            if before_s is not None:
                sample = samples[process.gpu]
                rows.append(self._row(process, program, sample, before_s))
        self._seen = seen
        self._terminated &= seen.keys()
        self._end(rows, now_s)
        return GpuUse(
            outside=tuple(rows[:MAX_OUTSIDE_ROWS]),
            avoid=self.config.action != "warn",
        )

    def _strangers(
        self, samples: Sequence[GpuSample], supervisors: Collection[int]
    ) -> dict[_Process, str]:
        """Return the processes that belong to no job of this node, and their programs."""
        found: dict[_Process, str] = {}
        for index, sample in enumerate(samples):
            for pid in sample.pids:
                try:
                    process = psutil.Process(pid)
                    program, started_s = process.name(), process.create_time()
                    if self._is_ignored(process, program) or self._is_of_job(process, supervisors):
                        continue
                except psutil.Error:
                    continue  # it has ended
                found[_Process(index, pid, started_s)] = program
        return found

    def _is_ignored(self, process: psutil.Process, program: str) -> bool:
        """Return whether a process may use GPUs, by the name of its program.

        A process chooses its own name, and in a mount namespace that of its file. So it counts
        for a process of root, and for a file of root that has this path here, too. Only root can
        look at the files of others: without it the name is all there is.
        """
        if program not in self.config.ignored:
            return False
        if process.uids().real == 0 or os.geteuid() != 0:
            return True
        path = process.exe()
        try:
            file, here = os.stat(f"/proc/{process.pid}/exe"), os.stat(path)
        except OSError:
            return False
        own = file.st_uid == 0 and not file.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return own and Path(path).name == program and os.path.samestat(file, here)

    def _is_of_job(self, process: psutil.Process, supervisors: Collection[int]) -> bool:
        if self.group:
            own = cgroups.own_paths(Path(f"/proc/{process.pid}")).get("", "")
            if own.startswith(f"{self.group}/"):
                return True
        return any(parent.pid in supervisors for parent in process.parents())

    def _row(
        self, process: _Process, program: str, sample: GpuSample, since_s: float
    ) -> OutsideUse:
        ends = self.config.action == "end"
        return OutsideUse(
            index=process.gpu,
            pid=process.pid,
            user=_user_of(process.pid),
            program="".join(each if each.isprintable() else "?" for each in program[:_WORD_MAX]),
            memory_bytes=sample.process_memory_bytes.get(process.pid, 0),
            since_s=since_s,
            ends_s=since_s + self.config.grace_s if ends else 0.0,
        )

    def _end(self, rows: Sequence[OutsideUse], now_s: float) -> None:
        """End processes whose time is over: TERM, and KILL later."""
        for row in rows:
            if not row.ends_s or now_s < row.ends_s:
                continue
            key = next(each for each in self._seen if each[:2] == (row.index, row.pid))
            kills = now_s >= row.ends_s + KILL_AFTER_S
            if key in self._terminated and not kills:
                continue
            self._terminated.add(key)
            number = signal.SIGKILL if kills else signal.SIGTERM
            log.warning(
                "sent %s to process %d (%s of %s): it uses GPU %d and belongs to no job",
                *(number.name, row.pid, row.program, row.user, row.index),
            )
            try:
                process = psutil.Process(row.pid)
                if process.create_time() == key.started_s:
                    os.kill(row.pid, number)
            except (psutil.Error, ProcessLookupError):
                continue  # it has ended
            except PermissionError as error:
                log.warning("process %d cannot be ended: %s", row.pid, error)


def _user_of(pid: int) -> str:
    try:
        uid = psutil.Process(pid).uids().real
    except psutil.Error:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
