"""Who looks at the page: the user at the other end of a Unix socket, or of a session.

A session begins with a token that works once. The user gets it on the Unix socket, where the
kernel tells who that is; ``gsched web`` prints it as part of an address.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web
from itsdangerous import BadSignature, URLSafeTimedSerializer
from msgspec import Struct

from gsched.clock import Clock
from gsched.errors import NotPermittedError
from gsched.unix_address import peer_ids
from gschedd.monitor.accounts import Account, KnownAccounts
from gschedd.monitor.ended_sessions import EndedSessions

COOKIE: Final = "gsched-session"
#: A client of Slurm's REST API has its session there.
SLURM_TOKEN: Final = "X-SLURM-USER-TOKEN"  # noqa: S105 # the name of a header
#: A token for a new session is valid for so long, seconds.
TOKEN_S: Final = 300
#: Tokens that were used and are remembered until they are too old.
TOKENS_MOST: Final = 10_000


class Viewer(Struct, frozen=True, kw_only=True):
    """Who looks.

    Attributes:
        home, shell: of the account.
        session: the text of the session; empty on the Unix socket.
    """

    uid: int
    gid: int
    user: str
    home: str = "/"
    shell: str = "/bin/sh"
    session: str = ""


class _Signed(Struct, frozen=True, kw_only=True):
    """What a token or a session says; ``name`` tells it from others of its user.

    Its text does not: the last character of a signature has bits that count for nothing.
    """

    uid: int
    user: str
    name: str
    begun_s: float


class Viewers:
    """Tells who looks.

    Args:
        key: secret of this installation: sessions last while it stays.
        ended: sessions that are over before their time.
        session_s: how long one lasts, seconds.
        accounts: of this machine.
    """

    def __init__(
        self,
        key: bytes,
        ended: EndedSessions,
        *,
        session_s: float,
        clock: Clock,
        accounts: KnownAccounts | None = None,
    ) -> None:
        self._key = key
        self._accounts = accounts or KnownAccounts(clock)
        # a process takes its own tokens only: it knows which of them were used
        self._tokens = URLSafeTimedSerializer(key, salt=f"token {secrets.token_hex(16)}")
        self._sessions = URLSafeTimedSerializer(key, salt="session")
        self._session_s = session_s
        self._clock = clock
        self._used: dict[str, float] = {}
        self._ended = ended
        self._writing = asyncio.Lock()

    async def of(self, request: web.Request) -> Viewer:
        """Return who sent a request.

        Raises:
            NotPermittedError: nobody has logged in there.
            TryAgainError: the name service does not answer.
        """
        session = request.cookies.get(COOKIE, "") or _session_in(request.headers)
        signed = _read(self._sessions, session, self._session_s) if session else None
        if signed is not None and not self._ended.has(signed.uid, signed.name, signed.begun_s):
            acts = request.method != "GET"
            account = await self._accounts.of(signed.uid, acts=acts)
            # the number may belong to another account by now
            if account is not None and account.pw_name == signed.user:
                return _viewer(account, session)
        try:
            return await self.at_socket(request)
        except NotPermittedError:
            raise NotPermittedError(
                "nobody is logged in here, or the session is over", hint="run: gsched web"
            ) from None

    async def at_socket(self, request: web.Request) -> Viewer:
        """Return who is at the other end of the Unix socket.

        Raises:
            NotPermittedError: it is no Unix socket, or that user is unknown.
            TryAgainError: the name service does not answer.
        """
        uid = peer_of(request)
        account = await self._accounts.of(uid, acts=request.method != "GET")
        if account is None:
            raise NotPermittedError(f"uid {uid} is no user of this machine")
        return _viewer(account)

    def new_token(self, viewer: Viewer) -> str:
        """Return a token for one session of somebody."""
        return self._tokens.dumps([viewer.uid, viewer.user, secrets.token_urlsafe(9)])

    def user_of_token(self, token: str) -> str:
        """Return the user whose session a token begins; it is not used up.

        Raises:
            NotPermittedError: it is none, it is too old, or it was used before.
        """
        return self._of_token(token).user

    def begin_session(self, token: str) -> str:
        """Return a new session for a token, which is used up then.

        Raises:
            NotPermittedError: as for `user_of_token`.
        """
        signed = self._of_token(token)
        self._used[signed.name] = self._clock.monotonic_s()
        return self._sessions.dumps([signed.uid, signed.user, secrets.token_urlsafe(9)])

    def _of_token(self, token: str) -> _Signed:
        signed = _read(self._tokens, token, TOKEN_S)
        now_s = self._clock.monotonic_s()
        self._used = {name: at_s for name, at_s in self._used.items() if now_s - at_s < TOKEN_S}
        if signed is None or signed.name in self._used or len(self._used) >= TOKENS_MOST:
            raise NotPermittedError(
                "this address was used before, or is too old", hint="get another: gsched web"
            )
        return signed

    def slurm_token(self, viewer: Viewer) -> str:
        """Return a new session in the form of a JSON Web Token.

        Clients of Slurm's REST API read when it expires; the session is where the signature is.
        """
        session = self.begin_session(self.new_token(viewer))
        now_s = int(self._clock.wall_s())
        claims = {"exp": now_s + int(self._session_s), "iat": now_s, "sun": viewer.user}
        parts = ({"alg": "none", "typ": "JWT"}, claims)
        return ".".join(
            _base64(each) for each in (*map(msgspec.json.encode, parts), session.encode())
        )

    async def end_session(self, viewer: Viewer) -> str:
        """Accept a session no more, also if somebody has copied it.

        Returns:
            Why that is not on the disk, and so lost when the monitor ends; empty: it is.
        """
        signed = _read(self._sessions, viewer.session, self._session_s)
        if signed is None:
            return ""  # it is on the Unix socket, or over
        async with self._writing:
            content = self._ended.add(signed.uid, signed.name, signed.begun_s, self._clock.wall_s())
            try:
                await asyncio.to_thread(self._ended.write, content)
            except OSError as error:
                return str(error)
        return ""

    def form_token(self, viewer: Viewer) -> str:
        """Return what a form that changes something must carry: it proves that we made the form."""
        whom = f"form {viewer.uid} {viewer.session}".encode()
        return hmac.new(self._key, whom, hashlib.sha256).hexdigest()

    def check_form(self, viewer: Viewer, given: str) -> None:
        """Check what a form carries.

        Raises:
            NotPermittedError: it is not that of this viewer's pages.
        """
        if not hmac.compare_digest(self.form_token(viewer).encode(), given.encode()):
            raise NotPermittedError(
                "this form is not of your session", hint="load the page again, and try again"
            )


def _read(serializer: URLSafeTimedSerializer, text: str, age_s: float) -> _Signed | None:
    """Return what a signed text says; None: it is none, or is too old."""
    try:
        (uid, user, name), begun = serializer.loads(text, max_age=int(age_s), return_timestamp=True)
    except (BadSignature, ValueError):
        return None
    return _Signed(uid=uid, user=user, name=name, begun_s=begun.timestamp())


def _session_in(headers: Mapping[str, str]) -> str:
    """Return the session that a client of Slurm's REST API has; empty: there is none."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    token = headers.get(SLURM_TOKEN, "") or (bearer if scheme.lower() == "bearer" else "")
    signature = token.rpartition(".")[2]
    try:
        return base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4)).decode()
    except ValueError:
        return token


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def peer_of(request: web.Request) -> int:
    """Return the uid at the other end of a request's Unix socket.

    Raises:
        NotPermittedError: it is no Unix socket.
    """
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None or peer.family != socket.AF_UNIX:
        raise NotPermittedError("the kernel knows the user on the Unix socket only")
    return peer_ids(peer)[0]


def _viewer(account: Account, session: str = "") -> Viewer:
    return Viewer(
        uid=account.pw_uid,
        gid=account.pw_gid,
        user=account.pw_name,
        home=account.pw_dir,
        shell=account.pw_shell or "/bin/sh",
        session=session,
    )
