"""From the task of a job to that of its container: the script that becomes it, and its removal."""

import posixpath
from collections.abc import Sequence

from msgspec import structs

from gnode.core import containers
from gnode.core.inputs import Account
from gnode.core.task import ContainerRemoval, Task, TaskFile
from gsched.model.container import Container
from gsched.protocol.node import Launch

CONTAINER_NAME = "container"
SHELL = "/bin/sh"


def container_of(launch: Launch) -> Container | None:
    """Return the container of an attempt; its step agents run beside it, on the node."""
    if launch.origin is None or launch.step_agent:
        return None
    return launch.origin.spec.container


def in_container(
    task: Task,
    launch: Launch,
    account: Account,
    rules: containers.Rules,
    *,
    directories: Sequence[str],
    command: tuple[str, ...],
) -> Task:
    """Return a task whose program becomes a container that runs the job's program.

    Args:
        task: as it is without a container.
        launch: of a job with a container, which this node can run.
        account: of its owner.
        rules: of this node.
        directories: that the job needs beside its own and its working directory.
        command: the job's program, as its image knows it.
    """
    container = container_of(launch)
    assert container is not None
    runtime = containers.runtime_for(container, rules)
    assert runtime is not None, "else it is refused"
    cluster = f"-{launch.cluster[:12]}" if launch.cluster else ""
    inside = containers.Inside(
        name=f"gsched-{task.key.name}{cluster}-{launch.node_rank}",
        command=command,
        environment=task.env,
        workdir=launch.workdir,
        home=account.home,
        directories=tuple(dict.fromkeys((launch.workdir, task.user_dir, *directories))),
        gpus=tuple(sorted(held.index for held in launch.share.gpus_held)),
        as_root=account.uid == 0,
    )
    script = containers.script_of(container, inside, runtime, rules)
    removal = containers.removal(runtime, inside.name)
    env = containers.storage_of(task.env)
    return structs.replace(
        task,
        argv=(SHELL, posixpath.join(task.user_dir, CONTAINER_NAME)),
        files=(*task.files, TaskFile(name=CONTAINER_NAME, mode=0o500, content=script)),
        removal=ContainerRemoval(argv=removal, env=env) if removal else None,
    )
