"""What gnode is confined to: the limits of its control groups, of both versions."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from gnode.hw.confinement import Confinement, find_confinement
from tests.support.control_groups import entered, made_groups

GB = 1 << 30


class Kernel:
    """A directory that looks like ``/proc/self`` and the mounted hierarchies of one process."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.proc.mkdir()
        self._directory = directory
        self._own: list[str] = []
        self._mounts = ["24 1 0:22 / /proc rw,nosuid shared:12 - proc proc rw"]

    def mount(self, name: str, controllers: str, *, own: str, root: str = "/") -> Path:
        """Mount a hierarchy in which our group is ``own``; no controllers: it is version 2."""
        place = self._directory / name
        place.mkdir()
        kind = "cgroup" if controllers else "cgroup2"
        options = f"rw,{controllers}" if controllers else "rw,nsdelegate"
        shown = str(place).replace(" ", "\\040")
        self._mounts.append(f"31 24 0:9 {root} {shown} rw shared:4 - {kind} {kind} {options}")
        self._own.append(f"{len(self._own)}:{controllers}:{own}")
        return place

    def find(self, cores: float = 8, memory_bytes: int = 64 * GB) -> Confinement:
        (self.proc / "mountinfo").write_text("".join(f"{line}\n" for line in self._mounts))
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in self._own))
        return find_confinement(self.proc, cores=cores, memory_bytes=memory_bytes)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def write(directory: Path, **files: str) -> Path:
    """Write control files, whose names have two underscores for the point."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(f"{content}\n")
    return directory


def version1_quota(directory: Path, quota: int, period: int = 100_000) -> Path:
    return write(directory, cpu__cfs_quota_us=str(quota), cpu__cfs_period_us=str(period))


def test_a_machine_without_control_groups_is_free(kernel: Kernel) -> None:
    assert kernel.find() == Confinement()
    assert find_confinement(kernel.proc / "nowhere") == Confinement()


def test_version_1_quota_and_limit_are_found_with_their_counters(kernel: Kernel) -> None:
    """The unlimited group between, and the machine's own at the top, do not count."""
    top = kernel.mount("cpu", "cpu,cpuacct", own="/site/node/inner")
    version1_quota(top / "site" / "node" / "inner", -1)
    group = version1_quota(top / "site" / "node", 50_000)
    write(group, cpuacct__usage="1500000000")
    version1_quota(top / "site", 200_000)
    memory = kernel.mount("memory", "memory", own="/site")
    write(memory, memory__limit_in_bytes="9223372036854771712")
    write(
        memory / "site",
        memory__limit_in_bytes=str(2 * GB),
        memory__usage_in_bytes="1000",
        memory__stat="inactive_file 1\ntotal_inactive_file 300",
    )

    found = kernel.find()

    assert found.cpu is not None
    assert (found.cpu.cores, found.cpu.path, found.cpu.used_s()) == (0.5, group, 1.5)
    assert found.memory is not None
    assert (found.memory.limit_bytes, found.memory.path) == (2 * GB, memory / "site")
    assert found.memory.used_bytes() == 700


def test_version_2_quota_and_limit_are_found_with_their_counters(kernel: Kernel) -> None:
    """Each limit where it is: the quota above, the memory in our own group."""
    top = kernel.mount("unified", "", own="/slice/gnode.service")
    write(top / "slice", cpu__max="150000 100000", cpu__stat="usage_usec 2500000\nuser_usec 1")
    write(
        top / "slice" / "gnode.service",
        cpu__max="max 100000",
        memory__max=str(GB),
        memory__current="5000",
        memory__stat="anon 1\ninactive_file 1000\nactive_file 7",
    )

    found = kernel.find()

    assert found.cpu is not None
    assert (found.cpu.cores, found.cpu.path, found.cpu.used_s()) == (1.5, top / "slice", 2.5)
    assert found.memory is not None
    assert (found.memory.limit_bytes, found.memory.used_bytes()) == (GB, 4000)


def test_the_smallest_limit_counts_and_of_equal_ones_the_nearest(kernel: Kernel) -> None:
    """In version 2 a group may be given more than the one above it has."""
    top = kernel.mount("unified", "", own="/a/b/c")
    write(top / "a" / "b" / "c", cpu__max="400000 100000")
    write(top / "a" / "b", cpu__max="200000 100000")
    write(top / "a", cpu__max="100000 50000")

    found = kernel.find()

    assert found.cpu is not None
    assert (found.cpu.cores, found.cpu.path) == (2, top / "a" / "b")


def test_a_limit_that_the_machine_has_anyway_is_none(kernel: Kernel) -> None:
    top = kernel.mount("unified", "", own="/a")
    write(top / "a", cpu__max="800000 100000", memory__max=str(64 * GB))

    assert kernel.find() == Confinement()


def test_in_a_container_the_mounted_part_of_the_tree_counts(kernel: Kernel) -> None:
    """The kernel names our group from the top, of which only a part is mounted."""
    seen = kernel.mount("cpu here", "cpu", own="/docker/1f/job", root="/docker/1f")
    version1_quota(seen / "job", -1)
    version1_quota(seen, 300_000)
    hidden = kernel.mount("memory", "memory", own="/", root="/docker/1f")
    write(hidden, memory__limit_in_bytes=str(GB))

    found = kernel.find()

    assert found.cpu is not None
    assert found.memory is not None
    assert (found.cpu.path, found.memory.path) == (seen, hidden)


def test_of_several_mounts_of_a_tree_the_one_with_our_group_counts(kernel: Kernel) -> None:
    """A part that is mounted for other reasons, before or behind it, says nothing of us."""
    ours = "/docker/1f/job"
    other = kernel.mount("watched", "", own=ours, root="/docker/2e")
    write(other, cpu__max="100000 100000", memory__max=str(GB))
    whole = kernel.mount("unified", "", own=ours)
    write(whole / "docker" / "1f", cpu__max="300000 100000")
    again = kernel.mount("again", "", own=ours, root="/docker/3d")
    write(again, cpu__max="200000 100000")

    found = kernel.find()

    assert found.cpu is not None
    assert (found.cpu.cores, found.cpu.path) == (3, whole / "docker" / "1f")
    assert found.memory is None


@pytest.mark.parametrize("counted", ["/", "/other"])
def test_a_counter_of_others_is_not_taken(kernel: Kernel, counted: str) -> None:
    """With a hierarchy of its own the counter may hold other processes: these are asked then."""
    top = kernel.mount("cpu", "cpu", own="/node")
    group = version1_quota(top / "node", 50_000)
    other = kernel.mount("cpuacct", "cpuacct", own=counted)
    write(other, cpuacct__usage="999000000000")
    write(other / "node", cpuacct__usage="888000000000")
    burn = "sum(range(5_000_000)); print('hot', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hot\n"
        write(group, cgroup__procs=str(process.pid))

        found = kernel.find()

        assert found.cpu is not None
        assert found.cpu.usage_file is None
        assert 0 < found.cpu.used_s() < 800
        process.communicate(b"\n")

    assert found.cpu.used_s() == 0


@pytest.mark.parametrize("text", ["", "max", "oops 1", "0 100000", "1 2 3"])
def test_what_is_no_quota_confines_nothing(kernel: Kernel, text: str) -> None:
    write(kernel.mount("unified", "", own="/"), cpu__max=text, memory__max="max")

    assert kernel.find() == Confinement()


@pytest.mark.root
def test_a_real_group_confines_a_process_and_counts_it() -> None:
    """A child that burns a fifth of a core for a while has used about that, and the group says so.

    The child finds its own confinement; the group's counter must agree with the child's.
    """
    program = (
        "import os, sys\n"
        "from gnode.hw.confinement import find_confinement\n"
        "found = find_confinement()\n"
        "before_s = found.cpu.used_s()\n"
        "sum(range(20_000_000))\n"
        "held = bytearray(50 << 20)\n"
        "print(found.cpu.cores, found.cpu.path, found.memory.limit_bytes, found.memory.path)\n"
        "print(found.cpu.used_s() - before_s, sum(os.times()[:2]), found.memory.used_bytes())\n"
    )
    name = f"gsched-test-{uuid.uuid4().hex[:8]}"
    with made_groups(name, cores=0.2, memory_bytes=GB) as paths:
        with entered(paths):
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
            )
        output, _ = process.communicate()

    cores, cpu_path, limit, memory_path, group_s, own_s, used_bytes = output.split()
    assert (float(cores), cpu_path) == (0.2, str(paths["cpu"]))
    assert (int(limit), memory_path) == (GB, str(paths["memory"]))
    assert 0 < float(group_s) <= float(own_s) + 0.1
    assert 50 << 20 < int(used_bytes) < GB
