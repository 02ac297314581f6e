"""When a rank has failed the others have the job's grace period to end; and when all are asked to.

Where gsched starts the ranks; torchrun itself gives them 30 s when one has failed.
"""

import os
import pathlib
import signal
import subprocess

import pytest

from tests.support.cluster import wait_until
from tests.support.torch_python import TORCH_START
from tests.support.torchrun import agent_command

pytestmark = [pytest.mark.timeout(300)]

#: Rank 1 fails as soon as rank 0 has its handler, which ends after a while, or never.
RANKS = """
import os, pathlib, signal, sys, time

folder, needed_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])

def save(number, frame):
    (folder / "asked").touch()
    time.sleep(needed_s)
    (folder / "saved").touch()
    sys.exit(0)

if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
    (folder / "ready").touch()
    while True:
        time.sleep(0.1)
while not (folder / "ready").exists():
    time.sleep(0.01)
if sys.argv[3] == "fails":
    sys.exit(3)
time.sleep(1000)
"""


def start(
    folder: pathlib.Path, needed_s: float, grace_s: float, *, elastic: bool, rank_1: str = "fails"
) -> subprocess.Popen[bytes]:
    """Start two ranks, of which one needs so long to end."""
    script = folder / "ranks.py"
    script.write_text(RANKS)
    words = (str(script), str(folder), str(needed_s), rank_1)
    command = agent_command(folder / "failure", *words, ranks=2, grace_s=grace_s)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": TORCH_START}
    if elastic:
        environment["GSCHED_ELASTIC_SOCKET"] = "@nobody"
    return subprocess.Popen(command, env=environment)


def test_a_rank_that_needs_longer_than_the_grace_is_killed(tmp_path: pathlib.Path) -> None:
    """It would have had the time within torchrun's 30 s."""
    with start(tmp_path, 15.0, 0.5, elastic=True) as agent:
        try:
            assert agent.wait(90.0) == 3
        finally:
            agent.kill()

    assert (tmp_path / "asked").exists()
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("elastic", [True, False], ids=["elastic", "torchrun"])
def test_a_rank_has_the_whole_grace_to_save(tmp_path: pathlib.Path, *, elastic: bool) -> None:
    with start(tmp_path, 2.0, 60.0, elastic=elastic) as agent:
        try:
            assert agent.wait(90.0) == 3
        finally:
            agent.kill()

    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("elastic", [True, False], ids=["elastic", "torchrun"])
def test_who_ends_the_job_decides_how_long_its_ranks_have(
    tmp_path: pathlib.Path, *, elastic: bool
) -> None:
    """``gdel -W`` may say more than the job's own grace: the agent kills nobody then."""
    with start(tmp_path, 2.0, 0.5, elastic=elastic, rank_1="sleeps") as agent:
        try:
            wait_until((tmp_path / "ready").exists, 60.0, what="rank 0")
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60.0) == 128 + signal.SIGTERM
        finally:
            agent.kill()

    assert (tmp_path / "saved").exists()
