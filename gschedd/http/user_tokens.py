"""Tokens of users: made, listed and revoked on the socket, shown by programs over HTTPS."""

import asyncio
import hashlib
import hmac
import logging
import pwd
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct, structs

from gsched.clock import Clock
from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.limits import check_printable, shown
from gsched.model.units import format_duration
from gsched.protocol.tokens import (
    CreatedUserToken,
    CreateUserToken,
    UserTokenList,
    UserTokenRow,
)
from gschedd.core.requests.authorize import Verb, authorize, may
from gschedd.core.state.settings import Caller
from gschedd.http.answers import answer
from gschedd.http.audit import note_verb
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers, UserNames
from gschedd.http.members import KEPT_S
from gschedd.store.queues import NoteStore

log = logging.getLogger("gschedd.tokens")

KIND: Final = "user-token"  # of a note in the database
PREFIX: Final = "gsched_"  # by which programs that look for leaked secrets know one
OF_USER_MAX: Final = 100  # valid ones; so many of a user's expired ones are still listed
IN_ALL_MAX: Final = 10_000
_NEW: Final = "gsched token create --role user, on a host of the cluster, makes a new one"


class _KeptToken(Struct, frozen=True, kw_only=True):
    """A token as the database has it: of its secret there is a hash only."""

    row: UserTokenRow
    digest: str


class TokenBook:
    """All of them, as they are shown by programs.

    Args:
        notes: returns those that are kept.
        names: of users.
        clock: of the times of tokens.
    """

    def __init__(
        self, notes: Callable[[str], Mapping[str, str]], names: UserNames, clock: Clock
    ) -> None:
        self._notes = notes
        self._names = names
        self.clock = clock
        self._used_s: dict[str, float] = {}
        self.load()

    def load(self) -> None:
        """Read those that are kept."""
        notes = self._notes(KIND).items()
        self._tokens = {name: msgspec.json.decode(text, type=_KeptToken) for name, text in notes}

    def check(self, text: str, *, acts: bool) -> UserTokenRow:
        """Return the token that a program shows; ``acts`` as for `UserNames.name`.

        Raises:
            NotPermittedError: it does not count; the message says why.
        """
        token_id, _, secret = text.removeprefix(PREFIX).partition("_")
        token = self._tokens.get(token_id)
        if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
            raise NotPermittedError(
                "the token is unknown here: it was revoked, mistyped, or is of another cluster",
                hint=_NEW,
            )
        row, now_s = token.row, self.clock.wall_s()
        if now_s >= row.expires_s:
            raise NotPermittedError(
                f"token {row.id} of {row.user} has expired "
                f"{format_duration(now_s - row.expires_s)} ago",
                hint=_NEW,
            )
        if self._names.name(row.uid, acts=acts) != row.user:
            raise NotPermittedError(
                f"token {row.id} is of {row.user}, and uid {row.uid} is another user now",
                hint="create a new token",
            )
        self._used_s[row.id] = now_s
        return row


class UserTokens(TokenBook):
    """The same with the handlers of their routes.

    Args:
        store: keeps them.
        in_writer: runs something on the store's thread, between commits.
        address: returns where programs reach the head; empty: HTTPS is off.
        clock: of the times of tokens.
    """

    def __init__(  # what a durable register with routes needs
        self,
        store: NoteStore,
        *,
        in_writer: Callable[[Callable[[], None]], Awaitable[None]],
        callers: Callers,
        bodies: Bodies,
        address: Callable[[], str],
        clock: Clock,
    ) -> None:
        super().__init__(store.notes, callers.names, clock)
        self._store = store
        self._in_writer = in_writer
        self._callers = callers
        self._bodies = bodies
        self._address = address

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/user-tokens", self.list),
            web.post("/v1/user-tokens", self.create),
            web.delete("/v1/user-tokens/{id}", self.revoke),
        ]

    async def list(self, request: web.Request) -> web.Response:
        """``GET /v1/user-tokens``."""
        return answer(self._list(self._kernels(request)))

    async def create(self, request: web.Request) -> web.Response:
        """``POST /v1/user-tokens``: its answer alone has the secret."""
        caller = self._kernels(request)
        wanted = await read_body(request, self._bodies, CreateUserToken)
        user = wanted.user or caller.user
        note_verb(request, f"create token of {user}, scope {wanted.scope}")
        if user != caller.user or wanted.scope == "operate":
            authorize(caller, Verb.CHANGE_TOKENS)
        row = await self._row(wanted, user, caller)
        await self._forget_old()
        self._check_room(row)
        secret = secrets.token_hex(20)
        token = _KeptToken(row=row, digest=_digest(secret))
        text = msgspec.json.encode(token).decode()
        await self._in_writer(lambda: self._store.save_note(KIND, row.id, text))
        self._tokens[row.id] = token
        note_verb(request, "create token", row.id)
        log.info("%s has created token %s of %s: %s", caller.user, row.id, user, row.scope)
        made = f"{PREFIX}{row.id}_{secret}"
        return answer(CreatedUserToken(row=row, token=made, address=self._address()))

    async def revoke(self, request: web.Request) -> web.Response:
        """``DELETE /v1/user-tokens/ID``."""
        caller, token_id = self._kernels(request), request.match_info["id"]
        token = self._tokens.get(token_id)
        if token is None or not self._is_seen(caller, token.row):
            raise InvalidRequestError(
                f"unknown token {shown(token_id)}", hint="gsched token list shows them"
            )
        note_verb(request, "revoke token", token_id)
        if (token.row.uid, token.row.user) != (caller.uid, caller.user):
            authorize(caller, Verb.CHANGE_TOKENS)
        await self._forget(token_id)
        log.info("%s has revoked token %s of %s", caller.user, token_id, token.row.user)
        return answer(self._list(caller))

    def _kernels(self, request: web.Request) -> Caller:
        """Return the caller, whom a kernel names: a token makes no further tokens."""
        caller = self._callers.of(request)
        if caller.token:
            raise NotPermittedError(
                "tokens are created, listed and revoked on hosts of the cluster only",
                hint="log in there and run gsched token",
            )
        return caller

    async def _row(self, wanted: CreateUserToken, user: str, caller: Caller) -> UserTokenRow:
        """Return a new token of an account of the head's machine.

        Raises:
            InvalidRequestError: there is no such account.
            NotPermittedError: it is root.
        """
        check_printable("label", wanted.label)
        uid, gid = caller.uid, caller.gid
        if user != caller.user:
            try:
                found = await asyncio.to_thread(pwd.getpwnam, user)
            except (KeyError, ValueError):
                raise InvalidRequestError(
                    f"the head's machine has no user {shown(user)}",
                    hint="give --user the name of an account",
                ) from None
            uid, gid = found.pw_uid, found.pw_gid
        if uid == 0:
            raise NotPermittedError(
                "root gets no token: whoever has it could do everything, from anywhere",
                hint="create it for a service account with --user NAME",
            )
        now_s = self.clock.wall_s()
        return UserTokenRow(
            id=secrets.token_hex(4),
            user=user,
            uid=uid,
            gid=gid,
            scope=wanted.scope,
            label=wanted.label,
            by=caller.user,
            created_s=now_s,
            expires_s=now_s + wanted.ttl_s,
        )

    def _check_room(self, row: UserTokenRow) -> None:
        """Check the limits.

        Raises:
            InvalidRequestError: there are too many tokens.
        """
        now_s = self.clock.wall_s()
        valid = [each.row.uid for each in self._tokens.values() if each.row.expires_s > now_s]
        for count, most, whose in (
            (valid.count(row.uid), OF_USER_MAX, f"{row.user} has"),
            (len(valid), IN_ALL_MAX, "the cluster has"),
        ):
            if count >= most:
                raise InvalidRequestError(
                    f"{whose} {count} valid tokens, the limit",
                    hint="revoke those that are needed no more: gsched token revoke ID",
                )

    async def _forget(self, token_id: str) -> None:
        await self._in_writer(lambda: self._store.save_note(KIND, token_id, None))
        self._tokens.pop(token_id, None)
        self._used_s.pop(token_id, None)

    async def _forget_old(self) -> None:
        """Forget tokens that expired long ago, and a user's beyond the newest ones."""
        now_s = self.clock.wall_s()
        expired: dict[int, list[UserTokenRow]] = {}
        for token in sorted(self._tokens.values(), key=lambda token: -token.row.expires_s):
            if token.row.expires_s <= now_s:
                expired.setdefault(token.row.uid, []).append(token.row)
        for rows in expired.values():
            for place, row in enumerate(rows):
                if place >= OF_USER_MAX or row.expires_s < now_s - KEPT_S:
                    await self._forget(row.id)

    def _list(self, caller: Caller) -> UserTokenList:
        rows = (token.row for token in self._tokens.values() if self._is_seen(caller, token.row))
        with_use = (structs.replace(row, used_s=self._used_s.get(row.id, 0.0)) for row in rows)
        newest = sorted(with_use, key=lambda row: -row.created_s)
        return UserTokenList(now_s=self.clock.wall_s(), tokens=tuple(newest))

    @staticmethod
    def _is_seen(caller: Caller, row: UserTokenRow) -> bool:
        is_own = (row.uid, row.user) == (caller.uid, caller.user)
        return is_own or may(caller, Verb.READ_TOKENS)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
