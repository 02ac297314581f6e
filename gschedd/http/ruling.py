"""What the head that rules leaves for heads that stand by: its authority, and its HTTPS address.

It is a note in the database, so that each head has it from the replicated log.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from gsched.config.tables import Config
from gsched.errors import ConfigError, GschedError
from gsched.pki.files import AUTHORITY, DIRECTORY, check_file, digest, split
from gsched.pki.names import CertificateError
from gschedd.http.authority import HeadAuthority
from gschedd.http.handover import take_authority
from gschedd.http.members import Members
from gschedd.store.journal import Ruler
from gschedd.store.queues import notes_in

log = logging.getLogger("gschedd.tls")

NOTE: Final = "ruling"
NOW: Final = "now"
#: Between two looks whether the site has replaced its authority, or the disk has room again.
LOOK_S: Final = 5.0
_SHOWN: Final = 12  # digits of a hash in messages
_RESTORE: Final = "restore it from a backup; see [tls] in gsched.toml(5) and gsched init"
_LOST: Final = (
    "if that authority is lost for good, begin with a new one: gsched init, gsched store copy "
    "--back, gsched store copy --replace; then all hosts have to join again"
)


class RulingHead(Struct, frozen=True, omit_defaults=True):
    """What heads that stand by know of the one that rules, or has ruled last.

    Attributes:
        authorities: SHA-256 of those that it trusts.
        https: where programs reach it; empty: HTTPS is off.
    """

    authorities: tuple[str, ...] = ()
    https: str = ""


def ruling_in(db: sqlite3.Connection) -> RulingHead:
    """Return the note in a database; an empty one where a head of an older version rules."""
    text = notes_in(db, NOTE).get(NOW)
    return RulingHead() if text is None else msgspec.json.decode(text, type=RulingHead)


class RulingNote:
    """Keeps the note of the head that rules.

    Args:
        members: makes notes durable.
        https: returns where programs reach this head; empty: HTTPS is off.
    """

    def __init__(
        self, authority: HeadAuthority, members: Members, https: Callable[[], str]
    ) -> None:
        self._authority = authority
        self._members = members
        self._https = https
        self._written = ""

    async def write(self) -> None:
        """Make the note durable, if it has changed.

        Raises:
            OSError: the site's file with authorities cannot be read.
            TryAgainError, StorageError: the note cannot be written.
        """
        ruling = RulingHead(self._authority.digests, self._https())
        text = msgspec.json.encode(ruling).decode()
        if text != self._written:
            await self._members.save(NOTE, NOW, text)
            self._written = text

    async def keep(self) -> None:
        """Write the note now, and again when the site has replaced its authority."""
        while True:
            try:
                await self.write()
            except (OSError, ValueError, GschedError) as error:
                log.warning("heads that stand by are not told of this head's authority: %s", error)
            await asyncio.sleep(LOOK_S)


class StandbyCheck:
    """Looks whether hosts would trust this head once it rules.

    It also takes over what the head that rules has made of the authority.

    Args:
        holder: this head, as no other head is named.

    Attributes:
        changes: how often a new authority was taken over.
        ruling: the note of the head that rules.
    """

    def __init__(self, config: Config, holder: str) -> None:
        self._config = config
        self._holder = holder
        self._directory = os.path.join(config.head.state_dir, DIRECTORY)
        self.changes = 0
        self.ruling = RulingHead()

    def __call__(self, db: sqlite3.Connection, ruler: Ruler) -> None:
        """Check against a database that has what the log has.

        Raises:
            ConfigError: this host lacks the cluster's authority, or has another one.
        """
        self.ruling = ruling_in(db)
        if self._config.tls.certificate:
            self._check_site(ruler)
            return
        path = os.path.join(self._directory, AUTHORITY)
        if not os.path.exists(path):
            raise ConfigError(
                f"{self._directory} has no authority: no node would trust this head once it rules",
                hint="gsched token create --role head on the other head, then its line here; on "
                f"the only head: restore it from a backup; {_LOST}",
            )
        check_file(path, is_secret=True)
        self.changes += take_authority(partial(notes_in, db), self._config.head.state_dir)
        own = _digests_in(path)[0]
        self._check_key(path)
        if self.ruling.authorities and own not in self.ruling.authorities:
            self._refuse(own, ruler)

    @staticmethod
    def _check_key(path: str) -> None:
        """Check that an authority can issue certificates."""
        from gsched.pki import issuing

        try:
            with open(path, "rb") as file:
                issuing.read_authority(file.read())
        except (OSError, CertificateError) as error:
            raise ConfigError(f"{path} cannot be used: {error}", hint=_RESTORE) from error

    def _check_site(self, ruler: Ruler) -> None:
        """Compare the authorities that this head trusts with those of the one that rules."""
        path = self._config.tls.ca
        own = _digests_in(path)
        if self.ruling.authorities and not set(own).intersection(self.ruling.authorities):
            raise ConfigError(
                f"none of the authorities in {path} is trusted by {self._other(ruler)}: no node "
                "would trust this head once it rules",
                hint="let ca, certificate and key in [tls] be of the same authority on both heads",
            )

    def _refuse(self, own: str, ruler: Ruler) -> None:
        theirs = ", ".join(each[:_SHOWN] for each in self.ruling.authorities)
        other = self._other(ruler)
        way = (
            f"restore {self._directory} from a backup"
            if ruler.holder == self._holder
            else f"move {self._directory} away, run gsched token create --role head on that head, "
            "and its line (gsched join --as-head) here"
        )
        raise ConfigError(
            f"the authority in {self._directory} (sha256:{own[:_SHOWN]}…) is not that of {other} "
            f"(sha256:{theirs}…): no node would trust this head once it rules",
            hint=f"{way}; {_LOST}",
        )

    def _other(self, ruler: Ruler) -> str:
        if ruler.holder == self._holder:
            return "this head when it ruled last"
        state = "rules" if ruler.left_s > 0.0 else "has ruled last"
        return f"the head {ruler.holder}, which {state}"


def _digests_in(path: str) -> list[str]:
    """Return the SHA-256 of the certificates in a file.

    Raises:
        ConfigError: it cannot be read, or has none.
    """
    found: list[str] = []
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = [digest(each) for each in split(file.read())]
        why = "" if found else "it has no certificate in PEM"
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error)
    if why:
        raise ConfigError(
            f"{path} cannot be used: {why}",
            hint=_RESTORE,
        )
    return found
