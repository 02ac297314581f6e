"""A new authority for the other head: a note in the database, sealed with the one before."""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from gsched.errors import ConfigError
from gsched.files import flush_directory, replace_file
from gsched.pki.files import AUTHORITY, DIRECTORY, NEXT, digest
from gsched.pki.names import CertificateError

log = logging.getLogger("gschedd.tls")

NOTE: Final = "authority"


class AuthorityFiles(Struct, frozen=True):
    """Contents of the files of an authority, and of the one that replaces it; empty: none does."""

    authority: str
    next: str = ""


def read_files(directory: str) -> AuthorityFiles:
    """Return what the directory ``pki`` has."""
    texts = dict.fromkeys((AUTHORITY, NEXT), "")
    for name in texts:
        with (
            suppress(FileNotFoundError),
            open(os.path.join(directory, name), encoding="ascii") as f,
        ):
            texts[name] = f.read()
    return AuthorityFiles(texts[AUTHORITY], texts[NEXT])


def write_files(directory: str, files: AuthorityFiles) -> None:
    """Make them durable, those of this head.

    Raises:
        OSError: they cannot be written.
    """
    here, following = (os.path.join(directory, name) for name in (AUTHORITY, NEXT))
    if files.next:
        replace_file(following, files.next.encode(), durable=True)
    if read_files(directory).next == files.authority:  # both in one step
        os.replace(following, here)
    else:
        replace_file(here, files.authority.encode(), durable=True)
        if not files.next:
            with suppress(FileNotFoundError):
                os.unlink(following)
    flush_directory(directory)


def handed_on(before: AuthorityFiles, now: AuthorityFiles) -> tuple[str, str]:
    """Return name and text of the note for heads that have the authority from before."""
    from gsched.pki import issuing, sealed

    authority = issuing.read_authority(before.authority.encode())
    return digest(authority.pem), sealed.sealed(authority, msgspec.json.encode(now))


def take_authority(notes_of: Callable[[str], Mapping[str, str]], state_dir: str) -> bool:
    """Take over what another head has made of this cluster's authority, before this one uses it.

    Args:
        notes_of: returns the notes of a kind, by name.

    Returns:
        whether there was anything.

    Raises:
        ConfigError: it cannot be read with the authority that is here.
    """
    directory = os.path.join(state_dir, DIRECTORY)
    here, notes = read_files(directory), notes_of(NOTE)
    if not notes or not here.authority:
        return False
    from gsched.pki import issuing, sealed

    known = here
    try:
        while True:
            authority = issuing.read_authority(known.authority.encode())
            text = notes.get(digest(authority.pem))
            if text is None:
                break
            found = msgspec.json.decode(sealed.opened(authority, text), type=AuthorityFiles)
            is_last, known = found.authority == known.authority, found
            if is_last:
                break
    except (CertificateError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{directory}: {error}", hint="gsched join --as-head gets it from the other head"
        ) from None
    if known == here:
        return False
    write_files(directory, known)
    log.warning("the authority of this cluster was replaced by another head: taken over")
    return True
