"""``gsched config check``: whether a configuration can be used."""

import grp
import os
import pwd
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from gsched.cli.common import print_json
from gsched.cli.local import machine_checks
from gsched.cli.local.config_show import load_found, show
from gsched.cli.local.findings import Level
from gsched.cli.local.layout import ClusterLayout
from gsched.cli.local.options import SETTINGS, HelpfulGroup, subcommand
from gsched.config.tables import Config
from gsched.errors import ConfigError


@click.group("config", cls=HelpfulGroup, context_settings=SETTINGS)
def config() -> None:
    """Show or check the configuration."""


@subcommand("check")
@click.argument("file", required=False)
def check(*, file: str | None, as_json: bool) -> int:
    """Validate a configuration file and show the resulting settings.

    Without FILE, checks the file that the commands use: that of the gsched up cluster which
    $GSCHED_HEAD names, $GSCHED_CONFIG or /etc/gsched/gsched.toml.
    Exits with 78 if it is invalid; the message names the line and the key.
    """
    name, loaded = load_found(file)
    _check_operators(loaded, name)
    warned = _warnings_here(loaded)
    if as_json:
        print_json({"ok": True, "file": name, "config": loaded, "warnings": warned})
        return 0
    queues = ", ".join(f"{queue.name} ({queue.policy})" for queue in loaded.queue)
    exists = os.path.exists(name)
    print(f"{name} is valid" if exists else f"{name} does not exist: the defaults are valid")
    for text in warned:
        print(f"warning: {text}")
    print(
        f"head: socket {loaded.head.socket}, nodes at "
        f"{loaded.head.node_host}:{loaded.head.node_port}, state in {loaded.head.state_dir}"
    )
    print(f"queues: {queues}")
    print(f"training jobs: {loaded.training.policy}")
    print(_nodes_line(loaded, name))
    return 0


def _nodes_line(loaded: Config, name: str) -> str:
    """Return what the file says of the node, unless the nodes of its cluster have their own."""
    layout = ClusterLayout(directory=Path(os.path.abspath(name)).parent)
    nodes = layout.nodes()
    if nodes and os.path.abspath(name) == str(layout.config):
        return f"nodes: each of {len(nodes)} reads its own file: {nodes[0].config}" + (
            " and others" if len(nodes) > 1 else ""
        )
    return f"node: connects to {loaded.node.head}"


def _warnings_here(loaded: Config) -> list[str]:
    """Return what is valid, and has no effect as far as this machine and user can tell."""
    found = [
        f"{each.text}: {each.todo}"
        for each in machine_checks.check_private_tmp(loaded)
        if each.level is Level.WARN
    ]
    login = loaded.login
    return [
        *found,
        *_unknown("[login] allow_users", _LOGS_IN, login.allow_users),
        *_unknown("[login] allow_groups", _LOGS_IN, login.allow_groups),
        *(
            text
            for queue in loaded.queue
            for key in ("allow_users", "allow_groups", "deny_users")
            for text in _unknown(f"[[queue]] {queue.name}: {key}", _SUBMITS, getattr(queue, key))
        ),
    ]


_LOGS_IN: Final = "nobody logs in by it; name existing {kind}s, and check the file on the nodes"
_SUBMITS: Final = "it has no effect; name existing {kind}s, and check the file on the head"


def _unknown(key: str, what: str, names: Sequence[str]) -> list[str]:
    """Return a sentence for each user or group that this machine does not have."""
    kind = "group" if key.endswith("groups") else "user"
    look_up: Callable[[str], object] = grp.getgrnam if kind == "group" else pwd.getpwnam
    found = []
    for name in names:
        try:
            look_up(name)
        except KeyError:
            found.append(f"{key}: unknown {kind} {name!r}: {what.format(kind=kind)}")
    return found


def _check_operators(loaded: Config, name: str) -> None:
    """Refuse operators whom the head would refuse: users that this machine does not have.

    Raises:
        ConfigError: there is one.
    """
    for user in loaded.head.operators:
        try:
            pwd.getpwnam(user)
        except KeyError:
            raise ConfigError(
                f"{name}: [head] operators: unknown user {user!r}",
                hint="name existing users; check the file on the machine of the head",
            ) from None


config.add_command(check)
config.add_command(show)
