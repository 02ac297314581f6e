"""From a job to its container: the script that gets the image and becomes the container. Pure.

It runs as the job's owner, in the attempt's control groups and after all that a job without a
container goes through, so that limits, signals and the end of the attempt reach the container like
any program: it is below the attempt's supervisor, and no daemon runs it for the user.
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import join, quote
from typing import Final

from msgspec import Struct, structs

from gsched.model.container import Container, image_name

#: Variables of the node that mean nothing, or something else, in an image.
_OF_THE_NODE: Final = frozenset(
    {
        "CONDA_DEFAULT_ENV",
        "CONDA_PREFIX",
        "DBUS_SESSION_BUS_ADDRESS",
        "HOSTNAME",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PATH",
        "SHELL",
        "VIRTUAL_ENV",
        "XDG_RUNTIME_DIR",
    }
)
_STORAGE: Final = frozenset({"HOME", "USER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"})
_PROCESSES: Final = 4096  # it says something; the kernel does not count root's processes
#: What containers end with when they could not be started, as with Docker.
FAILED_CODE: Final = 125
#: Below the owner's home: images that Apptainer and Enroot have pulled.
CACHE: Final = ".cache/gsched/images"


class ContainerRuntime(Struct, frozen=True, kw_only=True):
    """A container runtime of this node.

    Attributes:
        name: one of `gsched.model.container.RUNTIMES`.
        program: its absolute path.
        cdi: GPUs are given as CDI devices; else NVIDIA's hook is expected to do it.
        init: it can run a small init as the container's first process.
    """

    name: str
    program: str
    cdi: bool = False
    init: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRules:
    """What the node's configuration says of containers.

    Attributes:
        runtimes: installed container runtimes, in order of preference.
        mount_home: the owner's home directory is there in each container.
        mounts: as a user writes them.
    """

    runtimes: tuple[ContainerRuntime, ...] = ()
    mount_home: bool = True
    mounts: tuple[str, ...] = ()


class SharedGpuMounts(Struct, frozen=True, kw_only=True):
    """What the runtime of a shared GPU adds to a container.

    Attributes:
        mounts: files and directories of the node, as ``SRC:DST:ro``.
        preload, libraries: what goes before LD_PRELOAD and LD_LIBRARY_PATH of the image.
        env: variables that have other values than on the node.
        device: what CUDA_VISIBLE_DEVICES names: a UUID, of a GPU or of a MIG instance, else an
            index.
    """

    mounts: tuple[str, ...] = ()
    preload: str = ""
    libraries: str = ""
    env: Mapping[str, str] = {}
    device: str = ""

    @property
    def instance(self) -> str:
        """Return the UUID of the MIG instance; empty: it shares a GPU as a whole."""
        return self.device if self.device.startswith("MIG-") else ""


class Inside(Struct, frozen=True, kw_only=True):
    """What is to run in a container.

    Attributes:
        name: of the container; no other one of its owner has it.
        command: the job's program and its arguments.
        environment: of the job.
        workdir: of the job.
        home: of its owner.
        directories: that the job needs, under the same names.
        gpus: by index.
        as_root: the owner is root.
        no_new_privileges: its programs gain no rights by being setuid.
        shared: what comes with the GPU that it shares; None: it shares none.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: str
    home: str
    directories: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    as_root: bool = False
    no_new_privileges: bool = False
    shared: SharedGpuMounts | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Return its GPUs, as NVIDIA's Container Toolkit names them."""
        if self.shared is not None and self.shared.instance:
            return (self.shared.instance,)
        return tuple(map(str, self.gpus))

    @property
    def visible(self) -> str:
        """Return CUDA_VISIBLE_DEVICES: only its devices are there, and CUDA counts them from 0."""
        if self.shared is not None and self.shared.device.startswith(("GPU-", "MIG-")):
            return self.shared.device
        return ",".join(map(str, range(len(self.gpus))))


def runtime_for(container: Container, rules: ContainerRules) -> ContainerRuntime | None:
    """Return the runtime of this node that runs a container, None if it has none."""
    needed = container.needs
    return next((each for each in rules.runtimes if needed in {"", each.name}), None)


def removal(runtime: ContainerRuntime, name: str) -> tuple[str, ...]:
    """Return the command that removes what a container has left; empty: it leaves nothing."""
    match runtime.name:
        case "podman":
            return (*_podman(runtime), "rm", "--force", "--ignore", "--time=0", name)
        case "enroot":
            return (runtime.program, "remove", "--force", name)
        case _:
            return ()


def storage_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which runtimes find the containers and images of their user."""
    return {
        name: value
        for name, value in environment.items()
        if name in _STORAGE or name.startswith(("CONTAINERS_", "ENROOT_", "APPTAINER_"))
    }


def script_of(
    container: Container, inside: Inside, runtime: ContainerRuntime, rules: ContainerRules
) -> str:
    """Return the shell script that gets the image and then becomes the container."""
    if inside.shared is not None:
        inside = structs.replace(inside, command=_with_library(inside.shared, inside.command))
    match runtime.name:
        case "podman":
            steps = _podman_steps(container, inside, runtime, rules)
        case "apptainer":
            steps = _apptainer_steps(container, inside, runtime, rules)
        case _:
            steps = _enroot_steps(container, inside, runtime, rules)
    return "\n".join((*_PROLOGUE, *_own_libraries(inside), *steps, ""))


_PROLOGUE: Final = (
    "#!/bin/sh",
    'PATH="$PATH:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"',
    'say() { echo "gsched: $*" >&2; }',
    f'fail() {{ say "$*"; exit {FAILED_CODE}; }}',
)


#: Runs in the container: puts what is to be preloaded before the image's own values, and checks
#: that the image's C library can load it, or the job would run without it.
_PRELOADING: Final = """\
preload=$1 libraries=$2; shift 2
if [ "$preload" ]; then
  said=$(LD_PRELOAD=$preload /bin/sh -c : 2>&1)
  if [ $? != 0 ] || [ "$said" ]; then
    echo "gsched: the image cannot load the library for GPU sharing: $said" >&2
    exit 125
  fi
  export LD_PRELOAD="$preload${LD_PRELOAD:+:$LD_PRELOAD}"
fi
if [ "$libraries" ]; then
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
exec "$@"
"""


def _with_library(shared: SharedGpuMounts, command: tuple[str, ...]) -> tuple[str, ...]:
    if not shared.preload and not shared.libraries:
        return command
    return ("/bin/sh", "-c", _PRELOADING, "sh", shared.preload, shared.libraries, *command)


def _own_libraries(inside: Inside) -> list[str]:
    """Return the steps that keep what the container preloads from its runtime, on the node."""
    if inside.shared is None:
        return []
    steps = []
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        own = inside.environment.get(name, "")
        steps.append(f"export {name}={quote(own)}" if own else f"unset {name}")
    return steps


def _variables(inside: Inside) -> list[str]:
    """Return variables of the container: by name, with the job's value, or with another one."""
    other = inside.shared.env if inside.shared is not None else {}
    names = [name for name in _names(inside.environment) if name not in other]
    return [*names, *(f"{name}={value}" for name, value in sorted(other.items()))]


def _pull(image: str, is_there: str, pull: str) -> list[str]:
    """Return the steps that get an image which is not there, and say how long it took."""
    shown = quote(image)
    return [
        f"if ! {is_there}; then",
        f"  say pulling image {shown}",
        "  began=$(date +%s)",
        f"  {{ {pull}; }} || fail cannot get image {shown}: see the messages above",
        f'  say pulled image {shown} in "$(($(date +%s) - began))" s',
        "fi",
    ]


def _file_check(image: str) -> list[str]:
    shown = quote(image)
    return [
        f"[ -r {shown} ] || fail there is no image file {shown} on this node, or no right to it"
    ]


def _image_file(
    container: Container, inside: Inside, pulled: tuple[Sequence[str], str, str]
) -> tuple[list[str], str]:
    """Return the steps that get an image file, and what stands for it in the script.

    What is pulled is kept in the owner's cache, under a name that tells the image.

    Args:
        container: with the image.
        inside: whose home has the cache.
        pulled: the command, to which the file is added and the source, and the file's suffix.
    """
    if container.is_file:
        return _file_check(container.image), quote(container.image)
    command, source, suffix = pulled
    name = image_name(container.image)
    file = posixpath.join(inside.home, CACHE, f"{_file_of(name)}.{suffix}")
    # Two jobs may pull at once: each its own file, which then takes its place in one step.
    pull = f'{join(command)} "$image.$$" {quote(source)} >/dev/null && mv "$image.$$" "$image"'
    steps = [
        f"image={quote(file)}",
        'mkdir -p "${image%/*}"',
        *_pull(name, '[ -r "$image" ]', pull),
    ]
    return steps, '"$image"'


def _mounts(
    container: Container, inside: Inside, rules: ContainerRules
) -> list[tuple[str, str, str]]:
    """Return source, destination and ``ro`` or nothing of each mount.

    The user's come behind the site's, and what a shared GPU needs behind them.
    """
    found: dict[str, tuple[str, str]] = {}
    if rules.mount_home and posixpath.isabs(inside.home):
        found[inside.home] = (inside.home, "")
    for directory in inside.directories:
        found[directory] = (directory, "")
    shared = inside.shared.mounts if inside.shared is not None else ()
    for text in (*rules.mounts, *container.mounts, *shared):
        source, destination, mode = [*text.split(":"), "", ""][:3]
        found[destination or source] = (source, mode)
    return [(source, destination, mode) for destination, (source, mode) in found.items()]


def _names(environment: Mapping[str, str]) -> list[str]:
    return sorted(name for name in environment if name not in _OF_THE_NODE)


def _workdir(container: Container, inside: Inside) -> str:
    return container.workdir or inside.workdir


def _bound(mounts: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"{source}:{target}{':' + mode if mode else ''}" for source, target, mode in mounts]


# --- Podman ---


def _podman(runtime: ContainerRuntime) -> tuple[str, ...]:
    return (runtime.program, "--cgroup-manager=cgroupfs", "--events-backend=none")


def _podman_steps(
    container: Container, inside: Inside, runtime: ContainerRuntime, rules: ContainerRules
) -> Sequence[str]:
    """Return the steps for Podman.

    Without control groups of its own the container, and conmon beside it, stay in the attempt's.
    """
    image = image_name(container.image)
    run = [
        *(*_podman(runtime), "run", "--rm", "--name", inside.name),
        *("--cgroups=disabled", "--network=host", "--ipc=host", "--log-driver=none"),
        *("--security-opt=label=disable", "--pull=never"),
        *(("--security-opt=no-new-privileges",) if inside.no_new_privileges else ()),
        *(("--init",) if runtime.init else ()),
        *("--workdir", _workdir(container, inside)),
    ]
    for mount in _bound(_mounts(container, inside, rules)):
        run += ["--volume", mount]
    for variable in _variables(inside):
        run += ["--env", variable]
    if inside.gpus:
        run += ["--env", f"CUDA_VISIBLE_DEVICES={inside.visible}"]
        if runtime.cdi:
            for device in inside.devices:
                run += ["--device", f"nvidia.com/gpu={device}"]
        else:
            run += ["--env", f"NVIDIA_VISIBLE_DEVICES={','.join(inside.devices)}"]
            run += ["--hooks-dir=/usr/share/containers/oci/hooks.d"]
    pull = [*_podman(runtime), "pull", "--quiet", image]
    exists = join([*_podman(runtime), "image", "exists", image])
    # The command of the job replaces that of the image, its entry point included.
    program, *arguments = inside.command
    run += ["--entrypoint", program]
    # Root's Podman sets limits of its own, which root may not have the right to.
    limits = f"--ulimit=nproc={_PROCESSES}:{_PROCESSES}" if inside.as_root else ""
    files = ' "--ulimit=nofile=$(ulimit -Sn):$(ulimit -Hn)" ' if inside.as_root else " "
    # With subordinate ids the owner has the own uid in the container, too; else it is root there.
    ids = 'ids=""; grep -qs "^$(id -un):" /etc/subuid && ids=--userns=keep-id'
    return [
        *_pull(image, exists, f"{join(pull)} >/dev/null"),
        *(() if inside.as_root else (ids,)),
        (
            f"exec {join(run)}{files}{limits}{'' if inside.as_root else '$ids'} "
            f"{join([image, *arguments])}"
        ),
    ]


# --- Apptainer ---


def _apptainer_steps(
    container: Container, inside: Inside, runtime: ContainerRuntime, rules: ContainerRules
) -> Sequence[str]:
    run = [
        *(runtime.program, "exec", "--no-home", "--pwd", _workdir(container, inside)),
        *(("--nv",) if inside.gpus else ()),
    ]
    for name, value in sorted((inside.shared.env if inside.shared is not None else {}).items()):
        run += ["--env", f"{name}={value}"]  # all others come from the node
    for mount in _bound(_mounts(container, inside, rules)):
        run += ["--bind", mount]
    name = image_name(container.image)
    pull = [runtime.program, "pull", "--force"]
    steps, image = _image_file(container, inside, (pull, f"docker://{name}", "sif"))
    return [*steps, f"exec {join(run)} {image} {join(inside.command)}"]


# --- Enroot ---


def _enroot_steps(
    container: Container, inside: Inside, runtime: ContainerRuntime, rules: ContainerRules
) -> Sequence[str]:
    start = [runtime.program, "start", "--rw"]
    for mount in _bound(_mounts(container, inside, rules)):
        start += ["--mount", mount]
    for variable in _variables(inside):
        start += ["--env", variable]
    if inside.gpus:
        start += ["--env", f"NVIDIA_VISIBLE_DEVICES={','.join(inside.devices)}"]
        start += ["--env", f"CUDA_VISIBLE_DEVICES={inside.visible}"]
    name = image_name(container.image)
    host, slash, rest = name.partition("/")
    is_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    source = f"docker://{host}#{rest}" if is_host else f"docker://{name}"
    pull = [runtime.program, "import", "--output"]
    steps, image = _image_file(container, inside, (pull, source, "sqsh"))
    create = join([runtime.program, "create", "--force", "--name", inside.name])
    enter = join(["/bin/sh", "-c", 'cd "$0" && exec "$@"', _workdir(container, inside)])
    return [
        *steps,
        f"{create} {image} >/dev/null || fail cannot unpack image {quote(container.image)}",
        f"exec {join([*start, inside.name])} {enter} {join(inside.command)}",
    ]


def _file_of(image: str) -> str:
    return image.replace("/", "+").replace(":", "_")
