"""The tables ``[tls]`` and ``[https]``: certificates of head and nodes, and HTTPS for programs."""

from typing import Annotated, Final

import msgspec
from msgspec import Struct

from gsched.config.words import Domain, OptionalPath

LIFETIME_S: Final = 90 * 86_400.0


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[tls]``: certificates of a site's own authority, for head and nodes alike.

    Attributes:
        ca: file with the certificates of the authorities that count; empty, as the other files: the
            head has an authority of its own, and hosts join with ``gsched join``.
        certificate: file with this daemon's certificate, and those between it and the authority.
        key: file with its private key.
        lifetime_s: of certificates that the head issues; they are renewed after two thirds of it.
    """

    ca: OptionalPath = ""
    certificate: OptionalPath = ""
    key: OptionalPath = ""
    lifetime_s: Annotated[float, msgspec.Meta(ge=1, le=10 * 365 * 86_400)] = LIFETIME_S


class HttpsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[https]``: the API of the head for programs of users, who have tokens.

    Attributes:
        listen: address and port, as ``0.0.0.0:6820``; empty: HTTPS is off.
        names: of this host, by which programs reach it, besides its own name and the addresses of
            ``listen``; requests to other names are refused.
        certificate, key: files in PEM of a certificate for these names; empty: the cluster's
            authority issues one.
    """

    listen: str = ""
    names: tuple[Domain, ...] = ()
    certificate: OptionalPath = ""
    key: OptionalPath = ""
