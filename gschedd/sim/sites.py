"""A site's configuration, as the options of ``gsim`` name it."""

import click

from gsched.config import Config, load_config
from gsched.config_rules import deprecations


def read_site(path: str) -> Config:
    """Return the configuration in a file; what is deprecated in it is said on stderr.

    Raises:
        ConfigError: it cannot be used.
    """
    config = load_config(path)
    for text in deprecations(config):
        click.echo(f"gsim: {path}: {text}", err=True)
    return config
