"""A gnode in control groups of its own is a node of what those may use, and so are its jobs."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.hw import cgroups
from gsched.model.resources import Inventory, Share
from gsched.protocol.node import Heartbeat, Register
from tests.support.control_groups import CONTROLLERS, entered, made_groups
from tests.support.gnode_world import GnodeWorld

pytestmark = pytest.mark.root

CORES = 0.3
MEMORY_BYTES = 1 << 30


@pytest.fixture
def groups() -> Iterator[dict[str, Path]]:
    name = f"gsched-test-{uuid.uuid4().hex[:8]}"
    with made_groups(name, cores=CORES, memory_bytes=MEMORY_BYTES) as made:
        yield made


@pytest.fixture
def world(groups: dict[str, Path], tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    """Return a gnode that has been started in the groups; it offers four CPUs."""
    made = GnodeWorld(tmp_path / "w", process_marker)
    made.settings.pop("memory")
    made.settings.update(sample_s=1.0, heartbeat_s=1.0)
    with entered(groups):
        made.start(wait=False)
    made.head.wait_for_connection(1)
    yield made
    print(made.log())
    made.stop()


def inventory(world: GnodeWorld) -> Inventory:
    (register,) = [message for message in world.head.received if isinstance(message, Register)]
    return register.inventory


def test_it_offers_what_its_groups_may_use(world: GnodeWorld) -> None:
    found = inventory(world)

    assert (found.cpus, found.cpu_capacity_cores) == (4, CORES)
    assert found.memory_bytes == MEMORY_BYTES


def test_its_jobs_cannot_leave_and_fill_it(world: GnodeWorld, groups: dict[str, Path]) -> None:
    """Four processes that want a core each get at most the quota, which is the node's load, too.

    The job's memory limit is a group below the node's. What a process says of its own groups is
    what the kernel says.
    """
    script = (
        f"cat /proc/self/cgroup > {world.work}/groups\n"
        "for n in 1 2 3 4; do timeout 4 sh -c 'while :; do :; done' & done; wait; exit 3"
    )
    world.launch(1, script, share=Share(node="n1", cpus=4, memory_bytes=256 << 20))
    exited = world.head.wait_for_exit(1)

    assert exited.record.exit_code == 3
    seen = dict(line.split(":", 2)[1:] for line in (world.work / "groups").read_text().splitlines())
    own = cgroups.own_paths()
    for controller in CONTROLLERS:
        inside = cgroups.MOUNT / controller / seen[controller].lstrip("/")
        assert inside.is_relative_to(groups[controller]), seen
        assert own[controller] != seen[controller]
    assert seen["memory"].count("/") > own["memory"].count("/") + 1
    # A quota is handed out in slices of some ms, so that a little more than it may be used.
    used_percent = 100 * exited.usage.cpu_s / (CORES * exited.usage.wall_s)
    assert 0 < used_percent <= 150
    loads = [message.load for message in world.head.received if isinstance(message, Heartbeat)]
    assert max(load.cpu_percent for load in loads) > 0.6 * used_percent
    assert exited.load.cpu_percent < 40, "what has ended is not in the load any more"
    assert 0 < exited.load.memory_used_bytes < MEMORY_BYTES
