"""What jobs do to each other on a GPU: each case is a mistake that an interceptor can make.

They look at what programs see: results, errors and times. On the driver without a GPU kernels
take their time and do nothing, so that there what they have computed is not looked at.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from gnode.gpushare import ShareClass
from scripts.gpu.sharing_answers import Answer, Question, table
from scripts.gpu.sharing_node import GIB, MIB, SOURCES, Node, Process, Site

HIGH: Final = ShareClass.HIGH
LOW: Final = ShareClass.LOW
#: A job that does not drain is overtaken after 0.5 s (drain_max_s): nobody waits longer than this.
SERVED_S: Final = 2.0
OUT_OF_MEMORY: Final = 2
NOT_SUPPORTED: Final = 801
ILLEGAL_ADDRESS: Final = 700
#: A drain of a low job with a window, beside a high one, ms; without one it is 20 ms here.
DRAINED_MS: Final = 10.0
MODES: Final = {"global": 0, "thread": 1, "relaxed": 2}


def _beat(node: Node, site: Site, **options: float) -> Process:
    """Return a high job that takes the token a thousand times a second, when told to go."""
    return node.ready(site.shared(HIGH), "beat", **{"us": 100, "period_us": 1000, **options})


@contextmanager
def _page() -> Iterator[int]:
    """Yield a descriptor of a page for several processes."""
    descriptor = os.memfd_create("flag")
    os.ftruncate(descriptor, 4096)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def launch_for_a_kernel(node: Node) -> Answer:
    """A low job's kernel waits for the job's next launch, and a high job comes between them."""
    with node.site() as site, _page() as page:
        high = node.ready(site.shared(HIGH), "single", us=100)
        low = node.ready(site.shared(LOW), "await", passed=[page], flag=page, own=1, most_s=8)
        served_s = _served_s(node, high)
        answer = low.goes()
    return _waited(served_s, answer["launch_s"], answer)


def launch_for_a_process(node: Node) -> Answer:
    """The same between two processes of the low job."""
    with node.site() as site, _page() as page:
        high = node.ready(site.shared(HIGH), "single", us=100)
        job = site.shared(LOW)
        setting = node.ready(job, "set", passed=[page], flag=page)
        low = node.ready(job, "await", passed=[page], flag=page, most_s=8)
        served_s = _served_s(node, high)
        set_s = setting.goes()["launch_s"]
        answer = low.goes()
    return _waited(served_s, set_s, answer)


def _served_s(node: Node, high: Process) -> float:
    """Return after how long a high job's launch has passed; the job has ended then."""
    begun_s = time.monotonic()
    high.go()
    high.read()
    served_s = time.monotonic() - begun_s
    if node.rehearsal is None:
        high.answer()
    else:  # there a kernel waits for those of all jobs before it
        high.kill()
    return served_s


def _waited(served_s: float, launch_s: float, answer: Mapping[str, Any]) -> Answer:
    good = launch_s < SERVED_S and answer["by_the_flag"] is not False
    return {
        "ok": good and served_s < SERVED_S,
        **answer,
        "launch_s": launch_s,
        "high_launch_s": served_s,
    }


def launch_beside_a_recording(node: Node) -> Answer:
    """A thread launches what it does not record while it records, and the token is lost."""
    return _beside(node, thread=0)


def launch_of_another_thread(node: Node) -> Answer:
    """Another thread launches meanwhile, as a loader of data does."""
    return _beside(node, thread=1)


def _beside(node: Node, *, thread: int) -> Answer:
    with node.site() as site:
        high = _beat(node, site, seconds=1, period_us=2000)
        low = node.ready(site.shared(LOW), "beside", thread=thread)
        high.go()
        time.sleep(0.3)
        answer = low.goes()
        served = high.answer()
    good = answer["launch_s"] < SERVED_S and not answer["errors"] and answer["counted"] == 2
    return {
        "ok": good and served["stalled_s"] < SERVED_S,
        "high_stalled_s": served["stalled_s"],
        **answer,
    }


def recording_behind_launches(node: Node) -> Answer:
    """A recording begins on a stream with launches before, and others launch elsewhere."""
    with node.site() as site:
        high = _beat(node, site, seconds=3, period_us=2000)
        low = node.ready(site.shared(LOW), "late", seconds=2)
        high.go()
        answer = low.goes()
    return {"ok": _is_whole(answer), **answer}


def recordings(node: Node) -> Answer:
    """Short recordings, one after the other, against a high job that comes 1,000 times a second."""
    return _recorded(node, MODES, kernels=5, per_thread=0)


def recordings_with_pauses(node: Node) -> Answer:
    """Recordings of 10 ms, so that each loses the token."""
    return _recorded(node, {"global": 0}, kernels=20, pause_us=500, per_thread=0)


def recordings_of_a_thread(node: Node) -> Answer:
    """Recordings on a thread's default stream."""
    modes = {name: MODES[name] for name in ("global", "relaxed")}
    return _recorded(node, modes, kernels=5, pause_us=200, per_thread=1)


def _recorded(node: Node, modes: Mapping[str, int], **options: float) -> Answer:
    answers: dict[str, Mapping[str, Any]] = {}
    seconds = node.take(3, 1.5)
    for name, mode in modes.items():
        with node.site() as site:
            high = _beat(node, site, seconds=seconds)
            low = node.ready(site.shared(LOW), "record", mode=mode, seconds=seconds, **options)
            high.go()
            answers[name] = {**low.goes(), "high_stalled_s": high.answer()["stalled_s"]}
    good = [
        _is_whole(one) and one["counted"] == one["replayed"] and one["high_stalled_s"] < SERVED_S
        for one in answers.values()
    ]
    return {"ok": all(good), **answers}


def _is_whole(answer: Mapping[str, Any]) -> bool:
    return answer["of"] == answer["recorded"] > 5 and not answer["errors"]


def long_recordings(node: Node) -> Answer:
    """Recordings of 0.8 s each, as of an inference server at its start, beside a high job."""
    seconds, count = 0.8, 4
    with node.site() as site:
        high = _beat(node, site, seconds=seconds * count + 5, period_us=20_000)
        task = site.task(LOW, 16 * GIB)
        low = node.ready(site.admitted(task), "slow", seconds=seconds, count=count, after_s=2)
        high.go()
        low.go()
        low.read()
        answer = low.goes()
        row = site.row(task)
        served = high.answer()
    good = not answer["errors"] and answer["longest_s"] < 1.0 and not row["demoted"]
    return {
        "ok": good and served["stalled_s"] < SERVED_S,
        "demoted": row["demoted"],
        "overlaps": row["overlaps"],
        "high_stalled_s": served["stalled_s"],
        **answer,
    }


def drained_context(node: Node) -> Answer:
    """A high job waits for a kernel of the low one in a context that was there before."""
    return _drained(node, reset=0)


def drained_after_a_reset(node: Node) -> Answer:
    """The same in a context that has been reset."""
    return _drained(node, reset=1)


def _drained(node: Node, *, reset: int) -> Answer:
    with node.site() as site:
        high = _beat(node, site, count=1, spans=1, seconds=20)
        low = node.ready(site.shared(LOW), "single", reset=reset, touch=1 - reset, us=300_000)
        low.go()
        low.read()
        launched_s = high.goes()["spans"][0]
        answer = low.answer()
    before_s = answer["ended_s"] - launched_s
    return {
        "ok": before_s < 0.1,
        "kernel_s": answer["ended_s"] - answer["launched_s"],
        "high_before_its_end_s": before_s,
    }


def processes_of_a_job(node: Node) -> Answer:
    """A high job waits for all processes of a low one, whose kernels take 50 ms."""
    kernel_s = 0.05
    with node.site() as site:
        high = _beat(node, site, us=1000, period_us=100_000, seconds=node.take(4, 2), spans=1)
        job = site.shared(LOW)
        several = [
            node.ready(
                job, "train", us=kernel_s * 1e6, launched=1, seconds=node.take(5, 3), iterations=100
            )
            for _ in range(3)
        ]
        for each in (*several, high):
            each.go()
        served = high.answer()
        spans = [span for each in several for span in each.answer()]
    inside = [
        launched_s
        for launched_s in served["spans"]
        if any(begun_s < launched_s < end_s - kernel_s / 2 for begun_s, end_s in spans)
    ]
    return {
        "ok": not inside and served["count"] > 5 and len(spans) > 10,
        "taken": served["count"],
        "overlapped": len(inside),
        "kernels": len(spans),
        "high_p50_ms": served["p50_ms"],
        "high_stalled_s": served["stalled_s"],
    }


def memory_of_processes(node: Node) -> Answer:
    """Three processes of a job take memory until they get no more: one limit for all."""
    limit = 4 * GIB
    with node.site() as site:
        job = site.shared(LOW, limit)
        several = [node.ready(job, "pieces", bytes=64 * MIB, count=1000) for _ in range(3)]
        for each in several:
            each.go()
        answers = [each.read() for each in several]
        seen = node.nvml.samples()[0].process_memory_bytes
        shown = [seen.get(each.pid) for each in several]
    got = sum(answer["got_bytes"] for answer in answers)
    refused = all(answer["result"] == OUT_OF_MEMORY for answer in answers)
    return {"ok": refused and 0.9 * limit <= got <= limit, "got_bytes": got, "nvml_bytes": shown}


def exits(node: Node) -> Answer:
    """Processes that end with unfinished work, all registered exit handlers, and a busy gate."""
    count, seconds = node.take(1000, 60), node.take(16, 6)
    with node.site() as site:
        high = _beat(node, site, seconds=seconds + 3)
        low = node.ready(
            *(site.shared(LOW), "exits"),
            count=count,
            seconds=seconds,
            parallel=3 if node.rehearsal else 12,
        )
        high.go()
        answer = low.goes()
        said = low.said.splitlines()[-3:] if answer["good"] < answer["started"] else []
        served = high.answer()
    good = answer["good"] == answer["started"] > 10
    return {"ok": good, **answer, "high_stalled_s": served["stalled_s"], "errors": said}


def resets(node: Node) -> Answer:
    """CuDevicePrimaryCtxReset again and again, with and without work that has not ended."""
    seconds = node.take(5, 2)
    with node.site() as site:
        high = _beat(node, site, seconds=seconds)
        job = site.shared(LOW)
        several = [
            node.ready(job, "resets", seconds=seconds, count=1000)
            for _ in range(2 if node.rehearsal else 4)
        ]
        for each in (*several, high):
            each.go()
        answers = [each.answer() for each in several]
        served = high.answer()
    done = sum(answer["resets"] for answer in answers)
    errors = [answer["errors"] for answer in answers if answer["errors"]]
    return {
        "ok": not errors and done > 0,
        "resets": done,
        "errors": errors,
        "high_stalled_s": served["stalled_s"],
    }


def killed_daemon(node: Node) -> Answer:
    """The token daemon is killed while a high and a low job run: both go on with the next one."""
    with node.site() as site:
        high = _beat(node, site, seconds=5, period_us=5000)
        low = node.ready(
            site.shared(LOW), "train", us=200, kernels=20, seconds=5, iterations=100_000
        )
        high.go()
        low.go()
        time.sleep(1.0)
        killed_s = time.monotonic()
        os.kill(int(site.metrics()["pid"]), signal.SIGKILL)
        served, spans = high.answer(), low.answer()
        restarts = site.runtime.keeper.restarts
    after = [begun_s for begun_s, _ in spans if begun_s > killed_s]
    return {
        "ok": restarts == 1 and served["stalled_s"] < SERVED_S and len(after) > 10,
        "restarts": restarts,
        "high_stalled_s": served["stalled_s"],
        "low_iterations_after": len(after),
        "low_back_after_s": after[0] - killed_s if after else None,
    }


def stopped_daemon(node: Node) -> Answer:
    """The daemon is stopped, and does not come back in time: launches and frees of jobs go on."""
    patience_s, answer_s = 1.0, 5.0
    bounds_s = {  # until it is noticed; a low job tries to connect, and waits again
        "high": 2 * patience_s + 2.5,
        "low": 2 * patience_s + answer_s + 2.5,
        "memory": answer_s + 3,
    }
    stops_s = bounds_s["low"] + 1
    options = {"us": 200, "kernels": 20, "iterations": 100_000}
    with node.site(patience_s=patience_s) as site:
        high = _beat(node, site, seconds=stops_s + 2, period_us=5000)
        low = node.ready(site.shared(LOW), "train", seconds=stops_s + 2, **options)
        freeing = node.ready(site.shared(LOW), "frees", count=1500)
        pid = int(site.metrics()["pid"])
        high.go()
        low.go()
        time.sleep(1.0)
        os.kill(pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            freed = freeing.goes()
            time.sleep(max(0.0, stopped_s + stops_s - time.monotonic()))
        finally:
            os.kill(pid, signal.SIGCONT)
        served, spans = high.answer(), low.answer()
    ends = [stopped_s, *(end_s for _, end_s in spans if end_s > stopped_s)]
    took_s = {
        "high": served["stalled_s"],
        "low": max((end - begun for begun, end in pairwise(ends)), default=stops_s),
        "memory": max(freed["freed_s"], freed["again_s"]),
    }
    good = all(took_s[name] < bound_s for name, bound_s in bounds_s.items())
    return {
        "ok": good and not freed["errors"],
        "stalled_s": took_s,
        "bounds_s": bounds_s,
        "freed_s": freed["freed_s"],
        "errors": freed["errors"],
    }


def stream_ordered_reuse(node: Node) -> Answer:
    """600 MiB, a kernel, freed in the order of the stream, 600 MiB again, under 1 GiB."""
    options = {"bytes": 600 * MIB, "rounds": 100, "more": 2 * GIB}
    plain = node.ask(node.plain(), "reuse", **options)
    with node.site() as site:
        answer = node.ask(site.shared(LOW, GIB), "reuse", **options)
    return {
        "ok": not answer["errors"] and answer["more"] == OUT_OF_MEMORY and answer["plain"] == 0,
        "us_each_without_the_library": plain["us_each"],
        **answer,
    }


def small_pieces(node: Node) -> Answer:
    """100,000 allocations of 4 KiB: what is counted, and what NVML shows."""
    count = int(node.take(100_000, 8_000))
    plain = node.ready(node.plain(), "pieces", bytes=4096, count=count)
    plain.go()
    plain_us = plain.read()["us_each"]
    plain.close()
    with node.site() as site:
        task = site.task(LOW, 2 * GIB)
        process = node.ready(site.admitted(task), "pieces", bytes=4096, count=count)
        before = node.nvml.samples()[0].process_memory_bytes.get(process.pid, 0)
        process.go()
        answer = process.read()
        counted = site.row(task)["used_bytes"]
        shown = node.nvml.samples()[0].process_memory_bytes.get(process.pid)
    grown = None if shown is None else shown - before
    return {
        "ok": answer["result"] == 0 and (grown is None or grown <= 2 * GIB),
        "counted_bytes": counted,
        "nvml_bytes": grown,
        "us_each_without_the_library": plain_us,
        **answer,
    }


def memory_of_graphs(node: Node) -> Answer:
    """A graph that takes 4 GiB when it is launched, under 1 GiB, by each way to make it."""
    answers = {}
    for way, name in enumerate(("cuGraphAddMemAllocNode", "cuGraphAddNode")):
        with node.site() as site:
            answers[name] = node.ask(site.shared(LOW, GIB), "graph", way=way, bytes=4 * GIB)
    results = [each["result"] for each in answers.values()]
    known = [result for result in results if result != NOT_SUPPORTED]
    return {"ok": bool(known) and set(known) == {OUT_OF_MEMORY}, **answers}


def program_of_the_runtime(node: Node) -> Answer:
    """A program of CUDA's runtime as nvcc makes it: recordings, the limit, a reset."""
    limit = 4 * GIB
    nvcc = shutil.which("nvcc")
    if node.rehearsal is not None or nvcc is None:
        return {"skipped": "no nvcc" if nvcc is None else "the driver without a GPU has no modules"}
    program = str(node.folder / "runtime")
    options = ("-arch=native", "-default-stream", "per-thread", "-o", program)
    compiler = node.start(os.environ, [nvcc, *options, str(SOURCES / "runtime.cu")])
    if compiler.output(60)[0] != 0:
        return {"ok": False, "said": compiler.said[-500:]}
    with node.site() as site:
        high = _beat(node, site, seconds=3.5)
        low = node.start(site.shared(LOW, limit), [program, "3"])
        low.read()
        high.go()
        answer = low.goes()
    good = _is_whole(answer) and answer["counted"] == answer["replayed"]
    return {
        "ok": good and answer["refused"] == OUT_OF_MEMORY and answer["got_bytes"] > 0.9 * limit,
        **answer,
    }


def green_contexts(node: Node) -> Answer:
    """Launches ahead of the GPU in streams of green contexts: drained, and nothing is left over."""
    answers: dict[str, Mapping[str, Any]] = {}
    ways = {"stream": 0, "current": 1, "default_stream": 2, "nothing_green": 3}
    seconds = node.take(2, 1)
    for name, way in ways.items():
        with node.site() as site:
            high = _beat(node, site, seconds=seconds + 0.5, period_us=5000)
            low = node.job(site.shared(LOW), "green", way=way, seconds=seconds)
            first = low.read()
            if first != "ready":
                return dict(first)
            high.go()
            answer, served = low.goes(), high.answer()
            answers[name] = {
                **answer,
                "high_p50_ms": served["p50_ms"],
                "high_p99_ms": served["p99_ms"],
                "high_stalled_s": served["stalled_s"],
            }
    good = [
        not each["errors"]
        and each["counted"] == each["of"] > 100
        and each["grown_kib"] < 8 << 10
        and (node.rehearsal is not None or each["high_p99_ms"] < DRAINED_MS)
        for each in answers.values()
    ]
    return {"ok": all(good), **answers}


def order_of_the_legacy_stream(node: Node) -> Answer:
    """A stream that waits holds up no other one behind an earlier launch in the legacy stream."""
    plain = node.ready(node.plain(), "ordered")
    without = plain.goes()
    plain.close()
    with node.site() as site:
        node.ready(site.shared(HIGH), "single", us=100)  # so that the low job has a window
        answer = node.ready(site.shared(LOW), "ordered").goes()
    good = not answer["errors"] and answer["held"] == without["held"] == 0
    return {"ok": good, "held_without_the_library": without["held"], **answer}


def fault_of_a_low_job(node: Node) -> Answer:
    """A low job's kernel faults: the driver answers each question with that; others go on."""
    with node.site() as site:
        high = _beat(node, site, seconds=3, period_us=5000)
        low = node.ready(site.shared(LOW), "fault", seconds=1.5)
        high.go()
        time.sleep(0.5)
        answer = low.goes()
        said = low.said.count("the driver answered with error")
        served = high.answer()
    good = answer["waited"] == ILLEGAL_ADDRESS and answer["longest_s"] < SERVED_S and said <= 1
    return {
        "ok": good and served["stalled_s"] < SERVED_S and served["count"] > 100,
        "said": said,
        "high_stalled_s": served["stalled_s"],
        **answer,
    }


def under_tools(node: Node) -> Answer:
    """A job under tools that trace and check programs, each with the library in its place."""
    tools = {
        "compute-sanitizer": ("--error-exitcode=9",),
        "nsys": ("profile", "--output", str(node.folder / "trace")),
        "ncu": ("--launch-count=3",),
    }
    if node.rehearsal is not None:
        return {"skipped": "the driver without a GPU has no interface for tools"}
    found = {name: path for name in tools if (path := _tool(name)) is not None}
    if not found:
        return {"skipped": "none is installed: " + ", ".join(tools)}
    answers: dict[str, Any] = {name: "not installed" for name in tools if name not in found}
    work = node.command("launches", count=20)
    with node.site() as site:
        for name, path in found.items():
            words = [path, *tools[name], *work]
            answers[name], printed = _ran(node, site.shared(LOW), words)
            if answers[name] != 0:
                answers[f"{name}_printed"] = printed[-300:]
                answers[f"{name}_without_the_library"] = _ran(node, node.plain(), words)[0]
        good = all(
            answers[name] == 0 or answers[f"{name}_without_the_library"] != 0 for name in found
        )
        if answers.get("compute-sanitizer") == 0:  # it finds what is wrong, too
            words = [found["compute-sanitizer"], *tools["compute-sanitizer"]]
            faults = node.command("fault", at_once=1, seconds=0.1)
            _, printed = _ran(node, site.shared(LOW), [*words, *faults])
            answers["found_a_fault"] = "Invalid __global__ write" in printed
            good = good and answers["found_a_fault"]
    return {"ok": good, **answers}


def _ran(node: Node, environment: Mapping[str, str], words: list[str]) -> tuple[int | None, str]:
    """Return how a program has ended, and all that it has printed."""
    process = node.start(environment, words)
    code, printed = process.output(40)
    printed += process.said
    process.close()
    return code, printed


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


CASES: Final = table(
    *(fault_of_a_low_job, Question(green_contexts, 45), order_of_the_legacy_stream),
    Question(under_tools, 150),
    *(launch_beside_a_recording, launch_of_another_thread, launch_for_a_kernel),
    *(launch_for_a_process, recording_behind_launches),
    *(Question(recordings, 40), recordings_with_pauses, Question(recordings_of_a_thread, 40)),
    Question(program_of_the_runtime, 60),
    *(long_recordings, drained_context, drained_after_a_reset, processes_of_a_job),
    *(Question(stopped_daemon, 45), killed_daemon, stream_ordered_reuse, memory_of_graphs),
    *(memory_of_processes, Question(small_pieces, 45), resets, Question(exits, 60)),
)
