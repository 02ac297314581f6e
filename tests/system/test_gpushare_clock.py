"""The time of day is set while jobs share a GPU."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass
from tests.support.gpu_device import Job, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.system.test_gpushare_priority import gpu_counters, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

#: Each look at the time of day finds it an hour before or behind the last one.
JUMPING = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static _Atomic unsigned int looks;
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += looks++ % 2 ? 3600 : -3600;
    return result;
}
time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict place, void *restrict zone) {
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    *place = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return result;
}
"""


@pytest.fixture
def jumping(tmp_path: Path) -> Path:
    """Return a library in which the time of day jumps."""
    compiler = find_compiler()
    assert compiler is not None
    source, made = tmp_path / "jumping.c", tmp_path / "jumping.so"
    source.write_text(JUMPING)
    command = [compiler, "-shared", "-fPIC", "-w", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


def test_jobs_take_turns_and_are_overtaken_while_the_time_of_day_jumps(
    jumping: Path, shared_gpu: Callable[..., SharedGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the token daemon and for the library: slices, drains and idleness are measured right."""
    gpu = shared_gpu(drain_max_s=3.0)  # a busy machine needs tenths for a drain
    monkeypatch.setenv("LD_PRELOAD", str(jumping))
    environments = [
        gpu.admit(gpu.task("1", ShareClass.HIGH)),
        *(gpu.admit(gpu.task(name, ShareClass.LOW)) for name in ("2", "3")),
    ]
    monkeypatch.delenv("LD_PRELOAD")
    maps = Path(f"/proc/{gpu.daemon_pid()}/maps").read_text()
    assert str(jumping) in maps, "the daemon has the right time"

    def start(environment: dict[str, str]) -> Job:
        job = gpu.start({**environment, "LD_PRELOAD": f"{environment['LD_PRELOAD']}:{jumping}"})
        assert job.call("abs(time.time() - time.time()) > 1000")
        assert job.call("cuda.start()") == 0
        return job

    high, first, second = map(start, environments)
    for low in (first, second):
        low.send("len(cuda.train(500, 4, 0, 2.0))")
    for _ in range(10):
        assert high.call("cuda.launch(500, count=2) or cuda.synchronize()") == 0
        high.call("time.sleep(0.05)")
    assert min(low.receive() for low in (first, second)) > 5
    counters = gpu_counters(gpu)
    assert counters["preemptions"] > 0
    assert counters["overlaps"] == 0

    first.send("cuda.launch(30_000_000) or cuda.synchronize()")
    wait_until(
        lambda: any(one.ended_ns - one.started_ns > 1e9 for one in of(gpu.device.log(), first))
    )
    assert second.call("cuda.launch(10)") == 0
    assert gpu_counters(gpu)["overlaps"] == 1
