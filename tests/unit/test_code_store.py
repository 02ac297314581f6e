"""Archives of code snapshots in the head's files: pieces, digests, and when they go."""

import hashlib
import os
from pathlib import Path

import pytest
from msgspec import structs

from gsched.config.tables import LimitsConfig
from gsched.errors import GschedError, StorageFullError
from gsched.model.limits import MAX_USER_UPLOADS
from gschedd.store.code import FRESH_S, UNUSED_LIFE_S, CodeStore, QuotaError
from tests.support.disks import fill, small_disk

DATA = b"an archive"
DIGEST = hashlib.sha256(DATA).hexdigest()


def put(store: CodeStore, data: bytes, *, offset: int = 0, uid: int = 7, now_s: float = 0.0) -> int:
    return store.put(uid, DIGEST, size_bytes=len(DATA), offset=offset, data=data, now_s=now_s)


def test_pieces_in_order_become_an_archive_of_their_owner(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), LimitsConfig(snapshot_bytes=100))

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
    store = CodeStore(str(tmp_path), LimitsConfig(snapshot_bytes=100))
    for number in range(MAX_USER_UPLOADS):
        store.put(7, f"{number:064x}", size_bytes=9, offset=0, data=b"x", now_s=0.0)

    with pytest.raises(GschedError, match="are being sent already"):
        put(store, DATA[:4])
    later_s = max(path.stat().st_mtime for path in (tmp_path / "7").iterdir()) + 4000.0
    assert put(store, DATA[:4], now_s=later_s) == 4, "those that came no further are forgotten"


def test_archives_go_a_day_after_their_last_job(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), LimitsConfig(snapshot_bytes=100))
    put(store, DATA)
    now_s = os.stat(tmp_path / "7" / DIGEST).st_mtime

    assert store.purge(set(), now_s + UNUSED_LIFE_S - 60) == 0, "its job may be on its way"
    assert store.purge({(7, DIGEST)}, now_s + 10 * UNUSED_LIFE_S) == 0, "a job has it"
    assert store.purge({(8, DIGEST)}, now_s + UNUSED_LIFE_S + 60) == 1
    assert not store.has(7, DIGEST)
    assert CodeStore(str(tmp_path / "none"), LimitsConfig()).purge(set(), 0.0) == 0


def archive(number: int, size_bytes: int = 9) -> tuple[str, bytes]:
    data = bytes([number]) * size_bytes
    return hashlib.sha256(data).hexdigest(), data


def put_whole(store: CodeStore, number: int, *, uid: int = 7, size_bytes: int = 9) -> str:
    digest, data = archive(number, size_bytes)
    store.put(uid, digest, size_bytes=len(data), offset=0, data=data, now_s=0.0)
    return digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"snapshots_per_user_bytes": 20}, "18b of code snapshots of this user"),
        ({"snapshots_per_user": 2}, "2 code snapshots of this user; the limit is 2"),
        ({"snapshots_total_bytes": 20, "snapshots_per_user_bytes": 99}, "of all users"),
        ({"snapshots_total": 2}, "2 code snapshots of all users; the limit is 2"),
    ],
)
def test_a_snapshot_beyond_a_quota_is_refused_until_there_is_room(
    tmp_path: Path, changes: dict[str, int], words: str
) -> None:
    limits = structs.replace(LimitsConfig(snapshot_bytes=100), **changes)
    store = CodeStore(str(tmp_path), limits)
    first, second = put_whole(store, 1), put_whole(store, 2)

    with pytest.raises(QuotaError) as refused:
        put_whole(store, 3)
    with pytest.raises(QuotaError, match=words):
        put_whole(CodeStore(str(tmp_path), limits), 3)  # a head that was restarted counts the same
    assert put_whole(store, 2) == second, "one that is there needs no room"

    def room(now_s: float, *in_use: str) -> bool:
        used = {(7, digest) for digest in in_use}
        return store.make_room(refused.value, uid=7, size_bytes=9, in_use=used, now_s=now_s)

    now_s = (tmp_path / "7" / first).stat().st_mtime + FRESH_S + 60
    assert not room(now_s - FRESH_S), "jobs of new ones are on their way"
    assert not room(now_s, first, second), "unfinished jobs have them"
    assert room(now_s, second)
    assert (store.has(7, first), store.has(7, second)) == (False, True)
    put_whole(store, 3)


def test_the_hint_of_a_quota_says_how_long_an_archive_is_kept(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), LimitsConfig(snapshot_bytes=100, snapshots_per_user=1))
    put(store, DATA)

    with pytest.raises(GschedError) as refused:
        store.put(7, 64 * "0", size_bytes=9, offset=0, data=b"x", now_s=0.0)

    assert refused.value.hint == (
        "wait until jobs with snapshots have ended, or delete some; a snapshot is kept for 600 s "
        "after its last use; [limits] snapshots_per_user"
    )


def test_a_quota_of_a_user_is_not_that_of_another(tmp_path: Path) -> None:
    limits = LimitsConfig(snapshots_per_user=1)
    store = CodeStore(str(tmp_path), limits)
    put_whole(store, 1)

    put_whole(store, 1, uid=8)

    with pytest.raises(QuotaError):
        put_whole(store, 2, uid=8)


def test_an_announced_archive_counts_with_its_whole_size(tmp_path: Path) -> None:
    store = CodeStore(str(tmp_path), LimitsConfig(snapshots_per_user_bytes=15))
    digest, data = archive(1)
    store.put(7, digest, size_bytes=9, offset=0, data=data[:1], now_s=0.0)

    with pytest.raises(QuotaError):
        put_whole(store, 2)
    with pytest.raises(GschedError, match="larger than announced"):
        store.put(7, digest, size_bytes=9, offset=1, data=data, now_s=0.0)
    put_whole(store, 2)


@pytest.mark.root
def test_snapshots_leave_the_last_of_the_disk_alone(tmp_path: Path) -> None:
    """Archives take a tenth of the disk at most."""
    with small_disk(tmp_path / "disk", "100m") as disk:
        store = CodeStore(str(disk / "code"), LimitsConfig(snapshots_per_user_bytes=2**40))
        put_whole(store, 1, size_bytes=5_000_000)
        put_whole(store, 2, size_bytes=5_000_000)
        with pytest.raises(QuotaError, match="of all users"):
            put_whole(store, 3, size_bytes=5_000_000)

        fill(disk)
        with pytest.raises(StorageFullError, match="disk is nearly full"):
            put_whole(store, 4, size_bytes=1000)
