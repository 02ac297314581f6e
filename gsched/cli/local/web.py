"""``gsched web``: the address of the page, with a token that begins a session."""

import os
import pwd
import socket
import webbrowser
from typing import Final

import msgspec

from gsched.cli.common import (
    head_option,
    option,
    print_json,
    print_note,
)
from gsched.cli.local.options import subcommand
from gsched.client import HeadClient
from gsched.config.environment import environment
from gsched.config.words import monitor_socket_of
from gsched.errors import GschedError, HeadUnreachableError, NotPermittedError, UsageError
from gsched.head_address import HeadAddress, find_head
from gsched.protocol.web import WebAddress
from gsched.transport import Transport

EPILOG: Final = """\b
Examples:
  gsched web               open the page in a browser, or print its address
  gsched web --print       only print the address, for another browser
"""
#: Programs that show a page in this terminal: of no use here.
_TEXT_BROWSERS: Final = ("www-browser", "links", "elinks", "lynx", "w3m")


@subcommand("web", epilog=EPILOG)
@option("--print", "only_print", is_flag=True, help="Print the address; open no browser.")
@head_option
def web(*, only_print: bool, head_address: str, as_json: bool) -> int:
    """Show the page of the cluster: queue, nodes, GPUs, jobs.

    The address works once, within five minutes, and shows what you may see.
    """
    found = _address(find_head(head_address))
    begins = found.origin or f"http://{found.address}"
    url = f"{begins}{found.base_path}/login?token={found.token}"
    forward = "" if found.origin else _tunnel(found.address)
    if as_json:
        print_json({"url": url, "ssh": forward})
        return 0
    print(url)
    if forward:
        print_note(f"from a laptop, first run there: {forward}", command="gsched web")
    if not only_print and _has_display():
        webbrowser.open(url)
    return 0


def _address(head: HeadAddress) -> WebAddress:
    """Return the page's address with a new token.

    Raises:
        UsageError: the head is reached by TCP, or its page is on a Unix socket only.
        HeadUnreachableError: nobody answers.
    """
    if not head.path:
        raise UsageError(
            f"{head.text}: the page's address is given out on the head's machine only",
            hint="run gsched web there, with the path of the head's socket",
        )
    path = monitor_socket_of(head.path)
    transport = Transport(HeadAddress(path, source=head.source, path=path), patience_s=0.0)
    try:
        answer = transport.exchange("POST", "/v1/web-address")
    except HeadUnreachableError as error:
        raise _away(head) from error
    if answer.status != 200:
        raise HeadUnreachableError(f"the page refuses with status {answer.status}")
    found = msgspec.json.decode(answer.body, type=WebAddress)
    if not (found.address or found.origin):
        raise UsageError(
            f"the page is on the Unix socket {path} only",
            hint='for browsers set [web] listen, as "127.0.0.1:15080", and restart gschedd',
        )
    return found


def _away(head: HeadAddress) -> GschedError:
    """Return why the monitor does not answer, as far as the head knows."""
    try:
        trouble = HeadClient(head.path, patience_s=0.0).status().monitor
    except NotPermittedError as error:
        return error
    except GschedError:
        return HeadUnreachableError(
            f"the head at {head.path} does not answer, so there is no page",
            hint="is gschedd running? `gsched doctor` checks it",
        )
    why = f": {trouble}" if trouble else ", or its monitor is just starting"
    return HeadUnreachableError(
        f"the head at {head.path} runs without a page{why}",
        hint="see [web] enabled in gsched.toml(5), and the head's log",
    )


def _has_display() -> bool:
    """Return whether a browser that is opened here is seen by whoever runs the command."""
    if not (environment("DISPLAY") or environment("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.get().name not in _TEXT_BROWSERS
    except webbrowser.Error:
        return False


def _tunnel(address: str) -> str:
    """Return the command that makes the page reachable from where the user sits; empty: here."""
    connection = environment("SSH_CONNECTION").split()
    if len(connection) != 4:
        return ""
    port = address.rpartition(":")[2]
    user = pwd.getpwuid(os.getuid()).pw_name
    return f"ssh -L {port}:{address} {user}@{_host_name() or connection[2]}"


def _host_name() -> str:
    """Return the name of this machine; empty if it has none that others may know."""
    name = socket.getfqdn()
    return "" if name.startswith("localhost") else name
