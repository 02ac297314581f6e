"""Environment variables of this process, which configuration file they name, and usual paths."""

import os

DEFAULT_CONFIG = "/etc/gsched/gsched.toml"
DEFAULT_SOCKET = "/run/gsched/head.sock"
HEAD_ACCOUNT = "gsched"
DEFAULT_STATE_DIR = "/var/lib/gsched"
#: Not below the head's: whoever can write a node's spool can run programs as any user.
DEFAULT_NODE_STATE_DIR = "/var/lib/gnode"


def environment(name: str, default: str = "") -> str:
    """Return an environment variable of this process."""
    return os.environ.get(name, default)


def full_environment() -> dict[str, str]:
    """Return all environment variables of this process, as a copy."""
    return dict(os.environ)


def config_path(given: str | None) -> str:
    """Return which file is read: the one that was given, else the environment's, else the usual."""
    return given or environment("GSCHED_CONFIG") or DEFAULT_CONFIG
