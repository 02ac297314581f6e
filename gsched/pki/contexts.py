"""TLS 1.3 with both sides verified, by the standard library."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from gsched.errors import ConfigError
from gsched.pki.files import CertificateFiles
from gsched.pki.names import CertificateError, Identity, identity_of

_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_* of OpenSSL
_CLOCKS: Final = "compare the clocks of both hosts (timedatectl)"
_JOIN: Final = "gsched token create on the head, then gsched join on this host"
#: What the head's alert means for a node, by the name of OpenSSL's reason.
_ALERTS_OF_HEAD: Final = {
    "CERTIFICATE_EXPIRED": "this host's certificate has expired for the head: "
    f"{_CLOCKS}; if they agree, join again: {_JOIN}",
    "UNKNOWN_CA": "this host's certificate is of an authority that the head does not trust: "
    f"join again: {_JOIN}",
    "BAD_CERTIFICATE": "the head does not take this host's certificate: it is not valid yet, or "
    f"broken: {_CLOCKS}; if they agree, join again: {_JOIN}",
    "CERTIFICATE_REQUIRED": f"the head wants a certificate, and this host has none: {_JOIN}",
    "WRONG_VERSION_NUMBER": "what listens there does not use TLS: it is a gschedd before version "
    "4 of the node protocol (upgrade the head first), or another program",
    "HTTP_REQUEST": "what listens there does not use TLS: upgrade the head first",
    "PROTOCOL_VERSION": "the other side does not use TLS 1.3: upgrade it",
}
_NOT_TRUSTED: Final = (
    "the host does not trust the head's certificate: its authority is another one there, or the "
    "name by which the host reaches the head is not in the certificate"
)
#: The same of a host's alert for the head.
_ALERTS_OF_HOSTS: Final = {
    "CERTIFICATE_EXPIRED": f"the head's certificate has expired for the host: {_CLOCKS}",
    "UNKNOWN_CA": _NOT_TRUSTED,
    "BAD_CERTIFICATE": _NOT_TRUSTED,
    "CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "UNSUPPORTED_PROTOCOL": "the host does not use TLS 1.3",
    "WRONG_VERSION_NUMBER": "what the host sends is no TLS",
}


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return the head's side: a certificate of the peer is verified, if it has one.

    A host that joins has none yet; `gschedd.http.handshake` decides what a connection without one
    may do.

    Raises:
        ConfigError: the files cannot be used.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # a node's connection lasts; a resumed one would outlive a revocation
    return context


def client_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return a node's side.

    Raises:
        ConfigError: the files cannot be used.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, files)


def joining_context(authority: str) -> ssl.SSLContext:
    """Return the side of a host that has no certificate yet; empty: verify nobody."""
    context = _bare(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        context.load_verify_locations(cadata=authority)
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


def web_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the head's side for programs of users, which have tokens and no certificates.

    Raises:
        OSError: the files cannot be used; `ssl.SSLError` is one.
    """
    context = _bare(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def check_head(certificate: Mapping[str, Any] | None, cluster: str) -> Identity:
    """Return the identity of the peer, which must be the head of a cluster.

    Args:
        certificate: of the peer, verified.
        cluster: of this host; empty: any.

    Raises:
        CertificateError: it is another host.
    """
    identity = identity_of(certificate or {})
    if identity.role != "head":
        raise CertificateError(
            f"the certificate of what listens there is that of {identity.words}, not of the head: "
            "correct head in [node]; if the address is right, somebody else listens there"
        )
    if cluster and identity.cluster != cluster:
        raise CertificateError(
            f"the head is that of cluster {identity.cluster}, this host has joined {cluster}: "
            f"correct head in [node], or join again: {_JOIN}"
        )
    return identity


def explain(error: BaseException, *, is_head: bool = False) -> str:
    """Return what an error of TLS means and what to do; empty: it is none.

    Args:
        error: of a connection, or caused by one.
        is_head: it is the head's; else that of a node, or of a host that joins.
    """
    seen: BaseException | None = error
    while seen is not None:
        # aiohttp's own errors of these are SSL errors, too, but do not say what is wrong
        inner = getattr(seen, "certificate_error", None) or getattr(seen, "os_error", None)
        if inner is None and isinstance(seen, ssl.SSLError):
            break
        seen = inner or seen.__cause__ or seen.__context__
    if isinstance(seen, ssl.SSLCertVerificationError):
        return _verification(seen, "a node" if is_head else "the head")
    if not isinstance(seen, ssl.SSLError):
        return ""
    reason = str(seen.reason or seen)
    for name, words in (_ALERTS_OF_HOSTS if is_head else _ALERTS_OF_HEAD).items():
        if name in reason:
            return words
    return f"TLS failed: {reason}"


def _verification(error: ssl.SSLCertVerificationError, of: str) -> str:
    if error.verify_code == _EXPIRED:
        return f"the certificate of {of} has expired: {_CLOCKS}; if they agree, renew it"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {of} is not valid yet: {_CLOCKS}"
    return (
        f"the certificate of {of} is of an authority that is not trusted here "
        f"({error.verify_message}): if the cluster has a new one, join again: {_JOIN}"
    )


def _bare(protocol: "ssl._SSLMethod") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # role and cluster of the certificate are compared instead
    return context


def _context(protocol: "ssl._SSLMethod", files: CertificateFiles) -> ssl.SSLContext:
    files.check()
    context = _bare(protocol)
    try:
        context.load_verify_locations(files.trusted)
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"the certificates {files.trusted}, {files.certificate} cannot be used: {why}",
            hint="see [tls] in gsched.toml(5)" if files.is_of_site else f"join again: {_JOIN}",
        ) from error
    return context
