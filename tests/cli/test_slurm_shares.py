"""Projects, shares and QOS in the commands of Slurm, against the fake head."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gsched.protocol.shares import StandingRow
from tests.support.fake_api import NOW_S, FakeApi
from tests.support.in_process import run_here
from tests.support.slurm_commands import row, slurm, slurm_head


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """Return a head with a job in each state; commands find it by the environment."""
    monkeypatch.setenv("GSCHED_HEAD", str(tmp_path / "s"))
    monkeypatch.chdir(tmp_path)
    with slurm_head(tmp_path) as fake:
        yield fake


SHARES = """\
Account                    User  RawShares  NormShares    RawUsage  EffectvUsage  FairShare
-------------------- ---------- ---------- ----------- ----------- ------------- ----------
root                                          0.000000         240      1.000000
 ai                                     40    1.000000         240      1.000000
  ai                      alice         10    0.909091           0      0.000000   1.000000
"""


def test_sshare_prints_the_tree_of_projects_in_columns_of_slurm(fake: FakeApi) -> None:
    """One's own rows without -a, rows of users only with -U, and fields by name."""
    both: Any = {"project": "ai", "depth": 1}
    fake.standings = [
        StandingRow(project="root", usage=240.2, effective_usage=1.0),
        StandingRow(**both, shares=40, norm_shares=1, usage=240, effective_usage=1, level_fs=1.0),
        StandingRow(**both, user="alice", shares=10, norm_shares=10 / 11, fair_share=1.0),
        StandingRow(**both, user="bob", shares=1, norm_shares=1 / 11, usage=240, level_fs=0.1,
                    effective_usage=1, fair_share=0.5),
    ]  # fmt: skip

    shown = slurm("sshare", "-u", "alice").stdout.splitlines()
    assert [line.rstrip() for line in shown] == SHARES.splitlines()
    lines = slurm("sshare", "-hPa", "-A", "ai", "-o", "account,user%5,levelfs").stdout.splitlines()
    assert lines == [" ai||1.000000", "  ai|alice|inf", "  ai|bob|0.100000"]
    assert slurm("sshare", "-U", "-h").stdout == ""
    assert slurm("sshare", "-U", "-n", "-p", "-u", "bob", "-o", "User").stdout == "bob|\n"
    long = slurm("sshare", "-l", "-a", "-P").stdout.splitlines()[0]
    assert long.endswith("FairShare|LevelFS|GrpTRESMins|TRESRunMins")
    refused = slurm("sshare", "-o", "Nothing")
    assert (refused.status, "Invalid field requested" in refused.stderr) == (1, True)


def test_the_qos_of_a_job_is_shown_and_filtered_by(fake: FakeApi) -> None:
    fake.add(row(14, user="ann", qos="urgent", submitted_s=NOW_S))

    assert slurm("squeue", "-h", "-q", "urgent", "-o", "%i %q").stdout == "14 urgent\n"
    assert slurm("squeue", "-h", "-j", "1", "-o", "%q").stdout == "normal\n"
    assert "Account=(null) QOS=urgent" in slurm("scontrol", "show", "job", "14").stdout
    gstat = run_here("gstat", "--format", "{number} {qos}", "14", head=Path("s").absolute())
    assert gstat.stdout == "14 urgent\n"
    assert "14" not in slurm("squeue", "-h", "-q", "normal", "-o", "%i").stdout
