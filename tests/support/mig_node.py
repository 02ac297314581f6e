"""The runtime ``mig`` of a node: ``python -m tests.support.mig_node CONFIG ROOT [GPU]...``

It makes the instances that CONFIG wants, while jobs have the GPUs of these indices, and prints what
came of it in JSON: what is missing, the refusal, the words, whether it waits, the instances, and
for each of them what a task gets that has it: CUDA_VISIBLE_DEVICES and the device files that it may
open, from a machine whose files lie below ROOT.
"""

import json
import sys
from pathlib import Path

from gnode.core.gpu_access import GpuAccess
from gnode.core.task import AttemptKey
from gnode.gpushare import RuntimeSite, ShareClass, SharedTask, ShareRefusedError
from gnode.gpushare.mig import MigRuntime
from gnode.hw.gpu_files import find_gpu_files
from gnode.hw.nvml import Nvml
from gsched.config.load import load_config
from gsched.config.nodes import NodeConfig
from gsched.model.resources import GpuShare


def main() -> None:
    """Run it."""
    config, root, *busy = sys.argv[1:]
    nvml = Nvml()
    site = RuntimeSite(
        config=load_config(config).gpu_share, directory=Path(root, "gpushare"), nvml=nvml
    )
    runtime = MigRuntime(site)
    said: dict[str, object] = {"missing": runtime.missing(), "refused": ""}
    try:
        runtime.prepare([int(index) for index in busy])
    except ShareRefusedError as error:
        said["refused"] = error.message
    files = find_gpu_files(NodeConfig(), nvml, Path(root))
    access = GpuAccess(version=2, root="/groups", files=files)
    tasks = []
    for number, instance in enumerate(nvml.mig_instances()):
        (gpu,) = (gpu for gpu in nvml.gpus() if gpu.uuid == instance.gpu_uuid)
        task = SharedTask(
            job=str(number),
            attempt=1,
            gpu_index=gpu.index,
            gpu_uuid=gpu.uuid,
            percent=1,
            memory_bytes=instance.memory_bytes,
            share_class=ShareClass.LOW,
        )
        visible = runtime.admit(task)["CUDA_VISIBLE_DEVICES"]
        part = GpuShare(index=gpu.index, percent=1)
        fence = access.fence(AttemptKey(number, 1), (), (part,), visible)
        tasks.append([visible, list(fence.allowed) if fence is not None else None])
    said |= {
        "words": runtime.words(),
        "problem": runtime.problem(),
        "waits": runtime.waits(),
        "sizes": [[each.gpu_uuid[-1], each.memory_bytes >> 30] for each in nvml.mig_instances()],
        "tasks": tasks,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
