"""Reading output for `gpeek`: whose files gnode opens itself."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from gnode.core.effects import ReadFile
from gnode.daemon.reading import READERS_MAX, READERS_OF_USER, OutputReader
from gnode.hw.cgroups import cpu_s, find_roots, remove_if_empty

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
    """T59."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    link = tmp_path / "train.o1"
    link.symlink_to(secret)

    said = asyncio.run(OutputReader().read(order(link, uid)))

    assert (said.data, said.size_bytes) == (b"", 0)
    assert f"is not read as root for uid {uid}" in said.error


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads for other users")
def test_a_reader_is_in_the_control_group_of_the_attempt(tmp_path: Path) -> None:
    """So it is limited, accounted and killed with it; of one that has ended there is no group."""
    roots = find_roots("auto", str(tmp_path))
    if roots.tracking is None:
        pytest.skip("no version 2 control groups here")
    group = Path(roots.tracking, "1.1")
    group.mkdir()
    try:
        path = Path("/etc/passwd")
        asked = structs.replace(
            order(path, 65534), user="nobody", switch_user=True, cgroup=str(group)
        )
        said = asyncio.run(OutputReader().read(asked))
        used_s = cpu_s(str(group))
        gone = structs.replace(asked, cgroup=f"{group}-gone")
        again = asyncio.run(OutputReader().read(gone))
    finally:
        group.rmdir()
        remove_if_empty(roots)

    assert (said.data, said.error) == (path.read_bytes()[:100], "")
    assert used_s
    assert again.data == said.data


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads for other users")
def test_a_user_who_stops_readers_keeps_nobody_else_from_reading() -> None:
    """They are the owner's processes: the owner may send them any signal."""
    path = Path("/etc/passwd")

    async def run() -> tuple[int, str]:
        reader = OutputReader()
        mean = structs.replace(order(path, 65534), user="nobody", switch_user=True)
        asked = [
            asyncio.create_task(reader.read(structs.replace(mean, cgroup=f"/no/such/{number}")))
            for number in range(READERS_MAX + 4)
        ]
        most, looks = 0, 0
        while looks < 50:  # since as many as may be there are stopped: more would show up
            theirs = []
            for each in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if each.uids().real == mean.uid and each.status() != psutil.STATUS_ZOMBIE:
                        each.send_signal(signal.SIGSTOP)
                        theirs.append(each)
            most = max(most, len(theirs))
            looks += most >= READERS_OF_USER
            await asyncio.sleep(0.001)
        other = structs.replace(order(path, 1), user="daemon", switch_user=True)
        async with asyncio.timeout(8.0):
            said = await reader.read(other)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for _ in range(500):  # they have been killed: until the event loop has noticed
            await asyncio.sleep(0.01)
            if not psutil.Process().children():
                break
        await asyncio.sleep(0.1)
        return most, said.error

    most, error = asyncio.run(run())

    assert (most, error) == (READERS_OF_USER, "")


def test_own_output_is_read_without_another_process(tmp_path: Path) -> None:
    path = tmp_path / "train.o1"
    path.write_bytes(b"hello")

    said = asyncio.run(OutputReader().read(order(path, os.geteuid())))

    assert (said.data, said.error) == (b"hello", "")
