"""Which runtime a node uses for shared GPUs, and what each tells the processes of a task."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gnode.gpushare import ShareClass, SharedTask, ShareRefusedError, make_runtime
from gnode.gpushare.colocate import ColocateRuntime
from gnode.gpushare.interception import InterceptionRuntime
from gnode.gpushare.mig import MigRuntime
from gnode.gpushare.mps import CONTROL_PROGRAM, MpsRuntime
from gnode.hw.nvml import MigInstance, Nvml
from gsched.config import parse_config
from gsched.config_gpu_share import GpuShareConfig
from gsched.errors import ConfigError

GIB = 1 << 30


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


def instance(name: str, gib: int, *, gpu: str = "GPU-1") -> MigInstance:
    """Return an instance of a GPU."""
    return MigInstance(uuid=name, gpu_uuid=gpu, memory_bytes=gib * GIB)


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
    ],
)
def test_the_configuration_chooses_the_runtime(name: str, kind: type, tmp_path: Path) -> None:
    config = GpuShareConfig(runtime=name)

    assert isinstance(make_runtime(config, state_dir=str(tmp_path), nvml=closed_nvml()), kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[gpu_share]\nruntime = "mpss"', "did you mean 'mps'"),
        ('[gpu_share]\nmps_pipe_dir = "pipes"', "absolute path"),
        ("[gpu_share]\nruntme = 1", "runtme"),
    ],
)
def test_a_wrong_key_of_the_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, where="gsched.toml")

    assert message in f"{caught.value.message} {caught.value.hint}"


def test_colocated_tasks_see_one_gpu() -> None:
    runtime = ColocateRuntime()

    assert runtime.missing() is None
    assert runtime.admit(task()) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }


def test_mps_limits_multiprocessors_and_memory_and_knows_two_priorities(tmp_path: Path) -> None:
    runtime = MpsRuntime(pipe_dir=str(tmp_path))

    low = runtime.admit(task())
    high = runtime.admit(task(share_class=ShareClass.HIGH))

    assert low["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert low["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert (high["CUDA_MPS_CLIENT_PRIORITY"], low["CUDA_MPS_CLIENT_PRIORITY"]) == ("0", "1")


def test_mps_says_which_part_is_missing(tmp_path: Path) -> None:
    """First the program, then its daemon; nothing once both are there."""
    runtime = MpsRuntime(pipe_dir=str(tmp_path), path=str(tmp_path))
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


def test_mig_gives_the_smallest_free_instance_of_the_gpu_and_each_once() -> None:
    """The smaller one of another GPU is not the task's."""
    runtime = MigRuntime(
        lambda: [instance("M20", 20), instance("M10", 10), instance("N8", 8, gpu="GPU-2")]
    )

    assert runtime.admit(task(job="1")) == {"CUDA_VISIBLE_DEVICES": "M10"}
    assert runtime.admit(task(job="1")) == {"CUDA_VISIBLE_DEVICES": "M10"}
    assert runtime.admit(task(job="2")) == {"CUDA_VISIBLE_DEVICES": "M20"}
    with pytest.raises(ShareRefusedError, match="no free MIG instance is that large"):
        runtime.admit(task(job="3"))
    runtime.release(task(job="1"))
    assert runtime.admit(task(job="3")) == {"CUDA_VISIBLE_DEVICES": "M10"}


def test_after_a_restart_tasks_keep_the_instances_that_they_have() -> None:
    """The smallest free one would be another job's."""
    runtime = MigRuntime(lambda: [instance("M20", 20), instance("M10", 10)])
    runtime.keep([])

    assert runtime.admit(replace(task(job="1"), visible="M20")) == {"CUDA_VISIBLE_DEVICES": "M20"}
    assert runtime.admit(task(job="2")) == {"CUDA_VISIBLE_DEVICES": "M10"}
    runtime.keep([task(job="2")])
    assert runtime.admit(task(job="3"))  # the instance of job 1


def test_mig_without_instances_says_what_to_do() -> None:
    assert "nvidia-smi mig" in (MigRuntime(list).missing() or "")
    assert "nvidia-smi mig" in (MigRuntime(closed_nvml().mig_instances).missing() or "")


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
