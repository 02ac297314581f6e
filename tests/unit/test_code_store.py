"""Archives of code snapshots in the head's files: pieces, digests, and when they go."""

import hashlib
import os
from pathlib import Path

import pytest

from gsched.errors import GschedError
from gsched.model.limits import MAX_USER_UPLOADS
from gschedd.store.code import UNUSED_LIFE_S, CodeStore

DATA = b"an archive"
DIGEST = hashlib.sha256(DATA).hexdigest()


def put(store: CodeStore, data: bytes, *, offset: int = 0, uid: int = 7, now_s: float = 0.0) -> int:
    return store.put(uid, DIGEST, size_bytes=len(DATA), offset=offset, data=data, now_s=now_s)


def test_pieces_in_order_become_an_archive_of_their_owner(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), most_bytes=100)

    assert put(store, DATA[:4]) == 4
    assert not store.has(7, DIGEST)
    assert put(store, DATA[:4]) == 4, "a repeated piece changes nothing"
    assert put(store, DATA[4:], offset=4) == len(DATA)

    assert store.has(7, DIGEST)
    assert not store.has(8, DIGEST), "it is nobody else's"
    assert store.read(7, DIGEST, 3) == (len(DATA), DATA[3:])
    assert put(store, b"") == len(DATA), "it need not be sent again"
    with pytest.raises(GschedError, match="any more"):
        store.read(8, DIGEST, 0)


def test_a_user_cannot_begin_any_number_of_archives(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), most_bytes=100)
    for number in range(MAX_USER_UPLOADS):
        store.put(7, f"{number:064x}", size_bytes=9, offset=0, data=b"x", now_s=0.0)

    with pytest.raises(GschedError, match="are being sent already"):
        put(store, DATA[:4])
    later_s = max(path.stat().st_mtime for path in (tmp_path / "7").iterdir()) + 4000.0
    assert put(store, DATA[:4], now_s=later_s) == 4, "those that came no further are forgotten"


def test_archives_go_a_day_after_their_last_job(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), most_bytes=100)
    put(store, DATA)
    now_s = os.stat(tmp_path / "7" / DIGEST).st_mtime

    assert store.purge(set(), now_s + UNUSED_LIFE_S - 60) == 0, "its job may be on its way"
    assert store.purge({(7, DIGEST)}, now_s + 10 * UNUSED_LIFE_S) == 0, "a job has it"
    assert store.purge({(8, DIGEST)}, now_s + UNUSED_LIFE_S + 60) == 1
    assert not store.has(7, DIGEST)
    assert CodeStore(str(tmp_path / "none"), most_bytes=1).purge(set(), 0.0) == 0
