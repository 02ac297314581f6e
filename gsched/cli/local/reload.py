"""``gsched reload``: let the running head read its configuration again."""

from collections.abc import Sequence

from gsched.cli.common import connected, head_option, print_json, printable
from gsched.cli.local.options import subcommand
from gsched.client import HeadClient
from gsched.model.configuration import ConfigChange

EPILOG = """\b
Example:
  gsched config check /etc/gsched/gsched.toml && gsched reload
"""


@subcommand("reload", epilog=EPILOG)
@head_option
@connected
def reload(head: HeadClient, *, as_json: bool) -> int:
    """Let the running head read its configuration file again, without a restart.

    All keys that can change in a running head do so at once, or none: a file with a mistake is
    refused, with its line, and the head keeps the configuration that it has. Keys that need a
    restart are named and stay as they were. For operators.
    """
    reply = head.reload()
    if as_json:
        print_json(reply)
        return 0
    if not reply.changed and not reply.waits and not reply.nodes:
        print(f"{reply.path}: the head runs with it already")
        return 0
    if reply.changed:
        print(f"{reply.path}: in force now")
        _print(reply.changed)
    if reply.nodes:
        print("sent to the nodes (gsched doctor names those that refuse it):")
        _print(reply.nodes)
    if reply.overridden:
        print("in the file, but an operator has set another value (gmgr unset takes it back):")
        print("".join(f"  {printable(text)}\n" for text in reply.overridden), end="")
    if reply.waits:
        print("need a restart of the head (systemctl restart gschedd; jobs keep running):")
        _print(reply.waits)
    return 0


def _print(changes: Sequence[ConfigChange]) -> None:
    for each in changes:
        print(f"  {printable(each.text)}")
