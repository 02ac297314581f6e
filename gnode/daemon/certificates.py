"""This node's certificate: used for each connection by TCP, renewed over the one that is open."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from gsched.clock import Clock
from gsched.pki import contexts
from gsched.pki.files import CertificateFiles, digest, split
from gsched.protocol.joining import (
    CertificateIssued,
    CertificateState,
    CertificateWanted,
    MemberRole,
    TrustChanged,
)

log = logging.getLogger(__name__)

LOOK_S: Final = 3600.0  # at most between two looks whether the certificate is to be renewed
RETRY_S: Final = 60.0  # until a certificate is requested again that the head has not issued
Send = Callable[[CertificateWanted | CertificateState], None]


class Certificates:
    """The certificate of this node.

    Args:
        node: its name.
        role: what this host is.
    """

    def __init__(
        self, files: CertificateFiles, *, node: str, clock: Clock, role: MemberRole = "node"
    ) -> None:
        self.files = files
        self._node, self._role = node, role
        self._clock = clock
        self._key = b""  # of a request under way
        self._issued = asyncio.Event()
        self._cluster = ""

    def context(self) -> ssl.SSLContext:
        """Return the context of the next connection, made of what the files have now.

        Raises:
            CertificateError: this node has no certificate, or not one of this name and role.
            ConfigError: the files cannot be used.
        """
        own = issuing().own_identity(
            self.files, role=self._role, name=self._node, now_s=self._clock.wall_s()
        )
        self._cluster = own.cluster
        return contexts.client_context(self.files)

    def check_head(self, certificate: Mapping[str, Any] | None) -> None:
        """Check that the peer of a connection is the head of this node's cluster.

        Raises:
            CertificateError: it is another host.
        """
        contexts.check_head(certificate, self._cluster)

    async def keep(self, send: Send) -> None:
        """Renew the certificate in time, as long as a connection lasts."""
        self._key = b""
        if self.files.is_of_site:
            await asyncio.Event().wait()
        while True:
            left_s = issuing().validity_of(self._own()).renew_s - self._clock.wall_s()
            if left_s <= 0.0:
                self._request(send)
                left_s = RETRY_S
            self._issued.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_S)):
                    await self._issued.wait()

    def take(self, message: TrustChanged | CertificateIssued, send: Send) -> None:
        """Take what the head says of certificates."""
        if self.files.is_of_site:
            return
        make = issuing()
        own: bytes | None = None
        if isinstance(message, CertificateIssued):
            key, self._key = self._key, b""
            if message.error:
                log.error("the certificate is not renewed: %s", message.error)
            if message.error or not key:  # the answer to a second request
                return
            own = message.certificate.encode() + key
        trusted = split(message.trusted)
        with open(self.files.trusted, encoding="ascii") as file:
            known = split(file.read())
        content = own or self._own()
        if not trusted or not any(make.is_issued_by(content, each) for each in trusted):
            if own is None and trusted:  # this node was away while the authority was replaced
                log.warning("the authority of this node's certificate does not count any more")
                self._request(send)
            return
        if own is not None or trusted != known:
            self.files.write(own=own, trusted="".join(trusted).encode())
            log.info("stored the %s", "new certificate" if own is not None else "new authorities")
            self._issued.set()
        is_due = make.validity_of(content).renew_s <= self._clock.wall_s()
        if is_due or not make.is_issued_by(content, trusted[-1]):
            self._request(send)
        self._report(send)

    def _request(self, send: Send) -> None:
        self._key = self._key or issuing().make_key()  # `send` drops it before the welcome
        send(CertificateWanted(request=issuing().make_request(self._key, self._node)))

    def _report(self, send: Send) -> None:
        make, own = issuing(), self._own()
        with open(self.files.trusted, encoding="ascii") as file:
            issuers = [each for each in split(file.read()) if make.is_issued_by(own, each)]
        expires_s = make.validity_of(own).expires_s
        send(
            CertificateState(authority=digest(issuers[-1]) if issuers else "", expires_s=expires_s)
        )

    def _own(self) -> bytes:
        with open(self.files.certificate, "rb") as file:
            return file.read()


def issuing() -> ModuleType:
    """Return the module that reads and makes certificates: a node on a Unix socket has none."""
    from gsched.pki import issuing as module

    return module
