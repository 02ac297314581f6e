"""A site's configuration, as the options of ``gsim`` name it."""

import os

from gsched.config.environment import environment


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
