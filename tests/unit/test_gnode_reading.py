"""Reading output for `gpeek`: whose files gnode opens itself."""

import asyncio
import os
from pathlib import Path

import pytest

from gnode.core.effects import ReadFile
from gnode.daemon.reading import Reader

SECRET = b"only root may read this"


def order(path: Path, uid: int) -> ReadFile:
    return ReadFile(
        request=8,
        path=str(path),
        user="",
        uid=uid,
        gid=uid,
        switch_user=False,
        offset=0,
        max_bytes=100,
    )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that others may not read")
@pytest.mark.parametrize("uid", [-1, 65534])
def test_root_never_reads_output_itself_for_somebody_else(tmp_path: Path, uid: int) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    link = tmp_path / "train.o1"
    link.symlink_to(secret)

    said = asyncio.run(Reader().read(order(link, uid)))

    assert (said.data, said.size_bytes) == (b"", 0)
    assert f"is not read as root for uid {uid}" in said.error


def test_own_output_is_read_without_another_process(tmp_path: Path) -> None:
    path = tmp_path / "train.o1"
    path.write_bytes(b"hello")

    said = asyncio.run(Reader().read(order(path, os.geteuid())))

    assert (said.data, said.error) == (b"hello", "")
