"""Which runtime a node uses for shared GPUs, and what each tells the processes of a task."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from msgspec import convert, structs

from gnode.gpushare import (
    Contained,
    Runtime,
    RuntimeSite,
    ShareClass,
    SharedTask,
    ShareRefusedError,
    make_runtime,
)
from gnode.gpushare.hami import HamiRuntime
from gnode.gpushare.interception import InterceptionRuntime
from gnode.gpushare.mig import MigRuntime
from gnode.gpushare.mps import ColocateRuntime, MpsRuntime
from gnode.gpushare.obstacles import CONTROL_PROGRAM
from gnode.gpushare.runtimes import OWN
from gnode.hw.nvml import MigInstance, Nvml
from gsched.config.load import parse_config
from gsched.config.nodes import SHARE_RUNTIMES, GpuShareConfig
from gsched.errors import ConfigError

GIB = 1 << 30
MIG = '[gpu_share]\nruntime = "mig"\n[[gpu_share.mig]]\n'


def task(
    *, job: str = "7", memory_bytes: int = 8 * GIB, share_class: ShareClass = ShareClass.LOW
) -> SharedTask:
    """Return a task on GPU-1."""
    return SharedTask(
        job=job,
        attempt=1,
        gpu_index=1,
        gpu_uuid="GPU-1",
        percent=30,
        memory_bytes=memory_bytes,
        share_class=share_class,
    )


def device(runtime: Runtime, of: SharedTask) -> str:
    """Return the device that a task gets."""
    return runtime.admit(of)["CUDA_VISIBLE_DEVICES"]


def instance(name: str, gib: int, *, gpu: str = "GPU-1") -> MigInstance:
    """Return an instance of a GPU."""
    return MigInstance(uuid=name, gpu_uuid=gpu, memory_bytes=gib * GIB)


class Instances(Nvml):
    """NVML of a machine with these MIG instances."""

    def __init__(self, *instances: MigInstance) -> None:
        self._instances = instances

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """Return them."""
        return self._instances


def site(folder: Path, nvml: Nvml | None = None, **settings: object) -> RuntimeSite:
    """Return what a runtime is made from; settings are of [gpu_share]."""
    config = convert(settings, GpuShareConfig)
    return RuntimeSite(config=config, directory=folder / "gpushare", nvml=nvml or closed_nvml())


def closed_nvml() -> Nvml:
    """Return NVML on a machine without it."""

    class NoLibraryError(Exception):
        pass

    def fails() -> None:
        raise NoLibraryError

    library = ModuleType("no_nvml")
    library.__dict__.update(NVMLError=NoLibraryError, nvmlInit=fails)
    return Nvml(library)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("interception", InterceptionRuntime),
        ("mps", MpsRuntime),
        ("mig", MigRuntime),
        ("colocate", ColocateRuntime),
        ("hami-core", HamiRuntime),
    ],
)
def test_the_configuration_chooses_the_runtime(name: str, kind: type, tmp_path: Path) -> None:
    config = GpuShareConfig(runtime=name)

    assert isinstance(make_runtime(config, state_dir=str(tmp_path), nvml=closed_nvml()), kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[gpu_share]\nruntime = "mpss"', "did you mean 'mps'? valid: none, mps, mig, hami-core"),
        ('[gpu_share]\nruntime = "hami-core"', "hami_library is missing"),
        ('[gpu_share]\nmps_pipe_dir = "pipes"', "absolute path"),
        ("[gpu_share]\nruntme = 1", "runtme"),
        ('[[gpu_share.mig]]\ninstances = ["1g.10gb"]', "uses no MIG instances"),
        (MIG + 'instances = ["10gb"]', "'10gb' is no MIG profile"),
        (
            MIG + 'instances = ["1g.5gb", "1g.5gb+me"]\n[[gpu_share.mig]]\ninstances = []',
            "two tables have no gpus",
        ),
        (MIG + f"instances = {['1g.5gb'] * 8}", "8 instances, and a GPU has at most 7"),
        (MIG + "gpus = [1, 0, 1]\ninstances = []", "GPU 1 is named twice"),
        (MIG + "gpus = []\ninstances = []", "is empty, so that the table is for no GPU"),
        (
            MIG + "gpus = [0, 2]\ninstances = []\n[[gpu_share.mig]]\ngpus = [2]\ninstances = []",
            "GPU 2 is named twice",
        ),
        ('[gpu_share]\nruntime = "mps"\noptions = { size = 2 }', "'mps' has no options"),
    ],
)
def test_a_wrong_key_of_the_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, where="gsched.toml")

    assert message in f"{caught.value.message} {caught.value.hint}"


def test_colocated_tasks_see_one_gpu(tmp_path: Path) -> None:
    runtime = ColocateRuntime(site(tmp_path))

    assert runtime.missing() is None
    assert runtime.admit(task()) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "gpushare" / "no-mps"),
    }


def test_mps_limits_multiprocessors_and_memory_and_knows_two_priorities(tmp_path: Path) -> None:
    runtime = MpsRuntime(site(tmp_path, mps_pipe_dir=str(tmp_path)))

    low = runtime.admit(task())
    high = runtime.admit(task(share_class=ShareClass.HIGH))

    assert low["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert low["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert (high["CUDA_MPS_CLIENT_PRIORITY"], low["CUDA_MPS_CLIENT_PRIORITY"]) == ("0", "1")


def test_mps_says_which_part_is_missing(tmp_path: Path) -> None:
    """First the program, then its daemon; nothing once both are there."""
    runtime = MpsRuntime(site(tmp_path, mps_pipe_dir=str(tmp_path)), path=str(tmp_path))
    without_program = runtime.missing()

    (tmp_path / CONTROL_PROGRAM).write_text("#!/bin/sh\n")
    (tmp_path / CONTROL_PROGRAM).chmod(0o755)
    without_daemon = runtime.missing()
    (tmp_path / "control").touch()

    assert without_program is not None
    assert "not installed" in without_program
    assert without_daemon is not None
    assert f"{CONTROL_PROGRAM} -d" in without_daemon
    assert runtime.missing() is None


def test_mig_gives_the_smallest_free_instance_of_the_gpu_and_each_once(tmp_path: Path) -> None:
    """The smaller one of another GPU is not the task's."""
    nvml = Instances(instance("M20", 20), instance("M10", 10), instance("N8", 8, gpu="GPU-2"))
    runtime = MigRuntime(site(tmp_path, nvml))

    assert device(runtime, task(job="1")) == "M10"
    assert device(runtime, task(job="1")) == "M10"
    assert device(runtime, task(job="2")) == "M20"
    with pytest.raises(ShareRefusedError, match="no free MIG instance is that large"):
        runtime.admit(task(job="3"))
    runtime.release(task(job="1"))
    assert device(runtime, task(job="3")) == "M10"


def test_after_a_restart_tasks_keep_the_instances_that_they_have(tmp_path: Path) -> None:
    """The smallest free one would be another job's."""
    runtime = MigRuntime(site(tmp_path, Instances(instance("M20", 20), instance("M10", 10))))
    runtime.keep([])

    assert device(runtime, replace(task(job="1"), visible="M20")) == "M20"
    assert device(runtime, task(job="2")) == "M10"
    runtime.keep([task(job="2")])
    assert runtime.admit(task(job="3"))  # the instance of job 1


def test_mig_without_instances_says_what_to_do(tmp_path: Path) -> None:
    assert "nvidia-smi mig" in (MigRuntime(site(tmp_path, Instances())).missing() or "")
    assert "nvidia-smi mig" in (MigRuntime(site(tmp_path)).missing() or "")


# ---- HAMi-core ----


def test_hami_core_limits_the_memory_of_all_processes_of_a_job(tmp_path: Path) -> None:
    library = tmp_path / "libvgpu.so"
    library.touch()
    wanted = site(tmp_path, hami_library=str(library))
    runtime = HamiRuntime(wanted, lock_directory=str(tmp_path / "locks"))

    assert runtime.missing() is None
    runtime.prepare()
    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777
    admitted = runtime.admit(replace(task(), directory="/tmp/gsched/7.1"))
    assert admitted == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "LD_PRELOAD": str(library),
        "CUDA_DEVICE_MEMORY_LIMIT": "8192m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/gsched/7.1/vgpu.cache",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "gpushare" / "no-mps"),
    }
    assert runtime.contained(task(), admitted).mounts == (
        f"{library}:{library}:ro",
        f"{tmp_path}/locks:{tmp_path}/locks",
    )
    timed = HamiRuntime(site(tmp_path, hami_library=str(library), hami_sm_limit=True))
    assert timed.admit(task())["CUDA_DEVICE_SM_LIMIT"] == "30"


def test_hami_core_says_what_is_missing(tmp_path: Path) -> None:
    assert "set hami_library" in (HamiRuntime(site(tmp_path)).missing() or "")
    nowhere = site(tmp_path, hami_library=str(tmp_path / "none.so"))
    assert "cannot be read" in (HamiRuntime(nowhere).missing() or "")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ShareRefusedError, match="is no directory"):
        HamiRuntime(nowhere, lock_directory=str(tmp_path / "locks")).prepare()


# ---- runtimes of other packages ----


class Own(Runtime):
    """A site's runtime: it can be used where its option says so, and breaks where it says so."""

    containers = True

    def __init__(self, site: RuntimeSite) -> None:
        self._options = site.config.options

    def missing(self) -> str | None:
        return None if self._options["usable"] else "not here"

    def admit(self, task: SharedTask) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": task.gpu_name, "SLICE": str(1 // int(task.percent - 30))}


def no_runtime(_: RuntimeSite) -> str:
    """Return something else."""
    return "nothing"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a package with runtimes, given as ``NAME = PLACE`` lines."""

    def put(lines: str) -> None:
        folder = tmp_path / "own_runtimes-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own-runtimes\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[gsched.gpu_runtimes]\n{lines}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


def parsed(runtime: str) -> GpuShareConfig:
    text = f'[gpu_share]\nruntime = "{runtime}"\noptions = {{ usable = true }}\n'
    return parse_config(text, where="gsched.toml").gpu_share


def made(config: GpuShareConfig, folder: Path) -> Runtime:
    return make_runtime(config, state_dir=str(folder), nvml=closed_nvml())


def test_a_package_of_the_site_adds_a_runtime(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    """Its faults refuse a launch, and do not end gnode."""
    install(f"own = {__name__}:Own")
    runtime = made(parsed("own"), tmp_path)

    assert runtime.missing() is None
    assert runtime.containers
    assert runtime.contained(task(), {}) == Contained()
    assert runtime.admit(replace(task(), percent=31))["SLICE"] == "1"
    with pytest.raises(ShareRefusedError, match="a fault of the runtime own: ZeroDivisionError"):
        runtime.admit(task())
    broken = made(structs.replace(parsed("own"), options={}), tmp_path)
    assert "a fault of the runtime own: KeyError" in (broken.missing() or "")


def test_a_runtime_that_cannot_be_loaded_is_told_with_its_place(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    install(f"gone = no_such_module:Own\nodd = {__name__}:no_runtime")

    with pytest.raises(ConfigError, match="'gone' cannot be loaded from no_such_module:Own"):
        made(parsed("gone"), tmp_path)
    with pytest.raises(ConfigError, match=r"returned no gnode\.gpushare\.Runtime for 'odd'"):
        made(parsed("odd"), tmp_path)
    with pytest.raises(ConfigError) as caught:
        parsed("ood")
    assert caught.value.hint.endswith("colocate, interception, gone, odd")


def test_the_configuration_knows_the_runtimes_of_gsched() -> None:
    assert {*OWN, "none"} == set(SHARE_RUNTIMES)


def test_nvml_lists_the_instances_of_gpus_in_mig_mode() -> None:
    """GPU 0 cannot do MIG; GPU 1 has two slots, one of them empty."""

    class SaidError(Exception):
        pass

    def mode(handle: str) -> list[int]:
        if handle == "0":
            raise SaidError
        return [1, 1]

    def instance_of(handle: str, slot: int) -> str:
        if slot == 1:
            raise SaidError
        return f"{handle}.{slot}"

    library = ModuleType("fake_nvml")
    library.__dict__.update(
        NVMLError=SaidError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=str,
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 2,
        nvmlDeviceGetMigDeviceHandleByIndex=instance_of,
        nvmlDeviceGetUUID=lambda handle: f"U-{handle}",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=10 * GIB),
    )

    assert Nvml(library).mig_instances() == (
        MigInstance(uuid="U-1.0", gpu_uuid="U-1", memory_bytes=10 * GIB),
    )
