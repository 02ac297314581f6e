"""Descriptors and threads of a program: what it closes, replaces or ends is not the library's."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE
from tests.support.gpu_device import Job, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.support.processes import PATIENCE_S
from tests.system.test_gpushare_priority import of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.timeout(120)]

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
SOURCE = Path(__file__).resolve().parents[1] / "support" / "gpu_thread_end.c"
Make = Callable[..., SharedGpu]
#: Closes what the program may not have opened: all but its standard files.
CLOSE_ALL = "os.closerange(3, 4096)"


def numbers(job: Job) -> list[int]:
    """Return the descriptors of the library's sockets."""
    folder = Path(f"/proc/{job.pid}/fd")
    found = []
    for entry in folder.iterdir():
        try:
            if entry.readlink().name.startswith("socket:"):
                found.append(int(entry.name))
        except FileNotFoundError:
            continue
    return sorted(found)


def used(gpu: SharedGpu) -> Job:
    """Return a job that has launched and taken memory, and so has both channels."""
    job = gpu.run(gpu.task("1", LOW))
    assert job.call("cuda.alloc('plain', 4 << 20)")[0] == 0
    assert job.call("cuda.launch(10) or cuda.synchronize()") == 0
    return job


def test_the_numbers_of_the_library_are_high(shared_gpu: Make) -> None:
    """Programs use low ones, and shells and daemons close those below 256."""
    job = used(shared_gpu())

    assert len(numbers(job)) == 2
    assert min(numbers(job)) >= 512


def test_where_few_descriptors_are_allowed_low_numbers_do(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", LOW))
    job.call("__import__('resource').setrlimit(7, (200, 200))")
    assert job.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert len(numbers(job)) == 1


def test_a_program_that_closes_all_its_descriptors_goes_on(shared_gpu: Make) -> None:
    """It connects again; what it has of the GPU's memory counts again, and it can be drained."""
    gpu = shared_gpu()
    job, high = used(gpu), gpu.run(gpu.task("2", HIGH))
    job.call(CLOSE_ALL)
    assert job.call("cuda.launch(10, count=100) or cuda.synchronize()") == 0
    wait_until(lambda: gpu.metrics()["groups"].get("1.1", {}).get("used_bytes") == 4 << 20)

    assert "the program has closed the connection to the token daemon" in gpu.said
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert job.call("cuda.launch(10) or cuda.synchronize()") == 0
    result, pointer = job.call("cuda.alloc('plain', 4 << 20)")
    assert result == 0
    assert job.call(f"cuda.free('plain', {pointer})") == 0


@pytest.mark.parametrize("kind", ["file", "socket"])
def test_a_file_of_the_program_under_the_librarys_number_is_left_alone(
    kind: str, shared_gpu: Make, tmp_path: Path
) -> None:
    """It is neither read, written nor closed, whatever the library has to tell."""
    gpu = shared_gpu()
    job = used(gpu)
    ours = numbers(job)
    if kind == "file":
        (tmp_path / "own").write_text("own")
        opened = f"os.open({str(tmp_path / 'own')!r}, os.O_RDWR)"
        job.call(f"[globals().update(own={opened}), None][1]")
    else:
        job.call(
            "[globals().update(pair=__import__('socket').socketpair(1, 5)),"
            " globals().update(own=pair[0].fileno()), None][2]"
        )
    job.call(f"[os.dup2(own, number) for number in {ours}]")
    assert job.call("cuda.launch(10, count=100) or cuda.synchronize()") == 0
    result, pointer = job.call("cuda.alloc('plain', 4 << 20)")
    assert result == 0
    assert job.call(f"cuda.free('plain', {pointer})") == 0
    job.call("time.sleep(1.5)")

    same = f"[os.fstat(number).st_ino == os.fstat(own).st_ino for number in {ours}]"
    assert job.call(same) == [True, True]
    if kind == "file":
        assert (tmp_path / "own").read_text() == "own"
    else:
        assert job.call("[pair[1].setblocking(False), is_empty(pair[1])][1]") is True
    assert len([number for number in numbers(job) if number not in ours]) >= 2


def test_a_launch_in_a_key_destructor_has_a_place_of_its_own(
    shared_gpu: Make, tmp_path: Path, fake_driver: Path
) -> None:
    """The place of the thread that ends is a new thread's already, which is inside a launch."""
    gpu = shared_gpu(drain_max_s=30.0)
    program = tmp_path / "thread-end"
    compiler = find_compiler()
    assert compiler is not None
    words = [compiler, "-std=gnu11", "-O1", "-pthread", f"-I{NATIVE}", str(SOURCE)]
    linked = [f"-L{fake_driver.parent}", "-l:libcuda.so.1", "-o", str(program)]
    subprocess.run([*words, *linked], check=True)
    high = gpu.run(gpu.task("1", HIGH))
    environment = {**os.environ, **gpu.admit(gpu.task("2", LOW)), "GSCHED_FAKE_LOAD_MS": "1500"}
    with subprocess.Popen([program], env=environment, stdout=subprocess.PIPE, text=True) as low:
        assert low.stdout is not None
        assert low.stdout.readline() == "launched\n"
        assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
        assert low.wait(timeout=PATIENCE_S) == 0

    log = gpu.device.log()
    loaded = [one for one in log if one.pid == low.pid][-1]
    assert loaded.ended_ns <= of(log, high)[0].called_ns, "the launch was waited for"
