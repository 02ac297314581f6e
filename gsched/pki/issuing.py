"""Makes keys, requests and certificates: P-256, SHA-256, PEM.

Times are arguments. A certificate begins a ninetieth of its lifetime before it is issued (a day of
90), so that hosts whose clocks are behind take it.
"""

import base64
import datetime as dt
import ipaddress
import os
import pwd
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gsched.errors import ConfigError
from gsched.files import replace_file
from gsched.pki.files import AUTHORITY, CertificateFiles, make_directory
from gsched.pki.names import CertificateError, Identity, Role, parse_uri

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:  # a checkout whose packages are older than it
    raise ConfigError(
        f"the Python package cryptography, which makes certificates, is missing: {error}",
        hint="install it: pip install 'cryptography>=42'",
    ) from error

AUTHORITY_LIFETIME_S: Final = 10 * 365 * 86_400.0
BEFORE_RATIO: Final = 1 / 90
RENEW_RATIO: Final = 2 / 3
MAX_REQUEST: Final = 8192  # characters of a request that is decoded

_FORBIDDEN: Final = (ValueError, TypeError, UnicodeError, InvalidSignature, x509.ExtensionNotFound)


class Authority(Struct, frozen=True):
    """A certificate that issues others, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        """Return the certificate without the key."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()


class Validity(Struct, frozen=True, kw_only=True):
    """When a certificate counts, and when it is renewed; seconds since the epoch."""

    begins_s: float
    expires_s: float

    @property
    def renew_s(self) -> float:
        """Return when two thirds of its life are over."""
        return self.begins_s + (self.expires_s - self.begins_s) * RENEW_RATIO


def make_authority(name: str, now_s: float) -> bytes:
    """Return certificate and key of a new authority, as one file.

    Args:
        name: what people read in the certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gsched authority {name}"[:64])])
    usage = _usage(signs=False, issues=True)
    certificate = (
        _builder(subject, subject, key.public_key(), now_s, AUTHORITY_LIFETIME_S)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(_identifier(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + _pem_of(key)


def make_authority_file(
    directory: str, name: str, now_s: float, account: pwd.struct_passwd | None = None
) -> bool:
    """Make a cluster's authority unless there is one; return whether it was made.

    Args:
        directory: ``pki`` in the head's state directory.
        account: whose files they become; None: the caller's.
    """
    path = os.path.join(directory, AUTHORITY)
    if os.path.exists(path):
        return False
    make_directory(directory)
    replace_file(path, make_authority(name, now_s), durable=True)
    if account is not None:
        for made in (path, directory):
            os.chown(made, account.pw_uid, account.pw_gid)
    return True


def read_authority(content: bytes) -> Authority:
    """Return the authority of a file that `make_authority` made.

    Raises:
        CertificateError: it is another file.
    """
    try:
        key = serialization.load_pem_private_key(content, password=None)
        certificate = x509.load_pem_x509_certificate(content)
    except _FORBIDDEN as error:
        raise CertificateError(f"it has no certificate and key in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        certificate.public_key()
    ):
        raise CertificateError("its key is not that of its certificate")
    return Authority(certificate, key)


def make_key() -> bytes:
    """Return a new private key."""
    return _pem_of(ec.generate_private_key(ec.SECP256R1()))


def make_request(key: bytes, name: str) -> str:
    """Return a request for a certificate, which proves that its sender has the key."""
    private = _private(key)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(private, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def issue(
    authority: Authority,
    request: str,
    identity: Identity,
    *,
    now_s: float,
    lifetime_s: float,
) -> str:
    """Return a certificate for the key of a request; all else is the authority's choice.

    Args:
        identity: of the owner; its ``begins_s`` is the earliest beginning.

    Raises:
        CertificateError: the request is none, is not signed by its key, or has a weak key.
    """
    if len(request) > MAX_REQUEST:
        raise CertificateError(
            f"a request of {len(request)} characters; {MAX_REQUEST} is the limit"
        )
    try:
        csr = x509.load_pem_x509_csr(request.encode())
        public, is_signed = csr.public_key(), csr.is_signature_valid
    except _FORBIDDEN as error:
        raise CertificateError(f"the request for a certificate cannot be read: {error}") from error
    if not is_signed:
        raise CertificateError("the request for a certificate is not signed by its own key")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(
        public.curve, ec.SECP256R1
    ):
        raise CertificateError("the key of a request must be of the curve P-256")
    return _issue(authority, public, identity, now_s=now_s, lifetime_s=lifetime_s)


def issue_with_key(
    authority: Authority, identity: Identity, *, now_s: float, lifetime_s: float
) -> bytes:
    """Return a certificate and its new key, as one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = _issue(authority, key.public_key(), identity, now_s=now_s, lifetime_s=lifetime_s)
    return made.encode() + _pem_of(key)


def issue_for_names(
    authority: Authority, names: Sequence[str], *, now_s: float, lifetime_s: float
) -> bytes:
    """Return a certificate of a server with these names and addresses, and its key, as one file.

    It has no name of gsched: neither nodes nor the head take it for one of their own.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    made = _certify(
        authority,
        key.public_key(),
        subject=names[0],
        names=[_general_name(name) for name in names],
        purposes=[ExtendedKeyUsageOID.SERVER_AUTH],
        now_s=now_s,
        lifetime_s=lifetime_s,
    )
    return made.encode() + _pem_of(key)


def names_in(pem: bytes) -> tuple[str, ...]:
    """Return the host names and addresses of the first certificate of a text.

    Raises:
        CertificateError: there is none.
    """
    try:
        found = _read(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except _FORBIDDEN:
        return ()
    return tuple(str(name.value) for name in found.value)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issue(
    authority: Authority,
    public: ec.EllipticCurvePublicKey,
    identity: Identity,
    *,
    now_s: float,
    lifetime_s: float,
) -> str:
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role == "head":
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return _certify(
        authority,
        public,
        subject=identity.words,
        names=[x509.UniformResourceIdentifier(identity.uri)],
        purposes=purposes,
        now_s=now_s,
        lifetime_s=lifetime_s,
        earliest_s=identity.begins_s,
    )


def _certify(  # noqa: PLR0913 - what a certificate has
    authority: Authority,
    public: ec.EllipticCurvePublicKey,
    *,
    subject: str,
    names: Sequence[x509.GeneralName],
    purposes: Sequence[x509.ObjectIdentifier],
    now_s: float,
    lifetime_s: float,
    earliest_s: float = 0.0,
) -> str:
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    issuer, issuer_key = authority.certificate.subject, authority.key.public_key()
    signed = (
        _builder(own, issuer, public, now_s, lifetime_s, earliest_s=earliest_s)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=True, issues=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_identifier(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def validity_of(pem: bytes) -> Validity:
    """Return when the first certificate of a text counts.

    Raises:
        CertificateError: there is none.
    """
    certificate = _read(pem)
    return Validity(
        begins_s=certificate.not_valid_before_utc.timestamp(),
        expires_s=certificate.not_valid_after_utc.timestamp(),
    )


def identity_in(pem: bytes) -> Identity:
    """Return the owner of the first certificate of a text.

    Raises:
        CertificateError: there is none, or it has no name of gsched.
    """
    certificate = _read(pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    except _FORBIDDEN:
        uris = []
    cluster, role, name = parse_uri(uris[0] if len(uris) == 1 else "")
    validity = validity_of(pem)
    return Identity(
        cluster=cluster,
        role=role,
        name=name,
        begins_s=validity.begins_s,
        expires_s=validity.expires_s,
    )


def own_identity(files: CertificateFiles, *, role: Role, name: str, now_s: float) -> Identity:
    """Return what the certificate of this host says, which is to be of this role and name.

    Raises:
        CertificateError: there is none, or it is another one, or does not count now.
    """
    if not files.exist:
        has_own = os.path.exists(files.certificate) and os.path.exists(files.key)
        what = f"authority in {files.trusted}" if has_own else f"certificate in {files.certificate}"
        raise CertificateError(
            f"this node has no {what}: on the head run gsched token "
            f"create --role {role} --name {name} (with --replace, if it had one), and its line on "
            "this host"
        )
    files.check()
    with open(files.certificate, "rb") as file:
        text = file.read()
    try:
        own = identity_in(text)
    except CertificateError:
        raise CertificateError(
            f"the file {files.certificate} has no certificate of a host that can be read: on the "
            f"head run gsched token create --role {role} --name {name} --replace, and its line on "
            "this host"
        ) from None
    if (own.role, own.name) != (role, name):
        raise CertificateError(
            f"the certificate {files.certificate} is that of {own.words}, and this is "
            f"{role} {name}: correct name or role in [node], or join again as this"
        )
    if not own.begins_s <= now_s < own.expires_s:
        state = "has expired" if now_s >= own.expires_s else "is not valid yet"
        raise CertificateError(
            f"the certificate of this node {state}: compare the clocks of both hosts "
            f"(timedatectl); if they agree, run gsched token create --role {role} "
            f"--name {name} on the head, and its line on this host"
        )
    return own


def is_issued_by(pem: bytes, authority: str) -> bool:
    """Return whether the first certificate of a text was issued by an authority."""
    try:
        _read(pem).verify_directly_issued_by(_read(authority.encode()))
    except (CertificateError, *_FORBIDDEN):
        return False
    return True


def sign(own: bytes, text: str) -> str:
    """Return a signature of a text by the key of a certificate, in base64.

    Args:
        own: certificate and key.
    """
    return base64.b64encode(_private(own).sign(text.encode(), ec.ECDSA(hashes.SHA256()))).decode()


def is_signed(pem: bytes, text: str, signature: str) -> bool:
    """Return whether the key of the first certificate of a text in PEM has signed a text."""
    try:
        public = _read(pem).public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        signed = base64.b64decode(signature, validate=True)
        public.verify(signed, text.encode(), ec.ECDSA(hashes.SHA256()))
    except (CertificateError, *_FORBIDDEN):
        return False
    return True


def _read(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except _FORBIDDEN as error:
        raise CertificateError(f"there is no certificate in PEM: {error}") from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_s: float,
    lifetime_s: float,
    *,
    earliest_s: float = 0.0,
) -> x509.CertificateBuilder:
    begins_s = max(now_s - lifetime_s * BEFORE_RATIO, earliest_s)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(begins_s))
        .not_valid_after(_moment(now_s + lifetime_s))
    )


def _moment(at_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_s, dt.UTC)


def _identifier(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _usage(*, signs: bool, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        key_cert_sign=issues,
        crl_sign=issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "make_key makes no others"
    return key


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
