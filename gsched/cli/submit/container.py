"""gsub: the container of a job, from --container. Imported only where it is given."""

import os

from gsched.cli.submit.options import SubmitOptions
from gsched.cli.submit.place import Place, absolute
from gsched.errors import UsageError
from gsched.model.container import MOUNT_RULE, Container, image_problem, mount_problem


def container_of(options: SubmitOptions, place: Place, *, is_all: bool = True) -> Container:
    """Return what the options say of a container.

    Args:
        options: of the whole submission or, without ``is_all``, of one line.
        place: where it is made.
        is_all: the image must be among them.

    Raises:
        UsageError: a value that cannot be, or one without --container.
    """
    image = options.container or ""
    if not image and is_all:
        raise UsageError(
            "--container-mount, --container-workdir and --container-runtime need --container",
            hint="give the image: --container IMAGE",
        )
    if image.startswith(("./", "../", "~/")) or image.endswith((".sif", ".sqsh")):
        image = absolute(os.path.expanduser(image), place)
    if image and (wrong := image_problem(image)):
        raise UsageError(
            f"--container: {image!r} {wrong}", hint="write HOST/NAME:TAG or the path of a file"
        )
    mounts = tuple(each for text in options.container_mounts for each in text.split(",") if each)
    for mount in mounts:
        if wrong := mount_problem(mount):
            raise UsageError(f"--container-mount: {mount!r} {wrong}", hint=MOUNT_RULE)
    workdir = options.container_workdir or ""
    if workdir and not workdir.startswith("/"):
        raise UsageError(
            f"--container-workdir: {workdir!r} is not absolute",
            hint="give its full path in the container",
        )
    return Container(
        image=image, mounts=mounts, workdir=workdir, runtime=options.container_runtime or ""
    )
