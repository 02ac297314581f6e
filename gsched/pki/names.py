"""What a certificate says of its owner: cluster, role and name."""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from gsched.model.machine import is_node_name

Role = Literal["head", "node", "login"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_URI: Final = re.compile(r"gsched://(?P<cluster>[0-9A-Za-z-]{1,64})/(?P<role>[a-z]+)/(?P<name>.+)")


class CertificateError(Exception):
    """A certificate does not say what it must; the message says what is wrong and what to do."""


class Identity(Struct, frozen=True, kw_only=True):
    """The owner of a certificate.

    Attributes:
        begins_s, expires_s: of the certificate, seconds since the epoch.
    """

    cluster: str
    role: Role
    name: str
    begins_s: float = 0.0
    expires_s: float = 0.0

    @property
    def uri(self) -> str:
        """Return the name that a certificate has: a URI among its alternative names."""
        return f"gsched://{self.cluster}/{self.role}/{self.name}"

    @property
    def words(self) -> str:
        """Return role and name."""
        return f"{self.role} {self.name}"


def identity_of(certificate: Mapping[str, Any]) -> Identity:
    """Return the owner of a certificate, as `ssl.SSLSocket.getpeercert` returns it.

    Raises:
        CertificateError: it has no name of gsched, or more than one.
    """
    found = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI"]
    ours = [name for name in found if name.startswith("gsched://")]
    if len(ours) != 1:
        raise CertificateError(
            f"the certificate has {len(ours)} names of the form gsched://CLUSTER/ROLE/NAME, one is "
            "needed: issue it with that URI as subjectAltName, or join the host with gsched join"
        )
    cluster, role, name = parse_uri(ours[0])
    return Identity(
        cluster=cluster,
        role=role,
        name=name,
        begins_s=float(ssl.cert_time_to_seconds(certificate["notBefore"])),
        expires_s=float(ssl.cert_time_to_seconds(certificate["notAfter"])),
    )


def parse_uri(uri: str) -> tuple[str, Role, str]:
    """Return cluster, role and name.

    Raises:
        CertificateError: it has another form.
    """
    match = _URI.fullmatch(uri)
    for role in ROLES:
        if match is not None and match["role"] == role and is_node_name(match["name"]):
            return match["cluster"], role, match["name"]
    raise CertificateError(
        f"the certificate's name {uri[:200]!r} is invalid: gsched://CLUSTER/ROLE/NAME is needed, "
        f"with one of the roles {', '.join(ROLES)}"
    )
