"""Which GPUs a job sees and may open: names, device files, MIG instances, the program for BPF."""

import os
import struct
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pynvml
import pytest

from gnode.core.gpu_access import GpuAccess, GpuFiles, Instance
from gnode.core.task import AttemptKey
from gnode.hw.cgroups import Roots
from gnode.hw.gpu_files import find_gpu_access, find_gpu_files
from gnode.hw.nvml import Nvml
from gnode.supervisor.fence import program_of
from gsched.config.load import parse_config
from gsched.config.nodes import GpuConfig, NodeConfig, expanded
from gsched.errors import ConfigError
from gsched.model.resources import Gpu, GpuShare

KEY = AttemptKey(5, 2)
FILES = GpuFiles(
    of_gpu={0: frozenset({"195:0", "226:128"}), 1: frozenset({"195:1"})},
    of_instance={
        "MIG-a": Instance(gpu=1, files=frozenset({"236:3", "236:4"})),
        "MIG-b": Instance(gpu=1, files=frozenset({"236:5", "236:6"})),
    },
    others=frozenset({"195:7"}),
)
ACCESS = GpuAccess(version=2, root="/groups", files=FILES)
ALL = {"195:0", "226:128", "195:1", "236:3", "236:4", "236:5", "236:6", "195:7"}


def opened(
    whole: tuple[int, ...] = (), shared: tuple[int, ...] = (), visible: str = ""
) -> set[str]:
    shares = tuple(GpuShare(index=index, percent=50) for index in shared)
    fence = ACCESS.fence(KEY, whole, shares, visible)
    assert fence is not None
    assert (fence.version, fence.path) == (2, "/groups/5.2")
    denied, allowed = devices(fence.denied), devices(fence.allowed)
    assert denied | allowed == ALL
    assert not denied & allowed
    return allowed


def devices(texts: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for text in texts:
        major, _, minors = text.partition(":")
        first, _, last = minors.partition("-")
        found |= {f"{major}:{minor}" for minor in range(int(first), int(last or first) + 1)}
    return found


def test_an_attempt_opens_what_it_was_given() -> None:
    assert opened() == set()
    assert opened((0,)) == {"195:0", "226:128"}
    assert opened((0, 1)) == ALL - {"195:7"}, "a whole GPU has all of its instances"
    assert opened((), (1,), "MIG-b") == {"195:1", "236:5", "236:6"}
    assert opened((), (1,), "1") == {"195:1"}, "an instance that it was not given stays closed"
    assert opened((0,), (1,), "MIG-a") == {"195:0", "226:128", "195:1", "236:3", "236:4"}


def test_without_groups_or_files_there_is_no_fence() -> None:
    assert GpuAccess(files=FILES).fence(KEY, (0,)) is None
    assert GpuAccess(version=1, root="/groups").fence(KEY, (0,)) is None


def test_gpus_are_named_by_uuid_where_it_is_known() -> None:
    held = [GpuShare(index=1), GpuShare(index=2, percent=10)]
    assert GpuAccess(names=("GPU-x", "GPU-y", "GPU-z")).visible(held) == "GPU-y,GPU-z"
    assert GpuAccess(names=("", "")).visible(held) == "1,2"
    assert GpuAccess().visible([]) == ""


# --- device files ---


def machine(root: Path, *, minors: dict[str, int]) -> None:
    """Lay a machine of two GPUs out as NVIDIA's driver does; character devices need root."""
    for name in ("dev", "proc/driver/nvidia-caps", "sys/bus/pci/devices"):
        (root / name).mkdir(parents=True)
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n236 nvidia-caps\n\n")
    lines = [f"{name} {minor}\n" for name, minor in minors.items()]
    (root / "proc/driver/nvidia-caps/mig-minors").write_text("".join(lines))
    for number, pci in enumerate(("0000:3b:00.0", "0000:af:00.0")):
        card = root / "sys/bus/pci/devices" / pci
        for node, device in (
            (f"card{number}", f"226:{number}"),
            (f"r{number}", f"226:{128 + number}"),
        ):
            (card / "drm" / node).mkdir(parents=True)
            (card / "drm" / node / "dev").write_text(f"{device}\n")
        (card / "vendor").write_text("0x10de\n")


def library(**changes: object) -> ModuleType:
    """Return a library that sees the first GPU alone, with one MIG instance."""
    made = ModuleType("fake_nvml")
    made.__dict__.update(
        {
            "NVMLError": pynvml.NVMLError,
            "NVML_DEVICE_MIG_ENABLE": 1,
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": str,
            "nvmlDeviceGetMinorNumber": lambda _: 1,
            "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId=b"00000000:AF:00.0"),
            "nvmlDeviceGetMigMode": lambda _: (1, 1),
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda handle, slot: f"{handle}.{slot}",
            "nvmlDeviceGetUUID": lambda handle: f"MIG-{handle}",
            "nvmlDeviceGetGpuInstanceId": lambda _: 2,
            "nvmlDeviceGetComputeInstanceId": lambda _: 0,
            **changes,
        }
    )
    return made


MINORS = {"config": 1, "gpu1/gi2/access": 12, "gpu1/gi2/ci0/access": 13, "gpu1/gi3/access": 21}


def test_files_are_found_by_minor_pci_address_and_capability(tmp_path: Path) -> None:
    machine(tmp_path, minors=MINORS)

    found = find_gpu_files(NodeConfig(), Nvml(library()), tmp_path)

    assert found.of_gpu == {0: {"226:1", "226:129"}}
    assert found.of_instance == {"MIG-0.0": Instance(gpu=0, files=frozenset({"236:12", "236:13"}))}
    # the other GPU, the partitioning itself, and an instance that is not there any more
    assert found.others == {"226:0", "226:128", "236:1", "236:21"}


@pytest.mark.root
def test_device_files_of_the_driver_and_of_the_configuration(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may make device files")
    machine(tmp_path, minors={})
    for minor in (0, 1, 255):
        name = "nvidiactl" if minor == 255 else f"nvidia{minor}"
        os.mknod(tmp_path / "dev" / name, 0o020666, os.makedev(195, minor))

    found = find_gpu_files(NodeConfig(), Nvml(library()), tmp_path)
    assert found.of_gpu == {0: {"195:1", "226:1", "226:129"}}
    assert found.others == {"195:0", "226:0", "226:128"}

    gpus = (GpuConfig(count=2, files=(f"{tmp_path}/dev/nvidia[0-1]",)),)
    found = find_gpu_files(NodeConfig(gpu=gpus), Nvml(library()), tmp_path)
    assert found.of_gpu == {0: {"195:0"}, 1: {"195:1"}}


def test_the_way_is_told_and_why_there_is_none() -> None:
    gpus = (Gpu(index=0, type="x", memory_bytes=1, uuid="GPU-x"),)
    none = Nvml(library(nvmlDeviceGetCount=lambda: 0))

    def words(node: NodeConfig, roots: Roots = Roots()) -> str:  # noqa: B008 - it is frozen
        return find_gpu_access(node, none, gpus, roots).words

    assert words(NodeConfig(gpu_fence="none")) == "none: gpu_fence in [node] is none"
    declared = NodeConfig(gpu=(GpuConfig(count=1),))
    assert words(declared).startswith("none: no device files of the GPUs are known")
    told = NodeConfig(gpu=(GpuConfig(count=1, files=("/dev/null",)),))
    assert words(told).startswith("none: gnode may not")
    elsewhere = NodeConfig(gpu=told.gpu, cgroup="/elsewhere")
    assert words(elsewhere) == "none: there are no control groups, cgroup in [node] is /elsewhere"
    assert words(elsewhere, Roots(tracking="/groups")).startswith("none: gnode may not")
    assert words(told, Roots(devices=(2, "/groups"))) == "bpf"
    assert words(told, Roots(devices=(1, "/groups"))) == "devices"
    asked = NodeConfig(gpu=told.gpu, gpu_fence="bpf")
    with pytest.raises(ConfigError, match="cannot be set up here: gnode may not"):
        words(asked)
    with pytest.raises(ConfigError, match="no control groups") as refused:
        words(NodeConfig(gpu=told.gpu, gpu_fence="bpf", cgroup="none"))
    assert refused.value.hint == 'set cgroup = "auto", or set gpu_fence = "auto"'
    with pytest.raises(ConfigError, match="is no character device"):
        words(NodeConfig(gpu=(GpuConfig(count=1, files=("/etc/passwd",)),)))


def test_a_driver_that_does_not_tell_is_no_error() -> None:
    def fails(_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    gpus = (Gpu(index=0, type="x", memory_bytes=1, uuid="GPU-x"),)
    nvml = Nvml(library(nvmlDeviceGetMinorNumber=fails))

    access = find_gpu_access(NodeConfig(), nvml, gpus, Roots(devices=(2, "/groups")))

    assert access.words.startswith("none: NVML does not tell the device files")
    assert access.visible([GpuShare(index=0)]) == "GPU-x"


def test_capabilities_of_instances_that_may_come_are_closed(tmp_path: Path) -> None:
    """A job that runs while MIG is turned on has the fence that it began with."""
    machine(tmp_path, minors=MINORS)

    off = find_gpu_files(
        NodeConfig(), Nvml(library(nvmlDeviceGetMigMode=lambda _: (0, 0))), tmp_path
    )

    assert off.others >= {"236:1", "236:12", "236:13", "236:21"}


# --- configuration ---


@pytest.mark.parametrize(
    ("count", "files", "names"),
    [
        (2, ("/dev/nvidia[0-1]",), ("/dev/nvidia0", "/dev/nvidia1")),
        (2, ("/dev/a[1,3]", "/dev/b[0-1]x"), ("/dev/a1", "/dev/b0x", "/dev/a3", "/dev/b1x")),
        (1, ("/dev/nvidia7",), ("/dev/nvidia7",)),
        (3, (), ()),
    ],
)
def test_patterns_name_one_file_for_each_gpu(
    count: int, files: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert expanded(GpuConfig(count=count, files=files)) == names


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("/dev/nvidia[0-2]", "names 3 files for 2 GPUs"),
        ("/dev/nvidia*", "cannot be read"),
        ("nvidia[0-1]", "cannot be read"),
        ("/dev/nvidia[1-0]", "cannot be read"),
        ("/dev/nvidia[0-]", "cannot be read"),
        ("/dev/a[0-1]b[0-1]", "cannot be read"),
        ("/dev/nvidia[0-99999999999]", "cannot be read"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused_with_its_place(pattern: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_config(f"[[node.gpu]]\ncount = 2\nfiles = ['{pattern}']\n", where="x.toml")
    assert "files" in str(caught.value)


# --- the program ---


def decide(program: bytes, kind: int, major: int, minor: int) -> int:
    """Run a program as linux/bpf.h describes its instructions; return what it answers."""
    context = {0: 6 << 16 | kind, 4: major, 8: minor}
    registers, at = [0] * 11, 0
    code = [struct.unpack_from("=BBhi", program, 8 * each) for each in range(len(program) // 8)]
    while True:
        operation, both, offset, constant = code[at]
        target, at = both & 15, at + 1
        if operation == 0x61:
            registers[target] = context[offset]
        elif operation == 0x57:
            registers[target] &= constant
        elif operation == 0xB7:
            registers[target] = constant
        elif operation == 0x95:
            return registers[0]
        elif {
            0x55: registers[target] != constant,
            0xA5: registers[target] < constant,
            0xB5: registers[target] <= constant,
        }[operation]:
            at += offset


def test_the_program_denies_these_character_devices_and_nothing_else() -> None:
    texts = ("195:0", "195:2-4", "195:300", "226:128", "236:1-2000")
    program, kept = program_of(texts), devices(texts)

    for kind in (1, 2):
        for major in (1, 195, 226, 236):
            for minor in (0, 1, 2, 3, 4, 5, 127, 128, 129, 299, 300, 301, 2000, 2001, 1 << 20):
                denied = kind == 2 and f"{major}:{minor}" in kept
                assert decide(program, kind, major, minor) == (0 if denied else 1)
    assert decide(program_of(()), 2, 195, 0) == 1
