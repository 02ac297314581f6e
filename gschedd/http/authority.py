"""The authority of a cluster: its files, the head's own certificate, and those of its hosts.

``authority.pem`` in the head's ``pki`` directory has the authority's certificate and key. While it
is being replaced ``next.pem`` has those of the new one: both are trusted, hosts get certificates of
the new one, and the head keeps its own of the old one, as hosts that are away trust only that.
"""

import contextlib
import logging
import os
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gsched.clock import Clock
from gsched.config.tables import Config
from gsched.errors import BadStateError, ConfigError
from gsched.failpoint import failpoint
from gsched.files import replace_file
from gsched.pki import files as places
from gsched.pki.contexts import server_context
from gsched.pki.files import AUTHORITY, NEXT, WEB
from gsched.pki.names import CertificateError, Identity, Role
from gschedd.http.handover import AuthorityFiles, read_files, write_files

if TYPE_CHECKING:
    from gsched.pki.issuing import Authority

log = logging.getLogger("gschedd.tls")


class HeadAuthority:
    """Issues certificates, and gives the port for nodes the TLS context that counts.

    Args:
        config: of which ``[tls]`` and the state directory count.
        cluster: the cluster's id.
        server: its name, for people.

    Attributes:
        files: of the head's own certificate.

    Raises:
        ConfigError: a file cannot be used, or others can read a key.
    """

    def __init__(self, config: Config, cluster: str, server: str, clock: Clock) -> None:
        self.files = places.files_of(config.head.state_dir, config.tls)
        self._directory = os.path.join(config.head.state_dir, places.DIRECTORY)
        self._lifetime_s = config.tls.lifetime_s
        self.cluster, self.server, self._clock = cluster, server, clock
        self._renew_s = 0.0
        self._version: tuple[int, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._known: tuple[object, Authority] | None = None  # what was read last, and of which file
        if not self.files.is_of_site:
            self._prepare()
        self._load()

    @property
    def trusted(self) -> str:
        """Return the certificates of the authorities that count, the newest last."""
        with open(self.files.trusted, encoding="ascii") as file:
            return file.read()

    @property
    def digests(self) -> tuple[str, ...]:
        """Return the SHA-256 of each of them."""
        return tuple(places.digest(each) for each in places.split(self.trusted))

    @property
    def present(self) -> str:
        """Return the certificate of the authority that has issued the head's own."""
        return places.split(self.trusted)[0]

    @property
    def is_replaced(self) -> bool:
        """Return whether a new authority issues certificates already, beside the old one."""
        return os.path.exists(self._path(NEXT))

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; the head's certificate is renewed in time.

        Files that cannot be read any more leave the last context in force.
        """
        try:
            if not self.files.is_of_site and self._clock.wall_s() >= self._renew_s:
                self._issue_own()
            if self.files.version != self._version:
                self._load()
        except (ConfigError, CertificateError, OSError) as error:
            log.error("the head's certificate is not renewed: %s", error)
        assert self._context is not None
        return self._context

    def issue(self, request: str, role: Role, name: str, *, after_s: float = 0.0) -> str:
        """Return a certificate for a host.

        Args:
            request: in PEM.
            after_s: it begins later than this: the host's name was revoked then.

        Raises:
            CertificateError: the request cannot be used.
            BadStateError: the site has its own authority.
        """
        self._check_own()
        from gsched.pki import issuing

        identity = Identity(
            cluster=self.cluster, role=role, name=name, begins_s=after_s + 1.0 if after_s else 0.0
        )
        return issuing.issue(
            self._read(NEXT if self.is_replaced else AUTHORITY),
            request,
            identity,
            now_s=max(self._clock.wall_s(), identity.begins_s),
            lifetime_s=self._lifetime_s,
        )

    @property
    def web_certificate_path(self) -> str:
        """Return the file with certificate and key for HTTPS that `issue_for_web` keeps."""
        return self._path(WEB)

    def issue_for_web(self, names: Sequence[str]) -> float:
        """Issue the certificate for HTTPS, unless there is one of these names that counts.

        Returns:
            when it is to be renewed, seconds since the epoch.
        """
        from gsched.pki import issuing

        now_s, path = self._clock.wall_s(), self.web_certificate_path
        with contextlib.suppress(OSError, CertificateError), open(path, "rb") as file:
            own = file.read()
            validity = issuing.validity_of(own)
            if (
                issuing.names_in(own) == tuple(names)
                and validity.begins_s <= now_s < validity.renew_s
                and issuing.is_issued_by(own, self.present)
            ):
                return validity.renew_s
        own = issuing.issue_for_names(
            self._read(AUTHORITY), names, now_s=now_s, lifetime_s=self._lifetime_s
        )
        replace_file(path, own, durable=True)
        log.info("issued the certificate for HTTPS %s", path)
        return issuing.validity_of(own).renew_s

    def replaced(self) -> AuthorityFiles:
        """Return what there is to be with a new authority; see `take`.

        It issues from then on, and the old one still counts.

        Raises:
            BadStateError: that was done already, or the site has its own.
        """
        self._check_own()
        if self.is_replaced:
            raise BadStateError(
                "the authority is being replaced already",
                hint="end it with gsched authority finish",
            )
        from gsched.pki import issuing

        made = issuing.make_authority(self.server, self._clock.wall_s()).decode()
        return AuthorityFiles(read_files(self._directory).authority, made)

    def finished(self) -> AuthorityFiles:
        """Return what there is to be when the old authority is no longer trusted; see `take`.

        Raises:
            BadStateError: it is not being replaced, or the site has its own.
        """
        self._check_own()
        if not self.is_replaced:
            raise BadStateError(
                "the authority is not being replaced", hint="begin with gsched authority replace"
            )
        return AuthorityFiles(read_files(self._directory).next)

    def take(self, files: AuthorityFiles) -> None:
        """Use authorities that `replaced` or `finished` has returned, from now on."""
        write_files(self._directory, files)
        failpoint("authority.after_files")
        self._prepare()
        self._load()

    def secrets(self) -> AuthorityFiles:
        """Return certificates and keys of the authorities.

        Raises:
            BadStateError: the site has its own.
        """
        self._check_own()
        return read_files(self._directory)

    # --- files ---

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _check_own(self) -> None:
        if self.files.is_of_site:
            raise BadStateError(
                "this site issues certificates itself: [tls] certificate names the head's",
                hint="issue them there, with the URI gsched://CLUSTER/ROLE/NAME as subjectAltName",
            )

    def _read(self, name: str) -> "Authority":
        from gsched.pki import issuing

        path = self._path(name)
        try:
            status = os.stat(path)
            version = (path, status.st_ino, status.st_ctime_ns, status.st_size)
            if self._known is None or self._known[0] != version:
                places.check_file(path, is_secret=True)
                with open(path, "rb") as file:
                    self._known = version, issuing.read_authority(file.read())
            return self._known[1]
        except (OSError, CertificateError) as error:
            raise ConfigError(
                f"the authority of this cluster {path} cannot be used: {error}",
                hint="restore it from a backup (gsched backup saves it); or move it away: then all "
                "hosts have to join again",
            ) from error

    def _prepare(self) -> None:
        """Make what is missing: authority, list of the trusted ones, the head's certificate."""
        from gsched.pki import issuing  # late: a head with certificates of its site never needs it

        if issuing.make_authority_file(self._directory, self.server, self._clock.wall_s()):
            log.info(
                "created the authority of this cluster in %s: hosts that have joined by another "
                "one have to join again (or restore that one from a backup)",
                self._directory,
            )
        self.files.check()
        names = (AUTHORITY, NEXT) if self.is_replaced else (AUTHORITY,)
        trusted = "".join(self._read(name).pem for name in names).encode()
        known = b""
        with contextlib.suppress(OSError), open(self.files.trusted, "rb") as file:
            known = file.read()
        if known != trusted:
            replace_file(self.files.trusted, trusted, durable=True)
        self._issue_own()

    def _issue_own(self) -> None:
        """Issue the head's certificate unless one is there that counts for a while."""
        from gsched.pki import issuing

        now_s = self._clock.wall_s()
        identity = Identity(cluster=self.cluster, role="head", name=self.server)
        with contextlib.suppress(OSError, CertificateError), open(self.files.key, "rb") as file:
            own = file.read()
            validity = issuing.validity_of(own)
            if (
                issuing.identity_in(own).uri == identity.uri
                and validity.begins_s <= now_s < validity.renew_s
                and issuing.is_issued_by(own, self.present)
            ):
                self._renew_s = validity.renew_s
                return
        own = issuing.issue_with_key(
            self._read(AUTHORITY), identity, now_s=now_s, lifetime_s=self._lifetime_s
        )
        replace_file(self.files.certificate, own, durable=True)
        self._renew_s = issuing.validity_of(own).renew_s
        log.info("issued the head's certificate %s", self.files.certificate)

    def _load(self) -> None:
        self._version = self.files.version
        self._context = server_context(self.files)
