"""Deadlines at the commands: what is sent, what is answered, what lists show."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gsched.model.training import Adaptive, Inference, Training
from gsched.protocol import actions as a
from gsched.protocol import api, job_rows, submissions
from gsched.protocol.stories import JobStories
from tests.support.canned_head import CannedHead, canned_head
from tests.support.commands import Ran, run_at_terminal, run_command

NOW_S = 1_790_000_000.0
UTC = {"TZ": "UTC"}


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    with canned_head(tmp_path / "s") as head:
        answer(head)
        yield head


def answer(head: CannedHead, **result: object) -> None:
    """Let the head answer a submission so."""
    said = submissions.SubmitResult(**({"id": 7} | result))  # type: ignore[arg-type] # as named
    head.answers["POST /v1/jobs"] = submissions.SubmitReply(server="head", results=(said,))


def gsub(head: CannedHead, *arguments: str, **run: object) -> Ran:
    return run_command("gsub", *arguments, head=head.path, **run)  # type: ignore[arg-type] # passed on


def row(number: int, **changes: object) -> job_rows.JobRow:
    """Return a training that runs."""
    fields: dict[str, object] = {
        "id": number, "name": f"t{number}", "user": "alice", "queue": "batch",
        "state": "running", "letter": "R", "submitted_s": NOW_S, "cpus": 1, "places": 1,
        "gpus": 2, "started_s": NOW_S, "nodes": ("n1",),
    }  # fmt: skip
    return msgspec.convert(fields | changes, job_rows.JobRow)


def list_jobs(head: CannedHead, *rows: job_rows.JobRow) -> None:
    head.answers["GET /v1/jobs"] = job_rows.JobList(server="head", now_s=NOW_S, jobs=rows)


def test_all_that_is_said_of_a_training_is_sent(head: CannedHead) -> None:
    ran = gsub(
        head, "--deadline", "8h", "--gpus", "1..8", "--cpus", "2", "--elastic", "--params", "138M",
        "--samples", "50000", "--batch", "16", "--epochs", "30", "--step-time", "35ms",
        "--reject-if-late", "--", "true",
    )  # fmt: skip

    assert (ran.status, ran.stdout) == (0, "7.head\n")
    (job,) = head.bodies(submissions.SubmitRequest)[0].jobs
    assert job.resources == ("select=1:ncpus=2:ngpus=1",)
    assert (job.places_max, job.movable, job.reject_if_late) == (8, True, True)
    assert not job.profile
    assert (job.deadline_s, job.deadline_after_s, job.urgency) == (0.0, 28800.0, "")
    assert job.training == Training(
        parameters=138e6, samples=5e4, batch=16.0, epochs=30.0, step_time_s=0.035
    )


def test_an_adaptive_training_is_elastic_and_has_its_own_batch(head: CannedHead) -> None:
    ran = gsub(
        head, "--adaptive", "--batch", "128", "--batch-max", "4k", "--gpus", "1..16",
        "--gpu-types", "a100,t4", "--batch-per-gpu-max", "64", "--replica-gpus", "t4=8,a100=2",
        "--", "true",
    )  # fmt: skip

    assert (ran.status, ran.stderr) == (0, ""), ran
    (job,) = head.bodies(submissions.SubmitRequest)[0].jobs
    assert (job.movable, job.places_max, job.training) == (True, 16, None)
    assert job.adaptive == Adaptive(
        batch=128,
        batch_max=4000,
        batch_per_gpu_max=64,
        gpu_types=("a100", "t4"),
        replica_gpus=(("a100", 2), ("t4", 8)),
    )


def test_an_inference_job_says_what_its_answers_are_worth(head: CannedHead) -> None:
    ran = gsub(
        head, "--adaptive", "--inference", "--batch", "8", "--batch-max", "256", "--gpus", "1..8",
        "--latency", "50ms", "--requests", "1.5k", "--non-preemptible", "--", "true",
    )  # fmt: skip

    assert (ran.status, ran.stderr) == (0, ""), ran
    (job,) = head.bodies(submissions.SubmitRequest)[0].jobs
    assert job.adaptive is not None
    assert job.adaptive.inference == Inference(latency_s=0.05, requests_per_s=1500.0)
    assert not job.adaptive.preemptible


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--inference --gpus 1..4", "--inference is for adaptive training jobs"),
        ("--adaptive --batch 8 --gpus 1..4 --latency 5ms", "--latency is for inference jobs"),
        ("--adaptive --batch 8 --gpus 1..4 --requests 9", "--requests is for inference jobs"),
        (
            "--adaptive --batch 8 --gpus 1..4 --inference --scaling strong",
            "--inference and --scaling strong are mutually exclusive",
        ),
        ("--adaptive --batch 8 --gpus 1..4 --inference --latency x", "--latency: invalid time 'x'"),
        (
            "--adaptive --batch 8 --gpus 1..4 --inference --requests 0",
            "--requests: number must be greater than",
        ),
        ("--batch-max 64 --gpus 1..4", "--batch-max is for adaptive training jobs"),
        ("--non-preemptible --gpus 1..4", "--non-preemptible is for adaptive training jobs"),
        ("--adaptive --gpus 1..4", "--adaptive needs the batch size for which the job was tuned"),
        ("--adaptive --batch 8", "--adaptive needs a range of GPUs, not --gpus 0"),
        ("--adaptive --batch 8 --gpus 2", "--adaptive needs a range of GPUs, not --gpus 2"),
        (
            "--adaptive --batch 128 --batch-max 64 --gpus 1..4",
            "--batch-max 64 is smaller than --batch 128",
        ),
        ("--adaptive --batch 1.5 --gpus 1..4", "--batch: 1.5 is not a number of samples"),
        ("--adaptive --batch 8 --gpus 1..4 --gpu-types t4,,x", "--gpu-types: 't4,,x' is not"),
        ("--adaptive --batch 8 --gpus 1..4 --replica-gpus t4", "--replica-gpus: 't4' is not"),
        (
            "--adaptive --batch 8 --batch-max 9 --gpus 1..4 --scaling strong",
            "--batch-max and --scaling strong are mutually exclusive",
        ),
        (
            "--adaptive --batch 8 --gpus 1..4 --checkpoint-signal USR1",
            "--adaptive and --checkpoint-signal are mutually exclusive",
        ),
    ],
)
def test_what_contradicts_itself_in_an_adaptive_training_is_refused(
    head: CannedHead, arguments: str, message: str
) -> None:
    ran = gsub(head, *arguments.split(), "--", "true")

    assert ran.status == 2
    assert ran.stderr.startswith(f"gsub: {message}")
    assert ran.stderr.splitlines()[1].startswith("      hint: ")
    assert head.bodies(submissions.SubmitRequest) == []


def test_directives_say_the_same(head: CannedHead, tmp_path: Path) -> None:
    """Of either name; a file that they name is looked for where the job is submitted."""
    (tmp_path / "size.toml").write_text("[training]\niterations = 10\nrates = { 1 = 2.5 }\n")
    (tmp_path / "job.sh").write_text(
        "#PBS --urgency relaxed --gpus 2..4\n"
        "#GSCHED --training size.toml --elastic --profile\ndate\n"
    )
    ran = gsub(head, "job.sh", cwd=tmp_path)

    assert ran.status == 0, ran
    (job,) = head.bodies(submissions.SubmitRequest)[0].jobs
    assert (job.urgency, job.places_max, job.movable) == ("relaxed", 4, True)
    assert job.profile
    assert job.training == Training(iterations=10.0, rates=((1, 2.5),))


def test_the_id_alone_is_on_stdout_and_the_plan_on_stderr(head: CannedHead) -> None:
    answer(
        head,
        deadline_s=4e9 + 3600,
        planned_gpus=4,
        predicted_end_s=4e9,
        meets_deadline=True,
        warnings=("first this",),
    )
    ran = gsub(head, "--deadline", "@4000003600", "--", "true", env=UTC)

    assert (ran.status, ran.stdout) == (0, "7.head\n")
    assert ran.stderr.splitlines() == [
        "gsub: warning: first this",
        (
            "gsub: planned on 4 GPUs, expected to finish at 2096-10-02 07:06:40; "
            "the deadline 2096-10-02 08:06:40 is expected to be met with 01:00:00 to spare"
        ),
    ]


def test_a_late_job_is_called_late(head: CannedHead) -> None:
    answer(head, deadline_s=4e9, meets_deadline=False, late_reason="jobs ahead of it in the queue")
    ran = gsub(head, "--deadline", "8h", "--", "true", env=UTC)

    assert (ran.status, ran.stdout) == (0, "7.head\n")
    assert ran.stderr == (
        "gsub: LATE: the deadline 2096-10-02 07:06:40 will be missed: "
        "jobs ahead of it in the queue\n"
    )


def test_a_dry_run_names_what_is_short_in_local_time(head: CannedHead) -> None:
    short = "1 CPU short until 2096-10-02 07:06:40 UTC"
    late = {"deadline_s": 3.9e9, "meets_deadline": False, "late_reason": short}
    answer(head, start=job_rows.StartRow(unknown=short), **late)
    ran = gsub(head, "--dry-run", "--deadline", "8h", "--", "true", env={"TZ": "Etc/GMT-2"})

    told = ran.stdout.splitlines()
    assert "expected start: cannot be predicted: 1 CPU short until 2096-10-02 09:06:40" in told
    assert told[-1].endswith("will be missed: 1 CPU short until 2096-10-02 09:06:40")


def test_json_has_the_plan_and_stderr_nothing(head: CannedHead) -> None:
    answer(head, deadline_s=4e9, planned_gpus=2, predicted_end_s=3.9e9, meets_deadline=True)
    ran = gsub(head, "--json", "--deadline", "8h", "--", "true")

    document = json.loads(ran.stdout)
    assert ran.stderr == ""
    assert (document["job_id"], document["deadline_s"], document["planned_gpus"]) == (
        "7.head",
        4e9,
        2,
    )
    assert (document["predicted_end_s"], document["meets_deadline"]) == (3.9e9, True)


def test_a_job_without_a_deadline_has_no_plan(head: CannedHead) -> None:
    ran = gsub(head, "--", "true")

    assert (ran.stdout, ran.stderr) == ("7.head\n", "")


def test_a_dry_run_shows_the_plan(head: CannedHead) -> None:
    answer(head, id=0, deadline_s=4e9, planned_gpus=1, predicted_end_s=3.9e9, meets_deadline=True)
    ran = gsub(head, "--test-only", "--deadline", "8h", "--", "true", env=UTC)

    assert "plan: planned on 1 GPU, expected to finish at 2093-08-01 21:20:00" in ran.stdout
    assert head.bodies(submissions.SubmitRequest)[0].dry_run


def test_a_refusal_keeps_its_code_and_prints_no_id(head: CannedHead) -> None:
    error = api.ErrorBody(code="invalid_request", message="would miss its deadline", hint="later")
    answer(head, id=0, error=error)
    ran = gsub(head, "--reject-if-late", "--deadline", "8h", "--", "true")

    assert (ran.status, ran.stdout) == (156, "")
    assert "gsub: would miss its deadline" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--deadline", "yesterday"], 2, "--deadline: invalid time 'yesterday'"),
        (["--deadline", "2020-01-01 00:00"], 2, "is in the past"),
        (["--deadline", "08:00"], 2, "is a time of day or a duration"),
        (["--urgency", "soon"], 2, "'--urgency'"),
        (["--deadline", "8h", "--urgency", "urgent"], 2, "are mutually exclusive"),
        (["--gpus", "8..1"], 2, "'8..1' is not a valid range of GPUs"),
        (["--gpus", "some"], 2, "'some' is not a number of GPUs or a range"),
        (["--gpus", "-1"], 2, "'-1' is not a number of GPUs or a range"),
        (["--gpus", "1..4", "--nodes", "2"], 2, "--gpus 1..4 and --nodes are mutually"),
        (["--params", "138X"], 2, "--params: invalid number '138X'"),
        (
            ["--batch", "0"],
            2,
            "--batch: number must be greater than zero and at most 1e+18, got '0'",
        ),
        (["--step-time", "35 parsecs"], 2, "--step-time: invalid time '35 parsecs'"),
        (["--training", "no.toml"], 66, "--training: no.toml: No such file or directory"),
        (["--training", "bad.toml"], 65, "unknown key 'sampels' in [training]"),
    ],
)
def test_what_is_wrong_is_said_before_the_head_is_asked(
    head: CannedHead, tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    (tmp_path / "bad.toml").write_text("[training]\nsampels = 5\n")
    ran = gsub(head, *arguments, "--", "true", cwd=tmp_path)

    assert (ran.status, ran.stdout) == (status, ""), ran
    assert ran.stderr.startswith("gsub: ")
    assert words in ran.stderr
    assert "hint: " in ran.stderr
    assert head.asked == []


def test_a_wrong_directive_is_named_by_its_line(head: CannedHead, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#GSCHED --deadline never\ndate\n")
    ran = gsub(head, "job.sh", cwd=tmp_path)

    assert ran.status == 65
    assert ran.stderr.startswith("gsub: job.sh:2: --deadline: invalid time 'never'")


DEADLINES = (
    row(
        1,
        deadline_s=NOW_S + 7200,
        predicted_end_s=NOW_S + 3600,
        slack_s=3600.0,
        meets_deadline=True,
    ),
    row(
        2,
        deadline_s=NOW_S + 60,
        predicted_end_s=NOW_S + 660,
        slack_s=-600.0,
        meets_deadline=False,
    ),
    row(3),
)


def test_a_list_in_a_pipe_has_deadlines_behind_all_else(head: CannedHead) -> None:
    """So what programs cut out by its number stays where it is."""
    list_jobs(head, *DEADLINES)
    lines = run_command("gstat", head=head.path, env=UTC).stdout.splitlines()

    cells = [line.split("\t") for line in lines]
    assert cells[0][11:] == ["Reason", "Deadline", "Ends by", "Slack", "Late"]
    assert cells[1][12:] == ["16:13:20", "15:13:20", "01:00:00", "-"]
    assert cells[2][12:] == ["14:14:20", "14:24:20", "-00:10:00", "late"]
    assert cells[3][12:] == ["-", "-", "-", "-"]


def test_a_list_without_deadlines_is_as_it_was(head: CannedHead) -> None:
    list_jobs(head, row(3))
    first = run_command("gstat", head=head.path).stdout.splitlines()[0]

    assert first.split("\t")[-1] == "Reason"


def test_slack_has_no_column_at_a_terminal_while_none_is_known(head: CannedHead) -> None:
    list_jobs(head, row(1, deadline_s=NOW_S + 7200), row(3))
    title = run_at_terminal("gstat", "--color", "never", typed="", head=head.path).stdout

    assert "Deadline" in title
    assert "Slack" not in title


def test_a_terminal_marks_what_will_be_late_with_a_word(head: CannedHead) -> None:
    list_jobs(head, *DEADLINES)
    shown = run_at_terminal("gstat", "--color", "never", typed="", head=head.path).stdout

    assert max(map(len, shown.splitlines())) <= 100
    assert shown.count("LATE") == 1
    (late,) = (line for line in shown.splitlines() if "LATE" in line)
    assert late.startswith("2 ")
    assert "LATE -00:10:00" in late


def test_json_has_every_field(head: CannedHead) -> None:
    list_jobs(head, *DEADLINES)
    jobs = json.loads(run_command("gstat", "--json", head=head.path).stdout)["jobs"]

    assert [job["slack_s"] for job in jobs] == [3600.0, -600.0, None]
    assert [job["meets_deadline"] for job in jobs] == [True, False, None]
    assert jobs[2]["deadline_s"] is None


def test_the_whole_story_tells_deadline_slack_and_why_it_is_late(head: CannedHead) -> None:
    story = job_rows.JobStory(
        server="head", now_s=NOW_S, row=DEADLINES[1], attempts=(), events=(), workdir="/",
        resources="select=1:ncpus=1:ngpus=1", stdout_path="", stderr_path="", join="n",
        launch="torchrun", rerunnable=True, grace_s=30.0, urgency="urgent", movable=True,
        guaranteed=True, late_reason="it takes longer than planned", startup_s=23.46,
        training=Training(iterations=10.0, rates=((1, 2.5), (2, 5.0))),
    )  # fmt: skip
    head.answers["GET /v1/stories"] = JobStories(server="head", now_s=NOW_S, jobs=(story,))
    told = run_command("gstat", "-f", "2", head=head.path, env=UTC).stdout

    for line in (
        "deadline = Mon Sep 21 14:14:20 2026 (urgent)",
        "predicted_startup = 23.5 s from start to first step",
        "predicted_end = Mon Sep 21 14:24:20 2026",
        "deadline_slack = -00:10:00",
        "deadline_met = False (predicted): it takes longer than planned",
        "deadline_guaranteed = True",
        "training = iterations=10,rates=1:2.5/2:5",
        "movable = True",
    ):
        assert f"    {line}\n" in told


def test_what_an_adaptive_job_lacks_is_told_with_its_story_and_its_reasons(
    head: CannedHead,
) -> None:
    story = job_rows.JobStory(
        server="head", now_s=NOW_S, row=DEADLINES[1], attempts=(), events=(), workdir="/",
        resources="select=1:ncpus=1:ngpus=1", stdout_path="", stderr_path="", join="n",
        launch="torchrun", rerunnable=True, grace_s=30.0, movable=True,
        adaptive=Adaptive(batch=128, batch_max=4096), advice="submit it with --batch 64",
    )  # fmt: skip
    head.answers["GET /v1/stories"] = JobStories(server="head", now_s=NOW_S, jobs=(story,))

    told = run_command("gstat", "-f", "2", head=head.path, env=UTC).stdout
    assert "    adaptive = batch 128 to 4096\n    advice = submit it with --batch 64\n" in told
    why = run_command("gstat", "--why", "2", head=head.path, env=UTC).stdout
    assert "    submit it with --batch 64\n" in why


def test_the_history_says_whether_deadlines_were_met(head: CannedHead) -> None:
    done = {"state": "done", "letter": "C"}
    ok = job_rows.OutcomeRow(kind="exited", exit_status=0, shell_status=0, exit_code=0)
    failed = job_rows.OutcomeRow(kind="exited", exit_status=3, shell_status=3, exit_code=3)
    deleted = job_rows.OutcomeRow(kind="cancelled", exit_status=271, shell_status=143, signal=15)
    rows = tuple(
        row(
            number,
            **done,
            ended_s=NOW_S + 100 - slack_s,
            deadline_s=NOW_S + 100,
            slack_s=slack_s,
            meets_deadline=met,
            outcome=outcome,
        )
        for number, slack_s, met, outcome in (
            (1, 60.0, True, ok),
            (2, -60.0, False, ok),
            (3, 60.0, False, failed),
            (5, 60.0, False, deleted),
        )
    )
    head.answers["GET /v1/history"] = job_rows.HistoryReply(
        server="head", now_s=NOW_S, jobs=(*rows, row(4, **done, outcome=ok)), total_jobs=4,
        total_cpu_s=0.0, total_wall_s=0.0, total_gpu_s=0.0, total_failed=1,
    )  # fmt: skip
    lines = run_command("ghist", head=head.path, env=UTC).stdout.splitlines()

    cells = [line.split("\t")[-2:] for line in lines]
    assert cells == [
        ["Deadline", "Met"],
        ["14:15:00", "met, 00:01:00 left"],
        ["14:15:00", "missed by 00:01:00"],
        ["14:15:00", "missed (job failed)"],
        ["14:15:00", "n/a (cancelled)"],
        ["-", "-"],
    ]


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--deadline", "8h"], "deadline_after_s", 28800.0),
        (["--deadline", "@4000000000"], "deadline_s", 4e9),
        (["--deadline", "none"], "deadline_s", 0.0),
        (["--urgency", "urgent"], "urgency", "urgent"),
    ],
)
def test_galter_moves_a_deadline_or_takes_it_away(
    head: CannedHead, arguments: list[str], field: str, value: object
) -> None:
    head.answers["POST /v1/jobs/actions"] = api.ActionReply(
        results=(api.ActionResult(id="7", text="altered"),)
    )
    ran = run_command("galter", *arguments, "7", head=head.path)

    assert ran.status == 0, ran
    (asked,) = head.bodies(a.AlterJob)
    assert asked.alteration == a.Alteration(**{field: value})  # type: ignore[arg-type] # as named


def test_galter_refuses_both(head: CannedHead) -> None:
    ran = run_command("galter", "--deadline", "8h", "--urgency", "urgent", "7", head=head.path)

    assert (ran.status, head.asked) == (2, [])
    assert "are mutually exclusive" in ran.stderr
