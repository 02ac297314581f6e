"""Jobs in containers: what is allowed, and on which nodes they can run."""

from msgspec import structs

from gsched.errors import InvalidRequestError, NotPermittedError, RequestTooLargeError
from gsched.model import limits
from gsched.model.container import (
    FEATURE,
    MOUNT_RULE,
    RUNTIMES,
    Container,
    image_name,
    image_problem,
    mount_problem,
)
from gsched.model.resources import Request
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State


def with_container(
    request: Request, container: Container | None, state: State, settings: Settings
) -> Request:
    """Return a request for nodes that can run a container; as it is for a job without one.

    Raises:
        InvalidRequestError: the container cannot be read.
        NotPermittedError: the site does not allow the image.
        RequestTooLargeError: no node has a runtime for it, or none has one and shares GPUs with it.
    """
    if container is None:
        return request
    _check(container, settings)
    features = container.features(shares=request.gpu_share is not None)
    nodes = [set(node.inventory.features) for node in state.nodes.values()]
    if nodes and not any(container.feature in has for has in nodes):
        raise _no_node(container, state)
    if nodes and not any(has.issuperset(features) for has in nodes):
        raise RequestTooLargeError(
            f"no node can run image {container.image} on a shared GPU: none has both "
            f"{container.needs or 'a container runtime'} and GPUs that containers can share",
            hint="request whole GPUs with gpus=N, or run the job without a container: see "
            "gpu_sharing and features in gnodes NODE",
        )
    chunks = tuple(
        structs.replace(chunk, features=tuple(dict.fromkeys((*chunk.features, *features))))
        for chunk in request.chunks
    )
    return structs.replace(request, chunks=chunks)


def _no_node(container: Container, state: State) -> RequestTooLargeError:
    offered = sorted(
        name
        for name in RUNTIMES
        if any(f"{FEATURE}-{name}" in node.inventory.features for node in state.nodes.values())
    )
    if not container.needs:
        return RequestTooLargeError(
            f"no node can run image {container.image}: none has a container runtime",
            hint="install podman, apptainer or enroot on nodes and start gnode there again",
        )
    found = f"the nodes have {', '.join(offered)}" if offered else "no node has any runtime"
    return RequestTooLargeError(
        f"no node can run image {container.image}: none has {container.needs}",
        hint=f"{found}: see gnodes",
    )


def _check(container: Container, settings: Settings) -> None:
    image = container.image
    words = (image, container.workdir)
    limits.check_words("texts of the container", words, most=2, longest=limits.MAX_PATH)
    limits.check_words(
        "container mounts", container.mounts, most=limits.MAX_MOUNTS, longest=2 * limits.MAX_PATH
    )
    if wrong := image_problem(image):
        raise InvalidRequestError(
            f"container image {image!r} {wrong}",
            hint="write HOST/NAME:TAG or the path of an image file",
        )
    if container.runtime not in {"", *RUNTIMES}:
        raise InvalidRequestError(
            f"unknown container runtime {container.runtime!r}", hint=f"valid: {', '.join(RUNTIMES)}"
        )
    for mount in container.mounts:
        if wrong := mount_problem(mount):
            raise InvalidRequestError(f"container mount {mount!r} {wrong}", hint=MOUNT_RULE)
    if container.workdir and not container.workdir.startswith("/"):
        raise InvalidRequestError(
            f"the working directory {container.workdir!r} in the container is not absolute",
            hint="give its full path in the container",
        )
    names = (image, image_name(image))
    if settings.config.containers.allowed and not any(
        each.startswith(settings.config.containers.allowed) for each in names
    ):
        raise NotPermittedError(
            f"image {image} is not allowed at this site",
            hint=f"allowed images begin with: {', '.join(settings.config.containers.allowed)}",
        )
