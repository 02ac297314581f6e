"""Tokens, first certificates, renewals, revocation, and the replacement of the authority."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from aiohttp import web

from gsched.clock import Clock
from gsched.errors import BadStateError, InvalidRequestError, NotPermittedError
from gsched.failpoint import failpoint
from gsched.logs import Complaints
from gsched.model.machine import is_node_name, is_on_loopback
from gsched.pki.files import digest, split
from gsched.pki.names import CertificateError, Role
from gsched.protocol.joining import (
    MEMBER_ROLES,
    AuthorityReply,
    AuthorityState,
    CertificateIssued,
    CertificateWanted,
    ChangeAuthority,
    CreatedToken,
    CreateToken,
    Joined,
    JoinedHead,
    JoinHead,
    JoinHost,
    MemberRole,
    NodeCertificate,
    TokenList,
    TokenRole,
    TokenRow,
    TrustChanged,
)
from gschedd.core.requests.authorize import Verb
from gschedd.core.state.settings import Settings
from gschedd.http.answers import answer
from gschedd.http.audit import note_verb
from gschedd.http.authority import HeadAuthority
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers
from gschedd.http.door import Visitor
from gschedd.http.handover import NOTE, handed_on
from gschedd.http.handshake import Peers
from gschedd.http.links import Link, Links
from gschedd.http.members import Members
from gschedd.http.node_settings import NodeSettings
from gschedd.http.pace import Entrance
from gschedd.http.ruling import RulingNote

log = logging.getLogger("gschedd.tls")

ANYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 # compared, not bound


class Joining:
    """Handlers of the routes, for operators and on the port for nodes, and of nodes' messages.

    Args:
        members: which hosts have joined.
        logins: returns the login hosts that are connected.
        settings: returns those in force.
        node_port: returns where nodes connect.
        web_address: returns where programs reach this head; empty: HTTPS is off.

    Attributes:
        ruling: what heads that stand by are told of this one.
        node_settings: what the head states for nodes.
    """

    def __init__(  # noqa: PLR0913 - what makes a host a member
        self,
        *,
        authority: HeadAuthority,
        members: Members,
        peers: Peers,
        callers: Callers,
        bodies: Bodies,
        links: Links,
        logins: Callable[[], list[Link]],
        settings: Callable[[], Settings],
        known_nodes: Callable[[], list[str]],
        node_port: Callable[[], int],
        web_address: Callable[[], str],
        node_settings: NodeSettings,
        clock: Clock,
    ) -> None:
        self._authority = authority
        self.members = members
        self._peers = peers
        self._callers = callers
        self._bodies = bodies
        self._links = links
        self._logins = logins
        self._settings = settings
        self._known_nodes = known_nodes
        self._node_port = node_port
        self.ruling = RulingNote(authority, members, web_address)
        self._changing = asyncio.Lock()
        self._issuing = Entrance()  # a certificate takes a millisecond
        self.node_settings = node_settings
        self._clock = clock
        self._complaints = Complaints(log, clock)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of users."""
        return [
            web.get("/v1/tokens", self.tokens),
            web.post("/v1/tokens", self.create),
            web.delete("/v1/tokens/{id}", self.delete),
            web.get("/v1/authority", self.state),
            web.get("/v1/authority/certificate", self.trusted),
            web.post("/v1/authority", self.change),
            web.post("/v1/nodes/{name}/revoke", self.revoke),
        ]

    def node_routes(self) -> list[web.RouteDef]:
        """Return the routes of hosts that have no certificate yet."""
        return [
            web.get("/v1/authority", self.certificate),
            web.post("/v1/join", self.join),
            web.post("/v1/join-head", self.join_head),
        ]

    # --- operators ---

    async def tokens(self, request: web.Request) -> web.Response:
        """``GET /v1/tokens``."""
        self._callers.allowed(request, Verb.READ_HOSTS)
        return answer(TokenList(now_s=self._clock.wall_s(), tokens=self.members.tokens()))

    async def create(self, request: web.Request) -> web.Response:
        """``POST /v1/tokens``: its answer alone has the secret."""
        caller = self._callers.allowed(request, Verb.ADMIT_HOST)
        wanted = await read_body(request, self._bodies, CreateToken)
        if wanted.role == "head":  # it gets the authority's key
            self._callers.allowed(request, Verb.REPLACE_AUTHORITY)
        if self._authority.files.is_of_site:
            raise BadStateError(
                "this site issues certificates itself: [tls] certificate names the head's",
                hint="issue one for the host, and name its files in [tls] there",
            )
        row, token = await self.members.create(wanted, caller.user)
        note_verb(request, "create token", row.id)
        log.info("%s has created token %s for a %s", caller.user, row.id, row.role)
        head = self._settings().config.head
        host = socket.getfqdn() if head.node_host in ANYWHERE else head.node_host
        address = f"[{host}]" if ":" in host else host
        return answer(
            CreatedToken(
                row=row,
                address=",".join(head.addresses) or f"{address}:{self._node_port()}",
                token=token,
                authority=digest(self._authority.present),
                loopback=is_on_loopback(f"{head.node_host}:0"),
                in_use=not row.replace and self._is_in_use(row.role, row.name),
            )
        )

    async def delete(self, request: web.Request) -> web.Response:
        """``DELETE /v1/tokens/ID``."""
        caller, token_id = self._callers.allowed(request, Verb.ADMIT_HOST), request.match_info["id"]
        await self.members.delete(token_id)
        note_verb(request, "delete token", token_id)
        log.info("%s has deleted token %s", caller.user, token_id)
        return answer(TokenList(now_s=self._clock.wall_s(), tokens=self.members.tokens()))

    async def state(self, request: web.Request) -> web.Response:
        """``GET /v1/authority``."""
        self._callers.allowed(request, Verb.READ_HOSTS)
        return answer(self._state())

    async def trusted(self, request: web.Request) -> web.Response:
        """``GET /v1/authority/certificate``: which authorities count, for programs."""
        self._callers.of(request)
        return answer(AuthorityReply(certificate=self._authority.trusted))

    async def change(self, request: web.Request) -> web.Response:
        """``POST /v1/authority``: replace it, or end that."""
        caller = self._callers.allowed(request, Verb.REPLACE_AUTHORITY)
        wanted = await read_body(request, self._bodies, ChangeAuthority)
        note_verb(request, f"{wanted.action} authority")
        async with self._changing:
            before = self._authority.secrets()
            if wanted.action == "replace":
                now = self._authority.replaced()
            else:
                rows = self._state().nodes
                late = [
                    row.node
                    for row in rows
                    if not row.current and (row.role == "node" or row.connected)
                ]
                if late and not wanted.force and self._authority.is_replaced:
                    raise BadStateError(
                        "these hosts have no certificate of the new authority yet: "
                        f"{', '.join(late)}",
                        hint="start them and wait a moment; with --force they have to join again",
                    )
                now = self._authority.finished()
            # first for the other head; a head that is killed here takes it over at its next start
            await self.members.save(NOTE, *handed_on(before, now))
            failpoint("authority.after_note")
            self._authority.take(now)
            await self.ruling.write()
        log.warning("%s: authority %s", caller.user, wanted.action)
        for link in self._connected():
            self.welcome(link)
        return answer(self._state())

    async def revoke(self, request: web.Request) -> web.Response:
        """``POST /v1/nodes/NAME/revoke``: no certificate of this host counts any more."""
        caller = self._callers.allowed(request, Verb.REVOKE_HOST)
        name = request.match_info["name"]
        if not is_node_name(name):
            raise InvalidRequestError(f"invalid name {name[:80]!r}")
        note_verb(request, "revoke", name)
        log.warning("%s has revoked the certificates of %s", caller.user, name)
        for role in MEMBER_ROLES:
            await self._end(role, name)
        return answer(self._state())

    async def _end(self, role: MemberRole, name: str, *, replaced: bool = False) -> None:
        """End all certificates that a host has now, and its connection."""
        await self.members.revoke(role, name, replaced=replaced)
        for link in self._connected():
            if self._peers.is_revoked(link.peer):
                log.warning("%s: its connection is ended: its certificate was revoked", link.node)
                link.abort()

    # --- hosts that join ---

    async def certificate(self, request: web.Request) -> web.Response:
        """``GET /v1/authority``: the caller compares its hash with that of its token."""
        del request
        return answer(AuthorityReply(certificate=self._authority.present))

    async def join(self, request: web.Request) -> web.Response:
        """``POST /v1/join``: a certificate for a token."""
        wanted = await read_body(request, self._bodies, JoinHost)
        source = request.remote or "unknown"
        try:
            token = self.members.check(wanted.token, wanted.name, request=wanted.request)
            _prove(request)
            assert token.role != "head", "check has refused it"
            await self._issuing.enter(0)
            self._check_name(token, wanted)
            takes_place = token.replace and self._is_in_use(token.role, wanted.name)
            certificate = self._issue(token.role, wanted.name, wanted.request)
            ends_s = _ends_s(certificate)
            await self.members.use(token, wanted.name, wanted.request, expires_s=ends_s)
            if takes_place:
                await self._end(token.role, wanted.name, replaced=True)
                certificate = self._issue(token.role, wanted.name, wanted.request)
        except Exception as error:
            self._complaints.say(source, f"a host cannot join: {error}")
            raise
        log.info("%s %s has joined from %s", token.role, wanted.name, source)
        return answer(
            Joined(
                role=token.role,
                name=wanted.name,
                cluster=self._authority.cluster,
                server=self._authority.server,
                certificate=certificate,
                trusted=self._authority.trusted,
                digest=self.node_settings.digest,
                settings=self.node_settings.present,
            )
        )

    async def join_head(self, request: web.Request) -> web.Response:
        """``POST /v1/join-head``: the authority for a token of an administrator."""
        wanted = await read_body(request, self._bodies, JoinHead)
        source = request.remote or "unknown"
        try:
            token = self.members.check(wanted.token, wanted.name, as_head=True)
            _prove(request)
            secrets = self._authority.secrets()
            await self.members.use(token, wanted.name)
        except Exception as error:
            self._complaints.say(source, f"a head cannot join: {error}")
            raise
        log.warning("head %s has joined from %s: it has the authority now", wanted.name, source)
        return answer(
            JoinedHead(
                cluster=self._authority.cluster,
                server=self._authority.server,
                authority=secrets.authority,
                next=secrets.next,
            )
        )

    def _check_name(self, token: TokenRow, wanted: JoinHost) -> None:
        """Check that a host may take a name that its token does not state, or that is in use.

        Raises:
            NotPermittedError: operators have permissions on the host of this name, or another
                host has it.
        """
        name = wanted.name
        if name in self._settings().config.head.operator_hosts and not token.name:
            raise NotPermittedError(
                f"operators have their permissions on {name} ([head] operator_hosts): only a "
                "token with this name lets a host join as it",
                hint=f"gsched token create --role {token.role} --name {name} on the head",
            )
        other = "node" if token.role == "login" else "login host"
        if self._is_taken("node" if token.role == "login" else "login", name):
            raise NotPermittedError(
                f"{name} is a {other} of this cluster: this host needs another name",
                hint="gsched join --name NAME, with a token for that name",
            )
        if (
            not token.replace
            and self._is_in_use(token.role, name)
            and not self._is_same(token.role, wanted)
        ):
            words = "login host" if token.role == "login" else "node"
            raise NotPermittedError(
                f"{name} is a {words} of this cluster already, and this host does not have its key",
                hint="if it is another host: gsched join --name NAME; if this one takes its place, "
                f"or has lost its key: gsched token create --role {token.role} --name {name} "
                "--replace on the head, and its line here",
            )

    def _is_taken(self, role: TokenRole, name: str) -> bool:
        """Return whether a host has connected with a name in a role, or has joined with it."""
        if role == "login":
            return name in self.members.logins
        return name in self._known_nodes() or self.members.has_joined(name)

    def _is_in_use(self, role: TokenRole, name: str) -> bool:
        """Return whether a host has a name that no other host may join with.

        A node that was revoked stays known, but its name is free until a host has joined with it.
        """
        if not self._is_taken(role, name):
            return False
        joined = self.members.logins if role == "login" else self.members.nodes
        is_revoked = f"{role}/{name}" in self.members.revoked and name not in joined
        return not is_revoked or any(link.node == name for link in self._connected())

    def _is_same(self, role: TokenRole, wanted: JoinHost) -> bool:
        """Return whether a host shows that it has its name: by its request, or its key."""
        if self.members.is_request_of(role, wanted.name, wanted.request):
            return True
        if not wanted.before:
            return False
        from gsched.pki import issuing

        before = wanted.before.encode()
        try:
            known = issuing.identity_in(before)
        except CertificateError:
            return False
        return (
            (known.cluster, known.role, known.name) == (self._authority.cluster, role, wanted.name)
            and not self.members.is_revoked(known.role, known.name, known.begins_s)
            and any(issuing.is_issued_by(before, each) for each in split(self._authority.trusted))
            and issuing.is_signed(before, wanted.request, wanted.proof)
        )

    def _issue(self, role: Role, name: str, request: str) -> str:
        after_s = self.members.revoked.get(f"{role}/{name}", 0.0)
        try:
            return self._authority.issue(request, role, name, after_s=after_s)
        except CertificateError as error:
            raise InvalidRequestError(str(error)) from None

    # --- connected nodes ---

    def welcome(self, link: Link) -> None:
        """Tell a node which authorities count."""
        if link.peer.name and not self._authority.files.is_of_site:
            link.send(TrustChanged(trusted=self._authority.trusted))

    async def renew(self, link: Link, message: CertificateWanted) -> None:
        """Issue a certificate for a node that is connected by one."""
        await self._issuing.enter(0)
        peer = link.peer
        if not peer.name:
            issued = CertificateIssued(error="a node on a Unix socket has no certificate")
        else:
            try:
                made = self._issue(peer.role, peer.name, message.request)
                issued = CertificateIssued(certificate=made, trusted=self._authority.trusted)
            except (InvalidRequestError, BadStateError) as error:
                issued = CertificateIssued(error=error.message)
        link.send(issued)

    def _connected(self) -> list[Link]:
        return [*self._links.connected.values(), *self._logins()]

    def _state(self) -> AuthorityState:
        authorities = self._authority.digests
        nodes = {*self._known_nodes(), *filter(self.members.has_joined, self.members.nodes)}
        rows = []
        links: dict[tuple[MemberRole, str], Link | None] = {
            ("node", name): self._links.connected.get(name)
            for name in sorted({*nodes, *self._links.connected})
        }
        links.update({("login", name): None for name in sorted(self.members.logins)})
        links.update({("login", link.node): link for link in self._logins()})
        for (role, name), link in links.items():
            if link is not None and not link.peer.name:
                continue  # on a Unix socket
            known = link.certificate if link is not None else None
            rows.append(
                NodeCertificate(
                    node=name,
                    role=role,
                    connected=link is not None,
                    expires_s=known.expires_s if known is not None else 0.0,
                    current=known is not None and known.authority == authorities[-1],
                )
            )
        return AuthorityState(
            cluster=self._authority.cluster,
            server=self._authority.server,
            authorities=authorities,
            of_site=self._authority.files.is_of_site,
            nodes=tuple(rows),
            revoked=dict(self.members.revoked),
        )


def _ends_s(certificate: str) -> float:
    """Return when a certificate that was issued here ends, seconds since the epoch."""
    from gsched.pki import issuing

    return issuing.identity_in(certificate.encode()).expires_s


def _prove(request: web.Request) -> None:
    """Keep a connection although many others come: its token is used from now on.

    Raises:
        ConnectionResetError: it was closed for them before; the host tries again.
    """
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the connection of a host that joins is closed")
    if isinstance(request.protocol, Visitor):
        request.protocol.prove()
