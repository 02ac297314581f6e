"""Generated lists of training jobs, and why guarantees on them were broken."""

import argparse
import json
from pathlib import Path

import pytest
from msgspec import structs

from gsched.config.policies import DeadlineConfig
from gsched.errors import UsageError
from gsched.model.resources import Allocation, Share
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.training import TrainingProfile
from scripts.reproduce.elasticflow_traces import asked_load, read_tables
from scripts.reproduce.guarantees_causes import Watch
from scripts.reproduce.guarantees_lists import draw, pool_of
from scripts.reproduce.guarantees_main import main, variants
from tests.support.training_jobs import NOW_S, elastic, gpu_nodes, profile, snapshot_of

TABLE = """global_batch_size,1,2,4,8
4,1.0,1.8,3.0,4.0
64,0.5,0.9,1.6,2.8
"""
HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with a trace of 60 jobs and a table."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "traces").mkdir()
    (tmp_path / "tables" / "net.csv").write_text(TABLE, encoding="utf-8")
    lines = [
        f"{n},{n * n},100,net,{n * n + 900},{(4, 64)[n % 2]},{1 << n % 4},{600 + n}"
        for n in range(60)
    ]
    text = "\n".join([HEADER, *lines, ""])
    (tmp_path / "traces" / "a.csv").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_list_has_the_load_and_the_slack_that_were_asked_for(data: Path) -> None:
    pool = pool_of([data / "traces" / "a.csv"])
    tables = read_tables(data / "tables")
    first, again, other = (
        draw(pool, tables, seed=seed, jobs=200, gpus=4, load=0.7) for seed in (1, 1, 2)
    )

    assert first == again != other
    assert asked_load(first, 4) == pytest.approx(0.7)
    assert max(row.asked for row in first) == 4
    slacks = [(row.deadline_s - row.submit_s) / row.duration_s for row in first]
    assert 0.5 <= min(slacks) < 0.6
    assert 1.4 < max(slacks) <= 1.5
    for row in first:
        speed = TableSpeed(rates=tables[row.model, row.batch])
        assert row.iterations == pytest.approx(speed.at(row.asked) * row.duration_s)


def test_without_traces_nothing_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no traces"):
        pool_of(list(tmp_path.glob("*.csv")))


def test_each_variant_is_run_on_each_list(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data / "out.json"
    status = main(
        [
            *("--traces", str(data / "traces"), "--throughputs", str(data / "tables")),
            *("--nodes", "1", "--jobs", "20", "--seeds", "1-2", "--json", str(out), "--each"),
            *("--variants", "default,guarantee_below=0"),
        ]
    )

    assert status == 0
    found = json.loads(out.read_text())
    assert [(each["variant"], each["seed"]) for each in found] == [
        *(("default", 1), ("default", 2)),
        *(("guarantee_below=0", 1), ("guarantee_below=0", 2)),
    ]
    assert all(each["given"] == 0 and each["kept"] is None for each in found[2:])
    assert all(each["met"] <= each["possible"] for each in found)
    assert "guarantee_below=0, seed 2" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["hold=3", "hold_s=x", "reserve_share=2", "default,"])
def test_an_unknown_variant_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        variants(text)


def test_the_cause_is_what_the_plan_before_did_or_what_came_in_between() -> None:
    """On one GPU two guaranteed jobs fit; with a third one, due first, the first one does not."""
    speed = TableSpeed(rates=((1, 1.0),))

    def guaranteed(job: int, work: float, due_s: float) -> TrainingProfile:
        return profile(
            job, work=work, deadline_s=due_s, speed=speed, request=elastic(1, 1), guaranteed=True,
            movable=True,
        )  # fmt: skip

    one: Allocation = (Share(node="n1", cpus=1, slots=1, gpu_indices=(0,)),)
    first, second, third = (
        guaranteed(1, 100, 150.0), guaranteed(2, 100, 220.0), guaranteed(3, 50, 60.0)
    )  # fmt: skip
    watch = Watch(DeadlineConfig())
    watch(snapshot_of(gpu_nodes(1), [second], [(first, one)]))
    assert watch.causes == {}
    watch(snapshot_of(gpu_nodes(1), [second, third], [(first, one)]))
    assert watch.causes == {1: "guarantee"}
    gone = structs.replace(second, deadline_s=NOW_S + 20.0)
    watch(snapshot_of(gpu_nodes(1), [gone], [(first, one)]))
    assert watch.causes == {1: "guarantee", 2: "other"}
    assert watch.cause(3) == "run"
