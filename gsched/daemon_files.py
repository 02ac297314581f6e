"""The files that daemons are given: their configuration and the cluster's key, looked at first."""

import os
import stat

from gsched import trust
from gsched.config.environment import config_path
from gsched.config.load import ConfigFile, read_config
from gsched.config.nodes import NodeConfig
from gsched.config.tables import HeadConfig
from gsched.errors import ConfigError
from gsched.logs import set_up
from gsched.trust import UntrustedError

KEY_BYTES_MIN = 32


def check_config(given: str | None) -> None:
    """Refuse a configuration that somebody else can change; None means the default place.

    Raises:
        ConfigError: the file, or for root a directory on the way to it, is not trusted.
    """
    path = config_path(given)
    try:
        trust.check_configuration(path)
    except UntrustedError as error:
        raise ConfigError(
            f"the configuration {path} cannot be used: {error}", hint=error.hint
        ) from error
    except OSError as error:
        raise ConfigError(f"the configuration {path}: {error.strerror}") from error


def read_again(given: str | None) -> ConfigFile:
    """Read the configuration of a running daemon again; None means the default place.

    Raises:
        ConfigError: the file is gone or not trusted, or as `read_config`.
    """
    path = config_path(given)
    if not os.path.lexists(path):
        raise ConfigError(f"{path}: no such file", hint="put it back, then reload again")
    check_config(given)
    return read_config(given)


def begin_log(
    level: str, config: HeadConfig | NodeConfig, log_format: str | None, *, line: str
) -> None:
    """Send the log of a daemon where its configuration says.

    Args:
        config: of the daemon.
        log_format: of the command line, instead of that of the configuration.
        line: how a record looks as text.

    Raises:
        ConfigError: the file cannot be used.
    """
    path = config.log_file
    try:
        if path:
            trust.check_way(os.path.dirname(path))
        set_up(level, log_format=log_format or config.log_format, path=path, line=line)
    except UntrustedError as error:
        raise ConfigError(f"log_file {path} cannot be used: {error}", hint=error.hint) from error
    except OSError as error:
        raise ConfigError(
            f"log_file {path}: {error.strerror}",
            hint="make its directory, for the user of this daemon; see gsched.toml(5)",
        ) from error


def read_key(path: str) -> bytes:
    """Return the cluster's key.

    Only its owner may read it, who is root or this daemon's user. For a daemon of root's the owner
    may also be a system account: on the head's machine the key belongs to the head.

    Raises:
        ConfigError: it cannot be read, others may read or replace it, or it is too short.
    """
    try:
        for place in (path, os.path.realpath(path)):
            trust.check_way(os.path.dirname(os.path.abspath(place)))
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            key = file.read(4096).strip()
    except UntrustedError as error:
        raise ConfigError(
            f"the cluster's key {path} cannot be used: {error}", hint=error.hint
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the cluster's key {path}: {error.strerror}",
            hint="`gsched init` creates it on the head; copy it to the nodes; key_file is its path",
        ) from error
    _check_key(status, path)
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"the cluster's key {path} is too short: it has {len(key)} bytes",
            hint="remove it and create a new one with `gsched init`; copy it to all nodes",
        )
    return key


def _check_key(status: os.stat_result, path: str) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"the cluster's key {path} is readable by other users (mode {mode:04o})",
            hint=f"chmod 600 {path}, and create a new key if another user may have read it",
        )
    uid = os.geteuid()
    if status.st_uid in {0, uid} or (uid == 0 and status.st_uid < trust.uid_min()):
        return
    raise ConfigError(
        f"the cluster's key {path} belongs to uid {status.st_uid}, who can read it",
        hint=f"chown it to the user of this daemon (uid {uid})",
    )
