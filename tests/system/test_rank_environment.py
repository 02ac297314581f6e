"""Ranks that the agent starts itself are told what torchrun would tell them."""

import json
import os
import pathlib
import subprocess

import pytest

from tests.support.torchrun import agent_command

RANK = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump(dict(os.environ), file)
"""
#: Each start has others: a port, a file for errors. The store is rank 0's own, without torchrun.
DIFFERENT = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
SOCKET = "GSCHED_ELASTIC_SOCKET"


def environments(folder: pathlib.Path, *, elastic: bool) -> list[dict[str, str]]:
    """Return what two ranks on one node find in their environments."""
    folder.mkdir()
    script = folder / "rank.py"
    script.write_text(RANK)
    command = agent_command(folder / "failure", str(script), str(folder), ranks=2)
    names = {"PATH": os.environ["PATH"], **({SOCKET: "@nobody"} if elastic else {})}
    subprocess.run(command, env=names, check=True, timeout=120)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.mark.timeout(300)
def test_ranks_find_what_torchrun_gives_them(tmp_path: pathlib.Path) -> None:
    """The same names, and of all that does not differ by nature the same values."""
    ours = environments(tmp_path / "ours", elastic=True)
    theirs = environments(tmp_path / "theirs", elastic=False)

    assert ours[0]["TORCHELASTIC_USE_AGENT_STORE"] != theirs[0]["TORCHELASTIC_USE_AGENT_STORE"]
    for mine, torchrun_s in zip(ours, theirs, strict=True):
        assert mine.pop(SOCKET) == "@nobody"
        assert mine.pop("GSCHED_GATE") == "open"  # ours could have been prepared
        assert mine.keys() == torchrun_s.keys()
        for name in mine.keys() - DIFFERENT:
            assert mine[name] == torchrun_s[name], name
