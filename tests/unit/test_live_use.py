"""What running jobs use at the moment: what a node tells, what the head keeps, what users see."""

import os
from collections.abc import Collection
from types import SimpleNamespace

import pytest
from msgspec import structs

from gnode.core import effects as do
from gnode.core.inputs import Measured, Welcomed
from gnode.core.live import LOAD_S, REFRESH_S, LiveReports
from gnode.core.task import AttemptKey
from gnode.hw.nvml import GpuSample, Nvml
from gnode.hw.sampling import Sampler, SamplingTarget
from gsched.model.resources import GpuShare, GpuShareRequest, LiveUse, Load, Share, Usage
from gsched.protocol.node import Heartbeat
from gsched.protocol.uses import Uses
from gschedd.core.nodes.live import newest_load, note_uses
from gschedd.core.views.jobs import JobViews
from gschedd.models.kinds import kind_of
from gschedd.models.records import record_of
from gschedd.plan.load import NodeRates
from tests.support.agent_driver import Driver, only, order
from tests.support.world import World, node
from tests.unit.test_gnode_nvml import SaidError, library

KEY = AttemptKey(1, 1)
MIB = 1024**2
STEADY = LiveUse(cpu_s=5.0, cpu_cores=2.0, memory_bytes=1000 * MIB, gpus=0.8)


# --- what a node tells ---


def reports() -> LiveReports:
    made = LiveReports()
    made.connected()
    return made


def test_what_has_not_changed_is_told_once_a_minute_only() -> None:
    live = reports()
    assert live.due({KEY: STEADY}, Load(), 0.0) == Uses(uses=((1, 1, STEADY),), load=Load())

    noise = structs.replace(STEADY, cpu_cores=2.15, memory_bytes=1050 * MIB, cpu_s=15.0)
    assert live.due({KEY: noise}, Load(), 5.0) is None
    assert live.due({KEY: noise}, Load(), REFRESH_S) == Uses(uses=((1, 1, noise),))


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_cores": 2.3},
        {"cpu_cores": 0.0},
        {"memory_bytes": 1200 * MIB},
        {"gpus": 0.6},
        {"gpu_memory_bytes": 100 * MIB},
    ],
)
def test_a_change_that_matters_is_told_at_once(changes: dict[str, float]) -> None:
    live = reports()
    live.due({KEY: STEADY}, Load(), 0.0)
    now = structs.replace(STEADY, **changes)

    assert live.due({KEY: now, AttemptKey(2, 1): STEADY}, Load(), 5.0) == Uses(
        uses=((1, 1, now), (2, 1, STEADY))
    )


def test_the_load_is_told_when_it_changes_and_not_with_every_sample() -> None:
    live = reports()
    live.due({}, Load(cpu_percent=10.0), 0.0)
    assert live.due({}, Load(cpu_percent=14.0), LOAD_S) is None
    assert live.due({}, Load(cpu_percent=90.0), LOAD_S - 1) is None
    told = live.due({}, Load(cpu_percent=90.0), LOAD_S)
    assert told == Uses(load=Load(cpu_percent=90.0))
    assert live.due({}, Load(cpu_percent=90.0, gpu_util_percent=(9.0,)), 2 * LOAD_S) is not None


def test_each_head_gets_all_and_then_what_changes() -> None:
    driver = Driver(welcome=False)
    driver.launch(order())
    driver.forked()
    driver.seen()
    sample = Measured(load=Load(), usage={KEY: Usage(wall_s=1.0)}, live={KEY: STEADY})

    def told() -> list[Uses]:
        sent = [each.message for each in only(driver.step(sample), do.SendToHead)]
        return [each for each in sent if isinstance(each, Uses)]

    assert told() == []
    driver.step(Welcomed(cluster="c", epoch=1))
    assert [each.uses for each in told()] == [((1, 1, STEADY),)]
    assert told() == []
    driver.step(Measured(load=Load(), usage={}))  # an end elsewhere: nothing was sampled
    assert told() == []
    driver.step(Welcomed(cluster="c", epoch=1))
    assert len(told()) == 1


# --- what is sampled ---


class Gpus(Nvml):
    """One GPU that tests fill."""

    def __init__(self, sample: GpuSample) -> None:
        super().__init__()
        self.sample = sample

    def samples(self, *, by_process: Collection[int] = ()) -> tuple[GpuSample, ...]:
        assert set(by_process) == {0}
        return (self.sample,)


def shared(wall_s: float) -> "SamplingTarget[str]":
    return SamplingTarget(
        key="a",
        supervisor_pid=os.getppid(),
        cgroup=None,
        gpu_indices=(),
        wall_s=wall_s,
        shared_gpus=(0,),
    )


def on_gpu(**changes: object) -> GpuSample:
    values: dict[str, object] = {
        "util_percent": 90.0,
        "memory_used_bytes": 9 * MIB,
        "process_memory_bytes": {os.getpid(): 2 * MIB, 1: 7 * MIB},
        "process_util_percent": {os.getpid(): 30.0, 1: 60.0},
        **changes,
    }
    return GpuSample(**values)  # type: ignore[arg-type]  # as the tests state them


def test_of_a_shared_gpu_a_job_is_charged_with_its_own_part_by_nvml() -> None:
    sampler: Sampler[str] = Sampler(Gpus(on_gpu()))
    usage, _ = sampler.sample([shared(10.0)], {"a": 9.0})

    assert usage["a"].gpu_util_mean_percent == 30.0
    assert usage["a"].gpu_memory_peak_bytes == 2 * MIB
    assert (sampler.live["a"].gpus, sampler.live["a"].gpu_memory_bytes) == (0.3, 2 * MIB)


@pytest.mark.parametrize(
    "blind",
    [
        {"process_util_percent": None},
        {"process_util_percent": {1: 60.0}, "process_memory_bytes": {1: 7 * MIB}},
    ],
)
def test_where_nvml_does_not_name_its_processes_the_time_of_the_token_counts(
    blind: dict[str, object],
) -> None:
    """10 s: held for 4; the next 10 s: for 1; then another token daemon has counted 2 s."""
    sampler: Sampler[str] = Sampler(Gpus(on_gpu(**blind)))
    parts, usage = [], dict[str, Usage]()
    for wall_s, held_s in ((10.0, 4.0), (20.0, 5.0), (30.0, 2.0)):
        usage, _ = sampler.sample([shared(wall_s)], {"a": held_s})
        parts.append(sampler.live["a"].gpus)

    assert parts == pytest.approx([0.4, 0.1, 0.2])
    assert usage["a"].gpu_util_mean_percent == pytest.approx(70 / 3)


def test_without_either_nothing_is_charged() -> None:
    sampler: Sampler[str] = Sampler(Gpus(on_gpu(process_util_percent=None)))
    usage, _ = sampler.sample([shared(10.0)])
    assert usage["a"].gpu_util_mean_percent == 0.0


def test_nvml_tells_the_utilisation_of_each_process_since_the_call_before() -> None:
    said = [
        SimpleNamespace(pid=11, timeStamp=100, smUtil=20),
        SimpleNamespace(pid=11, timeStamp=200, smUtil=40),
        SimpleNamespace(pid=12, timeStamp=200, smUtil=7),
    ]
    nvml = Nvml(library(nvmlDeviceGetProcessUtilization=said))

    first, other = nvml.samples(by_process={0})
    assert (first.process_util_percent, other.process_util_percent) == ({11: 30.0, 12: 7.0}, None)
    assert nvml.samples(by_process={0})[0].process_util_percent == {}, "nothing is new"


@pytest.mark.parametrize(("value", "told"), [(6, {}), (3, None)])
def test_nothing_new_is_no_use_and_not_supported_is_not_known(
    value: int, told: dict[int, float] | None
) -> None:
    error = SaidError("x")
    error.value = value  # type: ignore[attr-defined]  # as NVMLError has it
    made = library(nvmlDeviceGetProcessUtilization=error)
    made.__dict__["NVML_ERROR_NOT_FOUND"] = 6

    assert Nvml(made).samples(by_process={0})[0].process_util_percent == told


# --- what the learner learns of it ---


def test_a_run_on_a_shared_gpu_teaches_nothing_of_a_run_on_a_whole_one() -> None:
    world = World(node("n1", gpus=1))
    whole = world.head.state.jobs[world.submit("nodes=1:ppn=1:gpus=1")].spec
    chunk = structs.replace(
        whole.request.chunks[0], gpus=0, gpu_share=GpuShareRequest(percent=30, memory_bytes=MIB)
    )
    part = structs.replace(whole, request=structs.replace(whole.request, chunks=(chunk,)))
    kinds = kind_of(whole), kind_of(part)

    assert kinds[0].key != kinds[1].key
    assert kinds[0].program != kinds[1].program
    share = Share(node="n1", cpus=1, gpu_shares=(GpuShare(index=0, percent=30),))
    usage = Usage(wall_s=10.0, gpu_util_mean_percent=30.0, gpu_memory_peak_bytes=MIB, samples=1)
    rates = NodeRates(cores=4.0, memory_bytes=1, gpus=1)
    record = record_of(kinds[1], share, rates, usage, ended_s=20.0, succeeded=True)
    assert record is not None
    assert (record.used.gpus, record.used.gpu_memory_bytes, record.gpu_memory_peak_bytes) == (
        0,
    ) * 3


# --- what the head keeps and shows ---


def running(nodes: int = 1) -> tuple[World, int]:
    machines = [node(f"n{number}") for number in range(1, nodes + 1)]
    world = World(*machines)
    number = world.submit(f"nodes={nodes}:ppn=2", runs_s=1000.0)
    world.run_for(1.0)
    return world, number


def views(world: World) -> JobViews:
    return JobViews(world.head, now_s=world.now_s)


def test_the_head_adds_up_the_nodes_of_a_job_and_shows_the_oldest_report() -> None:
    world, number = running(nodes=2)
    state = world.head.state
    note_uses(state, "n1", Uses(uses=((number, 1, STEADY),)), world.now_s - 30)
    note_uses(state, "n2", Uses(uses=((number, 1, STEADY),)), world.now_s - 3)

    row = views(world).row(state.jobs[number])
    assert row.live is not None
    assert (row.live.cpu_cores, row.live.memory_bytes) == (4.0, 2000 * MIB)
    assert row.live.at_s == world.now_s - 30
    assert (row.cpu_s, row.memory_peak_bytes) == (10.0, 2000 * MIB)


def test_nothing_is_kept_of_jobs_that_do_not_run_there_or_have_ended() -> None:
    world, number = running()
    state = world.head.state
    facts = len(world.facts)
    for name, job, attempt in (("n9", number, 1), ("n1", number, 2), ("n1", 77, 1)):
        note_uses(state, name, Uses(uses=((job, attempt, STEADY),)), world.now_s)
    assert state.volatile.live == {}

    note_uses(state, "n1", Uses(uses=((number, 1, STEADY),), load=Load(load1=3.0)), world.now_s)
    assert set(state.volatile.live) == {number}
    assert len(world.facts) == facts, "a use is no fact: nothing is stored"
    world.delete(number)
    world.run_for(100.0)
    assert state.volatile.live == {}
    assert views(world).row(world.done[number]).live is None


def test_of_heartbeat_and_live_load_the_newer_one_is_shown_and_policies_see_the_heartbeat() -> None:
    world, _ = running()
    state, seen = world.head.state, world.head.state.nodes["n1"]
    world.head.note_load("n1", Load(cpu_percent=10.0), world.now_s)
    note_uses(state, "n1", Uses(load=Load(cpu_percent=80.0)), world.now_s + 5)

    assert newest_load(state, seen) == (Load(cpu_percent=80.0), world.now_s + 5)
    assert seen.load == Load(cpu_percent=10.0)
    world.head.note_load("n1", Load(cpu_percent=20.0), world.now_s + 9)
    assert newest_load(state, seen) == (Load(cpu_percent=20.0), world.now_s + 9)


def test_the_heartbeat_is_read_by_heads_that_know_no_other_report() -> None:
    assert Heartbeat.__struct_config__.tag == "heartbeat"
    assert Uses.__struct_config__.tag == "uses"
