"""Files of users, as their owners' processes write them."""

import asyncio
import os
import pwd
from pathlib import Path

import pytest

from gnode.daemon.owner_tree import pack
from gsched.owner_files import OwnerFiles
from gsched.protocol.deliveries import FileDone, FileOrder

FILES = 400


@pytest.mark.timeout(300)  # 8,000 files that are made durable: a busy disk takes minutes
def test_a_batch_that_comes_again_waits_for_the_first(tmp_path: Path) -> None:
    """As after a restart of the head: two processes at once would take each other's files away."""
    entries = [pack({"name": "", "kind": "directory"})]
    entries += [
        pack({"name": f"{number}", "kind": "file", "mode": 0o644}, b"x" * number)
        for number in range(FILES)
    ]
    order = FileOrder(
        request=1,
        user=pwd.getpwuid(os.getuid()).pw_name,
        uid=os.getuid(),
        gid=os.getgid(),
        path=str(tmp_path / "results"),
        name="",
        writes=True,
        kind="batch",
        data=b"".join(entries),
        last=True,
        temporary="1.1.0",
    )

    async def several() -> list[FileDone]:
        files = OwnerFiles(allow_root=True, uid_min=0)
        done = []
        for _ in range(5):  # from the second time on the processes are there
            done += await asyncio.gather(*(files.do(order) for _ in range(4)))
        return done

    done = asyncio.run(several())

    assert [(each.error, each.taken) for each in done] == [("", FILES + 1)] * 20
    assert sorted(os.listdir(tmp_path / "results")) == sorted(str(each) for each in range(FILES))
    assert (tmp_path / "results" / "399").read_bytes() == b"x" * 399
