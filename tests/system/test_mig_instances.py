"""MIG instances that the configuration wants: made, left alone, told. By a fake NVML."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gsched.client import new_job
from gsched.protocol.submissions import SubmitJob
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.nvml_machine import build_nvml

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("mig")]

MIXED = '[[gpu_share.mig]]\ninstances = ["1g.2gb", "1g.2gb", "3g.8gb"]\n'
GIB = 1 << 30


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


class Machine:
    """A machine with GPUs that can have MIG; its state outlives the programs on it."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.directory = directory
        self.processes = directory / "processes"
        self.processes.touch()
        self.env = {
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_GPUS": "1",
            "FAKE_NVML_PROCESSES": str(self.processes),
            "FAKE_NVML_MIG": str(directory / "mig"),
        }
        (directory / "proc/driver/nvidia-caps").mkdir(parents=True)
        (directory / "proc/devices").write_text("Character devices:\n236 nvidia-caps\n")
        minors = ["config 1", "monitor 2"]
        for gpu in range(2):
            for part in range(15):
                first = 3 + 135 * gpu + 9 * part  # as the driver numbers them
                minors.append(f"gpu{gpu}/gi{part}/access {first}")
                minors += [f"gpu{gpu}/gi{part}/ci{each}/access {first + 1 + each}" for each in (0,)]
        (directory / "proc/driver/nvidia-caps/mig-minors").write_text("\n".join(minors) + "\n")

    def prepare(self, tables: str, *busy: int, **env: str) -> dict[str, Any]:
        """Let the runtime make these instances; return what it says."""
        config = self.directory / "mig.toml"
        config.write_text(f'[gpu_share]\nruntime = "mig"\n{tables}')
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "tests.support.mig_node", str(config)),
                *(str(self.directory), *map(str, busy)),
            ],
            cwd=ROOT,
            env={**os.environ, **self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return dict(json.loads(ran.stdout))


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    return Machine(tmp_path, library)


def test_instances_are_made_once_and_each_job_opens_its_own_alone(machine: Machine) -> None:
    made = machine.prepare(MIXED)

    assert (made["missing"], made["refused"], made["waits"]) == (None, "", False)
    assert sorted(made["sizes"]) == [["0", 2], ["0", 2], ["0", 8]]
    assert made["words"] == "GPU 0 has 2 x 2gb, 8gb"
    visible = [name for name, _ in made["tasks"]]
    assert len(set(visible)) == 3
    assert all(name.startswith("MIG-") for name in visible)
    # gi1 has the minors 12 and 13, gi2 21 and 22, and so on
    assert sorted(files for _, files in made["tasks"]) == [
        ["236:12-13"],
        ["236:21-22"],
        ["236:30-31"],
    ]
    assert machine.prepare(MIXED)["tasks"] == made["tasks"], "nothing has changed"


def test_larger_instances_find_their_place_first(machine: Machine) -> None:
    made = machine.prepare('[[gpu_share.mig]]\ninstances = ["2g.4gb", "1g.2gb", "4g.8gb"]\n')

    assert (made["refused"], sorted(size for _, size in made["sizes"])) == ("", [2, 4, 8])


def test_what_differs_is_made_anew_and_none_turns_mig_off(machine: Machine) -> None:
    machine.prepare(MIXED)
    other = machine.prepare('[[gpu_share.mig]]\ninstances = ["7g.16gb"]\n')
    none = machine.prepare("[[gpu_share.mig]]\ninstances = []\n")

    assert other["sizes"] == [["0", 16]]
    assert none["sizes"] == []
    assert none["refused"].startswith("no GPU of this node has MIG instances")


def test_gpus_have_tables_of_their_own(machine: Machine) -> None:
    tables = (
        '[[gpu_share.mig]]\ninstances = ["3g.8gb", "3g.8gb"]\n'
        '[[gpu_share.mig]]\ngpus = [1]\ninstances = ["7g.16gb"]\n'
    )
    made = machine.prepare(tables, FAKE_NVML_GPUS="2")

    assert made["sizes"] == [["0", 8], ["0", 8], ["1", 16]]
    assert made["tasks"][2][1] == ["236:147-148"], "gpu1/gi1"


def test_a_gpu_that_is_used_waits_and_says_so(machine: Machine) -> None:
    """By a job, and by a process of nobody."""
    with_job = machine.prepare(MIXED, 0)
    machine.processes.write_text(f"0 4711 {GIB}\n")
    with_process = machine.prepare(MIXED)
    machine.processes.write_text("")
    free = machine.prepare(MIXED)

    waits = "GPU 0 has no instances and is to have 2 x 1g.2gb, 3g.8gb: that waits, as"
    assert with_job["refused"] == f"{waits} jobs use it"
    assert with_process["refused"] == f"{waits} a process uses it"
    assert with_job["waits"]
    assert with_process["waits"]
    assert (free["refused"], free["waits"]) == ("", False)
    machine.processes.write_text(f"0 4711 {GIB}\n")
    changed = machine.prepare('[[gpu_share.mig]]\ninstances = ["7g.16gb"]\n')
    assert changed["sizes"] == free["sizes"], "the present ones stay, and can be used"
    assert changed["words"] == "GPU 0 has 2 x 2gb, 8gb"
    assert changed["problem"].startswith("GPU 0 has 2 x 1g.2gb, 3g.8gb and is to have 7g.16gb")


@pytest.mark.parametrize(
    ("instances", "env", "words"),
    [
        ('"1g.3gb"', {}, "GPU 0 has no MIG profile 1g.3gb: it has 1g.2gb, 1g.2gb+me, 1g.4gb, 2g"),
        ('"7g.16gb"', {"FAKE_NVML_USER": "1"}, "gnode may not change MIG of GPU 0: run it as root"),
        ('"7g.16gb"', {"FAKE_NVML_RESET": "1"}, "MIG of GPU 0 is on after a reset: `nvidia-smi"),
        ('"7g.16gb"', {"FAKE_NVML_MIG": ""}, "GPU 0 cannot have MIG instances"),
    ],
)
def test_what_cannot_be_made_is_told(
    machine: Machine, instances: str, env: dict[str, str], words: str
) -> None:
    if not env.get("FAKE_NVML_MIG", "x"):
        del machine.env["FAKE_NVML_MIG"]
        env = {}
    said = machine.prepare(f"[[gpu_share.mig]]\ninstances = [{instances}]\n", **env)

    assert said["refused"].startswith(words)
    assert not said["waits"]


def test_a_failure_leaves_the_instances_that_there_are(machine: Machine) -> None:
    said = machine.prepare('[[gpu_share.mig]]\ninstances = ["4g.8gb", "4g.8gb"]\n')

    assert said["refused"] == ""
    assert said["sizes"] == [["0", 8]]
    assert said["problem"] == (
        "GPU 0: 4g.8gb of 2 x 4g.8gb cannot be made: Insufficient Resources; it has 4g.8gb"
    )


#: Leaves the instance as a gnode does that is killed between the two calls that make it.
HALF = """
import ctypes, pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
found, count = n.c_nvmlGpuInstance_t(), ctypes.c_uint(1)
n.nvmlDeviceGetGpuInstances(gpu, 19, ctypes.byref(found), ctypes.byref(count))
part, count = n.c_nvmlComputeInstance_t(), ctypes.c_uint(1)
n.nvmlGpuInstanceGetComputeInstances(found, 0, ctypes.byref(part), ctypes.byref(count))
n.nvmlComputeInstanceDestroy(part)
"""


def test_an_instance_that_was_made_by_half_is_made_anew(machine: Machine) -> None:
    table = '[[gpu_share.mig]]\ninstances = ["1g.2gb"]\n'
    made = machine.prepare(table)
    subprocess.run([sys.executable, "-c", HALF], env={**os.environ, **machine.env}, check=True)

    again = machine.prepare(table)

    assert again["sizes"] == [["0", 2]]
    assert again["tasks"] != made["tasks"]


def test_a_wrong_name_takes_no_instance_away(machine: Machine) -> None:
    made = machine.prepare(MIXED)
    said = machine.prepare('[[gpu_share.mig]]\ninstances = ["1g.2gb", "5g.2gb"]\n')

    assert said["tasks"] == made["tasks"]
    assert said["problem"].startswith("GPU 0 has no MIG profile 5g.2gb")


def test_a_gpu_that_the_node_lacks_is_told(machine: Machine) -> None:
    said = machine.prepare('[[gpu_share.mig]]\ngpus = [3]\ninstances = ["7g.16gb"]\n')

    assert said["refused"] == "this node has no GPU 3, which [[gpu_share.mig]] names"


# ---- a whole node ----


@pytest.fixture
def one(tmp_path: Path, machine: Machine) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "c", f"mig-{uuid.uuid4().hex}")
    made.share_runtimes["n1"] = "mig"
    made.queues = "[gpu_share]\nutilisation_assumed = 0\nlow_max = 9\n"
    made.start_head()
    yield made
    made.stop()


def share_of(cluster: Cluster, memory: str, until: str) -> SubmitJob:
    """Return a job that says which instance it has, and ends when a file is there."""
    script = f"echo $CUDA_VISIBLE_DEVICES; while ! test -e {until}; do sleep 0.1; done"
    return new_job(
        name="part",
        workdir=str(cluster.jobs),
        script=f"#!/bin/sh\n{script}\n",
        stdout_path="$PBS_JOBNAME.$GSCHED_JOB_NUMBER",
        resources=(f"gpu_share=10%:{memory}",),
    )


def submit(cluster: Cluster, memory: str, until: str) -> str:
    """Submit such a job."""
    (result,) = cluster.head.submit([share_of(cluster, memory, until)]).results
    assert result.error is None, result.error
    return str(result.id)


def state(cluster: Cluster, job: str) -> str:
    (row,) = cluster.head.jobs([job]).jobs
    return row.state


def words_of(cluster: Cluster) -> str:
    (row,) = cluster.head.nodes().nodes
    return row.gpu_tokens.words if row.gpu_tokens is not None else ""


def instance_of(cluster: Cluster, job: str) -> str:
    path = cluster.jobs / f"part.{job}"
    return wait_until(lambda: (path.exists() and path.read_text().strip()) or "", what="its output")


def test_jobs_get_the_instances_and_a_changed_configuration_waits_for_them(
    one: Cluster, machine: Machine
) -> None:
    one.node_tables = MIXED
    one.start_node("n1", env=machine.env, sample_s=0.3)
    assert wait_until(lambda: words_of(one), what="the words") == "mig: GPU 0 has 2 x 2gb, 8gb"
    jobs = [submit(one, memory, "go") for memory in ("2gb", "2gb", "7gb")]
    instances = {instance_of(one, job) for job in jobs}
    assert len(instances) == 3
    refused = one.head.submit([share_of(one, "9gb", "go")]).results[0].error
    assert refused is not None
    assert "the largest MIG instance here has 8gb" in str(refused)
    late = submit(one, "1gb", "go")
    why = "no free MIG instance is that large"
    wait_until(lambda: why in str(one.head.job(late)), what="why it waits")
    (row,) = one.head.nodes().nodes
    assert not row.drained, "the node is not broken"

    one.stop_node("n1")
    one.node_tables = '[[gpu_share.mig]]\ninstances = ["7g.16gb"]\n'
    one.start_node("n1", env=machine.env, sample_s=0.3)
    words = "GPU 0 has 2 x 1g.2gb, 3g.8gb and is to have 7g.16gb: that waits, as jobs use it"

    def shown() -> str:
        return run_command("gnodes", "n1", head=str(one.socket)).stdout

    wait_until(lambda: f"gpu_sharing_problem = {words}" in shown(), what="the words")
    assert "gpu_sharing = mig: GPU 0 has 2 x 2gb, 8gb" in shown()
    doctor = run_command("gsched", "doctor", head=str(one.socket)).stdout
    assert f"shares GPUs: {words}" in doctor
    (one.jobs / "go").touch()
    wait_until(
        lambda: words_of(one) == "mig: GPU 0 has 16gb", timeout_s=90, what="the new instance"
    )
    wait_until(lambda: state(one, late) == "done", timeout_s=90, what="the last job")


def test_a_node_without_instances_yet_offers_them_as_soon_as_it_can(
    one: Cluster, machine: Machine
) -> None:
    machine.processes.write_text(f"0 4711 {GIB}\n")
    one.node_tables = MIXED + '[outside_gpu_use]\naction = "ignore"\n'
    one.start_node("n1", env=machine.env, sample_s=0.3)
    wait_until(lambda: words_of(one).startswith("none: GPU 0 has no"), what="why not")
    (row,) = one.head.nodes().nodes
    assert row.sharing == ""
    machine.processes.write_text("")

    wait_until(lambda: one.head.nodes().nodes[0].sharing == "mig", what="the instances")
    job = submit(one, "8gb", "go")
    assert instance_of(one, job).startswith("MIG-")
    (one.jobs / "go").touch()
    wait_until(lambda: state(one, job) == "done", what="its end")
