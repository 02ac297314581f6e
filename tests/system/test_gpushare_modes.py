"""A real node whose GPUs cannot be shared as their compute mode is. By a fake NVML."""

from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.nvml_machine import build_nvml

pytestmark = pytest.mark.timeout(120)


def test_a_node_whose_gpu_is_for_one_process_says_so(cluster: Cluster, tmp_path: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(build_nvml(tmp_path)), "FAKE_NVML_COMPUTE_MODE": "3"}
    cluster.share_runtimes["n1"] = "colocate"
    cluster.start_head()
    cluster.start_node("n1", env=env, sample_s=0.3)

    def shown() -> str:
        return run_command("gnodes", "n1", head=str(cluster.socket)).stdout

    words = "gpu_sharing = none: the compute mode of GPU 0 is EXCLUSIVE_PROCESS"
    wait_until(lambda: words in shown(), what="the words")
    assert "nvidia-smi -i 0 -c DEFAULT" in shown()
