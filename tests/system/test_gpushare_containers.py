"""Jobs in containers of Podman that share a GPU: library, limit, turns, refusals."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.forks import Wrapper
from tests.support.gpu_device import Device
from tests.support.gpu_fixtures import fake_driver, needs_compiler
from tests.support.images import IMAGE, Podman, podman

__all__ = ["fake_driver"]
pytestmark = [
    needs_compiler,
    pytest.mark.root,
    pytest.mark.timeout(240),
]

PROGRAM = Path(__file__).parent.parent / "support" / "gpu_container.c"
OWN = "LD_PRELOAD=/opt/own.so"


def compiled(directory: Path) -> dict[str, Path]:
    """Return the program, a library that the image preloads, and what both of them need."""
    compiler = find_compiler()
    assert compiler is not None
    program, own = directory / "gpu", directory / "own.so"
    subprocess.run([compiler, "-w", str(PROGRAM), "-o", str(program), "-ldl"], check=True)
    subprocess.run([compiler, "-shared", "-x", "c", "/dev/null", "-o", str(own)], check=True)
    files = {"opt/gpu": program, "opt/own.so": own}
    needed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    for word in needed.stdout.split():
        if word.startswith("/"):
            files[word.lstrip("/")] = Path(word).resolve()
    return files


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    directory = tmp_path_factory.mktemp("podman")
    made = podman(directory, files=compiled(directory), changes=(f"ENV {OWN}",))
    yield made
    made.remove()


def start(cluster: Cluster, images: Podman, runtime: str, driver: str = "") -> None:
    cluster.cuda_driver = driver
    cluster.share_runtimes["n1"] = runtime
    cluster.start_head()
    place = {"GSCHED_TEST_CONTAINER_PATH": str(images.program.parent)}
    cluster.start_node("n1", cpus=4, gpus=1, env=place, container_runtimes=["podman"])


def gsub(cluster: Cluster, images: Podman, script: str, name: str, *options: str) -> Ran:
    """Submit a script that runs in the image, with 64 MiB of the GPU."""
    path = cluster.jobs / f"script.{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    words = (
        *("--gpu-share", "40%,64mb", "--container", IMAGE, "-N", name, "-j", "oe", "-o", name),
        *("-v", f"CONTAINERS_STORAGE_CONF={images.config}", *options, str(path)),
    )
    return run_command("gsub", *words, head=str(cluster.socket), cwd=cluster.jobs)


def ended(cluster: Cluster, ran: Ran, name: str) -> str:
    """Return what a job has written, once it has ended well."""
    assert ran.status == 0, ran.stderr
    waited = run_command("gwait", ran.stdout.strip(), head=str(cluster.socket), cwd=cluster.jobs)
    text = (cluster.jobs / name).read_text()
    assert waited.status == 0, text
    return text


def test_jobs_in_containers_share_a_gpu_by_interception(
    cluster: Cluster, images: Podman, fake_driver: Path, tmp_path: Path
) -> None:
    """Each sees its 64 MiB, launches by turns, and has the image's own library behind ours."""
    device = Device(tmp_path / "device")
    start(cluster, images, "interception", str(fake_driver))
    script = f"export GSCHED_FAKE_STATE={device.path}\nexec /opt/gpu"
    mount = ("--container-mount", str(tmp_path))
    jobs = {
        name: gsub(cluster, images, script, name, "--share-class", name, *mount)
        for name in ("high", "low")
    }

    gpushare = cluster.node_dir("n1") / "gpushare"
    for name, ran in jobs.items():
        lines = ended(cluster, ran, name).splitlines()
        assert lines[:5] == ["init 0", "total 64", "too much 2", "enough 0", "done 0"], lines
        preload = lines[5].removeprefix("preload ").split(":")
        assert preload[0].startswith(f"{gpushare}/lib/")
        assert preload[-1] == "/opt/own.so"
        assert lines[6].startswith(f"libraries {gpushare}/lib/")
        assert lines[7] == "visible 0"
    log = device.log()
    assert len(log) == 10
    assert len({each.pid for each in log}) >= 1
    wait_until(lambda: not images.containers(), what="the removal of the containers")


def test_a_restarted_token_daemon_is_found_in_the_container(
    cluster: Cluster, images: Podman, fake_driver: Path
) -> None:
    """It makes a new socket in the same directory, which is what the container has."""
    start(cluster, images, "interception", str(fake_driver))
    gpushare = cluster.node_dir("n1") / "gpushare"
    script = f"while ! test -e go; do sleep 0.1; done; ls -i {gpushare}/token.sock"
    ran = gsub(cluster, images, script, "looks")
    wait_until((gpushare / "token.sock").exists, what="the daemon")
    (gpushare / "token.sock").rename(gpushare / "old.sock")
    (gpushare / "token.sock").touch()
    number = (gpushare / "token.sock").stat().st_ino
    (cluster.jobs / "go").touch()

    assert str(number) in ended(cluster, ran, "looks")


def test_a_container_gets_the_pipes_of_mps(
    cluster: Cluster, images: Podman, tmp_path: Path
) -> None:
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    (pipes / "control").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-cuda-mps-control").write_text("#!/bin/sh\n")
    (programs / "nvidia-cuda-mps-control").chmod(0o755)
    cluster.share_settings = {"mps_pipe_dir": str(pipes)}
    cluster.wrapper = Wrapper(("env", f"PATH={programs}:/usr/bin:/bin"))
    start(cluster, images, "mps")

    script = "ls $CUDA_MPS_PIPE_DIRECTORY; echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    text = ended(cluster, gsub(cluster, images, script, "mps"), "mps")

    assert text.split() == ["control", "0=64M"]


def test_a_node_that_shares_no_gpus_runs_no_such_container(
    cluster: Cluster, images: Podman
) -> None:
    start(cluster, images, "none")

    refused = gsub(cluster, images, "true", "never")

    assert refused.status != 0
    assert f"no node can run image {IMAGE} on a shared GPU" in refused.stderr
    assert "gpus=N" in refused.stderr
