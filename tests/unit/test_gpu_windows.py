"""Which GPUs of a job are idle: what a node's sliding window finds in samples."""

import os
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gnode.core.live import LiveReports
from gnode.core.task import AttemptKey
from gnode.hw.idle import GREW_BYTES, GpuActivity, GpuWindow, with_samples
from gnode.hw.nvml import GpuSample, Nvml
from gnode.hw.sampling import Sampler, SamplingTarget, terminal_idle_s
from gsched.config.idle_gpus import IdleGpusConfig
from gsched.config.load import parse_config
from gsched.errors import ConfigError
from gsched.model.gpu_idle import IdleGpu
from gsched.model.resources import LiveUse, Load
from tests.support.cluster import wait_until
from tests.unit.test_gnode_nvml import SaidError, library

CONFIG = IdleGpusConfig(window_s=600.0, busy_percent=2.0, grace_s=300.0)
SAMPLE_S = 5.0
KEY = AttemptKey(1, 1)
GIB = 1024**3


def window_after(
    *phases: tuple[float, float], memory_bytes: int = GIB, has_process: bool = True
) -> GpuWindow:
    """Return the window of a GPU after phases: how long, and how busy, percent."""
    window, now_s = GpuWindow(CONFIG), 0.0
    for length_s, percent in phases:
        for _ in range(round(length_s / SAMPLE_S)):
            now_s += SAMPLE_S
            window.note(
                GpuActivity(
                    util_percent=percent, memory_bytes=memory_bytes, has_process=has_process
                ),
                now_s,
            )
    return window


def test_nothing_is_known_before_the_window_is_full_and_the_grace_period_does_not_count() -> None:
    early = window_after((895, 0))
    assert (early.known, early.idle(0), early.idle_sum_s) == (False, None, 0.0)

    late = window_after((905, 0))
    assert late.known
    assert late.idle(0) == IdleGpu(index=0, idle_s=605.0, held=True)
    assert late.idle_sum_s == 605.0


def test_a_burst_and_then_nothing_is_idle_since_the_end_of_the_burst() -> None:
    window = window_after((900, 95), (595, 0))
    assert window.known
    assert window.idle(0) is None, "a pause that is shorter than the window"

    window = window_after((900, 95), (600, 0), (300, 0))
    idle = window.idle(0)
    assert idle is not None
    assert idle.idle_s == pytest.approx(900.0, abs=SAMPLE_S)


def test_a_job_with_short_bursts_all_the_time_is_idle_and_its_bursts_are_not_idle_time() -> None:
    """5 s of work in 10 minutes, as of a program that keeps a GPU from looking idle."""
    window = window_after((305, 0), *[(5, 100), (595, 0)] * 6)
    assert window.idle(0) is not None
    assert window.idle_sum_s == pytest.approx(6 * 595, abs=2 * SAMPLE_S)


def test_work_ends_the_idle_time_within_seconds() -> None:
    window = window_after((2000, 0), (15, 100))
    assert window.idle(0) is None
    assert window.idle_sum_s == pytest.approx(1700, abs=2 * SAMPLE_S)


def test_memory_that_grows_is_work_and_memory_that_stays_is_not() -> None:
    window, now_s = GpuWindow(CONFIG), 300.0
    for step in range(400):
        now_s += SAMPLE_S
        grown = step * GREW_BYTES if step < 200 else 200 * GREW_BYTES
        window.note(GpuActivity(util_percent=0.0, memory_bytes=grown, has_process=True), now_s)
        if step in {199, 300}:
            assert window.idle(0) is None
    idle = window.idle(0)
    assert idle is not None
    assert idle.idle_s == pytest.approx(200 * SAMPLE_S, abs=2 * SAMPLE_S)


def test_a_gap_as_of_a_suspended_machine_begins_the_window_anew() -> None:
    window = window_after((1000, 0))
    assert window.idle(0) is not None
    window.note(GpuActivity(util_percent=0.0, memory_bytes=0, has_process=False), 9000.0)
    assert (window.known, window.idle(0)) == (False, None)
    window.note(GpuActivity(util_percent=0.0, memory_bytes=0, has_process=False), 100.0)
    assert not window.known


@pytest.mark.parametrize(("percent", "is_idle"), [(1.5, True), (2.5, False)])
def test_the_mean_of_the_window_counts(percent: float, is_idle: bool) -> None:  # noqa: FBT001 # a parameter of pytest
    assert (window_after((2000, percent)).idle(3) is not None) == is_idle


def test_a_window_has_ten_samples_at_least_and_none_stays_none() -> None:
    assert with_samples(CONFIG, 5.0) == CONFIG
    assert with_samples(CONFIG, 300.0).window_s == 3000.0
    assert with_samples(IdleGpusConfig(window_s=0), 300.0).window_s == 0


# --- what is sampled ---


class Gpus(Nvml):
    """GPUs that tests fill."""

    def __init__(self, *gpus: GpuSample) -> None:
        super().__init__()
        self.filled = gpus

    def samples(self, *, by_process: Collection[int] = ()) -> tuple[GpuSample, ...]:
        return self.filled


def gpu(percent: float = 0.0, pids: Iterable[int] = (), **changes: object) -> GpuSample:
    values: dict[str, object] = {
        "util_percent": percent,
        "memory_used_bytes": GIB,
        "process_memory_bytes": dict.fromkeys(pids, GIB),
        "pids": frozenset(pids),
        **changes,
    }
    return GpuSample(**values)  # type: ignore[arg-type]  # as the tests state them


def live_after(
    *gpus: GpuSample, held_s: float | None = None, shared: tuple[int, ...] = ()
) -> tuple[LiveUse, float]:
    """Return what is told of a job on these GPUs after half an hour, and its idle GPU time."""
    sampler: Sampler[str] = Sampler(Gpus(*gpus), CONFIG)
    whole = tuple(index for index in range(len(gpus)) if index not in shared)
    idle_s = 0.0
    for wall_s in range(60, 1860, 60):
        target = SamplingTarget(
            key="a",
            supervisor_pid=os.getppid(),
            cgroup=None,
            gpu_indices=whole,
            wall_s=float(wall_s),
            shared_gpus=shared,
        )
        held = {} if held_s is None else {"a": held_s * wall_s}
        usage, _ = sampler.sample([target], held)
        idle_s = usage["a"].gpu_idle_s
    return sampler.live["a"], idle_s


def idle_of(use: LiveUse) -> dict[int, bool]:
    """Return the idle GPUs, and whether the job is on them."""
    assert use.gpus_idle is not None
    return {each.index: each.held for each in use.gpus_idle}


def test_of_a_job_with_several_gpus_each_is_told_by_itself() -> None:
    own = os.getpid()
    use, idle_s = live_after(gpu(80, [own]), gpu(0, [own]), gpu(0))
    assert idle_of(use) == {1: True, 2: False}
    assert idle_s == pytest.approx(2 * 1500, abs=120)


def test_of_a_shared_gpu_the_job_s_own_part_counts() -> None:
    own, other = os.getpid(), 1
    busy = {other: 90.0}
    use, _ = live_after(gpu(90, [own, other], process_util_percent=busy), shared=(0,))
    assert idle_of(use) == {0: True}
    use, _ = live_after(gpu(90, [own, other], process_util_percent={own: 30.0}), shared=(0,))
    assert idle_of(use) == {}
    use, _ = live_after(gpu(90, [own], process_util_percent=None), shared=(0,), held_s=0.5)
    assert idle_of(use) == {}


def test_a_job_that_shares_a_gpu_by_mps_may_work_though_nvml_names_the_server_alone() -> None:
    own, server = os.getpid(), 987654
    mps = gpu(60, [server], process_util_percent={server: 60.0}, mps_pids=frozenset({own}))
    use, _ = live_after(mps, shared=(0,))
    assert idle_of(use) == {}
    use, _ = live_after(replace(mps, util_percent=0.0))
    assert idle_of(use) == {0: True}, "of a whole GPU the utilisation is the job's own"


def test_clients_of_an_mps_server_are_read_where_the_driver_tells_them() -> None:
    client = [SimpleNamespace(pid=44, usedGpuMemory=1)]
    made = library(nvmlDeviceGetMPSComputeRunningProcesses=client)
    assert [each.mps_pids for each in Nvml(made).samples()] == [{44}, {44}]
    old = library(nvmlDeviceGetMPSComputeRunningProcesses=SaidError("Not Supported"))
    assert [each.mps_pids for each in (*Nvml(old).samples(), *Nvml(library()).samples())] == [
        frozenset()
    ] * 4


@pytest.mark.parametrize("shared", [(), (0,)])
def test_a_gpu_with_mig_is_idle_only_without_any_process(shared: tuple[int, ...]) -> None:
    """NVML tells no utilisation of it: a process on it may work."""
    mig: dict[str, Any] = {"tells_util": False, "process_util_percent": None}
    use, _ = live_after(gpu(0, [os.getpid()], **mig), shared=shared)
    assert idle_of(use) == {}
    use, _ = live_after(gpu(0, [987654], **mig), shared=shared)
    assert idle_of(use) == {}, "it may be the job's, in another pid namespace"
    use, _ = live_after(gpu(0, **mig), shared=shared)
    assert idle_of(use) == {0: False}


def test_that_nvml_tells_no_utilisation_is_known() -> None:
    made = library(nvmlDeviceGetUtilizationRates=SaidError("Not Supported"))
    assert [each.tells_util for each in Nvml(made).samples()] == [False, False]
    assert all(each.tells_util for each in Nvml(library()).samples())


def test_a_job_without_gpus_and_a_node_that_does_not_look_tell_nothing() -> None:
    use, idle_s = live_after()
    assert (use.gpus_idle, idle_s) == (None, 0.0)
    sampler: Sampler[str] = Sampler(Gpus(gpu()), IdleGpusConfig(window_s=0))
    for wall_s in (5.0, 9000.0, 9005.0):
        sampler.sample(
            [
                SamplingTarget(
                    key="a",
                    supervisor_pid=os.getppid(),
                    cgroup=None,
                    gpu_indices=(0,),
                    wall_s=wall_s,
                )
            ]
        )
    assert sampler.live["a"].gpus_idle is None


def test_the_head_is_told_at_once_that_a_gpu_is_idle_and_hourly_nothing_more() -> None:
    live = LiveReports()
    live.connected()
    plain = LiveUse(gpus=1.0)
    live.due({KEY: plain}, Load(), 0.0)

    def idle(idle_s: float) -> LiveUse:
        return LiveUse(gpus=1.0, gpus_idle=(IdleGpu(index=1, idle_s=idle_s),))

    assert live.due({KEY: idle(600)}, Load(), 5.0) is not None
    assert live.due({KEY: idle(605)}, Load(), 10.0) is None, "a minute later is enough"
    assert live.due({KEY: LiveUse(gpus=1.0, gpus_idle=())}, Load(), 15.0) is not None


# --- the configuration ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[idle_gpus.queue]]\nname = "x"', "unknown queue 'x'"),
        (2 * '[[idle_gpus.queue]]\nname = "batch"\n', "duplicate queue 'batch'"),
        ("[idle_gpus]\nact_part = 0", "act_part"),
        ('[idle_gpus]\naction = "kill"', "action"),
    ],
)
def test_a_wrong_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(text, where="gsched.toml")


# --- terminals ---


def test_a_terminal_is_idle_since_something_was_typed_and_read() -> None:
    """On a real pseudoterminal: the kernel notes when its program has read."""
    master, slave = os.openpty()
    with subprocess.Popen(["cat"], stdin=slave, stdout=subprocess.DEVNULL) as process:
        past_s = time.time() - 1000.0
        os.utime(os.ttyname(slave), (past_s, past_s))
        idle_s = terminal_idle_s({process.pid})
        assert idle_s is not None
        assert idle_s >= 999.0

        os.write(master, b"x\n")
        wait_until(lambda: (terminal_idle_s({process.pid}) or 0.0) < 60.0, what="the line")
        process.kill()
    os.close(master)
    os.close(slave)


def test_a_process_without_a_terminal_has_none() -> None:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as process:
        assert terminal_idle_s({process.pid, 2**22 + 1}) is None
        process.kill()
