"""What sharing costs on a GPU, by programs of the driver alone: figures, not right or wrong."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from gnode.gpushare import ShareClass
from scripts.gpu.sharing_answers import Answer, Question, table
from scripts.gpu.sharing_node import Node, Utilisation, common, mean_ms

LAUNCHES: Final = 500
Options = Mapping[str, float]
#: A low job of endless kernels of 0.2 ms, which waits for each ten: its share is counted in them.
ENDLESS: Final[Options] = {"us": 200, "kernels": 10, "iterations": 1_000_000}
#: High jobs. `pipelined`: the host is up to six iterations ahead of the GPU, takes 2 ms of each and
#: 100 ms of each tenth, as for a log or a checkpoint, and the GPU is never idle.
BURSTS: Final[Options] = {"us": 1000, "kernels": 22, "gap_ms": 8}
PIPELINED: Final[Options] = {"us": 1000, "kernels": 20, "gap_ms": 2, "tenth_ms": 100, "depth": 6}
SINGLE: Final[Options] = {"us": 1000, "kernels": 1, "gap_ms": 8}


def launch(node: Node) -> Answer:
    """What does a launch cost the host, with and without the library?"""
    return {
        "plain_us": node.ask(node.plain(), "launches", count=LAUNCHES),
        "library_us": node.ask(node.shared(ShareClass.HIGH), "launches", count=LAUNCHES),
    }


def latency(node: Node) -> Answer:
    """How long does a high job wait for a low one: beside it, and packed without a token?"""
    alone, packed, shared = (_single_ms(node, way) for way in ("alone", "packed", "shared"))
    base = statistics.median(alone)
    found: Answer = {"alone_ms": base}
    for name, values in (("packed", packed), ("shared", shared)):
        cuts = statistics.quantiles(values, n=100)
        found |= {f"{name}_p50_ms": cuts[49] - base, f"{name}_p99_ms": cuts[98] - base}
    return found


def _single_ms(node: Node, way: str) -> list[float]:
    seconds = node.take(3, 1)
    high = node.command("train", **SINGLE, iterations=100_000, seconds=seconds)
    low = node.command("train", **ENDLESS, seconds=seconds + 0.2)
    if way == "alone":
        jobs = [(high, node.plain())]
    elif way == "packed":
        jobs = [(high, node.plain()), (low, node.plain())]
    else:
        jobs = [(high, node.shared(ShareClass.HIGH)), (low, node.shared(ShareClass.LOW))]
    return [(end - begun) * 1e3 for begun, end in node.train(jobs)[0]]


def bursts(node: Node) -> Answer:
    """A high job that waits for the GPU in each iteration, and is idle for 8 ms of 30."""
    return _four_ways(node, BURSTS, ENDLESS)


def pipelined(node: Node) -> Answer:
    """A high job whose host is ahead of the GPU, which is never idle."""
    return _four_ways(node, PIPELINED, ENDLESS)


def two_ahead(node: Node) -> Answer:
    """A high job that is two iterations ahead, with 8 ms of its host in each."""
    return _four_ways(node, {**BURSTS, "depth": 2}, ENDLESS)


def polling(node: Node) -> Answer:
    """A high job that asks whether its work has ended (cuEventQuery), and does not wait for it."""
    return _four_ways(node, {**BURSTS, "poll": 1}, ENDLESS)


def bandwidth(node: Node) -> Answer:
    """Both jobs copy memory in place of computing."""
    return _four_ways(node, {**BURSTS, "copy": 1}, {**ENDLESS, "copy": 1})


def long_low_kernels(node: Node) -> Answer:
    """A low job with kernels of 10 ms."""
    return _four_ways(node, BURSTS, {**ENDLESS, "us": 10_000, "kernels": 1})


def two_low_jobs(node: Node) -> Answer:
    """Two low jobs beside the high one: what does each get?"""
    seconds = node.take(4, 1)
    high = node.command("train", **BURSTS, iterations=100_000, seconds=seconds)
    low = node.command("train", **ENDLESS, seconds=seconds)
    (alone,) = node.spans([(high, node.plain())])
    with node.site() as site:
        jobs = [(high, site.shared(ShareClass.HIGH))]
        jobs += [(low, site.shared(ShareClass.LOW)) for _ in range(2)]
        shared, *lows = node.spans(jobs)
    return {
        "high_percent": 100 * (mean_ms(shared) / mean_ms(alone) - 1),
        "low_percent": [_share_percent(shared, each, ENDLESS) for each in lows],
    }


def _four_ways(node: Node, high: Options, low: Options) -> Answer:
    """Return how much slower a high job is in each way, and what the low one gets of the GPU."""
    seconds = node.take(2.5, 1)
    first = node.command("train", **{**high, "iterations": 100_000, "seconds": seconds})
    second = node.command("train", **{**low, "seconds": seconds})
    (alone,) = node.spans([(first, node.plain())])
    with node.site() as site:
        (library,) = node.spans([(first, site.shared(ShareClass.HIGH))])
    packed, packed_low = node.spans([(first, node.plain()), (second, node.plain())])
    with node.site() as site, Utilisation(node.nvml) as seen:
        jobs = [(first, site.shared(ShareClass.HIGH)), (second, site.shared(ShareClass.LOW))]
        shared, shared_low = node.spans(jobs)
        (counters,) = site.metrics()["gpus"].values()
    alone_ms = mean_ms(alone)
    idle_percent = 100 - 100 * high["us"] * high["kernels"] / 1000 / alone_ms
    got_percent = _share_percent(shared, shared_low, low)
    return {
        "alone_ms": alone_ms,
        "library_percent": 100 * (mean_ms(library) / alone_ms - 1),
        "packed_percent": 100 * (mean_ms(packed) / alone_ms - 1),
        "high_percent": 100 * (mean_ms(shared) / alone_ms - 1),
        "idle_percent": idle_percent,
        "low_packed_percent": _share_percent(packed, packed_low, low),
        "low_percent": got_percent,
        "low_of_idle": got_percent / idle_percent if idle_percent > 1 else None,
        "nvml_percent": seen.percent,
        "turns": {name: counters[name] for name in ("grants", "preemptions", "drains", "overlaps")},
        "drain_ms": 1e3 * counters["drain_s_sum"] / max(1, counters["drains"]),
        "drain_ms_max": 1e3 * counters["drain_s_max"],
    }


def _share_percent(
    high: Sequence[tuple[float, float]], low: Sequence[tuple[float, float]], options: Options
) -> float:
    """Return the part of the GPU's time for which the low job has computed beside the high one."""
    if not high or not low:
        return 0.0
    _, spans = common([high, low])
    busy_s = len(spans) * options["us"] * options["kernels"] * 1e-6
    since, until = max(high[0][0], low[0][0]), min(high[-1][1], low[-1][1])
    return 100 * busy_s / (until - since)


def sampling(node: Node) -> Answer:
    """NVML: its utilisation beside that of a process whose kernels are timed."""
    with Utilisation(node.nvml) as seen:
        (spans,) = node.spans(
            [(node.command("train", **BURSTS, iterations=100, seconds=4), node.plain())]
        )
    return {"busy_percent": 100 * 22.0 / mean_ms(spans), "nvml_percent": seen.percent}


FIGURES: Final = table(
    *(launch, latency, Question(pipelined, 45), Question(bursts, 45), Question(two_ahead, 45)),
    *(Question(polling, 45), Question(bandwidth, 45), Question(long_low_kernels, 45)),
    *(Question(two_low_jobs, 45), sampling),
)
