"""Jobs are kept on their own CPUs: by affinity and by control groups, also over a kill of gnode."""

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.core.cpus import parse_cpu_list
from gnode.daemon.neighbours import Neighbours
from gnode.hw import cgroups
from gsched.model.resources import Share
from gsched.protocol.node import Heartbeat, Register
from tests.support.gnode_world import GnodeWorld
from tests.support.processes import attempts

CPUS = sorted(os.sched_getaffinity(0))
SHARE = Share(node="n1", cpus=1)

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs that this test may use")


def has_cpusets() -> bool:
    if os.geteuid() != 0:
        return False
    roots = cgroups.find_roots("auto", "/nowhere/gsched-test-cpus", limit_cpus=True)
    cgroups.remove_if_empty(roots)
    return roots.cpuset is not None


METHODS = ("affinity", pytest.param("cpuset", marks=pytest.mark.root))


@pytest.fixture
def name() -> str:
    return f"gsched-test-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    made.settings["cpus"] = 2
    yield made
    print(made.log())
    made.stop()


def start(world: GnodeWorld, name: str, binding: str) -> None:
    if binding == "cpuset" and not has_cpusets():
        pytest.skip("cpuset control groups cannot be made here")
    world.settings["cpu_binding"] = binding
    world.start({"GSCHED_TEST_NEIGHBOURS": name})


def script(world: GnodeWorld, job: int) -> str:
    """Tell which CPUs the job has, try to get all of them, and wait."""
    return (
        f"nproc > {world.work}/nproc{job}\n"
        f"grep Cpus_allowed_list /proc/self/status > {world.work}/cpus{job}.new\n"
        f"taskset -p ffff $$ >/dev/null 2>&1\n"
        f"grep Cpus_allowed_list /proc/self/status > {world.work}/taken{job}\n"
        f"mv {world.work}/cpus{job}.new {world.work}/cpus{job}\n"
        f"while ! [ -e {world.work}/over ]; do sleep 0.1; done"
    )


def allowed(path: Path) -> frozenset[int]:
    for _ in attempts():
        if path.exists():
            return parse_cpu_list(path.read_text().split()[1])
    raise AssertionError(f"{path} did not appear")


@pytest.mark.parametrize("binding", METHODS)
def test_two_jobs_have_one_cpu_each_also_after_a_kill_of_gnode(
    world: GnodeWorld, name: str, binding: str
) -> None:
    start(world, name, binding)
    world.launch(1, script(world, 1), share=SHARE)
    first = allowed(world.work / "cpus1")
    world.kill()
    world.start({"GSCHED_TEST_NEIGHBOURS": name})
    world.launch(2, script(world, 2), share=SHARE)
    second = allowed(world.work / "cpus2")

    assert (len(first), len(second)) == (1, 1)
    assert first | second <= set(CPUS)
    assert not first & second
    assert (world.work / "nproc1").read_text() == "1\n"
    if binding == "cpuset":
        assert allowed(world.work / "taken1") == first, "no program gets out of a cpuset"
    (world.work / "over").touch()
    assert world.head.wait_for_exit(1).record.exit_code == 0
    assert world.head.wait_for_exit(2).record.exit_code == 0


def test_jobs_of_a_node_that_offers_more_than_there_is_are_not_bound(
    world: GnodeWorld, name: str
) -> None:
    world.settings["cpus"] = len(CPUS) + 1
    start(world, name, "auto")
    (world.work / "over").touch()
    world.launch(1, script(world, 1), share=SHARE)
    world.head.wait_for_exit(1)

    assert allowed(world.work / "cpus1") == set(CPUS)
    (register,) = [each for each in world.head.received if isinstance(each, Register)]
    assert register.cpu_binding.startswith(f"none: the node offers {len(CPUS) + 1} CPUs")


def test_a_second_node_of_the_machine_ends_the_binding_and_its_end_begins_it_again(
    world: GnodeWorld, name: str
) -> None:
    start(world, name, "affinity")

    async def meet() -> int:
        heard: list[int] = []
        other = Neighbours(CPUS, heard.append, prefix=name)
        await other.start()
        assert heard == [1], "who comes knows the others before it goes on"
        await asyncio.to_thread(wait_for_binding, world, "none: 1 other node on this machine")
        other.close()
        await asyncio.to_thread(wait_for_binding, world, "affinity")
        return len(heard)

    asyncio.run(meet())
    (world.work / "over").touch()
    world.launch(1, script(world, 1), share=SHARE)
    world.head.wait_for_exit(1)
    assert len(allowed(world.work / "cpus1")) == 1


def wait_for_binding(world: GnodeWorld, words: str) -> None:
    said: list[Register | Heartbeat] = []
    for _ in attempts():
        said = [each for each in world.head.received if isinstance(each, Register | Heartbeat)]
        if said and said[-1].cpu_binding.startswith(words):
            return
    raise AssertionError(f"the head did not hear {words!r}: {said[-1]}")


def test_nodes_on_other_cpus_are_no_neighbours(name: str) -> None:
    async def meet() -> list[int]:
        heard: list[int] = []
        ours, others = (
            Neighbours({0, 1}, heard.append, prefix=name),
            Neighbours({2, 3}, heard.append, prefix=name),
        )
        await ours.start()
        await others.start()
        ours.close()
        others.close()
        return heard

    assert asyncio.run(meet()) == []
