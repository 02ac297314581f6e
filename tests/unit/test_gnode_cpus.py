"""Which CPUs attempts get: the choice, the map over restarts, and where there is no binding."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnode.core import effects as do
from gnode.core.cpus import Cpu, CpuMap, choose, cpu_list, parse_cpu_list
from gnode.core.inputs import BindingChanged, SpoolEntry, SpoolFound
from gnode.core.task import AcceptedTask, AttemptKey
from gnode.hw.cgroups import Roots
from gnode.hw.confinement import Confinement, CpuQuota
from gnode.hw.topology import find_binding, read_cpus
from gsched.config.nodes import NodeConfig
from gsched.errors import ConfigError
from gsched.model.resources import Share
from gsched.protocol.node import Heartbeat
from tests.support.agent_driver import Driver, info, only, order


def machine(nodes: int = 2, cores: int = 4, threads: int = 2) -> tuple[Cpu, ...]:
    """Return CPUs numbered as Linux does: the first thread of every core, then the second."""
    total = nodes * cores
    return tuple(
        Cpu(number=thread * total + core, core=core, numa=core // cores)
        for thread in range(threads)
        for core in range(total)
    )


def free_of(cpus: tuple[Cpu, ...], *taken: int) -> list[Cpu]:
    return [cpu for cpu in cpus if cpu.number not in taken]


# --- the choice ---


def test_two_cpus_are_the_threads_of_one_core() -> None:
    assert choose(machine(), 2, machine()) == (0, 8)


def test_one_cpu_goes_to_a_core_that_is_split_already() -> None:
    assert choose(free_of(machine(), 2), 1, machine()) == (10,)


def test_an_odd_number_leaves_whole_cores_whole_where_it_can() -> None:
    assert choose(free_of(machine(), 2), 3, machine()) == (0, 8, 10)


def test_a_job_stays_on_one_numa_node_though_two_would_have_whole_cores() -> None:
    # Node 0 has three threads of three cores left, node 1 one whole core.
    taken = (0, 1, 2, 3, 11, 4, 5, 6, 12, 13, 14)
    assert choose(free_of(machine(), *taken), 3, machine()) == (8, 9, 10)


def test_of_two_numa_nodes_the_fuller_one_is_taken() -> None:
    assert choose(free_of(machine(), 4, 12), 2, machine()) == (5, 13)


def test_what_fits_on_no_numa_node_takes_the_emptier_one_and_little_of_another() -> None:
    chosen = choose(free_of(machine(), 0, 8), 10, machine())
    assert set(range(4, 8)) | set(range(12, 16)) < set(chosen)
    assert len(chosen) == 10


def test_cores_of_different_sizes_are_whole_too() -> None:
    hybrid = (Cpu(0, 0, 0), Cpu(1, 0, 0), Cpu(2, 2, 0), Cpu(3, 3, 0))
    assert choose(hybrid, 1, hybrid) == (2,)
    assert choose(hybrid, 3, hybrid) == (0, 1, 2)


def test_too_few_are_none() -> None:
    assert choose(machine(1, 1, 2), 3, machine(1, 1, 2)) == ()
    assert choose(machine(), 0, machine()) == ()


@given(
    nodes=st.integers(1, 3),
    cores=st.integers(1, 4),
    threads=st.integers(1, 4),
    taken=st.sets(st.integers(0, 47)),
    count=st.integers(1, 48),
)
def test_what_is_chosen_is_free_and_as_many_as_asked_for(
    nodes: int, cores: int, threads: int, taken: set[int], count: int
) -> None:
    cpus = machine(nodes, cores, threads)
    free = free_of(cpus, *taken)
    chosen = choose(free, count, cpus)

    assert len(set(chosen)) == len(chosen) == (count if count <= len(free) else 0)
    assert set(chosen) <= {cpu.number for cpu in free}
    if chosen and any(sum(cpu.numa == node for cpu in free) >= count for node in range(nodes)):
        assert len({cpu.numa for cpu in cpus if cpu.number in chosen}) == 1


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cpus_are_read_back(numbers: set[int]) -> None:
    assert parse_cpu_list(cpu_list(numbers)) == numbers


def test_lists_are_as_the_kernel_writes_them() -> None:
    assert cpu_list({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11"


# --- the map ---


def test_another_attempt_of_the_job_may_have_its_cpus_and_no_other_job() -> None:
    cpus = CpuMap(machine(1, 2, 1))
    cpus.own(AttemptKey(1, 1), (0, 1))

    assert cpus.choose(2, 1) == ()
    assert cpus.choose(1, 2) == (0, 1)
    cpus.own(AttemptKey(1, 2), (0, 1))
    cpus.release(AttemptKey(1, 1), (0, 1))
    assert cpus.choose(2, 1) == (), "the newer attempt owns them"
    cpus.release(AttemptKey(1, 2), (0, 1))
    assert cpus.choose(2, 2) == (0, 1)


# --- the agent ---

SMALL = machine(1, 4, 1)
CPUS = 2


def bound(driver: Driver, job: int, cpus: int = CPUS, **settings: object) -> AcceptedTask:
    share = Share(node="n1", cpus=cpus, **settings)  # type: ignore[arg-type]  # as the tests state them
    (accepted,) = only(driver.launch(order(job, share=share)), do.AcceptTask)
    return accepted.task


def test_jobs_get_cpus_of_their_own_and_those_of_an_ended_one_again() -> None:
    driver = Driver(cpus=SMALL)
    first, second = bound(driver, 1), bound(driver, 2)
    assert (first.cpus, second.cpus) == ((0, 1), (2, 3))

    driver.forked(1)
    driver.seen(1)
    driver.ended(1)
    assert bound(driver, 3).cpus == (0, 1)


def test_an_exclusive_job_gets_all_and_one_without_cpus_is_not_bound() -> None:
    assert bound(Driver(cpus=SMALL), 1, 1, exclusive=True).cpus == (0, 1, 2, 3)
    assert bound(Driver(cpus=SMALL), 1, 0).cpus == ()


def test_a_restarted_gnode_knows_from_its_records_whose_cpus_are_whose() -> None:
    task = bound(Driver(cpus=SMALL), 1)
    driver = Driver(welcome=True, launcher=True, cpus=SMALL)
    lying = SpoolEntry(key=task.key, task=task, info=info(), record=None)
    driver.step(SpoolFound(found=(lying,)))

    assert bound(driver, 2).cpus == (2, 3)


def test_a_job_that_finds_too_few_free_cpus_runs_unbound_and_it_is_said() -> None:
    driver = Driver(cpus=SMALL)
    bound(driver, 1, 3)
    assert bound(driver, 2).cpus == ()
    assert any(
        "attempt 2.1 is not bound to CPUs: it needs 2" in each.text
        for each in only(driver.done, do.Warn)
    )


def test_while_other_nodes_use_the_cpus_nothing_is_bound_and_the_head_hears_it() -> None:
    driver = Driver(cpus=SMALL, cpu_binding="affinity")
    effects = driver.step(BindingChanged(reason="2 other nodes"))
    (said,) = [each.message for each in only(effects, do.SendToHead)]
    assert isinstance(said, Heartbeat)
    assert said.cpu_binding == "none: 2 other nodes"
    assert bound(driver, 1).cpus == ()

    driver.step(BindingChanged(reason=""))
    assert bound(driver, 2).cpus == (0, 1)


def test_a_group_is_named_for_the_cpus_of_every_attempt() -> None:
    task = bound(Driver(cpus=SMALL, cpuset_root=(1, "/cpuset/g")), 1)
    assert task.cpuset is not None
    assert (task.cpuset.version, task.cpuset.path) == (1, "/cpuset/g/1.1")


# --- the machine ---


def found_binding(
    config: NodeConfig, *, offered: int = 2, roots: Roots | None = None, quota: float = 0.0
) -> str:
    cpu = CpuQuota(cores=quota, path=Path("/g"), usage_file=None) if quota else None
    return find_binding(
        config,
        offered=offered,
        roots=roots or Roots(),
        confinement=Confinement(cpu=cpu),
        allowed=frozenset({0, 1}),
    ).words


def test_the_strongest_way_that_works_is_taken() -> None:
    groups = Roots(cpuset=(1, "/g"))
    assert found_binding(NodeConfig(), roots=groups) == "cpuset"
    assert found_binding(NodeConfig()) == "affinity"
    assert found_binding(NodeConfig(cpu_binding="affinity"), roots=groups) == "affinity"
    assert found_binding(NodeConfig(cpu_binding="none"), roots=groups).startswith("none: ")


def test_no_binding_where_more_cpus_are_offered_than_there_are_or_a_quota_confines() -> None:
    words = found_binding(NodeConfig(), offered=8, roots=Roots(cpuset=(1, "/g")))
    assert words == "none: the node offers 8 CPUs, but gnode can use only 2 of its machine"
    assert found_binding(NodeConfig(), quota=1.5).startswith(
        "none: a CPU quota limits this node to 1.50"
    )


def test_a_binding_that_is_required_and_impossible_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot make cpuset"):
        found_binding(NodeConfig(cpu_binding="cpuset"))


def test_cores_and_numa_nodes_are_read(tmp_path: Path) -> None:
    cpus, nodes = tmp_path / "cpu", tmp_path / "node"
    for number, core in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        (cpus / f"cpu{number}" / "topology").mkdir(parents=True)
        (cpus / f"cpu{number}" / "topology" / "core_cpus_list").write_text(f"{core}\n")
    for node, numbers in ((0, "0,2"), (1, "1,3")):
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}" / "cpulist").write_text(f"{numbers}\n")

    assert read_cpus(frozenset({0, 1, 2, 3}), cpus, nodes) == (
        Cpu(0, 0, 0),
        Cpu(1, 1, 1),
        Cpu(2, 0, 0),
        Cpu(3, 1, 1),
    )
    assert read_cpus(frozenset({5}), cpus, nodes) == (Cpu(5, 5, 0),)
