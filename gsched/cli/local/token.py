"""``gsched token``: lets hosts join the cluster, and programs act as a user."""

import contextlib

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
from gsched.errors import InvalidRequestError, NotPermittedError, UsageError
from gsched.model.units import format_duration, parse_duration_s
from gsched.protocol.joining import TOKEN_ROLES, CreateToken, TokenList, TokenRow
from gsched.protocol.tokens import (
    MAX_LABEL,
    MAX_USER,
    SCOPES,
    CreateUserToken,
    Scope,
    UserTokenList,
    UserTokenRow,
)

_CREATE_EPILOG = """\b
Examples:
  gsched token create --role node --name n7
  gsched token create --role node --name n7 --replace    a new machine in its place
  gsched token create --role login --ttl 1h
  gsched token create --role head          for the second of two heads
  gsched token create --role user --scope submit --ttl 90d --label nightly-ci
"""
HOST_TTL = "15m"
USER_TTL = "30d"
USER_COLUMNS = (
    Column("token"),
    Column("user"),
    Column("scope"),
    Column("label"),
    Column("created by"),
    Column("expires"),
    Column("last used"),
)
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
    """Create, list and revoke tokens, of users' programs and (operators) of hosts that join."""


@subcommand("create", epilog=_CREATE_EPILOG)
@option(
    "--role",
    type=click.Choice((*TOKEN_ROLES, "user")),
    required=True,
    help="What the host becomes; user: the token is for programs.",
)
@option("--name", default="", metavar="NAME", help="The only name that the host can have.")
@option(
    "--replace",
    is_flag=True,
    help="The host takes the place of the one that has the name: its certificates end.",
)
@option(
    "--scope", type=click.Choice(SCOPES), help="What the token of a user allows [default: read]."
)
@option("--user", default="", metavar="USER", help="Whose token it becomes [default: yours].")
@option("--label", default="", metavar="WORDS", help="What the token of a user is for.")
@option(
    "--ttl",
    default="",
    metavar="TIME",
    help=f"For how long the token counts [default: {HOST_TTL}, of a user {USER_TTL}].",
)
@head_option
@connected
def create(  # noqa: PLR0913 - options
    head: HeadClient,
    *,
    role: str,
    name: str,
    replace: bool,
    scope: Scope | None,
    user: str,
    label: str,
    ttl: str,
    as_json: bool,
) -> int:
    """Create a token and print it: for a new host the line to run there.

    One host can join with it, once, until it expires. A token of a user is sent by programs over
    HTTPS, as often as they like: see https in gsched.toml(5). Each is a secret, and shown once.
    """
    if role == "user":
        if name or replace:
            given_option = "--name" if name else "--replace"
            raise UsageError(f"{given_option} is for hosts", hint="--label names a user's token")
        for name_given, text, most, why in (
            ("--user", user, MAX_USER, "give it the name of an account"),
            ("--label", label, MAX_LABEL, "write a shorter label"),
        ):
            if len(text) > most:
                words = f"{name_given} has {len(text)} characters, of at most {most}"
                raise UsageError(words, hint=why)
        wanted_token = CreateUserToken(
            scope=scope or "read",
            user=user,
            label=label,
            ttl_s=_ttl_s(ttl or USER_TTL, days_most=366),
        )
        return _create_of_user(head, wanted_token, as_json=as_json)
    for option_of_user, value in (("--scope", scope), ("--user", user), ("--label", label)):
        if value:
            raise UsageError(f"{option_of_user} is for tokens of users", hint="--role user")
    if replace and (not name or role == "head"):
        raise UsageError(
            "--replace is for a node or login host that has a name",
            hint="--role node --name NAME --replace",
        )
    wanted = CreateToken(
        role=role,  # type: ignore[arg-type] # click has checked it
        name=name,
        replace=replace,
        ttl_s=_ttl_s(ttl or HOST_TTL),
    )
    return _create_of_host(head, wanted, as_json=as_json)


def _create_of_user(head: HeadClient, wanted: CreateUserToken, *, as_json: bool) -> int:
    made = head.create_user_token(wanted)
    if as_json:
        print_json(made)
        return 0
    print(made.token)
    row = made.row
    print_note(
        f"it acts as {row.user} with the scope {row.scope} until {format_time(row.expires_s)}; "
        "keep it secret: put it into $GSCHED_TOKEN or ~/.config/gsched/token, mode 0600",
        command="gsched",
    )
    where = f"programs use GSCHED_HEAD={made.address}"
    if not made.address:
        where = "no program can use it yet: HTTPS is off (listen of [https] in gsched.toml)"
    print_note(where, command="gsched")
    return 0


def _create_of_host(head: HeadClient, wanted: CreateToken, *, as_json: bool) -> int:
    made, role, name = head.create_token(wanted), wanted.role, wanted.name
    as_head = "--as-head " if role == "head" else ""
    line = f"gsched join {as_head}{made.address} {made.token} sha256:{made.authority}"
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
    if made.in_use:
        print_note(
            f"the cluster has a {role} {name}: with this line only that host can join again, which "
            "has its key; --replace lets another host take its place",
            command="gsched",
        )
    if made.loopback:
        print_note(
            "the head listens on loopback only: set node_host in [head] to an address that other "
            "hosts reach, and restart gschedd",
            command="gsched",
        )
    return 0


def _ttl_s(text: str, *, days_most: int = 30) -> float:
    seconds = parse_duration_s(text)
    if not 1 <= seconds <= days_most * 86_400:
        raise UsageError(
            f"--ttl {text}: must be from 1 second to {days_most} days", hint="--ttl 15m"
        )
    return float(seconds)


@subcommand("list")
@head_option
@color_option
@connected
def list_tokens(head: HeadClient, *, color: str, as_json: bool) -> int:
    """List your tokens, for operators those of all users and hosts.

    Those that expired more than a day ago are forgotten.
    """
    users = head.user_tokens()
    hosts: TokenList | None = None
    with contextlib.suppress(NotPermittedError):  # only operators have them
        hosts = head.tokens()
    if as_json:
        print_json({"users": users, "hosts": hosts})
        return 0
    if hosts is not None and (hosts.tokens or not users.tokens):
        print_table(COLUMNS, [_cells(row, hosts.now_s) for row in hosts.tokens], color=color)
    if users.tokens or hosts is None:
        rows = [_user_cells(row, users.now_s) for row in users.tokens]
        print_table(USER_COLUMNS, rows, color=color)
    return 0


@subcommand("revoke")
@click.argument("token_id", metavar="TOKEN")
@head_option
@connected
def revoke(head: HeadClient, *, token_id: str, as_json: bool) -> int:
    """Revoke a token, named by the 8 digits of the list: it does not count any more."""
    number = token_id.partition(".")[0].removeprefix("gsched_").partition("_")[0]
    reply: TokenList | UserTokenList
    try:
        reply = head.revoke_user_token(number)
    except InvalidRequestError as error:
        try:
            reply = head.delete_token(number)
        except NotPermittedError:
            raise error from None
    if as_json:
        print_json(reply)
    return 0


def _cells(row: TokenRow, now_s: float) -> list[str]:
    state = "unused"
    if row.used_s:
        state = f"used by {row.used_by}"
    elif now_s >= row.expires_s:
        state = "expired"
    name = f"{row.name}, replaced" if row.replace else row.name or "any"
    return [row.id, row.role, name, row.by, format_time(row.expires_s), state]


def _user_cells(row: UserTokenRow, now_s: float) -> list[str]:
    expires = "expired" if now_s >= row.expires_s else format_time(row.expires_s)
    used = format_time(row.used_s) if row.used_s else "-"
    return [row.id, row.user, row.scope, row.label or "-", row.by, expires, used]


for _command in (create, list_tokens, revoke):
    token.add_command(_command)
