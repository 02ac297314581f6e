"""The settings of the cluster that a node has got from its head last, in its state directory.

A node starts with them when the head is away. They came through TLS from the head, or on its Unix
socket, and lie where only gnode's user can write; so they are not signed. They hold no secret, and
``gnode.pam`` and ``gsched config show`` read them, too: their mode is 0644.
"""

import os
from typing import Any, Final

import msgspec
from msgspec import Struct

from gsched import trust
from gsched.config.cluster import with_cluster
from gsched.config.environment import DEFAULT_NODE_STATE_DIR
from gsched.config.load import ConfigFile
from gsched.config.tables import Config
from gsched.errors import ConfigError
from gsched.files import replace_file
from gsched.trust import UntrustedError

NAME: Final = "settings.json"
#: Of the file: the head's file may have 4 MiB.
_MAX_BYTES: Final = 8 * 1024 * 1024


class KeptSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings as they came.

    Attributes:
        digest: as the head has told it; empty: none have come.
        received_s: when.
        settings: by table and key.
    """

    digest: str = ""
    received_s: float = 0.0
    settings: dict[str, dict[str, Any]] = {}


def path_in(state_dir: str) -> str:
    """Return where they lie; empty: in the usual state directory of a node."""
    return os.path.join(state_dir or DEFAULT_NODE_STATE_DIR, NAME)


def read(state_dir: str) -> KeptSettings:
    """Return the settings that were kept; none have come yet: empty ones.

    Raises:
        ConfigError: they cannot be read, or others could have written them.
    """
    path = path_in(state_dir)
    try:
        if not os.path.lexists(path):
            return KeptSettings()
        trust.check_configuration(path)
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=KeptSettings)
    except UntrustedError as error:
        raise ConfigError(f"{path} cannot be used: {error}", hint=error.hint) from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{path} cannot be read: {why}",
            hint="gnode gets new ones when it reaches the head",
        ) from error


def keep(state_dir: str, settings: KeptSettings) -> None:
    """Replace the settings.

    Raises:
        OSError: they cannot be written; the old ones are still there.
    """
    path = path_in(state_dir)
    replace_file(path, msgspec.json.encode(settings), mode=0o644, durable=True)
    os.chmod(path, 0o644)  # whatever the umask


def configured(file: ConfigFile) -> Config:
    """Return the configuration of this host: its file, and the settings that were kept.

    Raises:
        ConfigError: the settings cannot be used.
    """
    return with_cluster(file, read(file.config.node.state_dir).settings)
