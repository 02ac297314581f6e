"""Processes of jobs on a shared GPU that fork, clone, exec, or never use it."""

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE, build
from tests.support.gpu_device import MIB, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.system.test_gpushare_daemon import limit_descriptors
from tests.system.test_gpushare_priority import gpu_counters, is_waiting, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
Make = Callable[..., SharedGpu]
#: A child without the handlers of fork(), so that it keeps all descriptors; it answers by its pid.
CLONE = (
    "(lambda libc: (lambda pid: pid or (time.sleep(600), os._exit(0)))"
    "(libc.syscall(56, 17, 0, 0, 0, 0)))(ctypes.CDLL(None))"
)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of clone() is x86-64's")
def test_a_child_that_keeps_the_sockets_does_not_keep_the_token(shared_gpu: Make) -> None:
    """The kernel tells the daemon of the parent's end, though the connection stays open."""
    gpu = shared_gpu(drain_max_s=60.0)
    holder, waiter = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert holder.call("cuda.launch(10)") == 0
    assert holder.call("cuda.alloc('plain', 1 << 20)[0]") == 0
    child = holder.call(CLONE)
    try:
        assert child > 0
        os.kill(holder.process.pid, signal.SIGSTOP)
        waiter.send("cuda.launch(10)")
        wait_until(lambda: is_waiting(gpu, "2.1"))

        holder.process.kill()

        wait_until(lambda: len(of(gpu.device.log(), waiter)) == 1)
        assert waiter.receive() == 0
        assert gpu_counters(gpu)["overlaps"] == 0
        assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0
        assert Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_high_job_waits_for_all_processes_of_a_low_one(shared_gpu: Make) -> None:
    """One of them has drained long before the other."""
    gpu = shared_gpu(drain_max_s=30.0)
    task = gpu.task("1", LOW)
    quick, slow = gpu.run(task), gpu.run(task)
    high = gpu.run(gpu.task("2", HIGH))
    assert quick.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert slow.call("cuda.launch(400_000)") == 0

    assert high.call("cuda.launch(10)") == 0

    log = gpu.device.log()
    assert of(log, high)[0].called_ns >= of(log, slow)[0].ended_ns
    assert gpu_counters(gpu)["overlaps"] == 0


def test_a_process_that_uses_no_gpu_is_not_known_and_nobody_waits_for_it(shared_gpu: Make) -> None:
    """As loaders of data: the library is in them, and they never call the driver."""
    gpu = shared_gpu(drain_max_s=60.0)
    task = gpu.task("1", LOW)
    loader = gpu.run(task, start=False)
    worker, high = gpu.run(task), gpu.run(gpu.task("2", HIGH))
    assert worker.call("cuda.launch(10) or cuda.synchronize()") == 0
    os.kill(loader.process.pid, signal.SIGSTOP)

    assert high.call("cuda.launch(10)") == 0
    assert gpu.metrics()["groups"]["1.1"]["pids"] == [worker.pid]


def test_a_process_that_executes_another_program_begins_anew(shared_gpu: Make) -> None:
    """It has the same number; what it held before is free, and it is one process, not two."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    assert job.call("cuda.launch(10)") == 0
    assert job.call(f"cuda.alloc('plain', {60 * MIB})[0]") == 0
    before = job.pid

    job.send(
        "(lambda sys: os.execv(sys.executable, [sys.executable, *sys.argv]))(__import__('sys'))"
    )
    assert job.receive() == before

    assert job.call("cuda.start()") == 0
    assert job.call(f"cuda.alloc('plain', {60 * MIB})[0]") == 0
    assert job.call("cuda.launch(10)") == 0
    group = gpu.metrics()["groups"]["1.1"]
    assert group["pids"] == [before]
    assert group["used_bytes"] == 60 * MIB


def serves(gpu: SharedGpu, count: int) -> bool:
    """Return whether so many processes of the job are known, with a block of 2 MiB each."""
    group = gpu.metrics()["groups"]["1.1"]
    return len(group["pids"]) == count and group["used_bytes"] == count * 2 * MIB


def test_many_processes_of_a_job_are_served_at_once(shared_gpu: Make) -> None:
    """No lock is shared between them, so one that is killed at any moment stops nobody."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=1 << 30), start=False)
    forks = (
        "[(lambda pid: pid or (cuda.start(), cuda.launch(10), cuda.alloc('plain', 1 << 20), "
        "time.sleep(600)))(os.fork()) for _ in range(40)]"
    )
    children = job.call(forks)
    try:
        wait_until(lambda: serves(gpu, 40))
        for child in children[::2]:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: serves(gpu, 20))
        assert job.call("cuda.start() or cuda.launch(10)") == 0
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_the_library_has_no_constructors_and_makes_no_streams(
    fake_driver: Path, library_cache: Path
) -> None:
    """Constructors run before the driver is ready; streams of its own would change the order of the
    program's, and a call of cuInit would make forks of the program useless."""
    compiler = find_compiler()
    assert compiler is not None
    library = build(library_cache, compiler, driver=fake_driver) / "libcuda.so.1"
    sections = subprocess.run(
        ["readelf", "-SW", str(library)], check=True, capture_output=True, text=True
    ).stdout
    sizes = re.findall(r"\.init_array\s+INIT_ARRAY\s+\w+ \w+ (\w+)", sections)
    assert [int(size, 16) for size in sizes] in ([], [8]), "8 bytes are the compiler's own"
    text = "".join(path.read_text() for path in NATIVE.glob("*.c"))
    for name in ("cuInit", "cuStreamCreate"):
        assert re.search(rf'REAL\({name}|gs_real\("{name}|[^_"]{name}\(', text) is None


@pytest.mark.parametrize("share_class", [ShareClass.HIGH, ShareClass.LOW])
def test_a_process_for_which_the_daemon_has_no_place_waits_and_is_not_uncontrolled(
    share_class: ShareClass, shared_gpu: Make
) -> None:
    """Though ``fail`` is ``open`` and its patience is short: the daemon answers."""
    gpu = shared_gpu(patience_s=0.1)
    environment = gpu.admit(gpu.task("1", share_class))
    daemon_pid = gpu.daemon_pid()
    limits = resource.prlimit(daemon_pid, resource.RLIMIT_NOFILE)
    limit_descriptors(daemon_pid, 0)
    job = gpu.start(environment)
    assert job.call("cuda.start()") == 0

    job.send("cuda.launch(10)")
    wait_until(lambda: "no place for this process now" in gpu.said)
    time.sleep(1.0)
    assert gpu.device.log() == []
    assert "launches pass" not in gpu.said

    resource.prlimit(daemon_pid, resource.RLIMIT_NOFILE, limits)
    assert job.receive() == 0
    assert job.call("cuda.alloc('plain', 1 << 20)[0]") == 0
    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 2 << 20


def test_a_stopped_daemon_does_not_keep_a_process_from_freeing_memory(shared_gpu: Make) -> None:
    """More is freed than the connection takes; the daemon knows what is left when it goes on."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", ShareClass.LOW, memory_bytes=4 << 30))
    assert job.call("[cuda.alloc('plain', 2 << 20)[0] for _ in range(3)]") == [0, 0, 0]
    job.call("globals().update(many=[cuda.alloc('plain', 2 << 20) for _ in range(1000)]) or 0")
    daemon_pid = gpu.daemon_pid()
    os.kill(daemon_pid, signal.SIGSTOP)
    try:
        job.send("[cuda.free('plain', one[1]) for one in many][-1]")
        wait_until(lambda: gpu.device.used_bytes == 3 * (2 << 20))
    finally:
        os.kill(daemon_pid, signal.SIGCONT)
    assert job.receive() == 0
    assert job.call("cuda.alloc('plain', 2 << 20)[0]") == 0
    # The daemon reads what the connection that was hung up still has.
    wait_until(lambda: gpu.metrics()["groups"]["1.1"]["used_bytes"] == 4 * (2 << 20))
