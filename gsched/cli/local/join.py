"""``gsched join``: makes this host a member of a cluster, by a line of ``gsched token create``."""

import contextlib
import hmac
import http.client
import os
import random
import re
import ssl
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

import click
import msgspec

from gsched.cli.common import (
    option,
    print_json,
    print_note,
)
from gsched.cli.local.cluster import host_name
from gsched.cli.local.options import subcommand
from gsched.cli.local.toml import with_value, write_file
from gsched.clock import SystemClock
from gsched.config.cluster import read_sent, with_cluster
from gsched.config.environment import (
    DEFAULT_CONFIG,
    DEFAULT_NODE_STATE_DIR,
)
from gsched.config.load import load_config, parse_config, read_config
from gsched.config.tls import TlsConfig
from gsched.errors import (
    CannotWriteError,
    ConfigError,
    HeadUnreachableError,
    NotPermittedError,
    UsageError,
)
from gsched.head_calls import error_from
from gsched.kept_settings import KeptSettings, keep
from gsched.model.machine import NODE_NAME_RULE, is_node_name
from gsched.model.wording import counted
from gsched.pki.contexts import check_head, explain, joining_context
from gsched.pki.files import CertificateFiles, digest, files_of, split
from gsched.pki.names import CertificateError
from gsched.protocol.api import ErrorReply
from gsched.protocol.joining import (
    AuthorityReply,
    Joined,
    JoinedHead,
    JoinHead,
    JoinHost,
    MemberRole,
)
from gsched.transport import pause

TIMEOUT_S: Final = 20.0
#: Pauses after connections that were cut off: a head does so while hundreds of hosts join at once.
AGAIN_S: Final = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
ROOM_BYTES: Final = 64 * 1024  # for certificates and configuration
_TOKEN: Final = re.compile(r"[0-9a-f]{8}\.[0-9a-f]{32}")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_NEW_LINE: Final = "copy the whole line that gsched token create prints on the head"
EPILOG = """\b
Examples:
  gsched join head.example.org:15010 2c9a41f0.5d… sha256:91b2…
  gsched join --as-head head-a.example.org:15010 2c9a41f0.5d… sha256:91b2…
  gsched join --name n7 - < line     the line does not show in the list of processes
"""
#: ``role`` in ``[node]``, by the role of the certificate.
NODE_ROLES: Final[dict[MemberRole, str]] = {"node": "compute", "login": "login"}
T = TypeVar("T")


@subcommand("join", epilog=EPILOG)
@click.argument("words", nargs=-1, required=True, metavar="ADDRESS TOKEN sha256:HASH")
@option("--name", default="", metavar="NAME", help="Name of this host in the cluster.")
@option(
    "--config",
    "config_path",
    metavar="FILE",
    default=DEFAULT_CONFIG,
    help=f"Configuration of this host [default: {DEFAULT_CONFIG}].",
)
@option("--as-head", is_flag=True, help="Become the second of two heads.")
def join(
    *, words: tuple[str, ...], name: str, config_path: str, as_head: bool, as_json: bool
) -> int:
    """Make this host a member of a cluster: get its certificate, and write its configuration.

    The key is made here and stays here. The head is known by the hash of its authority's
    certificate. Only what is the host's own is written: a configuration that exists keeps all keys
    but head, name and role, and the head's settings are kept beside the certificate. With -
    instead of the line, it is read from standard input.
    """
    (address, token, wanted), has_option = _words(words)
    path = Path(config_path)
    if as_head or has_option:
        return _join_as_head(address, token, wanted, path, as_json=as_json)
    config = load_config(str(path)) if path.exists() else None
    node = config.node if config is not None else None
    name = name or (node.name if node is not None else "") or host_name()
    if not is_node_name(name):
        raise UsageError(f"--name: invalid name {name!r}", hint=NODE_NAME_RULE)
    tls = config.tls if config is not None else TlsConfig()
    if tls.certificate:
        raise ConfigError(
            f"{path} names certificates of the site in [tls]",
            hint="remove these keys, or start gnode: it needs no token",
        )
    state_dir = (node.state_dir if node is not None else "") or DEFAULT_NODE_STATE_DIR
    files = files_of(state_dir, tls)
    if not _can_write(files.directory) or not _can_write(str(path.parent)):
        raise CannotWriteError(
            f"{files.directory} or {path.parent} cannot be written", hint="run it as root"
        )
    head, authority = _ruling_head(address)
    _check_hash(authority, wanted)
    for directory in (files.directory, str(path.parent)):
        _check_room(directory)
    from gsched.pki import issuing

    key = issuing.make_key()
    request = JoinHost(token=token, name=name, request=issuing.make_request(key, name))
    request = _with_proof(request, files)
    joined = _ask(head, authority, "POST", "/v1/join", request, Joined)
    try:
        files.write(own=joined.certificate.encode() + key, trusted=joined.trusted.encode())
        _write_config(path, address, joined)
        refused = _keep_settings(path, joined)
    except OSError as error:
        raise CannotWriteError(
            f"{error.filename or files.directory}: {error.strerror}",
            hint="correct that, and join again with a new token: this one was used",
        ) from None
    if as_json:
        print_json(
            {
                "role": joined.role,
                "name": joined.name,
                "server": joined.server,
                "cluster": joined.cluster,
                "certificate": files.certificate,
                "config": str(path),
            }
        )
        return 0
    print(f"this host is now {joined.role} {joined.name} of the cluster {joined.server}")
    print(f"certificate and key: {files.certificate}; configuration: {path}")
    if refused:
        print_note(
            f"gnode will take no jobs, as it cannot use the head's settings: {refused}",
            command="gsched",
        )
    print(
        "next: systemctl enable --now gnode "
        "(if gnode runs with another head, name or role, restart it; jobs go on)"
    )
    return 0


def _with_proof(request: JoinHost, files: CertificateFiles) -> JoinHost:
    """Return a request that shows by the key that this host has already who it is."""
    from gsched.pki import issuing

    try:
        own = Path(files.certificate).read_bytes()
        before = split(own.decode("ascii"))[0]
        return msgspec.structs.replace(
            request, before=before, proof=issuing.sign(own, request.request)
        )
    except (OSError, ValueError, TypeError, IndexError):
        return request


def _join_as_head(address: str, token: str, wanted: str, path: Path, *, as_json: bool) -> int:
    from gsched.cli.local.join_head import keep_authority, state_dir_of  # late: few hosts need it

    state_dir = state_dir_of(path)
    head, authority = _ruling_head(address)
    _check_hash(authority, wanted)
    request = JoinHead(token=token, name=host_name())
    joined = _ask(head, authority, "POST", "/v1/join-head", request, JoinedHead)
    return keep_authority(state_dir, joined, as_json=as_json)


def _words(words: tuple[str, ...]) -> tuple[tuple[str, str, str], bool]:
    """Return address, token and hash of the line, however much of it was given, and --as-head.

    Raises:
        UsageError: it is no such line.
    """
    if words == ("-",):
        words = tuple(sys.stdin.read(4096).split())
    parts = [part for word in words for part in word.split()]
    if parts[:2] == ["gsched", "join"]:
        parts = parts[2:]
    as_head = parts[:1] == ["--as-head"]
    parts = parts[as_head:]
    if len(parts) != 3:
        raise UsageError(f"the line has {counted(len(parts), 'word')}, not 3", hint=_NEW_LINE)
    address, token, wanted = parts
    for each in address.split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"{each!r} is not HOST:PORT", hint=_NEW_LINE)
    if not _TOKEN.fullmatch(token):
        raise UsageError("the second word is not a token", hint=_NEW_LINE)
    if not _HASH.fullmatch(wanted):
        raise UsageError("the third word is not sha256: and 64 digits", hint=_NEW_LINE)
    return (address, token, wanted.removeprefix("sha256:")), as_head


def _check_hash(authority: str, wanted: str) -> None:
    try:
        found = digest(authority)
    except ValueError:
        found = ""
    if not hmac.compare_digest(found, wanted):
        raise NotPermittedError(
            f"the host at this address is not the head of the line: its authority has the hash "
            f"{found or 'none'}, the line {wanted}; nothing was sent to it",
            hint="check address and line; if the authority was replaced, create a new token",
        )


def _ruling_head(addresses: str) -> tuple[str, str]:
    """Return the first of some addresses at which a head answers, and its authority.

    Raises:
        HeadUnreachableError: there is none.
    """
    heads = addresses.split(",")
    while True:
        head = heads.pop(0)
        try:
            reply = _ask(head, "", "GET", "/v1/authority", None, AuthorityReply)
        except HeadUnreachableError:
            if not heads:
                raise
        else:
            return head, reply.certificate


def _ask(
    address: str,
    authority: str,
    method: str,
    target: str,
    body: JoinHost | JoinHead | None,
    kind: type[T],
) -> T:
    """Return the head's answer to a request.

    Args:
        authority: which must have issued the head's certificate; empty: trust nobody yet.
    """
    content = msgspec.json.encode(body) if body else None
    try:
        status, content = _answer(address, authority, method, target, content)
    except CertificateError as error:
        raise HeadUnreachableError(f"{address}: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        why = explain(error) or str(getattr(error, "strerror", None) or error)
        retry = "; if the token was shown already, create a new one" if body else ""
        raise HeadUnreachableError(
            f"no answer of the head at {address}: {why}",
            hint=f"check the address, node_host in [head] and firewalls{retry}",
        ) from None
    try:
        if status == HTTPStatus.UNAUTHORIZED:  # by a port of [https] alone
            raise HeadUnreachableError(
                f"{address} is the head's port for programs, not the one for hosts that join",
                hint="copy the whole line that gsched token create prints on the head",
            )
        if status >= 300:
            raise error_from(msgspec.json.decode(content, type=ErrorReply).error)
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError:
        raise HeadUnreachableError(
            f"what listens at {address} is no head of this version (status {status})",
            hint="install the same gsched on both hosts",
        ) from None


def again_pauses_s() -> Iterator[float]:
    """Yield how long to wait before each try; many hosts do not come back in the same moment."""
    yield 0.0
    for most_s in AGAIN_S:
        yield most_s * random.uniform(0.5, 1.0)


def _answer(
    address: str, authority: str, method: str, target: str, body: bytes | None
) -> tuple[int, bytes]:
    """Return status and content of the head's answer; try again if the connection is cut off.

    Raises:
        CertificateError: what listens there is no head.
        OSError, HTTPException: there is no answer.
    """
    host, _, port = address.rpartition(":")
    context = joining_context(authority)
    cut_off: OSError | None = None
    for pause_s in again_pauses_s():
        pause(pause_s)
        connection = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=TIMEOUT_S, context=context
        )
        try:
            connection.connect()
            if authority:
                assert isinstance(connection.sock, ssl.SSLSocket), "http.client has wrapped it"
                check_head(connection.sock.getpeercert(), "")
            connection.request(method, target, body)
            answer = connection.getresponse()
            return answer.status, answer.read(1 << 20)
        except (
            ConnectionResetError,
            BrokenPipeError,
            ssl.SSLEOFError,
            ssl.SSLZeroReturnError,
        ) as error:
            cut_off = error  # perhaps after the head has taken the request: it answers that again
        finally:
            connection.close()
    assert cut_off is not None, "there was a try"
    raise cut_off


def _write_config(path: Path, address: str, joined: Joined) -> None:
    text = (
        path.read_text(encoding="utf-8")
        if path.exists()
        else "# Of this host; see gsched.toml(5).\n"
    )
    role = NODE_ROLES[joined.role]
    values = {"head": address, "name": joined.name, "role": role}
    if parse_config(text, where=str(path)).node.role == role:
        del values["role"]
    for key, value in values.items():
        text = with_value(text, ("node", key), value, where=str(path))
    parse_config(text, where=str(path))
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(path, text)


def _keep_settings(path: Path, joined: Joined) -> str:
    """Keep the head's settings, so that gnode starts with them; return why it cannot use them.

    Those of another cluster, to which this host has belonged, go in any case.
    """
    file = read_config(str(path))
    if joined.role != "node":
        return ""
    kept = KeptSettings()
    try:
        kept = KeptSettings(
            digest=joined.digest,
            received_s=SystemClock().wall_s(),
            settings=read_sent(joined.settings),
        )
        with_cluster(file, kept.settings)
    except ConfigError as error:
        return f"{error.message}: {error.hint}"
    finally:
        keep(file.config.node.state_dir, kept)
    return ""


def _check_room(path: str) -> None:
    """Check that what joining writes has room in a directory, before the token is used.

    Raises:
        CannotWriteError: it does not.
    """
    probe = os.path.join(_existing(path), f".join-{os.getpid()}")
    try:
        try:
            with open(probe, "xb") as file:
                file.write(bytes(ROOM_BYTES))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(probe)
    except OSError as error:
        raise CannotWriteError(
            f"{path} cannot be written: {error.strerror}",
            hint="correct that and run the line again: the token was not used",
        ) from None


def _can_write(path: str) -> bool:
    """Return whether a directory can be written, or made."""
    return os.access(_existing(path), os.W_OK | os.X_OK)


def _existing(path: str) -> str:
    """Return a directory, or the nearest one above it that is there."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
