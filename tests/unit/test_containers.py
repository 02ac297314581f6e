"""Jobs in containers: the script that becomes the container, where it can run, what is refused."""

import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from gnode.compiling import find_compiler
from gnode.core import effects as do
from gnode.core.containers import (
    ContainerRules,
    ContainerRuntime,
    Inside,
    SharedGpuMounts,
    removal,
    runtime_for,
    script_of,
)
from gnode.core.site import NodeLimits
from gsched.errors import InvalidRequestError, NotPermittedError, RequestTooLargeError
from gsched.model.container import SHARE_FEATURE, Container, features_of, image_name
from tests.support.agent_driver import Driver, only, order, refusal
from tests.support.world import World, node, settings

INSIDE = Inside(
    name="gsched-1.1",
    command=("/job/script", "an argument"),
    environment={"MINE": "1", "PATH": "/node/bin", "LD_PRELOAD": "/x.so"},
    workdir="/work",
    home="/home/alice",
    directories=("/work", "/job"),
    gpus=(2, 3),
)


def last_line(
    container: Container, runtime: ContainerRuntime, rules: ContainerRules | None = None
) -> str:
    """Return the line of the script that becomes the container; the shell must read it all."""
    script = script_of(container, INSIDE, runtime, rules or ContainerRules())
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=True)
    assert not checked.stderr
    return script.splitlines()[-1]


def test_podman_stays_in_the_groups_of_the_attempt_and_keeps_the_owners_uid() -> None:
    line = last_line(
        Container(image="docker://pytorch/pytorch:2", mounts=("/data:/in:ro",), workdir="/in"),
        ContainerRuntime(name="podman", program="/usr/bin/podman", cdi=True, init=True),
    )
    for words in (
        "--cgroups=disabled",
        " $ids pytorch/pytorch:2",
        "--init",
        "--name gsched-1.1",
        "--workdir /in",
        "--volume /home/alice:/home/alice --volume /work:/work --volume /job:/job",
        "--volume /data:/in:ro",
        "--env MINE",
        "--device nvidia.com/gpu=2 --device nvidia.com/gpu=3",
        "--env CUDA_VISIBLE_DEVICES=0,1",
        "--entrypoint /job/script",
    ):
        assert words in line
    assert line.endswith("pytorch/pytorch:2 'an argument'")
    assert "PATH" not in line, "the image has its own"
    assert "LD_PRELOAD" not in line


def test_without_cdi_nvidias_hook_gets_the_gpus() -> None:
    line = last_line(Container(image="a:1"), ContainerRuntime(name="podman", program="/p"))
    assert "--env NVIDIA_VISIBLE_DEVICES=2,3" in line
    assert "--device" not in line
    assert "--init" not in line


def test_the_site_chooses_what_all_containers_have() -> None:
    rules = ContainerRules(mount_home=False, mounts=("/scratch:/scratch",))
    line = last_line(Container(image="a:1"), ContainerRuntime(name="podman", program="/p"), rules)
    assert "/home/alice" not in line
    assert "--volume /scratch:/scratch" in line


def test_apptainer_runs_a_file_and_sees_the_gpus_of_the_node() -> None:
    line = last_line(
        Container(image="/images/a b.sif", mounts=("/data:/in:ro",)),
        ContainerRuntime(name="apptainer", program="/usr/bin/apptainer"),
    )
    assert line == (
        "exec /usr/bin/apptainer exec --no-home --pwd /work --nv --bind /home/alice:/home/alice "
        "--bind /work:/work --bind /job:/job --bind /data:/in:ro '/images/a b.sif' "
        "/job/script 'an argument'"
    )


def test_enroot_imports_by_its_own_names_and_removes_what_it_unpacked() -> None:
    runtime = ContainerRuntime(name="enroot", program="/usr/bin/enroot")
    script = script_of(
        Container(image="nvcr.io#nvidia/pytorch:24"), INSIDE, runtime, ContainerRules()
    )
    assert "docker://nvcr.io#nvidia/pytorch:24" in script
    assert "/home/alice/.cache/gsched/images/nvcr.io+nvidia+pytorch_24.sqsh" in script
    assert "create --force --name gsched-1.1" in script
    assert removal(runtime, "x") == ("/usr/bin/enroot", "remove", "--force", "x")
    assert removal(ContainerRuntime(name="apptainer", program="/a"), "x") == ()


@pytest.mark.parametrize("name", ["apptainer", "podman", "enroot"])
def test_no_word_of_a_user_is_read_by_the_shell(name: str, tmp_path: Path) -> None:
    """The image cannot be got: the script must end with 125, and have run nothing else."""
    bait = tmp_path / "bait"
    inside = structs.replace(
        INSIDE, home=str(tmp_path), workdir=f"$(touch {bait})", command=(f"`touch {bait}`",)
    )
    container = Container(image=f"/none/$(touch {bait}).sif", mounts=(f"/x;touch {bait}:/y",))
    script = script_of(
        container, inside, ContainerRuntime(name=name, program="/bin/false"), ContainerRules()
    )
    ran = subprocess.run(["sh"], input=script, text=True, capture_output=True, check=False)

    assert ran.returncode == 125
    assert "gsched: " in ran.stderr
    assert not bait.exists()


def test_an_image_file_needs_its_own_runtime_and_names_are_those_of_registries() -> None:
    rules = ContainerRules(runtimes=(ContainerRuntime(name="podman", program="/p"),))
    assert runtime_for(Container(image="a:1"), rules) is not None
    assert runtime_for(Container(image="/a.sif"), rules) is None
    assert Container(image="/a.sqsh").feature == "container-enroot"
    assert Container(image="a:1").feature == "container"
    assert image_name("docker://nvcr.io#nvidia/x:1") == "nvcr.io/nvidia/x:1"
    assert features_of(()) == ()


# --- the agent ---


def test_the_agent_refuses_without_a_runtime_and_removes_the_container_at_the_end() -> None:
    asked = order(container=Container(image="a:1"))

    assert "n1 has no container runtime" in refusal(Driver(), container=Container(image="a:1"))
    rules = ContainerRules(runtimes=(ContainerRuntime(name="podman", program="/usr/bin/podman"),))
    driver = Driver(containers=rules)
    (accepted,) = only(driver.launch(asked), do.AcceptTask)
    assert accepted.task.argv[0] == "/bin/sh"
    assert "run --rm --name gsched-1.1" in accepted.task.files[-1].content
    driver.forked()
    driver.seen()
    (removed,) = only(driver.ended(), do.RemoveContainer)
    assert removed.key == accepted.task.key
    assert accepted.task.removal is not None
    assert accepted.task.removal.argv[-1] == "gsched-1.1-0"


def test_containers_gain_no_privileges_and_the_runtime_may() -> None:
    """Podman maps users by newuidmap, which is setuid."""
    runtime = ContainerRuntime(name="podman", program="/usr/bin/podman")
    asked = order(container=Container(image="a:1"))
    for wanted in (False, True):
        limits = NodeLimits(no_new_privileges=wanted)
        driver = Driver(containers=ContainerRules(runtimes=(runtime,)), limits=limits)
        (accepted,) = only(driver.launch(asked), do.AcceptTask)
        assert not accepted.task.no_new_privileges
        script = accepted.task.files[-1].content
        assert ("--security-opt=no-new-privileges" in script) is wanted


# --- the head ---

ANY = ("container", "container-podman")


def submitted(world: World, container: Container) -> tuple[str, ...]:
    number = world.submit("nodes=1:ppn=2", container=container)
    return world.head.state.jobs[number].spec.request.chunks[0].features


def test_a_job_waits_for_a_node_that_can_run_its_container() -> None:
    world = World(node("n1"), node("n2", features=ANY))
    assert submitted(world, Container(image="a:1")) == ("container",)
    world.run_for(1.0)
    assert world.machine_of(1) == ("n2",)
    number = world.submit("nodes=1:ppn=4", container=Container(image="a:1", runtime="podman"))
    world.alter(number, resources=("nodes=1:ppn=3",))
    chunk = world.head.state.jobs[number].spec.request.chunks[0]
    assert (chunk.cpus, chunk.features) == (3, ("container-podman",))


@pytest.mark.parametrize(
    ("container", "error", "words"),
    [
        (Container(image="/a.sif"), RequestTooLargeError, "none has apptainer"),
        (Container(image="-rm x"), InvalidRequestError, "is not the name of an image"),
        (Container(image="a", mounts=("x:/y",)), InvalidRequestError, "not absolute"),
        (Container(image="a", runtime="docker"), InvalidRequestError, "unknown container runtime"),
        (Container(image="a", workdir="x"), InvalidRequestError, "not absolute"),
    ],
)
def test_what_cannot_be_is_refused_at_submission(
    container: Container, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        submitted(World(node("n1", features=ANY)), container)


def test_without_any_runtime_it_is_said_what_to_install() -> None:
    with pytest.raises(RequestTooLargeError, match="none has a container runtime"):
        submitted(World(node("n1")), Container(image="a:1"))


def test_a_site_can_allow_some_images_only() -> None:
    world = World(
        node("n1", features=ANY), config=settings(allowed=("nvcr.io/nvidia/", "/images/"))
    )
    assert submitted(world, Container(image="nvcr.io#nvidia/x:1")) == ("container",)
    with pytest.raises(NotPermittedError, match="image evil/x is not allowed"):
        submitted(world, Container(image="evil/x"))


# --- shared GPUs ---

SHARED = (*ANY, SHARE_FEATURE)
UUID = "MIG-1a2b"
LIBRARY = SharedGpuMounts(
    mounts=("/state/gpushare:/state/gpushare:ro",),
    preload="/lib/a.so:/lib/b.so",
    libraries="/lib",
    env={"GSCHED_REAL_LIBCUDA": "/run/gsched/driver/libcuda.so.1"},
    device="0",
)


def sharing(shared: SharedGpuMounts, runtime: ContainerRuntime) -> list[str]:
    """Return the words of the command that becomes the container of a job that shares GPU 2."""
    environment = {
        **INSIDE.environment,
        "GSCHED_REAL_LIBCUDA": "/usr/lib/libcuda.so.1",
        "GSCHED_SHARE_SECRET": "secret",
    }
    inside = structs.replace(INSIDE, gpus=(2,), environment=environment, shared=shared)
    script = script_of(Container(image="/a.img"), inside, runtime, ContainerRules())
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    assert "export LD_PRELOAD=/x.so" in script, "the runtime on the node has what the user set"
    assert "unset LD_LIBRARY_PATH" in script
    assert "secret" not in script
    return shlex.split(script[script.index("\nexec ") :])


def after(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def test_podman_gets_the_library_of_a_shared_gpu_the_socket_and_the_driver() -> None:
    words = sharing(LIBRARY, ContainerRuntime(name="podman", program="/usr/bin/podman", cdi=True))

    assert after(words, "--volume")[-1] == "/state/gpushare:/state/gpushare:ro"
    variables = after(words, "--env")
    assert "GSCHED_SHARE_SECRET" in variables
    assert "GSCHED_REAL_LIBCUDA" not in variables
    assert "GSCHED_REAL_LIBCUDA=/run/gsched/driver/libcuda.so.1" in variables
    assert "CUDA_VISIBLE_DEVICES=0" in variables
    assert after(words, "--device") == ["nvidia.com/gpu=2"]
    assert after(words, "--entrypoint") == ["/bin/sh"]
    assert words[-5:] == ["sh", "/lib/a.so:/lib/b.so", "/lib", "/job/script", "an argument"]


@pytest.mark.parametrize("cdi", [True, False])
def test_podman_gets_the_mig_instance_of_the_job_alone(*, cdi: bool) -> None:
    words = sharing(
        SharedGpuMounts(device=UUID),
        ContainerRuntime(name="podman", program="/usr/bin/podman", cdi=cdi),
    )

    variables = after(words, "--env")
    assert f"CUDA_VISIBLE_DEVICES={UUID}" in variables
    assert (f"NVIDIA_VISIBLE_DEVICES={UUID}" in variables) is not cdi
    assert after(words, "--device") == ([f"nvidia.com/gpu={UUID}"] if cdi else [])
    assert after(words, "--entrypoint") == ["/job/script"], "there is nothing to preload"


def test_apptainer_and_enroot_get_what_is_different_in_the_container() -> None:
    apptainer = sharing(LIBRARY, ContainerRuntime(name="apptainer", program="/usr/bin/apptainer"))
    enroot = sharing(LIBRARY, ContainerRuntime(name="enroot", program="/usr/bin/enroot"))

    inside = "GSCHED_REAL_LIBCUDA=/run/gsched/driver/libcuda.so.1"
    assert after(apptainer, "--env") == [inside]
    assert "/state/gpushare:/state/gpushare:ro" in after(apptainer, "--bind")
    assert {inside, "GSCHED_SHARE_SECRET"} <= set(after(enroot, "--env"))
    assert "/state/gpushare:/state/gpushare:ro" in after(enroot, "--mount")
    for words in (apptainer, enroot):
        assert words[-5:] == ["sh", "/lib/a.so:/lib/b.so", "/lib", "/job/script", "an argument"]


def preloading(preload: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run what puts libraries before those of the image, and then prints its environment."""
    shared = SharedGpuMounts(preload=preload, libraries="/gsched")
    words = sharing(shared, ContainerRuntime(name="podman", program="/usr/bin/podman"))
    program = words[words.index("-c") + 1]
    return subprocess.run(
        ["/bin/sh", "-c", program, "sh", preload, "/gsched", "env"],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_values_of_the_image_come_behind_ours(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler here")
    ours, theirs = tmp_path / "ours.so", tmp_path / "theirs.so"
    for library in (ours, theirs):
        command = [compiler, "-shared", "-x", "c", "/dev/null", "-o", str(library)]
        subprocess.run(command, check=True)

    own = {"LD_PRELOAD": str(theirs), "LD_LIBRARY_PATH": "/theirs"}
    lines = preloading(str(ours), **own).stdout.splitlines()
    assert {f"LD_PRELOAD={ours}:{theirs}", "LD_LIBRARY_PATH=/gsched:/theirs"} <= set(lines)
    lines = preloading(str(ours)).stdout.splitlines()
    assert {f"LD_PRELOAD={ours}", "LD_LIBRARY_PATH=/gsched"} <= set(lines)


def test_an_image_that_cannot_load_the_library_is_told() -> None:
    """The dynamic loader of glibc would go on without it."""
    done = preloading("/nowhere/a.so")

    assert (done.returncode, done.stdout) == (125, "")
    assert "gsched: the image cannot load the library for GPU sharing" in done.stderr


def cards(**features: tuple[str, ...]) -> World:
    """Return a cluster whose nodes, with these features, have a GPU that can be shared each."""
    machines = [
        node(name, gpus=1, gpu_memory_bytes=1 << 34, features=has) for name, has in features.items()
    ]
    for machine in machines:
        machine.sharing = "mps"
    return World(*machines)


def test_a_container_shares_a_gpu_on_a_node_that_says_so() -> None:
    world = cards(n1=ANY, n2=SHARED)

    number = world.submit("gpu_share=40%:1gb", container=Container(image="a:1"))

    chunk = world.head.state.jobs[number].spec.request.chunks[0]
    assert chunk.features == ("container", SHARE_FEATURE)
    world.run_for(1.0)
    assert world.machine_of(number) == ("n2",)
    waits = world.submit("gpu_share=99%:1gb", container=Container(image="a:1"))
    world.alter(waits, resources=("nodes=1:ppn=1",))
    chunk = world.head.state.jobs[waits].spec.request.chunks[0]
    assert chunk.features == ("container",), "it shares no GPU any more"


def test_a_container_cannot_share_a_gpu_where_no_node_has_both() -> None:
    words = "on a shared GPU: none has both a container runtime and GPUs that containers can share"
    with pytest.raises(RequestTooLargeError, match=words):
        cards(n1=ANY, n2=()).submit("gpu_share=40%:1gb", container=Container(image="a:1"))
