"""The container in which a job runs, as its user states it."""

import re
from typing import Final, Literal, get_args

from msgspec import Struct

from gsched.model.patterns import pattern

#: Runtimes that a node may have, the first that it has is taken where a job names none.
Runtime = Literal["podman", "apptainer", "enroot"]
RUNTIMES: Final[tuple[Runtime, ...]] = get_args(Runtime)
#: The feature of a node that has any of them, and the beginning of that of a particular one.
FEATURE: Final = "container"
#: The feature of a node on which containers can share GPUs.
SHARE_FEATURE: Final = "container-gpu-share"
MOUNT_RULE: Final = "write SRC:DST or SRC:DST:ro, both absolute paths"
_IMAGE: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", re.ASCII)


class Container(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``gsub --container`` states.

    Attributes:
        image: a name in a registry, or the absolute path of an image file.
        mounts: directories of the node in the container: ``SRC:DST`` or ``SRC:DST:ro``.
        workdir: in the container; empty: the job's.
        runtime: one of `RUNTIMES`; empty: any that can run the image.
    """

    image: str
    mounts: tuple[str, ...] = ()
    workdir: str = ""
    runtime: str = ""

    @property
    def is_file(self) -> bool:
        """Return whether the image is a file."""
        return self.image.startswith("/")

    @property
    def needs(self) -> str:
        """Return the runtime that it needs: the one that is stated, or that of an image file."""
        if self.runtime or not self.is_file:
            return self.runtime
        return {"sif": "apptainer", "sqsh": "enroot"}.get(self.image.rpartition(".")[2], "")

    @property
    def feature(self) -> str:
        """Return the feature of the nodes on which it can run."""
        return f"{FEATURE}-{self.needs}" if self.needs else FEATURE

    def features(self, *, shares: bool) -> tuple[str, ...]:
        """Return the features of the nodes on which it can run.

        Args:
            shares: it shares a GPU.
        """
        return (self.feature, SHARE_FEATURE) if shares else (self.feature,)


def mount_problem(text: str) -> str:
    """Return what is wrong with a mount, for a sentence that begins with it; empty: nothing."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or (target and not target.startswith("/")):
        return "has a path that is not absolute"
    if mode not in {"", "ro", "rw"} or not text.isprintable():
        return "is not a mount"
    return ""


def image_problem(text: str) -> str:
    """Return what is wrong with the name of an image; empty: nothing."""
    if text.startswith("/"):
        return "" if text.isprintable() else "is not a path"
    return "" if _IMAGE.fullmatch(image_name(text)) else "is not the name of an image"


def features_of(runtimes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the features of a node that has these runtimes."""
    return (FEATURE, *(f"{FEATURE}-{name}" for name in runtimes)) if runtimes else ()


def image_name(text: str) -> str:
    """Return the name of an image as registries have it.

    ``docker://`` is left out, and Enroot's ``HOST#NAME`` becomes ``HOST/NAME``.
    """
    name = text.removeprefix("docker://")
    host, mark, rest = name.partition("#")
    return f"{host}/{rest}" if mark else name
