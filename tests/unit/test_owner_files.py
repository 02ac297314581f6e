"""Files of users, as their owners' processes write them."""

import asyncio
import os
import pwd
from pathlib import Path

import pytest
from msgspec import structs

from gnode.daemon.owner_tree import pack, unpack
from gsched.owner_files import OwnerFiles
from gsched.protocol.deliveries import FileDone, FileOrder

FILES = 400


@pytest.mark.timeout(300)  # 7,000 files that are made durable: a busy disk takes minutes
@pytest.mark.parametrize("is_regrouped", [False, True])
def test_a_batch_that_comes_again_waits_for_the_first(
    tmp_path: Path, *, is_regrouped: bool
) -> None:
    """As after a restart of the head: two processes at once would take each other's files away.

    It may come with other files than before.
    """
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
    fewer = structs.replace(order, data=b"".join(entries[: 1 + FILES // 2]))
    orders = [order, fewer] if is_regrouped else [order, order]

    async def several() -> list[FileDone]:
        files = OwnerFiles(allow_root=True, uid_min=0)
        done = []
        for _ in range(3):  # from the second time on the processes are there
            done += await asyncio.gather(*(files.do(each) for each in orders * 2))
        return done

    done = asyncio.run(several())

    counts = [len(list(unpack(each.data))) for each in orders]
    assert [(each.error, each.taken) for each in done] == [("", count) for count in counts * 6]
    assert sorted(os.listdir(tmp_path / "results")) == sorted(str(each) for each in range(FILES))
    assert (tmp_path / "results" / "399").read_bytes() == b"x" * 399
