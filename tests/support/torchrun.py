"""Runs scripts under torchrun, and gsched's agent for it, on this machine."""

import os
import pathlib
import subprocess

from tests.support.ports import free_port
from tests.support.torch_python import torch_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENT = ROOT / "gnode" / "supervisor" / "torchrun_agent.py"
TIMEOUT_S = 900.0


def run_torchrun(
    script: pathlib.Path, *arguments: str, ranks: int, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Return how a script ended that ran on so many ranks, and what it wrote."""
    command = [torch_python(), "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={ranks}", str(script), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def agent_command(
    report: pathlib.Path, *script: str, ranks: int, grace_s: float = 30.0
) -> list[str]:
    """Return how gnode would call the agent for a script on one node."""
    options = {
        "--nnodes": "1",
        "--node-rank": "0",
        "--master-addr": "127.0.0.1",
        "--master-port": str(free_port()),
        "--rdzv-id": "7.1",
        "--nproc-per-node": str(ranks),
        "--max-restarts": "0",
    }
    words = [word for pair in options.items() for word in pair]
    agent = [torch_python(), str(AGENT), "--report", str(report), "--grace", str(grace_s), "--"]
    return [*agent, *words, *script]
