"""How hosts join a cluster, and how their certificates are renewed: requests, replies, messages."""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Struct

from gsched.model.numbers import Amount

MemberRole = Literal["node", "login"]
MEMBER_ROLES: Final[tuple[MemberRole, ...]] = get_args(MemberRole)
#: What a token lets a host become.
TokenRole = Literal["node", "login", "head"]
TOKEN_ROLES: Final[tuple[TokenRole, ...]] = get_args(TokenRole)
Words = Annotated[str, msgspec.Meta(max_length=64)]
Pem = Annotated[str, msgspec.Meta(max_length=8192)]


class CreateToken(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """``POST /v1/tokens``: let one host join.

    Attributes:
        name: the only one that it can have; empty: any.
        replace: it takes the place of the host that has the name; that one's certificates end.
        ttl_s: for how long the token counts.
    """

    role: TokenRole
    name: Words = ""
    replace: bool = False
    ttl_s: Annotated[float, msgspec.Meta(ge=1, le=30 * 86_400)] = 900.0


class TokenRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token; nobody but its receiver knows its secret.

    Attributes:
        name: the only one that the host can have; empty: any.
        replace: the host takes the place of the one that has the name.
        by: who has created it.
        used_s, used_by: when a host has joined with it, and its name; 0: it is unused.
    """

    id: str
    role: TokenRole
    name: str = ""
    replace: bool = False
    by: str = ""
    created_s: float = 0.0
    expires_s: float = 0.0
    used_s: float = 0.0
    used_by: str = ""


class TokenList(Struct, frozen=True, kw_only=True):
    """``GET /v1/tokens``."""

    now_s: float
    tokens: tuple[TokenRow, ...]


class CreatedToken(Struct, frozen=True, kw_only=True):
    """The answer to `CreateToken`.

    Attributes:
        address: where the host finds the head, ``host:port``; several with a comma between.
        token: with its secret; it is shown once.
        authority: SHA-256 of the authority's certificate, hexadecimal.
        loopback: the head listens where no other host reaches it.
        in_use: a host has the name, and only that one can join with the token, by its key.
    """

    row: TokenRow
    address: str
    token: str
    authority: str
    loopback: bool
    in_use: bool = False


class AuthorityReply(Struct, frozen=True, kw_only=True):
    """``GET /v1/authority`` on the port for nodes: for a host that trusts nobody yet."""

    certificate: str


class JoinHost(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """``POST /v1/join`` on the port for nodes: a host wants its first certificate.

    Attributes:
        request: for a certificate, in PEM; the key stays with the host.
        before: the certificate that the host has already, perhaps expired; empty: none.
        proof: the request, signed by the key of ``before``, in base64: the host has its name.
    """

    token: Annotated[str, msgspec.Meta(max_length=256)]
    name: Words
    request: Pem
    before: Pem = ""
    proof: Annotated[str, msgspec.Meta(max_length=256)] = ""


class Joined(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer: a certificate, and the authorities that count.

    Attributes:
        settings: what the head's file states for nodes, values as JSON by table and key;
            ``digest`` tells it from others; empty: the head sends none.
    """

    role: MemberRole
    name: str
    cluster: str
    server: str
    certificate: str
    trusted: str
    digest: str = ""
    settings: dict[str, dict[str, str]] = {}


class JoinHead(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/join-head`` on the port for nodes: a second head wants the authority."""

    token: Annotated[str, msgspec.Meta(max_length=256)]
    name: Words


class JoinedHead(Struct, frozen=True, kw_only=True):
    """The answer: certificates and keys, in PEM; they leave a head in this answer only.

    Attributes:
        next: of the authority that replaces the present one; empty: none does.
    """

    cluster: str
    server: str
    authority: str
    next: str = ""


class NodeCertificate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host of a cluster, for operators."""

    node: str
    connected: bool
    role: MemberRole = "node"
    expires_s: float = 0.0
    current: bool = False


class ChangeAuthority(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/authority``: replace the authority, or end that.

    Attributes:
        force: end it although hosts have no certificate of the new one; they have to join again.
    """

    action: Literal["replace", "finish"]
    force: bool = False


class AuthorityState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/authority``: the authorities, and which hosts have which certificates.

    Attributes:
        cluster: the id in certificates.
        authorities: SHA-256 of those that count, the newest last.
        of_site: the site issues certificates itself.
        nodes: those on other machines, and login hosts; also those that have only joined yet.
        revoked: names, and when they were revoked.
    """

    cluster: str
    server: str
    authorities: tuple[str, ...]
    of_site: bool = False
    nodes: tuple[NodeCertificate, ...] = ()
    revoked: dict[str, float] = {}


# --- messages of the node channel ---


class TrustChanged(Struct, frozen=True, kw_only=True, tag="trust_changed"):
    """Head to node, after its welcome and when it has changed: the authorities that count, PEM."""

    trusted: str


class CertificateState(Struct, frozen=True, kw_only=True, tag="certificate_state"):
    """Node to head: what its certificate is, after each welcome and each change.

    Attributes:
        authority: SHA-256 of the one that has issued it.
    """

    authority: Words
    expires_s: Amount


class CertificateWanted(Struct, frozen=True, kw_only=True, tag="certificate_wanted"):
    """Node to head: issue a certificate for a new key of this node, over this connection."""

    request: Pem


class CertificateIssued(Struct, frozen=True, kw_only=True, tag="certificate_issued"):
    """Head to node: the certificate, and the authorities that count; ``error``: there is none."""

    certificate: str = ""
    trusted: str = ""
    error: str = ""
