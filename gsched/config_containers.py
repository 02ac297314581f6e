"""The table ``[containers]`` of the configuration file; `gsched.config` has all tables."""

from msgspec import Struct


class ContainersConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[containers]``: containers of jobs; ``allowed`` is the head's, the others are a node's.

    Attributes:
        allowed: what the name of an image must begin with, one of these; empty: any image.
        mount_home: the owner's home directory is there in each container.
        mounts: directories of the node that are there in each container, as ``/data:/data:ro``.
    """

    allowed: tuple[str, ...] = ()
    mount_home: bool = True
    mounts: tuple[str, ...] = ()
