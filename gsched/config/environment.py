"""Environment variables of this process, and which configuration file they name."""

import os

from gsched.config.words import DEFAULT_CONFIG


def environment(name: str, default: str = "") -> str:
    """Return an environment variable of this process."""
    return os.environ.get(name, default)


def full_environment() -> dict[str, str]:
    """Return all environment variables of this process, as a copy."""
    return dict(os.environ)


def config_path(given: str | None) -> str:
    """Return which file is read: the one that was given, else the environment's, else the usual."""
    return given or environment("GSCHED_CONFIG") or DEFAULT_CONFIG
