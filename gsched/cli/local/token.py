"""``gsched token``: lets hosts join the cluster."""

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
from gsched.errors import UsageError
from gsched.model.units import format_duration, parse_duration_s
from gsched.protocol.joining import MEMBER_ROLES, CreateToken, TokenRow

_CREATE_EPILOG = """\b
Examples:
  gsched token create --role node --name n7
  gsched token create --role login --ttl 1h
"""
COLUMNS = (
    Column("token"),
    Column("role"),
    Column("name"),
    Column("created by"),
    Column("expires"),
    Column("state"),
)


@click.group("token", cls=HelpfulGroup, context_settings=SETTINGS)
def token() -> None:
    """Let hosts join the cluster: create, list and delete tokens (operators only)."""


@subcommand("create", epilog=_CREATE_EPILOG)
@option("--role", type=click.Choice(MEMBER_ROLES), required=True, help="What the host becomes.")
@option("--name", default="", metavar="NAME", help="The only name that the host can have.")
@option(
    "--ttl", default="15m", metavar="TIME", help="For how long the token counts [default: 15m]."
)
@head_option
@connected
def create(head: HeadClient, *, role: str, name: str, ttl: str, as_json: bool) -> int:
    """Create a token and print the line to run on the new host.

    One host can join with it, once, until it expires. The line is a secret until then.
    """
    wanted = CreateToken(role=role, name=name, ttl_s=_ttl_s(ttl))  # type: ignore[arg-type] # click has checked it
    made = head.create_token(wanted)
    line = f"gsched join {made.address} {made.token} sha256:{made.authority}"
    if as_json:
        print_json({"line": line, "token": made})
        return 0
    print(line)
    who = f"{role} {name}" if name else f"one {role}"
    print_note(
        f"run it as root on the new host within {format_duration(wanted.ttl_s)}; it lets {who} "
        "join, once",
        command="gsched",
    )
    if made.loopback:
        print_note(
            "the head listens on loopback only: set node_host in [head] to an address that other "
            "hosts reach, and restart gschedd",
            command="gsched",
        )
    return 0


def _ttl_s(text: str) -> float:
    seconds = parse_duration_s(text)
    if not 1 <= seconds <= 30 * 86_400:
        raise UsageError(f"--ttl {text}: must be from 1 second to 30 days", hint="--ttl 15m")
    return float(seconds)


@subcommand("list")
@head_option
@color_option
@connected
def list_tokens(head: HeadClient, *, color: str, as_json: bool) -> int:
    """List tokens; those that expired more than a day ago are forgotten."""
    reply = head.tokens()
    if as_json:
        print_json(reply)
    else:
        print_table(COLUMNS, [_cells(row, reply.now_s) for row in reply.tokens], color=color)
    return 0


@subcommand("delete")
@click.argument("token_id", metavar="TOKEN")
@head_option
@connected
def delete(head: HeadClient, *, token_id: str, as_json: bool) -> int:
    """Delete a token, named by its first 8 digits: nobody can join with it any more."""
    reply = head.delete_token(token_id.partition(".")[0])
    if as_json:
        print_json(reply)
    return 0


def _cells(row: TokenRow, now_s: float) -> list[str]:
    state = "unused"
    if row.used_s:
        state = f"used by {row.used_by}"
    elif now_s >= row.expires_s:
        state = "expired"
    return [row.id, row.role, row.name or "any", row.by, format_time(row.expires_s), state]


for _command in (create, list_tokens, delete):
    token.add_command(_command)
