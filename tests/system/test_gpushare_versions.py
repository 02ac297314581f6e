"""A daemon, a library and a gnode of different releases, as an upgrade mixes them."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass, wire
from gnode.gpushare.build import ALIAS, LIBRARY, build
from gnode.gpushare.interception import InterceptionRuntime
from gsched.config.nodes import GpuShareConfig
from tests.support.gpu_device import MIB, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.support.share_watch import lives
from tests.system.test_gpushare_priority import gpu_counters, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
NEWER = wire.VERSION + 1
Make = Callable[..., SharedGpu]


def with_library(environment: dict[str, str], cache: Path, version: int) -> dict[str, str]:
    """Return an environment with a library that speaks another version."""
    compiler = find_compiler()
    assert compiler is not None
    folder = build(cache, compiler, extra_flags=(f"-DGS_WIRE_VERSION={version}", "-O0"))
    preload = f"{folder / LIBRARY}:{folder / ALIAS}"
    return {**environment, "LD_PRELOAD": preload, "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize("share_class", [HIGH, LOW])
def test_a_library_of_another_version_waits_and_says_so(
    share_class: ShareClass, shared_gpu: Make, library_cache: Path
) -> None:
    """Though ``fail`` is ``open`` and its patience is short: the daemon controls the other jobs."""
    gpu = shared_gpu(patience_s=0.1)
    environment = gpu.admit(gpu.task("1", share_class))
    job = gpu.start(with_library(environment, library_cache, NEWER))
    assert job.call("cuda.start()") == 0

    job.send("cuda.launch(10)")
    wait_until(lambda: "is of another version than this job's library" in gpu.said)
    time.sleep(1.0)

    assert gpu.device.log() == []
    assert "launches pass" not in gpu.said
    assert gpu.metrics()["groups"]["1.1"]["pids"] == []


def test_a_library_of_each_version_that_is_served_launches(
    shared_gpu: Make, library_cache: Path
) -> None:
    """Jobs keep the library that they have loaded over each upgrade."""
    gpu = shared_gpu()
    for number, version in enumerate(range(wire.OLDEST_VERSION, wire.VERSION + 1)):
        environment = gpu.admit(gpu.task(str(number), LOW))
        job = gpu.start(with_library(environment, library_cache, version))
        assert job.call("cuda.start()") == 0
        assert job.call("cuda.launch(10) or cuda.synchronize()") == 0
        assert job.call("cuda.alloc('plain', 2 << 20)[0]") == 0
        assert gpu.metrics()["groups"][f"{number}.1"]["used_bytes"] == 2 * MIB


@contextmanager
def hanging_up(path: Path) -> Iterator[list[bytes]]:
    """Stand for a daemon that knows no answer for other versions; yield what it was told."""
    heard: list[bytes] = []
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.1)

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    channel, _ = listener.accept()
                    with channel:
                        heard.append(channel.recv(512))

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield heard
        finally:
            over.set()
            server.join()


def test_a_daemon_that_hangs_up_without_an_answer_does_not_make_a_high_job_uncontrolled(
    shared_gpu: Make, tmp_path: Path
) -> None:
    """As daemons did on messages of another version before they had an answer for them."""
    gpu = shared_gpu(patience_s=0.1)
    environment = gpu.admit(gpu.task("1", HIGH))
    old = tmp_path / "old.sock"
    with hanging_up(old) as heard:
        job = gpu.start({**environment, "GSCHED_SHARE_SOCKET": str(old)})
        assert job.call("cuda.start()") == 0
        job.send("cuda.launch(10)")
        wait_until(lambda: len(heard) > 5)

        assert gpu.device.log() == []
        assert "hangs up without an answer" in gpu.said
        assert "launches pass" not in gpu.said
    job.close()


def test_a_daemon_of_another_release_is_replaced_and_its_jobs_go_on(shared_gpu: Make) -> None:
    """Its options stand for its code: both are of what names a release here."""
    gpu = shared_gpu(options=("--window", "4"))
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert low.call("cuda.alloc('plain', 2 << 20)[0]") == 0
    old = gpu.daemon_pid()
    gpu.runtime.close()  # its gnode ends; it has jobs, and goes on
    assert lives(old)
    low.send("cuda.train(1000, 5, 0, 3.0) and 0")
    wait_until(lambda: len(of(gpu.device.log(), low)) > 5)

    config = GpuShareConfig(driver=str(gpu.driver))
    gpu.runtime = InterceptionRuntime(config, gpu.folder / "gpushare")
    gpu.admit(gpu.task("1", HIGH))

    assert not lives(old)
    assert gpu.daemon_pid() != old
    wait_until(lambda: gpu.metrics()["groups"]["2.1"]["used_bytes"] == 2 * MIB)
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert low.receive() == 0
    assert gpu_counters(gpu)["overlaps"] == 0
    new = gpu.daemon_pid()
    gpu.admit(gpu.task("2", LOW))
    assert gpu.daemon_pid() == new, "it was replaced a second time"


def test_a_job_that_waits_for_another_version_launches_after_the_replacement(
    shared_gpu: Make,
) -> None:
    """A new library, whose gnode has not replaced the old daemon yet."""
    gpu = shared_gpu()
    environment = gpu.admit(gpu.task("1", HIGH))
    path = Path(environment["GSCHED_SHARE_SOCKET"])
    aside = path.with_name("aside.sock")
    os.rename(path, aside)
    with hanging_up(path) as heard:
        job = gpu.start(environment)
        assert job.call("cuda.start()") == 0
        job.send("cuda.launch(10)")
        wait_until(lambda: len(heard) > 1)
        assert gpu.device.log() == []
        os.rename(aside, path)

        assert job.receive() == 0
        wait_until(lambda: gpu.metrics()["groups"]["1.1"]["pids"] == [job.pid])
