"""From the task of a job to that of its container: the script that becomes it, and its removal."""

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from msgspec import Struct, structs

from gnode.core import containers
from gnode.core.task import AcceptedTask
from gnode.task import ContainerRemoval, TaskFile
from gsched.model.container import Container
from gsched.protocol.node import Launch

CONTAINER_NAME = "container"
SHELL = "/bin/sh"
_PATHS = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def container_of(launch: Launch) -> Container | None:
    """Return the container of an attempt; its step agents run beside it, on the node."""
    return None if launch.is_step_agent else launch.spec.container


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
