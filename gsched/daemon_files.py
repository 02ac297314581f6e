"""The configuration and the log file that daemons are given, looked at first."""

import os

from gsched import trust
from gsched.config.environment import config_path
from gsched.config.load import ConfigFile, read_config
from gsched.config.nodes import NodeConfig
from gsched.config.tables import HeadConfig
from gsched.errors import ConfigError
from gsched.logs import set_up
from gsched.trust import UntrustedError


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
