"""Jobs of two classes on one GPU, and what happens when a part of it fails.

The device's own log tells what ran when; nothing here is measured by the time that a test takes.
"""

import itertools
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass
from gnode.gpushare.build import build
from gsched.unix_address import address_of
from tests.support.gpu_device import Job, Ran, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.support.processes import PATIENCE_S

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
Make = Callable[..., SharedGpu]
MS = 1_000_000


def of(log: list[Ran], job: Job) -> list[Ran]:
    """Return what a job's process has run."""
    return [one for one in log if one.pid == job.pid]


def is_waiting(gpu: SharedGpu, group: str) -> bool:
    """Return whether the daemon knows that a job waits for the token."""
    return gpu.metrics()["groups"][group]["waiting"] is True


def gpu_counters(gpu: SharedGpu) -> dict[str, Any]:
    """Return the counters of the GPU."""
    counters: dict[str, Any] = gpu.metrics()["gpus"]["GPU-fake"]
    return counters


def test_a_high_job_waits_for_the_window_of_a_low_one_and_for_no_more(shared_gpu: Make) -> None:
    """The low job has endless kernels of 5 ms; the high one comes three times, each for a moment.

    No more launches of the low job than its window are ever unfinished, and all of them have ended
    when the high job launches.
    """
    window = 2
    gpu = shared_gpu(drain_max_s=30.0, options=("--window", str(window)))
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    low.send("len(cuda.train(5000, 20, 0, 3.0))")
    for _ in range(3):
        high.call("time.sleep(0.15)")
        assert high.call("cuda.launch(1000, count=3) or cuda.synchronize()") == 0
    assert low.receive()

    log = gpu.device.log()
    lows = of(log, low)
    for number, one in enumerate(lows):
        unfinished = [other for other in lows[:number] if other.ended_ns > one.called_ns]
        assert len(unfinished) < window
    firsts = of(log, high)[1::3]
    assert len(firsts) == 3
    for first in firsts:
        before = [one for one in lows if one.called_ns < first.called_ns]
        assert before
        assert all(one.ended_ns <= first.called_ns for one in before)
    assert gpu_counters(gpu)["preemptions"] >= 3
    assert gpu_counters(gpu)["overlaps"] == 0


def test_without_membarrier_the_gate_closes_all_the_same(shared_gpu: Make) -> None:
    """As in sandboxes that refuse the system call: the launch path has a fence instead."""
    gpu = shared_gpu(drain_max_s=30.0)
    compiler = find_compiler()
    assert compiler is not None
    other = build(gpu.folder / "other", compiler, extra_flags=("-DGS_WITHOUT_MEMBARRIER",))
    environment = gpu.admit(gpu.task("2", LOW)) | {"LD_PRELOAD": str(other / "libcuda.so.1")}
    low, high = gpu.start(environment), gpu.run(gpu.task("1", HIGH))
    assert low.call("cuda.start()") == 0
    low.send("len(cuda.train(5000, 20, 0, 0.6))")
    wait_until(lambda: len(of(gpu.device.log(), low)) > 3)
    assert high.call("cuda.launch(100) or cuda.synchronize()") == 0
    assert low.receive()

    log = gpu.device.log()
    first = of(log, high)[0]
    before = [one for one in of(log, low) if one.called_ns < first.called_ns]
    assert before
    assert all(one.ended_ns <= first.called_ns for one in before)
    assert gpu_counters(gpu)["overlaps"] == 0


def test_no_low_kernel_starts_while_a_high_job_is_busy(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    high.send("cuda.launch(500_000) or cuda.synchronize()")
    wait_until(lambda: len(of(gpu.device.log(), high)) == 1)
    low.send("cuda.launch(1000)")
    assert high.receive() == 0
    assert low.receive() == 0

    long, short = gpu.device.log()
    assert short.called_ns >= long.ended_ns


def test_low_jobs_take_turns_and_both_go_on(shared_gpu: Make) -> None:
    """Slices, not kernels, alternate; each gets its part."""
    gpu = shared_gpu(drain_max_s=30.0)
    jobs = [gpu.run(gpu.task(name, LOW)) for name in ("1", "2")]
    for job in jobs:
        job.send("len(cuda.train(500, 20, 0, 1.0))")
    for job in jobs:
        assert job.receive()

    log = gpu.device.log()
    busy = [sum(one.ended_ns - one.started_ns for one in of(log, job)) for job in jobs]
    switches = sum(a.pid != b.pid for a, b in itertools.pairwise(log))
    assert min(busy) > 0.2 * sum(busy)
    assert 2 <= switches <= 40
    assert gpu_counters(gpu)["overlaps"] == 0


def test_processes_of_one_job_hold_the_token_together(shared_gpu: Make) -> None:
    """Or two ranks that wait for each other would never end."""
    gpu = shared_gpu()
    task = gpu.task("1", LOW)
    jobs = [gpu.run(task), gpu.run(task)]
    for job in jobs:
        assert job.call("cuda.launch(100) or cuda.synchronize()") == 0

    assert gpu_counters(gpu)["grants"] == 1


@pytest.mark.parametrize(
    "launch",
    [
        "cuda.launch(10)",
        "cuda.launch_ex(10)",
        "cuda.launch_cooperative(10)",
        "cuda.fill()",
        "cuda.replay(graph)",
        "cuda.api.cuLaunchKernel_ptsz(None, 10, 1, 1, 1, 1, 1, 0, None, None, None)",
    ],
)
def test_every_kind_of_launch_waits_at_the_gate(launch: str, shared_gpu: Make) -> None:
    """The other job is stopped while it holds the token, so the launch cannot pass."""
    gpu = shared_gpu(drain_max_s=60.0)
    holder, job = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    graph = job.call("cuda.capture(10, 3)[1]")
    assert holder.call("cuda.launch(10)") == 0
    os.kill(holder.process.pid, signal.SIGSTOP)
    before = len(gpu.device.log())

    job.send(launch.replace("graph", json.dumps(graph)))
    wait_until(lambda: is_waiting(gpu, "2.1"))
    assert len(gpu.device.log()) == before
    os.kill(holder.process.pid, signal.SIGCONT)

    assert job.receive() == 0
    assert len(gpu.device.log()) == before + 1


# ---- failures ----


def test_the_death_of_a_holder_lets_a_waiter_launch(shared_gpu: Make) -> None:
    """The waiter is known to wait before the kill; nobody answers for the dead one."""
    gpu = shared_gpu(drain_max_s=60.0)
    holder, waiter = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert holder.call("cuda.launch(10)") == 0
    os.kill(holder.process.pid, signal.SIGSTOP)
    waiter.send("cuda.launch(10)")
    wait_until(lambda: is_waiting(gpu, "2.1"))
    assert len(gpu.device.log()) == 1

    holder.process.kill()

    assert waiter.receive() == 0
    assert gpu_counters(gpu)["overlaps"] == 0


def test_a_stopped_holder_is_overtaken_and_finds_a_closed_gate(shared_gpu: Make) -> None:
    gpu = shared_gpu(drain_max_s=0.2)
    low, high = gpu.run(gpu.task("1", LOW)), gpu.run(gpu.task("2", HIGH))
    assert low.call("cuda.launch(10)") == 0
    os.kill(low.process.pid, signal.SIGSTOP)

    assert high.call("cuda.launch(10)") == 0
    assert gpu_counters(gpu)["overlaps"] == 1
    high.send("cuda.launch(500_000) or cuda.synchronize()")
    wait_until(lambda: len(of(gpu.device.log(), high)) == 2)
    os.kill(low.process.pid, signal.SIGCONT)
    assert low.call("cuda.launch(10)") == 0
    assert high.receive() == 0

    log = gpu.device.log()
    assert of(log, low)[1].called_ns >= of(log, high)[1].ended_ns
    assert gpu.metrics()["groups"]["1.1"]["overlaps"] == 1


def test_an_endless_kernel_is_overtaken(shared_gpu: Make) -> None:
    """The device runs one kernel at a time, so only the launch goes on, as on a real GPU."""
    gpu = shared_gpu(drain_max_s=0.2)
    low, high = gpu.run(gpu.task("1", LOW)), gpu.run(gpu.task("2", HIGH))
    assert low.call("cuda.launch(3_000_000)") == 0

    assert high.call("cuda.launch(10)") == 0

    log = gpu.device.log()
    assert of(log, high)[0].called_ns < of(log, low)[0].ended_ns
    assert gpu_counters(gpu)["overlaps"] == 1


def test_a_high_job_goes_on_when_the_daemon_dies_and_keeps_the_token(shared_gpu: Make) -> None:
    """The next daemon knows the job, and its claim comes before others.

    The GPU has work for two seconds, so that the job is not idle when its host is late.
    """
    gpu = shared_gpu()
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert high.call("cuda.launch(10)") == 0
    assert high.call("cuda.alloc('plain', 1 << 20)[0]") == 0
    high.send("cuda.pipeline(4000, 5, 0, 5.0, depth=100)[0]")
    wait_until(lambda: len(gpu.device.log()) > 400)
    low.send("cuda.launch(10)")
    wait_until(lambda: is_waiting(gpu, "2.1"))

    dead = gpu.daemon_pid()
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: gpu.runtime.keeper.restarts == 1)
    wait_until(lambda: gpu_counters(gpu)["holder"] == "1.1")

    assert gpu.daemon_pid() != dead
    assert high.receive()
    assert low.receive() == 0
    assert "launches pass without it" in gpu.said


def test_a_low_job_waits_for_the_next_daemon(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    low = gpu.run(gpu.task("1", LOW))
    assert low.call("cuda.launch(10)") == 0
    assert low.call("cuda.alloc('plain', 4 << 20)[0]") == 0

    os.kill(gpu.daemon_pid(), signal.SIGKILL)
    wait_until(lambda: gpu.runtime.keeper.restarts == 1)
    wait_until(lambda: gpu.metrics()["groups"]["1.1"]["used_bytes"] == 4 << 20)

    assert low.call("cuda.launch(10)") == 0
    assert low.call("cuda.alloc('plain', 1 << 20)[0]") == 0
    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 6 << 20
    assert "launches wait for the next one" in gpu.said


@pytest.mark.parametrize(
    ("fail", "result", "words"),
    [("open", 0, "launches pass without it"), ("closed", 802, "launches are refused")],
)
def test_without_a_daemon_the_site_decides_and_it_is_said(
    fail: str, result: int, words: str, shared_gpu: Make
) -> None:
    gpu = shared_gpu(fail=fail, patience_s=0.2)
    environment = gpu.admit(gpu.task("1", LOW))
    low = gpu.start({**environment, "GSCHED_SHARE_SOCKET": str(gpu.folder / "nothing")})
    assert low.call("cuda.start()") == 0

    assert low.call("cuda.launch(10)") == result
    assert words in gpu.said


def test_without_a_daemon_each_process_still_has_the_limit(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    environment = gpu.admit(gpu.task("1", LOW, memory_bytes=64 << 20))
    low = gpu.start({**environment, "GSCHED_SHARE_SOCKET": str(gpu.folder / "nothing")})
    assert low.call("cuda.start()") == 0

    assert low.call("cuda.alloc('plain', 65 << 20)[0]") == 2
    assert low.call("cuda.alloc('plain', 64 << 20)[0]") == 0


def test_a_process_with_a_wrong_secret_gets_nothing(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    environment = gpu.admit(gpu.task("1", LOW))
    stranger = gpu.start({**environment, "GSCHED_SHARE_SECRET": "0" * 64})
    assert stranger.call("cuda.start()") == 0

    assert stranger.call("cuda.launch(10)") == 800
    assert stranger.call("cuda.alloc('plain', 1)[0]") == 2
    assert "does not know this job" in gpu.said


def test_a_released_job_can_launch_no_more(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    task = gpu.task("1", LOW)
    job = gpu.run(task)
    assert job.call("cuda.launch(10)") == 0

    gpu.runtime.release(task)

    assert job.call("time.sleep(0.5) or cuda.launch(10)") == 800


def test_a_forked_child_launches_for_the_same_job_and_its_end_is_not_the_parents(
    shared_gpu: Make,
) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", LOW))
    assert job.call("cuda.launch(10)") == 0

    job.send("forked(lambda: [cuda.launch(10), time.sleep(1.0) or cuda.synchronize()])")
    wait_until(lambda: len(gpu.metrics()["groups"]["1.1"]["pids"]) == 2)
    assert job.receive() == [0, 0]
    assert job.call("cuda.launch(10)") == 0
    wait_until(lambda: len(gpu.metrics()["groups"]["1.1"]["pids"]) == 1)


def test_recording_a_graph_is_not_disturbed_by_losing_the_token(shared_gpu: Make) -> None:
    """What is recorded does not run, so the high job does not wait for its end."""
    gpu = shared_gpu(drain_max_s=30.0)
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert low.call("cuda.launch(10)") == 0
    low.send("cuda.capture(1000, 5, hook=lambda: time.sleep(0.5))[0]")
    high.send("time.sleep(0.1) or cuda.launch(10)")

    assert low.receive() == [0, 0, 0, 0]
    assert high.receive() == 0
    assert gpu_counters(gpu)["overlaps"] == 0


def test_the_gate_cannot_be_written_by_a_job(shared_gpu: Make) -> None:
    """The page is mapped read-only, and sealed against any other way."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", LOW))
    assert job.call("cuda.launch(10)") == 0
    maps = job.call(
        "[line for line in open('/proc/self/maps').read().splitlines() if 'gsched-gate' in line]"
    )

    assert [line.split()[1] for line in maps] == ["r--s"]


def test_launches_with_an_open_gate_tell_the_daemon_nothing(shared_gpu: Make) -> None:
    """Not a message, and no wait: switches of the process stay few."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", LOW))
    assert job.call("cuda.launch(0)") == 0
    before = gpu_counters(gpu)

    switches = job.call(
        "(lambda resource: [resource.getrusage(0).ru_nvcsw, cuda.launch(0, count=20000), "
        "resource.getrusage(0).ru_nvcsw])(__import__('resource'))"
    )

    assert switches[1] == 0
    assert switches[2] - switches[0] < 100
    assert gpu_counters(gpu) == before


def test_bad_messages_end_a_connection_and_nothing_else(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", LOW))
    assert job.call("cuda.launch(10)") == 0
    path = gpu.folder / "gpushare" / "token.sock"
    for data in (b"x", b"\2\0" + b"\xff" * 62, b"\2\0\3\0" + b"\0" * 60, b"\2\0\1\0" + b"\0" * 300):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(PATIENCE_S)
            with address_of(path) as address:
                channel.connect(address)
            channel.send(data)
            assert (channel.recv(64) == b"") == (data[2:3] != b"\1")  # a stranger is answered
    assert gpu.metrics()["bad_messages"] == 3
    assert job.call("cuda.launch(10)") == 0
