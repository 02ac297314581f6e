"""A job opens the device files of its own GPUs only, whatever of it tries: real control groups.

The device files are made up: their driver is not there, so open(2) of one that is allowed fails
with ENXIO ("No such device or address"), and of one that is not with EPERM ("Operation not
permitted").
"""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.hw import cgroups
from gnode.supervisor import fence
from gnode.task import GpuFence
from gsched.client import new_job
from gsched.head_calls import error_from
from gsched.model.job import StagedFile
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.images import IMAGE, podman
from tests.support.launching import Launcher

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

NVIDIA_MAJOR = 195
#: Prints a line for each device: its name, and yes or no.
LOOK = """#!/bin/sh
for file in {directory}/*; do
  if (: < "$file") 2>&1 | grep -q "not permitted"; then answer=no; else answer=yes; fi
  echo "$(basename "$file") $answer"
done
"""
ALL = "nvidia0 {}\nnvidia1 {}\nnvidia2 {}\n"


def roots(method: str, name: str, *, keep: bool = False) -> cgroups.Roots:
    found = cgroups.find_roots("auto", name, gpu_fence=method, attach=fence.attach)
    if not keep:
        cgroups.remove_if_empty(found)
    return found


@pytest.fixture(scope="module", params=["bpf", "devices"])
def method(request: pytest.FixtureRequest) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root may make device files and control groups")
    if roots(request.param, "/nowhere/gsched-test-fence").devices is None:
        pytest.skip(f"no control groups for devices by {request.param} here")
    return str(request.param)


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with three device files."""
    directory = tmp_path_factory.mktemp("devices") / "dev"
    directory.mkdir()
    for minor in range(3):
        path = directory / f"nvidia{minor}"
        os.mknod(path, 0o666 | 0o020000, os.makedev(NVIDIA_MAJOR, minor))
        path.chmod(0o666)
    for path in (directory, *directory.parents):
        if path.name.startswith(("pytest-", "devices", "popen-")) or path == directory:
            path.chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def one(method: str, devices: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with three GPUs each, and the commands of Torque."""
    directory = tmp_path_factory.mktemp("fence")
    made = Cluster(directory / "c", f"fence-{uuid.uuid4().hex}")
    look = made.jobs / "look"
    look.write_text(LOOK.format(directory=devices))
    look.chmod(0o755)
    copier = made.jobs / "copier"
    copier.write_text(f"#!/bin/sh\n{look} > {made.jobs}/staged\n")
    copier.chmod(0o755)
    made.node_tables = f'[staging]\ncopy = ["{copier}"]\n'
    made.start_head()
    files = [f"{devices}/nvidia[0-2]"]
    for name in ("n1", "n2"):
        made.start_node(name, cpus=4, gpus=3, gpu_files=files, gpu_fence=method)
    place = str(directory / "torque")
    installed = run_command("gsched", "install-shims", "--personality", "torque", place)
    assert installed.status == 0, installed.stderr
    yield made
    made.stop()


def submitted(cluster: Cluster, script: str, *resources: str, **options: object) -> int:
    """Submit a job; return its number."""
    job = new_job(
        name="look",
        workdir=str(cluster.jobs),
        script=f"#!/bin/sh\n{script}\n",
        stdout_path="$PBS_JOBID.out",
        join="oe",
        environment={"PATH": f"{cluster.directory.parent}/torque:{os.environ['PATH']}"},
        resources=resources,
        **options,
    )
    result = cluster.head.submit([job]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    return result.id


def ran(cluster: Cluster, script: str, *resources: str, **options: object) -> str:
    """Run a job; return what it has written."""
    job = submitted(cluster, script, *resources, **options)
    waited = run_command("gwait", str(job), head=str(cluster.socket))
    text = (cluster.jobs / f"{job}.test.out").read_text()
    assert waited.status == 0, text
    return text


def test_a_job_opens_its_own_gpus_only(one: Cluster) -> None:
    assert ran(one, "./look", "nodes=1:gpus=1") == ALL.format("yes", "no", "no")
    assert ran(one, "./look", "nodes=1:gpus=2") == ALL.format("yes", "yes", "no")
    assert ran(one, "./look", "nodes=1") == ALL.format("no", "no", "no")
    widened = "export CUDA_VISIBLE_DEVICES=0,1,2; setsid nohup ./look"
    assert ran(one, widened, "nodes=1:gpus=1") == ALL.format("yes", "no", "no")


def test_a_job_beside_another_one_opens_the_next_gpu(one: Cluster) -> None:
    job = submitted(one, "touch runs; while [ -e runs ]; do sleep 0.1; done", "nodes=n1:gpus=1")
    wait_until((one.jobs / "runs").exists, what="the start of the job")
    shell = run_command("gshell", str(job), "./look", head=str(one.socket))
    second = ran(one, "./look", "nodes=n1:gpus=2")
    (one.jobs / "runs").unlink()
    assert run_command("gwait", str(job), head=str(one.socket)).status == 0

    assert shell.stdout == ALL.format("yes", "no", "no"), shell.stderr
    assert second == ALL.format("no", "yes", "yes")


def test_steps_are_behind_the_fence_of_their_job(one: Cluster) -> None:
    asked = "nodes=n1:ppn=1:gpus=1+n2:ppn=1:gpus=2"
    text = ran(one, 'for rank in 0 1; do pbsdsh -n $rank "$PWD/look"; done', asked)

    assert text == ALL.format("yes", "no", "no") + ALL.format("yes", "yes", "no")


def test_staging_is_behind_the_fence(one: Cluster) -> None:
    staged = StagedFile(local="x", host="elsewhere", remote="/x")
    ran(one, "true", "nodes=1:gpus=1", stage_in=(staged,))

    assert (one.jobs / "staged").read_text() == ALL.format("yes", "no", "no")


def test_nodes_tell_what_keeps_jobs_from_other_gpus(one: Cluster, method: str) -> None:
    assert {row.gpu_fence for row in one.head.nodes().nodes} == {method}
    shown = run_command("gnodes", "n1", head=str(one.socket))
    assert f"gpu_fence = {method}" in " ".join(shown.stdout.split())


def test_a_prepared_rank_opens_no_gpu_before_its_launch(
    method: str, devices: Path, tmp_path: Path
) -> None:
    """Then it opens those of the attempt as which it is launched."""
    found = roots(method, str(tmp_path), keep=True)
    assert found.tracking is not None
    assert found.devices is not None
    version, root = found.devices
    kept = {"version": version, "path": f"{root}/1.1"}
    files = [f"{NVIDIA_MAJOR}:{minor}" for minor in range(3)]
    look = tmp_path / "look"
    look.write_text(LOOK.format(directory=devices))
    script = f"sh {look}; echo waits; IFS= read -r line; sh {look}; echo over"
    launcher = Launcher(tmp_path / "state")
    try:
        task = launcher.task(
            1,
            ["/bin/bash", "-c", script],
            cgroup=f"{found.tracking}/1.1",
            fence={**kept, "denied": files, "allowed": []},
            gate=True,
            walltime_s=60.0,
            env={"PATH": os.environ["PATH"], "GSCHED_GATE": "stdin"},
        )
        launcher.launch(task)
        before = launcher.wait_for_output(1, "waits\n")
        opened = {**kept, "denied": [files[0], files[2]], "allowed": [files[1]]}
        launcher.launch_prepared({**task, "fence": opened, "walltime_s": None})
        after = launcher.wait_for_output(1, "over\n").removeprefix(before)
    finally:
        launcher.close()
        cgroups.remove_if_empty(found)

    assert before == ALL.format("no", "no", "no") + "waits\n"
    assert after == ALL.format("no", "yes", "no") + "over\n"


def test_the_rules_of_the_group_hold_from_outside(method: str, tmp_path: Path) -> None:
    """Any process that enters the group is kept, and one that leaves the fence alone is not."""
    found = roots(method, str(tmp_path), keep=True)
    assert found.devices is not None
    version, root = found.devices
    group = Path(root, "7.1")
    group.mkdir()
    device = tmp_path / "gpu"
    os.mknod(device, 0o666 | 0o020000, os.makedev(NVIDIA_MAJOR, 1))
    denied = (f"{NVIDIA_MAJOR}:1", f"{NVIDIA_MAJOR}:2", "226:128", "236:9")
    try:
        assert opens(device, group), "no rules yet"
        for rules, answer in ((denied, False), (denied[1:], True), (denied, False)):
            allowed = tuple(each for each in denied if each not in rules)
            kept = GpuFence(version=version, path=str(group), denied=rules, allowed=allowed)
            fence.set_up(kept)
            assert opens(device, group) is answer
            assert opens(Path("/dev/null"), group)
    finally:
        cgroups.remove(str(group))
        cgroups.remove_if_empty(found)


def opens(device: Path, group: Path) -> bool:
    """Return whether a process in a control group may open a device file."""
    script = f"echo $$ > {group}/cgroup.procs; exec 2>&1; : < {device}"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert (
        done.returncode == 0
        or "No such device or address" in done.stdout
        or ("Operation not permitted" in done.stdout)
    ), done.stdout
    return "not permitted" not in done.stdout


def test_a_container_is_behind_the_fence_of_its_job(
    method: str, devices: Path, cluster: Cluster, tmp_path: Path
) -> None:
    """The device files are in it, by a CDI specification that also has those of other GPUs."""
    images = podman(tmp_path / "podman")
    directory = Path("/var/run/cdi")
    if any(Path(each).is_dir() for each in ("/etc/cdi", directory)):
        pytest.skip("this machine has CDI specifications of its own")
    mount = {"hostPath": str(devices), "containerPath": str(devices), "options": ["rbind", "dev"]}
    specification = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"mounts": [mount]}}],
    }
    try:
        directory.mkdir()
        (directory / "nvidia-gsched-test.json").write_text(json.dumps(specification))
        cluster.start_head()
        cluster.start_node(
            "n1",
            gpus=3,
            gpu_files=[f"{devices}/nvidia[0-2]"],
            gpu_fence=method,
            env={"GSCHED_TEST_CONTAINER_PATH": str(images.program.parent)},
            container_runtimes=["podman"],
        )
        look = cluster.jobs / "look"
        look.write_text(LOOK.format(directory=devices).replace("basename", "echo"))
        asked = ("-l", "nodes=1:gpus=1", "--container", IMAGE, "-j", "oe", "-o", "out")
        storage = f"CONTAINERS_STORAGE_CONF={images.config}"
        words = (*asked, "-W", "block=true", "-v", storage, str(look))
        done = run_command("gsub", *words, head=str(cluster.socket), cwd=cluster.jobs)
        text = (cluster.jobs / "out").read_text()
    finally:
        shutil.rmtree(directory)
        images.remove()

    assert done.status == 0, text
    assert text == "".join(
        f"{devices}/nvidia{minor} {answer}\n" for minor, answer in enumerate(("yes", "no", "no"))
    )
