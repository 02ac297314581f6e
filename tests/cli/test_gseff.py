"""gseff: requested beside used, and what to request next time."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gsched.model.ids import element_number
from gsched.model.resources import Usage
from gsched.model.states import ShareClass
from gsched.protocol import job_rows
from gsched.protocol.job_rows import ArrayRow, ShareRow
from tests.support.canned_head import CannedHead, canned_head
from tests.support.fake_api import NOW_S, SERVER, make_row, make_story
from tests.support.in_process import run_here

GB = 2**30
OK = {"kind": "exited", "exit_status": 0, "shell_status": 0, "exit_code": 0}
OOM = {"kind": "oom", "exit_status": -10, "shell_status": 137, "signal": 9}
OVER = {"kind": "walltime", "exit_status": -11, "shell_status": 143, "signal": 15}


def done(
    job: int, *, outcome: "dict[str, object]", usage: Usage, **row: object
) -> job_rows.JobStory:
    shown = make_row(
        job, name="train", state="done", letter="C", outcome=outcome, cpus=8, gpus=1, attempt=1,
        memory_bytes=32 * GB, walltime_s=86400.0, started_s=NOW_S - usage.wall_s, ended_s=NOW_S,
        wall_s=usage.wall_s, reason="", **row,
    )  # fmt: skip
    attempt = job_rows.AttemptRow(attempt=1, state="ended", assigned_s=NOW_S, parts=(), usage=usage)
    return make_story(shown, attempts=(attempt,))


def usage(**changes: object) -> Usage:
    fields: dict[str, object] = {
        "wall_s": 3600.0, "cpu_s": 7200.0, "cpu_peak_cores": 2.8, "memory_peak_bytes": 5 * GB,
        "gpu_util_mean_percent": 87.0, "gpu_memory_peak_bytes": 10 * GB, "samples": 12,
    }  # fmt: skip
    return Usage(**(fields | changes))  # type: ignore[arg-type]  # by name


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    """Return a head with job 17 and two past jobs of its name; one of them failed."""
    with canned_head(tmp_path / "s") as head:
        stories = [
            done(17, outcome=OK, usage=usage()),
            done(16, outcome=OK, usage=usage(wall_s=5000.0, memory_peak_bytes=6 * GB)),
            done(15, outcome=OOM, usage=usage(memory_peak_bytes=31 * GB)),
        ]
        for story in stories:
            head.answers[f"GET /v1/jobs/{story.row.id}"] = story
        head.answers["GET /v1/history"] = job_rows.HistoryReply(
            server=SERVER, now_s=NOW_S, jobs=tuple(story.row for story in stories), total_jobs=3,
            total_cpu_s=0.0, total_wall_s=0.0, total_gpu_s=0.0, total_failed=1,
        )  # fmt: skip
        yield head


def test_what_was_requested_stands_beside_what_was_used(head: CannedHead) -> None:
    ran = run_here("gseff", "17", head=head.path)

    assert ran.stdout.splitlines() == [
        "17.fake (train): finished with exit code 0",
        "                   requested            used   efficiency",
        "    CPUs                   8        2.0 busy         25 %",
        "    Memory              32gb        5gb peak         16 %",
        "    GPUs                   1        0.9 busy         87 %",
        "    GPU memory            --       10gb peak",
        "    Walltime        24:00:00        01:00:00          4 %",
        "    next time: --cpus 3 --mem 7680mb --walltime 01:50:00 (from 2 runs of this name)",
    ]
    assert ran.status == 0


def test_what_is_not_known_has_no_efficiency(head: CannedHead) -> None:
    """A run of milliseconds says nothing of CPUs: their time includes the start of the program."""
    short = usage(wall_s=0.000276, cpu_s=0.001119, cpu_peak_cores=4.05, memory_peak_bytes=0)
    head.answers["GET /v1/jobs/17"] = done(17, outcome=OK, usage=short)
    lines = run_here("gseff", "17", head=head.path).stdout.splitlines()

    assert "    CPUs                   8         -- busy           --" in lines
    assert "    Memory              32gb         -- peak           --" in lines


def test_the_walltime_of_an_array_is_that_of_its_elements(head: CannedHead) -> None:
    """Not of all of them together, from the start of the first to the end of the last."""
    ran = {"state": "done", "outcome": OK, "walltime_s": 300.0}
    rows = [
        make_row(element_number(17, index), name="a", wall_s=wall_s, cpu_s=2.0, **ran)
        for index, wall_s in ((1, 4.0), (2, 6.0), (3, 0.0))
    ]
    array = ArrayRow(indices="1-3", elements=3, succeeded=3)
    story = make_story(make_row(17, name="a", wall_s=93.0, cpu_s=6.0, array=array, **ran))
    head.answers["GET /v1/jobs/17"] = story
    head.answers["GET /v1/jobs"] = job_rows.JobList(server=SERVER, now_s=NOW_S, jobs=tuple(rows))

    lines = run_here("gseff", "17", head=head.path).stdout.splitlines()

    assert lines[0] == "17[].fake (a): finished with exit code 0"
    assert "    Walltime        00:05:00    00:00:06 max          2 %" in lines
    assert "                               00:00:05 mean         of 2" in lines


def test_json_has_the_numbers(head: CannedHead) -> None:
    document = json.loads(run_here("gseff", "17", "99", "--json", head=head.path).stdout)

    (job,) = document["jobs"]
    assert document["schema"] == 1
    assert (job["cpu"], job["gpu"]) == (0.25, 0.87)
    assert job["next"] == {
        "cpus": 3, "memory_bytes": 7680 * 2**20, "walltime_s": 6600.0, "runs": 2, "remarks": [],
    }  # fmt: skip
    assert list(document["errors"]) == ["99"]


@pytest.mark.parametrize(
    ("outcome", "used", "words"),
    [
        (OOM, usage(), ["--mem 48gb", "it was killed for memory"]),
        (
            OVER,
            usage(wall_s=86400.0, cpu_s=1e5),
            ["--walltime 36:00:00", "it exceeded its walltime"],
        ),
        (OK, usage(gpu_util_mean_percent=0.0), ["its GPUs were idle"]),
        (
            OK,
            usage(gpu_util_mean_percent=0.0, gpu_memory_peak_bytes=0),
            [
                "not measured           --",
                "no use of its GPUs was measured: they are only declared",
            ],
        ),
        (OK, usage(samples=0, gpu_util_mean_percent=0.0), ["no use of its GPUs was measured"]),
    ],
)
def test_limits_that_were_hit_and_idle_gpus_are_told(
    head: CannedHead, outcome: "dict[str, object]", used: Usage, words: "list[str]"
) -> None:
    head.answers["GET /v1/jobs/17"] = done(17, outcome=outcome, usage=used)

    ran = run_here("gseff", "17", head=head.path)

    for each in words:
        assert each in ran.stdout


def test_advice_without_a_run_that_succeeded_names_none(head: CannedHead) -> None:
    head.answers["GET /v1/jobs/17"] = done(17, outcome=OVER, usage=usage(wall_s=86400.0))
    history = head.answers["GET /v1/history"]
    assert isinstance(history, job_rows.HistoryReply)
    from msgspec import structs

    head.answers["GET /v1/history"] = structs.replace(history, jobs=())

    ran = run_here("gseff", "17", head=head.path)

    assert "    next time: --walltime 36:00:00\n" in ran.stdout


def test_jobs_of_another_kind_say_nothing(head: CannedHead) -> None:
    """Of two programs with the same name the user tells apart by --kind."""
    story = done(16, outcome=OK, usage=usage(memory_peak_bytes=30 * GB))
    from msgspec import structs

    head.answers["GET /v1/jobs/16"] = structs.replace(story, kind="other")

    assert "--mem 6gb " in run_here("gseff", "17", head=head.path).stdout


def test_a_job_that_runs_gets_no_advice(head: CannedHead) -> None:
    row = make_row(18, state="running", letter="R", started_s=NOW_S - 60, wall_s=60.0, cpu_s=30.0)
    head.answers["GET /v1/jobs/18"] = make_story(row)

    ran = run_here("gseff", "18", head=head.path)

    assert "18.fake (train): running" in ran.stdout
    assert "0.5 busy         50 %" in ran.stdout
    assert "it has not finished" in ran.stdout
    assert "next time" not in ran.stdout


def test_a_job_that_shares_a_gpu_is_measured_against_its_share(head: CannedHead) -> None:
    share = ShareRow(percent=50, memory_bytes=16 * GB, share_class=ShareClass.LOW)
    story = done(17, outcome=OK, usage=usage(gpu_util_mean_percent=40.0))
    row = msgspec.structs.replace(story.row, gpus=0, gpu_share=share)
    head.answers["GET /v1/jobs/17"] = msgspec.structs.replace(story, row=row)
    lines = run_here("gseff", "17", head=head.path).stdout.splitlines()

    assert "    GPU share           50 %        0.4 busy         80 %" in lines
    assert "    GPU memory          16gb       10gb peak         62 %" in lines
