"""From the task of a job to that of its container: the script that becomes it, and its removal."""

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from msgspec import Struct, structs

from gnode.core import containers
from gnode.core.environment import FALLBACK_SHELL
from gnode.core.program import SCRIPT_NAME, program_of
from gnode.core.site import Site
from gnode.core.task import AcceptedTask, Account
from gnode.task import ContainerRemoval, TaskFile
from gsched.model.container import Container
from gsched.model.states import LaunchKind
from gsched.protocol.node import Launch

CONTAINER_NAME = "container"
SHELL = "/bin/sh"
_PATHS = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def container_of(launch: Launch) -> Container | None:
    """Return the container of an attempt; its step agents run beside it, on the node."""
    return None if launch.is_step_agent else launch.spec.container


def plan_container(
    task: AcceptedTask, launch: Launch, account: Account, site: Site
) -> "ContainerPlan | None":
    """Return the container of an attempt, which this node can run; None: it has none.

    Args:
        task: of the attempt; its environment and its directory count.
        launch: of the attempt.
        account: of its owner.
        site: this node.
    """
    spec = launch.spec
    container = container_of(launch)
    if container is None:
        return None
    runtime = containers.runtime_for(container, site.containers)
    assert runtime is not None, "else it is refused"
    directories = [spec.workdir, task.user_dir]
    if launch.checkpoint_dir:
        directories += [launch.checkpoint_dir, posixpath.dirname(site.elastic_socket)]
    if spec.launch is LaunchKind.TORCHRUN:
        directories.append(posixpath.dirname(site.agent_path))
    command = program_of(launch, account, site, task.user_dir).argv
    if spec.launch is LaunchKind.SCRIPT and not launch.script.startswith("#!"):
        shell = spec.shell or FALLBACK_SHELL  # the owner's login shell is of the node
        command = (shell, posixpath.join(task.user_dir, SCRIPT_NAME), *spec.arguments)
    cluster = f"-{launch.cluster[:12]}" if launch.cluster else ""
    inside = containers.Inside(
        name=f"gsched-{task.key.name}{cluster}-{launch.rank}",
        command=command,
        environment=task.env,
        workdir=spec.workdir,
        home=account.home,
        directories=tuple(dict.fromkeys(directories)),
        gpus=tuple(sorted(held.index for held in launch.share.gpus_held)),
        as_root=account.uid == 0,
        no_new_privileges=site.limits.no_new_privileges,
    )
    return ContainerPlan(container=container, inside=inside, runtime=runtime, rules=site.containers)


class ContainerPlan(Struct, frozen=True, kw_only=True):
    """The container that the program of a task becomes.

    Attributes:
        container: as its user states it.
        inside: what runs in it.
        runtime: of this node, that runs it.
        rules: of this node.
    """

    container: Container
    inside: containers.Inside
    runtime: containers.ContainerRuntime
    rules: containers.ContainerRules

    def task(self, task: AcceptedTask) -> AcceptedTask:
        """Return a task whose program becomes the container, which runs the job's program."""
        script = containers.script_of(self.container, self.inside, self.runtime, self.rules)
        removal = containers.removal(self.runtime, self.inside.name)
        others = tuple(file for file in task.files if file.name != CONTAINER_NAME)
        env = containers.storage_of(task.env)
        return replace(
            task,
            argv=(SHELL, posixpath.join(task.user_dir, CONTAINER_NAME)),
            files=(*others, TaskFile(name=CONTAINER_NAME, mode=0o500, content=script)),
            removal=ContainerRemoval(argv=removal, env=env) if removal else None,
            no_new_privileges=False,  # the runtime may need setuid programs: it holds inside
        )

    def sharing(
        self, admitted: Mapping[str, str], mounts: tuple[str, ...], env: Mapping[str, str]
    ) -> "ContainerPlan":
        """Return the plan with what the runtime of its shared GPU adds.

        Args:
            admitted: variables that the runtime gives a task.
            mounts: files and directories of the node that the container needs.
            env: variables with other values in the container.
        """
        shared = containers.SharedGpuMounts(
            mounts=mounts,
            preload=admitted.get("LD_PRELOAD", ""),
            libraries=admitted.get("LD_LIBRARY_PATH", ""),
            env=env,
            device=admitted.get("CUDA_VISIBLE_DEVICES", ""),
        )
        more = {name: value for name, value in admitted.items() if name not in _PATHS}
        environment = {**self.inside.environment, **more}
        inside = structs.replace(self.inside, environment=environment, shared=shared)
        return structs.replace(self, inside=inside)
