"""How a new authority gets to the other head: notes, each sealed with the authority before."""

import itertools
import os
from pathlib import Path

import pytest

from gsched.errors import ConfigError
from gsched.pki import issuing, sealed
from gsched.pki.files import AUTHORITY, NEXT
from gsched.pki.names import CertificateError
from gschedd.http.handover import (
    AuthorityFiles,
    handed_on,
    read_files,
    take_authority,
    write_files,
)


def made() -> str:
    return issuing.make_authority("test", 1_700_000_000.0).decode()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "pki").mkdir(mode=0o700)
    return tmp_path / "pki"


def test_a_head_follows_all_replacements_from_the_authority_that_it_has(here: Path) -> None:
    one, two, three = made(), made(), made()
    states = [
        AuthorityFiles(one),
        AuthorityFiles(one, two),
        AuthorityFiles(two),
        AuthorityFiles(two, three),
    ]
    notes: dict[str, str] = {}
    for before, now in itertools.pairwise(states):
        notes.update([handed_on(before, now)])
        assert one not in str(notes)
        assert "PRIVATE" not in str(notes)
    for state in states:
        write_files(str(here), state)
        take_authority(lambda _: notes, str(here.parent))
        assert read_files(str(here)) == states[-1]
        assert (here / AUTHORITY).stat().st_mode & 0o077 == 0
    assert (here / NEXT).stat().st_mode & 0o077 == 0


def test_a_replacement_that_has_ended_leaves_no_next_authority(here: Path) -> None:
    one, two = made(), made()
    notes: dict[str, str] = {}
    notes.update([handed_on(AuthorityFiles(one, two), AuthorityFiles(two))])
    write_files(str(here), AuthorityFiles(one, two))
    take_authority(lambda _: notes, str(here.parent))
    assert os.listdir(here) == [AUTHORITY]


def test_a_note_that_somebody_has_changed_is_refused(here: Path) -> None:
    one, two = made(), made()
    name, text = handed_on(AuthorityFiles(one), AuthorityFiles(one, two))
    notes: dict[str, str] = {}
    notes[name] = text[:-8] + "AAAAAAA="
    write_files(str(here), AuthorityFiles(one))
    with pytest.raises(ConfigError, match="broken"):
        take_authority(lambda _: notes, str(here.parent))
    assert read_files(str(here)) == AuthorityFiles(one)


def test_only_the_same_authority_opens_what_was_sealed() -> None:
    one, two = (issuing.read_authority(made().encode()) for _ in range(2))
    text = sealed.sealed(one, b"content")
    assert sealed.opened(one, text) == b"content"
    with pytest.raises(CertificateError):
        sealed.opened(two, text)


def test_a_head_killed_while_a_replacement_ends_has_one_authority(here: Path) -> None:
    """The new one takes the place of the old one in one step: no file is there twice."""
    one, two = made(), made()
    write_files(str(here), AuthorityFiles(one, two))
    inode = (here / NEXT).stat().st_ino
    write_files(str(here), AuthorityFiles(two))
    assert read_files(str(here)) == AuthorityFiles(two)
    assert (here / AUTHORITY).stat().st_ino == inode
