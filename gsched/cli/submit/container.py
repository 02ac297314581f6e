"""gsub: the container of a job, from --container. Imported only where it is given."""

import os

from gsched.cli.submit.place import SubmitContext, absolute
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import UsageError
from gsched.model.container import MOUNT_RULE, Container, image_problem, mount_problem


def image_of(text: str, place: SubmitContext) -> str:
    """Return an image, that of a file with its full path.

    Raises:
        UsageError: it is no image.
    """
    image = text
    if image.startswith(("./", "../", "~/")) or image.endswith((".sif", ".sqsh")):
        image = absolute(os.path.expanduser(image), place)
    if image and (wrong := image_problem(image)):
        raise UsageError(
            f"--container: {image!r} {wrong}", hint="write HOST/NAME:TAG or the path of a file"
        )
    return image


def mounts_of(text: str) -> tuple[str, ...]:
    """Return the mounts of ``SRC:DST,SRC:DST:ro``.

    Raises:
        UsageError: one is none.
    """
    mounts = tuple(filter(None, text.split(",")))
    for mount in mounts:
        if wrong := mount_problem(mount):
            raise UsageError(f"--container-mount: {mount!r} {wrong}", hint=MOUNT_RULE)
    return mounts


def container_of(stated: StatedOptions) -> Container:
    """Return the container that the options state together.

    Raises:
        UsageError: the image is missing.
    """
    if not stated["container"]:
        raise UsageError(
            "--container-mount, --container-workdir and --container-runtime need --container",
            hint="give the image: --container IMAGE",
        )
    return Container(
        image=stated["container"],
        mounts=tuple(each for mounts in stated["container_mounts"] or () for each in mounts),
        workdir=stated["container_workdir"] or "",
        runtime=stated["container_runtime"] or "",
    )
