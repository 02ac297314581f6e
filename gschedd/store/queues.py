"""What operators have changed of queues: a file beside the database, and a note in it.

The file is kept by backups, and by a restore of an older database. A second head has the note.
"""

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gsched.files import replace_file
from gschedd.core.requests.queues import Overrides

log = logging.getLogger("gschedd.queues")

FILE: Final = "queues.json"
NOTE: Final = "queues"
CHANGES: Final = "changes"


class NoteStore(Protocol):
    """The store, as far as notes are concerned."""

    def notes(self, kind: str) -> dict[str, str]:
        """Return what was saved, by name."""

    def save_note(self, kind: str, name: str, text: str | None) -> None:
        """Make a note durable; None: delete it."""


def begin_overrides(store: NoteStore, state_dir: str, *, replicated: bool) -> Overrides:
    """Return what counts for a head that starts, and make file and note agree.

    Args:
        replicated: the note counts, as another head may have written it.
    """
    noted = store.notes(NOTE).get(CHANGES, "")
    if noted and (replicated or not os.path.exists(os.path.join(state_dir, FILE))):
        overrides = msgspec.json.decode(noted, type=Overrides)
        if overrides != read_overrides(state_dir):
            write_overrides(state_dir, overrides)
        return overrides
    overrides = read_overrides(state_dir)
    if noted or overrides != Overrides():
        _note(store, overrides)
    return overrides


def notes_in(db: sqlite3.Connection, kind: str) -> dict[str, str]:
    """Return the notes of a kind in a database, by name."""
    found = db.execute("SELECT key, value FROM meta WHERE key GLOB ?", (f"{kind} *",))
    return {str(key).removeprefix(f"{kind} "): str(value) for key, value in found}


def noted_overrides(db: sqlite3.Connection) -> Overrides:
    """Return the note in a database."""
    text = notes_in(db, NOTE).get(CHANGES)
    return Overrides() if text is None else msgspec.json.decode(text, type=Overrides)


def keep_overrides(store: NoteStore, state_dir: str, overrides: Overrides) -> None:
    """Make the note durable, then the file.

    Raises:
        TryAgainError, StorageError: the note cannot be written; nothing has changed.
        OSError: the file cannot be written.
    """
    _note(store, overrides)
    write_overrides(state_dir, overrides)


def _note(store: NoteStore, overrides: Overrides) -> None:
    text = msgspec.json.encode(overrides).decode()
    if store.notes(NOTE).get(CHANGES) != text:
        store.save_note(NOTE, CHANGES, text)


def read_overrides(state_dir: str) -> Overrides:
    """Return what was written last; nothing where there is no file, or none that can be read."""
    path = Path(state_dir, FILE)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Overrides)
    except FileNotFoundError:
        return Overrides()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read: %s; queues are as configured", path, error)
        return Overrides()


def write_overrides(state_dir: str, overrides: Overrides) -> None:
    """Write it so that a crash leaves the old file or the new one.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    body = msgspec.json.format(msgspec.json.encode(overrides), indent=2) + b"\n"
    replace_file(os.path.join(state_dir, FILE), body, durable=True)
