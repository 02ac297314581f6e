"""``gsched authority``: shows and replaces what issues the certificates of the cluster's hosts."""

import click

from gsched.cli.common import (
    color_option,
    connected,
    head_option,
    option,
    print_json,
    print_note,
)
from gsched.cli.local.options import SETTINGS, HelpfulGroup, subcommand
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.cli.times import format_time
from gsched.client import HeadClient
from gsched.protocol.joining import AuthorityState, ChangeAuthority

COLUMNS = (
    Column("host"),
    Column("role"),
    Column("connected"),
    Column("certificate expires"),
    Column("authority"),
)
_EPILOG = """\b
Example:
  gsched authority replace     both authorities count; hosts get new certificates
  gsched authority show        until all nodes are connected and have them
  gsched authority finish      the old authority does not count any more
"""


@click.group("authority", cls=HelpfulGroup, context_settings=SETTINGS, epilog=_EPILOG)
def authority() -> None:
    """Show or replace the authority that issues certificates."""


@subcommand("show")
@head_option
@color_option
@connected
def show(head: HeadClient, *, color: str, as_json: bool) -> int:
    """Show the authority, and the certificates of hosts that are reached by TCP."""
    state = head.authority()
    if as_json:
        print_json(state)
        return 0
    print(f"cluster: {state.server}, in certificates {state.cluster}")
    for number, each in enumerate(state.authorities):
        old = "old: " if number < len(state.authorities) - 1 else ""
        print(f"authority: {old}sha256:{each}{' (of the site)' if state.of_site else ''}")
    for name, at_s in sorted(state.revoked.items()):
        print(f"revoked: {name}, {format_time(at_s)}")
    _print_nodes(state, color=color)
    return 0


@subcommand("certificate")
@head_option
@connected
def certificate(head: HeadClient, *, as_json: bool) -> int:
    """Print the certificates of the authorities that count, in PEM, as $GSCHED_CA takes them."""
    pem = head.authority_certificate()
    if as_json:
        print_json({"certificate": pem})
    else:
        print(pem, end="")
    return 0


@subcommand("replace")
@head_option
@connected
def replace(head: HeadClient, *, as_json: bool) -> int:
    """Make a new authority; the old one counts until gsched authority finish."""
    state = head.change_authority(ChangeAuthority(action="replace"))
    if as_json:
        print_json(state)
        return 0
    print(f"new authority: sha256:{state.authorities[-1]}")
    print_note(
        "connected hosts get new certificates now; when gsched authority show lists all as new, "
        "run gsched authority finish",
        command="gsched",
    )
    return 0


@subcommand("finish")
@option("--force", is_flag=True, help="Although nodes have no new certificate yet.")
@head_option
@connected
def finish(head: HeadClient, *, force: bool, as_json: bool) -> int:
    """Stop to trust the old authority.

    Nodes and connected login hosts that have no certificate of the new one are named, and nothing
    is done; with --force they have to join again, as have login hosts that are away.
    """
    state = head.change_authority(ChangeAuthority(action="finish", force=force))
    if as_json:
        print_json(state)
    else:
        print(f"authority: sha256:{state.authorities[-1]}")
    return 0


def _print_nodes(state: AuthorityState, *, color: str) -> None:
    rows = []
    for row in state.nodes:
        expires = format_time(row.expires_s) if row.expires_s else "unknown"
        which = ("new" if row.current else "old") if row.expires_s else "unknown"
        which = "the present one" if row.current and len(state.authorities) == 1 else which
        rows.append([row.node, row.role, "yes" if row.connected else "no", expires, which])
    if rows:
        print_table(COLUMNS, rows, color=color)


for _command in (show, certificate, replace, finish):
    authority.add_command(_command)
