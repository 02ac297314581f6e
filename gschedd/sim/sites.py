"""A site's configuration, as the options of ``gsim`` name it."""

import os

import click

from gsched.config import DEFAULT_CONFIG, Config, environment, load_config
from gsched.config_rules import deprecations


def read_site(path: str | None) -> Config:
    """Return the configuration in a file; what is deprecated in it is said on stderr.

    None means the default place, where there may be none.

    Raises:
        ConfigError: it cannot be used.
    """
    config = load_config(path)
    for text in deprecations(config):
        click.echo(f"gsim: {path or DEFAULT_CONFIG}: {text}", err=True)
    return config


def site_file(given: str) -> str:
    """Return the configuration that is meant where none is named; empty: the default one.

    It is that of the head to which the commands talk: a cluster of ``gsched up`` has it beside the
    socket that ``$GSCHED_HEAD`` names.
    """
    socket = environment("GSCHED_HEAD").removeprefix("unix:").removeprefix("//")
    beside = os.path.join(os.path.dirname(os.path.abspath(socket)), "gsched.toml")
    if given or not socket or "://" in socket or not os.path.isfile(beside):
        return given
    return beside
