"""Tokens by which hosts join, the names that they have, and those that were revoked: durable."""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from gsched.clock import Clock
from gsched.errors import InvalidRequestError, NotPermittedError, UsageError
from gsched.failpoint import failpoint
from gsched.model.machine import NODE_NAME_RULE, is_node_name
from gsched.model.units import format_duration
from gsched.protocol.joining import CreateToken, MemberRole, TokenRole, TokenRow
from gschedd.store.queues import NoteStore

TOKEN: Final = "token"  # noqa: S105 # a kind of note
REVOKED: Final = "revoked"
LOGIN: Final = "login-host"
NODE: Final = "node-host"
MAX_TOKENS: Final = 1000  # that hosts can join with
#: Used and expired tokens are still listed for this long, the newest so many of them.
KEPT_S: Final = 86_400.0
MAX_ENDED: Final = 2000
_NEW: Final = "gsched token create on the head prints a new line"


class _Token(Struct, frozen=True, kw_only=True):
    """A token as the database has it: of its secret there is a hash only.

    Attributes:
        request: hash of the request by which a host has joined; empty: none has.
    """

    row: TokenRow
    digest: str
    request: str = ""


class _JoinedHost(Struct, frozen=True, kw_only=True):
    """A host that has joined and so has a name.

    Attributes:
        request: hash of its request for its first certificate; empty: it has connected without.
        expires_s: when this certificate ends, seconds since the epoch.
    """

    request: str = ""
    expires_s: float = 0.0


class Members:
    """Who may join, who has which name, and who may not connect any more.

    Args:
        store: keeps both.
        in_writer: runs something on the store's thread, between commits.

    Attributes:
        revoked: when hosts were revoked, by role and name.
        logins: login hosts that have joined or connected, by name.
        nodes: nodes that have joined, by name.
    """

    def __init__(
        self,
        store: NoteStore,
        *,
        in_writer: Callable[[Callable[[], None]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._store = store
        self._in_writer = in_writer
        self._clock = clock
        tokens = store.notes(TOKEN).items()
        self._tokens = {name: msgspec.json.decode(text, type=_Token) for name, text in tokens}
        self.logins = _hosts(store.notes(LOGIN))
        self.nodes = _hosts(store.notes(NODE))
        self.revoked = {name: float(text) for name, text in store.notes(REVOKED).items()}

    def is_revoked(self, role: str, name: str, begins_s: float) -> bool:
        """Return whether a certificate began before its owner was revoked."""
        return begins_s <= self.revoked.get(f"{role}/{name}", -1.0)

    async def revoke(self, role: MemberRole, name: str, *, replaced: bool = False) -> None:
        """Refuse all certificates that a host has now, for ever, and delete tokens for its name.

        Args:
            replaced: another host has joined with its name, which stays taken.
        """
        key, now_s = f"{role}/{name}", self._clock.wall_s()
        await self.save(REVOKED, key, repr(now_s))
        self.revoked[key] = now_s
        if replaced:
            return
        await self.release(role, name)
        for token_id, token in list(self._tokens.items()):
            if (token.row.role, token.row.name, token.row.used_s) == (role, name, 0.0):
                self._tokens.pop(token_id, None)
                await self.save(TOKEN, token_id, None)

    async def release(self, role: MemberRole, name: str) -> None:
        """Let any host join with a name."""
        kind, hosts = self._of(role)
        if name in hosts:
            await self.save(kind, name, None)
            hosts.pop(name, None)

    async def note_login(self, name: str) -> None:
        """Keep a name for a login host, until it is revoked: no node gets it."""
        if name not in self.logins:
            await self.save(LOGIN, name, _text(_JoinedHost()))
            self.logins.setdefault(name, _JoinedHost())

    def has_joined(self, name: str) -> bool:
        """Return whether a node has joined with a name and can still connect for the first time."""
        host = self.nodes.get(name)
        return host is not None and host.expires_s > self._clock.wall_s()

    def is_request_of(self, role: TokenRole, name: str, request: str) -> bool:
        """Return whether the host that has a name has joined with this request."""
        host = self._of(role)[1].get(name)
        return host is not None and host.request == _digest(request)

    def _of(self, role: TokenRole) -> tuple[str, dict[str, _JoinedHost]]:
        """Return the kind of the notes of a role, and its hosts."""
        return (LOGIN, self.logins) if role == "login" else (NODE, self.nodes)

    def tokens(self) -> tuple[TokenRow, ...]:
        """Return all tokens, the newest first."""
        rows = [token.row for token in self._tokens.values()]
        return tuple(sorted(rows, key=lambda row: -row.created_s))

    async def create(self, wanted: CreateToken, by: str) -> tuple[TokenRow, str]:
        """Make a token; return it, and its text, which is not kept.

        Raises:
            InvalidRequestError: the name is invalid, or there are too many tokens.
        """
        if wanted.name and not is_node_name(wanted.name):
            raise InvalidRequestError(f"invalid name {wanted.name!r}", hint=NODE_NAME_RULE)
        if wanted.replace and (not wanted.name or wanted.role == "head"):
            raise InvalidRequestError(
                "only a node or login host with a name can be replaced",
                hint="--role node --name NAME --replace",
            )
        ended = await self._forget_old()
        if len(self._tokens) - ended >= MAX_TOKENS:
            raise InvalidRequestError(
                f"there are {MAX_TOKENS} tokens that no host has used yet, the limit",
                hint="delete some: gsched token revoke ID",
            )
        now_s, secret = self._clock.wall_s(), secrets.token_hex(16)
        row = TokenRow(
            id=secrets.token_hex(4),
            role=wanted.role,
            name=wanted.name,
            replace=wanted.replace,
            by=by,
            created_s=now_s,
            expires_s=now_s + wanted.ttl_s,
        )
        await self._put(_Token(row=row, digest=_digest(secret)))
        return row, f"{row.id}.{secret}"

    async def delete(self, token_id: str) -> None:
        """Delete a token.

        Raises:
            InvalidRequestError: the id is unknown.
        """
        if token_id not in self._tokens:
            raise InvalidRequestError(
                f"unknown token {token_id!r}", hint="gsched token list shows them"
            )
        await self.save(TOKEN, token_id, None)
        self._tokens.pop(token_id, None)

    def check(self, text: str, name: str, *, as_head: bool = False, request: str = "") -> TokenRow:
        """Return the token that a host shows, if the host may join with it under a name.

        A host that sends the same request again, as the answer was lost, may: the certificate is
        for a key that only this host has.

        Raises:
            NotPermittedError: it may not; the message says why.
            UsageError: the name is invalid.
        """
        token_id, _, secret = text.partition(".")
        token = self._tokens.get(token_id)
        if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
            raise NotPermittedError(
                "the token is unknown here: it was deleted, mistyped, or is of another cluster",
                hint=_NEW,
            )
        row, now_s = token.row, self._clock.wall_s()
        if (row.role == "head") != as_head:
            raise NotPermittedError(
                f"the token is for a {row.role}",
                hint="run the whole line that gsched token create has printed",
            )
        if row.used_s and not self._is_same(token, name, request):
            raise NotPermittedError(
                f"the token was used {format_duration(now_s - row.used_s)} ago by "
                f"{row.role} {row.used_by}; each lets one host join",
                hint=f"{_NEW}; if that was not you, gnodes revoke {row.used_by}",
            )
        if now_s >= row.expires_s:
            raise NotPermittedError(
                f"the token has expired {format_duration(now_s - row.expires_s)} ago", hint=_NEW
            )
        if row.name and name != row.name:
            raise NotPermittedError(
                f"the token is for {row.role} {row.name}, this host joins as {name!r}",
                hint=f"gsched join --name {row.name}, or a token for the other name: {_NEW}",
            )
        if not is_node_name(name):
            raise UsageError(f"invalid name {name!r}", hint=NODE_NAME_RULE)
        return row

    async def use(
        self, row: TokenRow, name: str, request: str = "", *, expires_s: float = 0.0
    ) -> None:
        """Note durably that a host has joined; it may get its certificate when this returns.

        Nobody else can use the token, or join with the name, from the first moment on.

        Args:
            request: of the host, for its certificate.
            expires_s: when that ends, seconds since the epoch.

        Raises:
            NotPermittedError: another host was faster.
        """
        host = _JoinedHost(request=_digest(request), expires_s=expires_s)
        token = self._tokens.get(row.id)
        if token is not None and self._is_same(token, name, request):
            await self._in_writer(lambda: None)  # what is noted may not be durable yet
            token = self._tokens.get(row.id)
            if token is not None and self._is_same(token, name, request):
                self._hold(row.role, name, host)
                await self._write_host(row.role, name)
                return
        if token is None or token.row.used_s:
            raise NotPermittedError("the token was used or deleted in this moment", hint=_NEW)
        used = msgspec.structs.replace(row, used_s=self._clock.wall_s(), used_by=name)
        self._tokens[row.id] = msgspec.structs.replace(
            token, row=used, request=_digest(request) if request else ""
        )
        before = self._hold(row.role, name, host)
        try:
            failpoint("join.before_commit")
            await self._put(self._tokens[row.id])
            failpoint("join.after_commit")
            await self._write_host(row.role, name)
        except BaseException:
            self._tokens[row.id] = token
            self._hold(row.role, name, before)
            raise

    def _hold(self, role: TokenRole, name: str, host: _JoinedHost | None) -> _JoinedHost | None:
        """Let a host have a name, None: nobody; return who has had it. A head has none here."""
        if role == "head":
            return None
        hosts = self._of(role)[1]
        before = hosts.pop(name, None)
        if host is not None:
            hosts[name] = host
        return before

    async def _write_host(self, role: TokenRole, name: str) -> None:
        """Make durable who has a name."""
        if role != "head":
            kind, hosts = self._of(role)
            await self.save(kind, name, _text(hosts[name]) if name in hosts else None)

    def _is_same(self, token: _Token, name: str, request: str) -> bool:
        """Return whether the host that has joined with a token sends its request again."""
        row = token.row
        is_revoked = self.revoked.get(f"{row.role}/{name}", 0.0) >= row.used_s
        return (
            bool(request and row.used_s)
            and not is_revoked
            and row.used_by == name
            and token.request == _digest(request)
        )

    async def _put(self, token: _Token) -> None:
        await self.save(TOKEN, token.row.id, msgspec.json.encode(token).decode())
        self._tokens[token.row.id] = token

    async def _forget_old(self) -> int:
        """Delete tokens that ended long ago, or before many others; return how many ended stay."""
        now_s = self._clock.wall_s()
        rows = [token.row for token in self._tokens.values()]
        ended = [row for row in rows if row.used_s or row.expires_s <= now_s]
        if len(ended) > MAX_ENDED:
            ended.sort(key=lambda row: -row.created_s)
        kept = [row for row in ended[:MAX_ENDED] if row.expires_s >= now_s - KEPT_S]
        for token_id in {row.id for row in ended} - {row.id for row in kept}:
            await self.save(TOKEN, token_id, None)
            self._tokens.pop(token_id, None)
        return len(kept)

    async def save(self, kind: str, name: str, text: str | None) -> None:
        """Make a note durable; None: delete it."""
        await self._in_writer(lambda: self._store.save_note(kind, name, text))


def _hosts(notes: Mapping[str, str]) -> dict[str, _JoinedHost]:
    """Return hosts by name; older versions have written no text."""
    return {
        name: msgspec.json.decode(text, type=_JoinedHost) if text else _JoinedHost()
        for name, text in notes.items()
    }


def _text(host: _JoinedHost) -> str:
    return msgspec.json.encode(host).decode()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
