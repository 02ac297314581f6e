"""``gsim replay``: the past of a real head, under a policy, while it runs and after."""

import csv
from pathlib import Path

import msgspec
import pytest

from gsched.protocol.submissions import SubmitJob
from gschedd.sim import cli
from gschedd.sim.output import SimReport
from tests.support.cluster import Cluster


def command(script: str, **changes: object) -> SubmitJob:
    """Return a job that runs a line of shell."""
    return SubmitJob(
        key="",
        name=str(changes.pop("name", "job")),
        workdir="/tmp",
        stdout_path="/dev/null",
        stderr_path="/dev/null",
        launch="command",
        arguments=("/bin/sh", "-c", script),
        **changes,  # type: ignore[arg-type] # fields of the job
    )


@pytest.fixture
def past(cluster: Cluster) -> Cluster:
    """Return a cluster of one node that has run three jobs, and dropped one that never ran."""
    cluster.start_head()
    cluster.start_node("n1")
    jobs = [
        command("exit 0", name="quick"),
        command("sleep 1.5", name="slow", resources=("ncpus=1,walltime=60",)),
        command("exit 3", name="bad", resources=("ncpus=1",)),
        command("exit 0", name="held", holds=("user",)),
    ]
    reply = cluster.head.submit(jobs)
    ids = [result.id for result in reply.results]
    cluster.head.wait(ids[:3], timeout_s=30)
    return cluster


def replay(cluster: Cluster, out: Path, *more: str) -> tuple[SimReport, list[dict[str, str]]]:
    """Replay all that the head knows; return the report and the lines of the jobs."""
    out.mkdir()
    status = cli.status_of(
        [
            *("replay", "--since", "1h", "--state-dir", str(cluster.state_dir), "--policy", "fifo"),
            *("--csv", str(out), "--json-file", str(out / "report.json"), *more),
        ]
    )
    assert status == 0
    report = msgspec.json.decode((out / "report.json").read_bytes(), type=SimReport)
    with (out / "results-fifo.csv").open(encoding="utf-8", newline="") as file:
        return report, list(csv.DictReader(file))


def test_a_site_replays_its_own_past(
    past: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On its own nodes: the jobs that ran, as long as they ran, with their outcomes."""
    report, rows = replay(past, tmp_path / "own")

    assert report.nodes == 1
    by_name = {row["name"]: row for row in rows}
    assert set(by_name) == {"quick", "slow", "bad"}
    assert 1.4 <= float(by_name["slow"]["run_s"]) < 30, "it slept for 1.5 s, by another clock"
    assert (by_name["bad"]["outcome"], by_name["bad"]["exit_code"]) == ("exited", "3")
    assert {row["nodes"] for row in rows} == {"n1"}
    assert "jobs done" in capsys.readouterr().out


def test_the_past_can_be_tried_on_another_cluster(past: Cluster, tmp_path: Path) -> None:
    """Of one CPU: then the jobs wait for each other."""
    report, rows = replay(past, tmp_path / "other", "--cluster", "cpus=1")

    slow = next(row for row in rows if row["name"] == "slow")
    assert {row["nodes"] for row in rows} == {"n1"}
    assert report.results[0].waiting_s.maximum > 0
    bad = next(row for row in rows if row["name"] == "bad")
    assert float(bad["start_s"]) >= float(slow["end_s"])


def test_a_past_that_is_not_there_is_named(
    past: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No database, two of them, or nothing of that time."""
    common = ("--policy", "fifo", "--since")

    assert cli.status_of(["replay", *common, "1h", "--state-dir", str(tmp_path)]) == 2
    assert "no database" in capsys.readouterr().err
    both = ("--state-dir", str(past.state_dir), "--database", "x.db")
    assert cli.status_of(["replay", *common, "1h", *both]) == 2
    assert "say the same" in capsys.readouterr().err
    until = ("--state-dir", str(past.state_dir), "--until", "2d")
    assert cli.status_of(["replay", *common, "3d", *until]) == 2
    assert "holds no job of that time" in capsys.readouterr().err


def test_the_site_s_own_database_and_policy_are_found_as_commands_find_the_head(
    past: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a cluster of gsched up: the configuration is beside the socket."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "gsched.toml").write_text(
        f'[head]\nstate_dir = "{past.state_dir}"\n[[queue]]\nname = "batch"\npolicy = "fifo"\n'
    )
    monkeypatch.setenv("GSCHED_HEAD", str(site / "head.sock"))

    assert cli.status_of(["replay", "--since", "1h", "--json"]) == 0

    report = msgspec.json.decode(capsys.readouterr().out)
    assert report["schema"] == 1
    assert [each["policy"] for each in report["results"]] == ["fifo"]
    assert report["cluster"] == str(past.state_dir / "gsched.db")
