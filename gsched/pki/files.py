"""Where a daemon keeps its certificates: ``pki`` in its state directory, or files of the site."""

import os
import ssl
import stat
from typing import Final

from msgspec import Struct

from gsched import trust
from gsched.config.tls import TlsConfig
from gsched.errors import ConfigError
from gsched.files import replace_file
from gsched.trust import UntrustedError

DIRECTORY: Final = "pki"
AUTHORITY: Final = "authority.pem"  # of the head: with its key
NEXT: Final = "next.pem"  # of the head: the authority that replaces it
OWN: Final = "own.pem"
WEB: Final = "https.pem"  # of the head, for programs of users
TRUSTED: Final = "trusted.pem"
_MARK: Final = "-----END CERTIFICATE-----"


class CertificateFiles(Struct, frozen=True, kw_only=True):
    """Files in PEM; certificate and key may be one file.

    Attributes:
        trusted: the authorities whose certificates count.
        is_of_site: the site makes and renews them.
    """

    trusted: str
    certificate: str
    key: str
    is_of_site: bool = False

    @property
    def directory(self) -> str:
        """Return where the certificate is."""
        return os.path.dirname(self.certificate)

    @property
    def exist(self) -> bool:
        """Return whether this host has a certificate."""
        return all(map(os.path.exists, (self.trusted, self.certificate, self.key)))

    @property
    def version(self) -> tuple[int, ...]:
        """Return what changes with the files; empty: one is missing."""
        try:
            return tuple(
                os.stat(path).st_mtime_ns for path in (self.trusted, self.certificate, self.key)
            )
        except OSError:
            return ()

    def check(self) -> None:
        """Check that only this daemon's user and root can read the key, and change any file (T61).

        Raises:
            ConfigError: others can.
        """
        for path in {self.trusted, self.certificate, self.key}:
            if os.path.exists(path):
                check_file(path, is_secret=path == self.key)
        if not self.is_of_site and os.path.isdir(self.directory):
            _check_mode(self.directory, 0o700)

    def write(self, *, own: bytes | None, trusted: bytes) -> None:
        """Replace what a host has; each file is whole at any moment."""
        make_directory(self.directory)
        replace_file(self.trusted, trusted, durable=True)
        if own is not None:
            replace_file(self.certificate, own, durable=True)


def files_of(state_dir: str, tls: TlsConfig) -> CertificateFiles:
    """Return the files of a daemon: those of ``[tls]``, else those in its state directory."""
    if tls.certificate:
        return CertificateFiles(
            trusted=tls.ca, certificate=tls.certificate, key=tls.key, is_of_site=True
        )
    directory = os.path.join(state_dir, DIRECTORY)
    own = os.path.join(directory, OWN)
    return CertificateFiles(trusted=os.path.join(directory, TRUSTED), certificate=own, key=own)


def make_directory(path: str) -> None:
    """Make the directory of certificates, for this user alone.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
    except OSError as error:
        raise ConfigError(
            f"the directory of certificates {path} cannot be made: {error.strerror}",
            hint="give its parent to the user of the daemon",
        ) from error


def check_file(path: str, *, is_secret: bool) -> None:
    """Check who can change a file, and, if it is secret, who can read it.

    Raises:
        ConfigError: others can.
    """
    try:
        for place in (path, os.path.realpath(path)):
            directory = os.path.dirname(os.path.abspath(place))
            if not 0 < os.stat(directory).st_uid < trust.uid_min():  # root looks at the head's
                trust.check_way(directory)
    except UntrustedError as error:
        raise ConfigError(f"{path} cannot be used: {error}", hint=error.hint) from error
    _check_mode(path, 0o600 if is_secret else 0o644)
    uid, owner = os.geteuid(), os.stat(path).st_uid
    if owner in {0, uid} or (uid == 0 and owner < trust.uid_min()):
        return
    raise ConfigError(
        f"{path} belongs to uid {owner}, who can change it",
        hint=f"chown it to the user of this daemon (uid {uid})",
    )


def _check_mode(path: str, most: int) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & ~most & 0o077:
        may = "change" if most & 0o044 else "read"
        raise ConfigError(
            f"{path} has mode {mode:04o}: other users can {may} it",
            hint=f"chmod {most:o} {path}; if another user may have read a key, make a new one: "
            "gsched authority replace on the head, gsched join on another host",
        )


def split(pem: str) -> list[str]:
    """Return the certificates of a text in PEM, in their order."""
    begin = "-----BEGIN CERTIFICATE-----"
    return [
        begin + part.partition(begin)[2] + _MARK + "\n"
        for part in pem.split(_MARK)
        if begin in part
    ]


def digest(pem: str) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal digits."""
    import hashlib

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
