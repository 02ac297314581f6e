"""A real gnode whose GPUs several jobs share; the GPUs are declared."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gsched.model.resources import GpuShare, Share
from gsched.model.states import OutcomeKind, PartState, ShareClass
from gsched.protocol.node import Register
from tests.support.gnode_world import GnodeWorld
from tests.support.gpu_fixtures import needs_compiler
from tests.support.processes import attempts

GIB = 2**30


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    made.gpus = 2
    made.share_runtime = "colocate"
    yield made
    print(made.log())
    made.stop()


def share(world: GnodeWorld, job: int, script: str, percent: int, gib: int = 1) -> None:
    """Launch a job with a part of GPU 1."""
    part = GpuShare(index=1, percent=percent, memory_bytes=gib * GIB, share_class=ShareClass.LOW)
    world.launch(job, script, share=Share(node="n1", cpus=1, gpu_shares=(part,)))


def waits_for(world: GnodeWorld, name: str) -> str:
    return f"while ! test -e {world.work}/{name}; do sleep 0.05; done"


def test_jobs_share_a_gpu_until_a_restarted_gnode_has_no_room_for_more(world: GnodeWorld) -> None:
    """They run at once, each with its share in the environment."""
    world.start()
    script = f"env > {world.work}/env.$GSCHED_JOB_NUMBER; {waits_for(world, 'go')}"
    for job in (1, 2):
        share(world, job, script, 50, 8)
    for job in (1, 2):
        world.head.wait_for_start(job)
        path = world.work / f"env.{job}"
        for _ in attempts():
            if path.exists() and "GPU_SHARE_CLASS" in path.read_text():
                break
        lines = path.read_text().splitlines()
        assert "CUDA_VISIBLE_DEVICES=1" in lines
        assert "GSCHED_GPU_SHARE_PERCENT=50" in lines
        assert f"GSCHED_GPU_SHARE_MEMORY_BYTES={8 * GIB}" in lines

    world.kill()
    world.start()

    register = world.head.wait_for(Register, count=2)[-1]
    assert register.sharing == "colocate"
    assert [gpu.memory_bytes for gpu in register.inventory.gpus] == [16 * GIB] * 2
    assert {report.state for report in register.attempts} == {PartState.RUNNING}
    share(world, 3, "true", 1)
    refused = world.head.wait_for_exit(3).record
    assert refused.kind is OutcomeKind.LAUNCH_FAILED
    assert refused.message.startswith("GPU 1 of node n1 is shared by 1.1, 2.1")
    (world.work / "go").touch()
    for job in (1, 2):
        assert world.head.wait_for_exit(job).record.exit_code == 0
    share(world, 4, "exit 3", 100)
    assert world.head.wait_for_exit(4).record.exit_code == 3


@pytest.mark.parametrize("runtime", ["", "none", "mps"])
def test_a_node_without_a_usable_runtime_announces_none(world: GnodeWorld, runtime: str) -> None:
    """Nobody starts an MPS daemon here; gnode serves all other jobs and says why in its log."""
    world.share_runtime = runtime
    world.start(env={"PATH": "/usr/bin:/bin"})

    assert world.head.wait_for(Register)[0].sharing == ""
    share(world, 1, "true", 10)
    assert "does not let jobs share" in world.head.wait_for_exit(1).record.message
    assert ("jobs cannot share GPUs here" in world.log()) == (runtime == "mps")


def test_a_job_that_shares_is_told_to_the_runtime_of_a_restarted_gnode(world: GnodeWorld) -> None:
    """Here the site has taken the runtime away meanwhile: the log tells what is not isolated."""
    world.start()
    share(world, 1, waits_for(world, "go"), 50)
    world.head.wait_for_start(1)
    world.kill()
    world.share_runtime = "none"

    world.start()

    words = "attempt 1.1 shares a GPU without its runtime"
    assert any(words in world.log() for _ in attempts())
    (world.work / "go").touch()
    assert world.head.wait_for_exit(1).record.exit_code == 0


# ---- a library that has to be compiled ----


def install_compiler(world: GnodeWorld, script: str) -> dict[str, str]:
    """Put a compiler before all others; return the environment with it."""
    programs = world.directory / "programs"
    programs.mkdir()
    (programs / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "cc").chmod(0o755)
    world.share_runtime = "interception"
    world.cuda_driver = str(world.directory / "cuda")
    shutil.copy(sys.executable, world.directory / "cuda")  # any file with dynamic symbols
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


@needs_compiler
def test_gnode_registers_and_serves_while_the_library_is_compiled(world: GnodeWorld) -> None:
    """A job that shares a GPU waits for it, and others do not."""
    real = find_compiler()
    env = install_compiler(world, f'{waits_for(world, "compile")}\nexec {real} "$@" -O0')

    world.start(env=env)
    assert world.head.wait_for(Register)[0].sharing == "interception"
    share(world, 1, "exit 5", 50)
    world.launch(2, "exit 3")
    assert world.head.wait_for_exit(2).record.exit_code == 3
    assert not (world.state / "attempts" / "1.1").exists()
    (world.work / "compile").touch()

    assert world.head.wait_for_exit(1).record.exit_code == 5
    share(world, 3, "exit 4", 100)
    assert world.head.wait_for_exit(3).record.exit_code == 4


def test_where_the_library_cannot_be_compiled_the_head_hears_it_and_the_log_says_why(
    world: GnodeWorld,
) -> None:
    env = install_compiler(world, f"{waits_for(world, 'compile')}\necho no stdio.h >&2; exit 1")
    world.start(env=env)
    share(world, 1, "true", 50)
    (world.work / "compile").touch()

    refused = world.head.wait_for_exit(1).record
    assert refused.kind is OutcomeKind.LAUNCH_FAILED
    if "its log says" not in refused.message:  # the job came before the compiler had ended
        assert "cannot share its GPU" in refused.message
        assert "no stdio.h" in refused.message
    assert [said.sharing for said in world.head.wait_for(Register, count=2)] == ["interception", ""]
    assert "jobs cannot share GPUs here (runtime interception)" in world.log()
    assert "no stdio.h" in world.log()


def test_a_right_that_a_killed_gnode_has_left_ends_with_the_next_one(world: GnodeWorld) -> None:
    """It died between the admission and the record of the task, so nothing else ends it."""
    folder = world.state / "gpushare"
    folder.mkdir(parents=True)
    left = {
        "group": "9.1",
        "gpu": "0",
        "share_class": "high",
        "memory_bytes": GIB,
        "secret_hash": "0" * 64,
    }
    (folder / "groups.json").write_text(json.dumps([left]))
    env = install_compiler(world, "exit 0")

    world.start(env=env)

    assert any((folder / "groups.json").read_text() == "[]" for _ in attempts())
