"""What is to be known of a real driver and a real GPU before sharing is trusted on it.

Each question returns figures, and ``ok`` where there is a right answer.
"""

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE
from scripts.gpu.sharing_node import GIB, Node, Utilisation

Answer = dict[str, Any]

LIMIT: Final = 8 * GIB
LAUNCHES: Final = "500"
CAPTURES: Final = "40"
#: The watchdog looks once a second, and wants three samples in a row.
WATCHDOG_S: Final = 1.0
WATCHED_S: Final = 30.0
#: A high job of 22 kernels of 1 ms and 8 ms of its host; an endless low one of 0.2 ms.
BURSTS: Final = ("train", "1000", "22", "8")
SINGLE: Final = ("train", "1000", "1", "8")
ENDLESS: Final = ("train", "200", "50", "0")


def inventory(node: Node) -> Answer:
    """NVML: the GPUs, their memory and MIG instances, and how busy they are now."""
    return {
        "ok": bool(node.gpus) and len(node.nvml.samples()) == len(node.gpus),
        "gpus": [f"{one.type}, {one.memory_bytes / GIB:.0f} GiB" for one in node.gpus],
        "rate_mhz": [one.rate_mhz for one in node.gpus],
        "mig_instances": len(node.nvml.mig_instances()),
        "busy_percent": [one.util_percent for one in node.nvml.samples()],
    }


def sampling(node: Node) -> Answer:
    """NVML: its utilisation beside that of a process whose kernels are timed."""
    with Utilisation(node.nvml) as seen:
        (spans,) = node.train([(node.question(*BURSTS, "150"), node.plain())])
    median_ms = statistics.median([end - begun for begun, end in spans]) * 1e3
    return {"busy_percent": 100 * 22.0 / median_ms, "nvml_percent": seen.percent}


def start(node: Node) -> Answer:
    """Does the driver load through the library, and is the device as large as the limit?"""
    plain = node.ask(node.plain(), "device")
    shared = node.ask(node.shared(ShareClass.LOW, LIMIT), "device")
    return {
        "ok": shared["name"] == plain["name"] and shared["total_bytes"] == LIMIT,
        "name": plain["name"],
        "cuda": plain["cuda"],
        "start_s": plain["start_s"],
        "start_with_library_s": shared["start_s"],
    }


def lookups(node: Node) -> Answer:
    """Are the addresses of cuGetProcAddress those of dlsym, for all controlled entry points?"""
    found: Answer = node.ask(node.plain(), "lookups", node.driver, str(NATIVE / "cuda_symbols.txt"))
    return {"ok": not found["differing"], **found}


def libraries(node: Node) -> Answer:
    """Does the driver load itself again by name? One copy of it, and the library before it."""
    paths = node.ask(node.shared(ShareClass.LOW), "libraries")
    own = [path for path in paths if path.startswith(f"{node.folder}/main/")]
    drivers = [path for path in paths if path not in own and "libcuda.so" in path]
    return {"ok": bool(own) and len(drivers) == 1, "own": own, "drivers": drivers, "all": paths}


def captures(node: Node) -> Answer:
    """Do drains break the recording of graphs? A low job records while a high one wants the GPU."""
    with node.held(node.shared(ShareClass.HIGH), *SINGLE, "100000") as high:
        assert high.stdin is not None
        high.stdin.write("\n")
        high.stdin.flush()
        good = node.ask(node.shared(ShareClass.LOW), "captures", CAPTURES, most_s=90.0)
    return {"ok": good == int(CAPTURES), "recorded": good, "of": int(CAPTURES)}


def launch(node: Node) -> Answer:
    """What does a launch cost the host, with and without the library?"""
    return {
        "plain_us": node.ask(node.plain(), "launches", LAUNCHES),
        "library_us": node.ask(node.shared(ShareClass.HIGH), "launches", LAUNCHES),
    }


def latency(node: Node) -> Answer:
    """How long does a high job wait for a low one: alone, beside it, and packed without a token?"""
    alone, packed, shared = (_single_ms(node, way) for way in ("alone", "packed", "shared"))
    found: Answer = {}
    for name, values in (("packed", packed), ("shared", shared)):
        base = statistics.median(alone)
        cuts = statistics.quantiles(values, n=100)
        found |= {f"{name}_p50_ms": cuts[49] - base, f"{name}_p99_ms": cuts[98] - base}
    return {"alone_ms": statistics.median(alone), **found}


def _single_ms(node: Node, way: str) -> list[float]:
    environments: Mapping[str, list[dict[str, str]]] = {
        "alone": [node.plain()],
        "packed": [node.plain(), node.plain()],
        "shared": [node.shared(ShareClass.HIGH), node.shared(ShareClass.LOW)],
    }
    words = (node.question(*SINGLE, "300"), node.question(*ENDLESS, "800"))
    spans = node.train(list(zip(words, environments[way], strict=False)))
    return [(end - begun) * 1e3 for begun, end in spans[0]]


def priority(node: Node) -> Answer:
    """The high job of the bench beside an endless low one, as on the driver without a GPU."""
    high, low = node.question(*BURSTS, "120"), node.question(*ENDLESS, "800")
    alone = node.train([(high, node.plain())])
    with Utilisation(node.nvml) as seen:
        both = node.train(
            [(high, node.shared(ShareClass.HIGH)), (low, node.shared(ShareClass.LOW))]
        )
    alone_s, slowed_s = (
        statistics.median([end - begun for begun, end in each[0]]) for each in (alone, both)
    )
    spans = both[1]
    busy_s = len(spans) * 50 * 200e-6
    return {
        "alone_ms": alone_s * 1e3,
        "slowdown_percent": 100 * (slowed_s / alone_s - 1),
        "low_percent": 100 * busy_s / (spans[-1][1] - spans[0][0]) if spans else 0.0,
        "nvml_percent": seen.percent,
    }


def footprint(node: Node) -> Answer:
    """What does NVML show of a process beyond what the library has counted?"""
    task = node.task(ShareClass.LOW, LIMIT)
    with node.held(node.admitted(task), "hold") as process:
        groups: Any = node.runtime.metrics()["groups"]
        counted = groups[f"{task.job}.{task.attempt}"]["used_bytes"]
        shown = node.nvml.samples()[0].process_memory_bytes.get(process.pid)
    if shown is None:
        return {"counted_bytes": counted, "shown": "NVML does not show this process"}
    return {"ok": counted >= GIB, "counted_bytes": counted, "context_bytes": shown - counted}


def membarrier(node: Node) -> Answer:
    """Has the kernel the barrier with which a closed gate is seen by all threads?"""
    found: Answer = node.ask(node.plain(), "membarrier")
    return found


def confined(node: Node) -> Answer:
    """A job without GPUs sees none."""
    environment = {**node.plain(), "CUDA_VISIBLE_DEVICES": ""}
    if node.rehearsal is not None:
        return {"skipped": "the driver without a GPU reads no CUDA_VISIBLE_DEVICES"}
    try:
        node.ask(environment, "device")
    except subprocess.SubprocessError as error:
        return {"ok": "CUDA error 100" in str(error), "said": str(error)}
    return {"ok": False, "said": "it has used a GPU"}


def watchdog(node: Node) -> Answer:
    """Is a process killed that opens the driver by its path, around the library?"""
    runtime = node.make("watched", watchdog_s=WATCHDOG_S)
    task = node.task(ShareClass.LOW, LIMIT)
    environment = node.admitted(task, runtime)
    begun_s = time.monotonic()
    try:
        with node.held(environment, "around", node.driver) as process:
            code = process.wait(node.left_s(WATCHED_S))
    except subprocess.TimeoutExpired:
        return {"ok": False, "said": f"it was not killed in {WATCHED_S:g} s"}
    finally:
        runtime.release(task)
        runtime.close()
    return {"ok": code == -9, "exit": code, "after_s": time.monotonic() - begun_s}


QUESTIONS: Final[Mapping[str, Callable[[Node], Answer]]] = {
    question.__name__: question
    for question in (
        *(inventory, start, lookups, libraries, membarrier, launch, footprint),
        *(captures, latency, priority, sampling, watchdog, confined),
    )
}
