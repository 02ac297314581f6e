"""gdel, ghold, grls, gsig, grerun and galter: what they ask the head, and what they say."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.protocol import actions as a
from gsched.protocol.api import ActionReply, ActionResult, ErrorBody
from gsched.protocol.job_rows import JobList, JobRow
from tests.support.canned_head import CannedHead, canned_head
from tests.support.commands import run_at_terminal, run_command
from tests.support.fake_api import FakeApi, make_row, serve

ACTIONS = "POST /v1/jobs/actions"
UNKNOWN = ErrorBody(code="unknown_job", message="Unknown Job Id 999.head", hint="see gstat")
BAD_STATE = ErrorBody(code="bad_state", message="job 3.head has ended")


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    """Return a head that agrees to everything about job 17."""
    with canned_head(tmp_path / "s") as head:
        head.answers[ACTIONS] = ActionReply(results=(ActionResult(id="17", text="done"),))
        yield head


def answer(head: CannedHead, *results: ActionResult) -> None:
    """Make the head say these results."""
    head.answers[ACTIONS] = ActionReply(results=results)


@pytest.mark.parametrize(
    ("command", "arguments", "request_"),
    [
        ("gdel", ["17"], a.DeleteJob(ids=("17",))),
        (
            "gdel",
            ["17.head", "-W", "300", "18", "-m", "wrong data"],
            a.DeleteJob(ids=("17.head", "18"), grace_s=300.0, message="wrong data"),
        ),
        ("gdel", ["ALL"], a.DeleteJob(ids=("all",))),
        ("ghold", ["17"], a.HoldJob(ids=("17",), holds=("user",))),
        ("ghold", ["-h", "os", "17"], a.HoldJob(ids=("17",), holds=("operator", "system"))),
        ("ghold", ["-hu", "17"], a.HoldJob(ids=("17",), holds=("user",))),
        ("grls", ["-h", "o", "17"], a.ReleaseJob(ids=("17",), holds=("operator",))),
        ("gsig", ["17"], a.SignalJob(ids=("17",), signal=15)),
        ("gsig", ["-s", "SIGUSR1", "17"], a.SignalJob(ids=("17",), signal=10)),
        ("gsig", ["-sKILL", "-a", "17"], a.SignalJob(ids=("17",), signal=9)),
        ("gsig", ["-s", "suspend", "17"], a.SignalJob(ids=("17",), signal=19)),
        ("grerun", ["-f", "17"], a.RerunJob(ids=("17",), force=True)),
        (
            "galter",
            ["-p", "-100", "-l", "walltime=+1:00:00", "-l", "mem=4gb", "17"],
            a.AlterJob(
                ids=("17",),
                alteration=a.Alteration(
                    priority=-100, resources=("walltime=+1:00:00", "mem=4gb")
                ),
            ),
        ),
        (
            "galter",
            ["17", "-h", "n", "-r", "n", "-o", "/x/out", "--dry-run"],
            a.AlterJob(
                ids=("17",),
                alteration=a.Alteration(holds=(), rerunnable=False, stdout_path="/x/out"),
                dry_run=True,
            ),
        ),
    ],
)  # fmt: skip
def test_a_command_asks_the_head_for_what_its_options_say(
    head: CannedHead, command: str, arguments: list[str], request_: a.AnyJobAction
) -> None:
    """And says nothing itself when all went well, as POSIX has it; a dry run says what it found."""
    ran = run_command(command, *arguments, head=head.path)

    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout == ("17: done\n" if "--dry-run" in arguments else "")
    assert head.bodies(a.JOB_ACTION) == [request_]


@pytest.mark.parametrize(
    ("arguments", "held_is"),
    [(["gsig", "-s", "NULL"], 170), (["ghold", "-h", "n"], 0), (["grls", "-h", "n"], 0)],
)
def test_the_null_signal_and_no_hold_only_look(
    head: CannedHead, arguments: list[str], held_is: int
) -> None:
    """Nothing is done, and nothing said of a job with which it could be."""
    rows = tuple(
        JobRow(
            id=number,
            name="x",
            user="alice",
            queue="batch",
            state=state,
            letter="?",
            submitted_s=1.0,
            cpus=1,
            places=1,
        )
        for number, state in ((17, "running"), (18, "held"), (19, "done"))
    )
    head.answers["GET /v1/jobs"] = JobList(
        server="head", now_s=1.0, jobs=rows, errors={"999": UNKNOWN}
    )

    ran = run_command(*arguments, "17", "all", head=head.path)
    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")
    assert run_command(*arguments, "18.head", head=head.path).status == held_is
    ran = run_command(*arguments, "999", "19", head=head.path)
    assert ran.status == 153
    assert "job 19.head is done" in ran.stderr
    assert {method for method, _, _ in head.asked} == {"GET"}


@pytest.mark.parametrize("command", ["gdel", "ghold", "grls", "gsig", "grerun"])
def test_a_bad_operand_does_not_stop_the_others(head: CannedHead, command: str) -> None:
    """All are done in order; each error is told; the first one's code is the command's."""
    answer(
        head,
        ActionResult(id="1", text="done"),
        ActionResult(id="999", error=UNKNOWN),
        ActionResult(id="3", error=BAD_STATE),
    )
    ran = run_command(command, "1", "999", "3", head=head.path)

    assert ran.status == 153
    assert ran.stdout == ""
    assert f"{command}: Unknown Job Id 999.head\n" in ran.stderr
    assert f"{command}: job 3.head has ended\n" in ran.stderr
    assert head.bodies(a.JOB_ACTION)[0].ids == ("1", "999", "3")


def test_the_first_errors_code_is_the_commands_code(head: CannedHead) -> None:
    """Not the last one's, nor the largest."""
    answer(head, ActionResult(id="3", error=BAD_STATE), ActionResult(id="999", error=UNKNOWN))
    assert run_command("gdel", "3", "999", head=head.path).status == 170


def test_json_holds_every_result(head: CannedHead) -> None:
    """One document on stdout; errors also on stderr, as JSON."""
    answer(head, ActionResult(id="1", text="done"), ActionResult(id="999", error=UNKNOWN))
    ran = run_command("gdel", "--json", "1", "999", head=head.path)

    document = json.loads(ran.stdout)
    assert document["schema"] == 1
    assert [result["id"] for result in document["results"]] == ["1", "999"]
    assert document["results"][1]["error"]["code"] == "unknown_job"
    assert json.loads(ran.stderr)["error"]["code"] == "unknown_job"
    assert ran.status == 153


@pytest.mark.parametrize("command", ["gdel", "ghold", "grls", "gsig", "grerun", "galter"])
def test_no_operand_is_a_usage_error(head: CannedHead, command: str) -> None:
    """The head is not asked."""
    ran = run_command(command, head=head.path)

    assert ran.status == 2
    assert ran.stderr.startswith(f"{command}: ")
    assert "JOB" in ran.stderr
    assert head.asked == []


@pytest.mark.parametrize("command", ["ghold", "grls", "galter"])
def test_h_is_never_help(head: CannedHead, command: str) -> None:
    """POSIX gives -h a hold list; without one the operand is missing, not help wanted."""
    ran = run_command(command, "-h", "u", head=head.path)

    assert ran.status == 2
    assert "Usage:" not in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gsig", "-s", "TREM", "17"], "did you mean 'TERM'?"),
        (["ghold", "-h", "x", "17"], "invalid hold list"),
        (["galter", "17"], "nothing to change"),
        (["galter", "-p", "2000", "17"], "-1024<=x<=1023"),
        (["galter", "-a", "9999999999", "17"], "invalid date"),
        (["gdel", "--frobnicate", "17"], "unknown option"),
        (["galter", "--frobnicate", "17"], "unknown option"),
        (["galter", "--gpu-share", "60%", "17"], "as in galter -l gpu_share=60%:8gb:high"),
    ],
)
def test_nonsense_is_refused_before_the_head_is_asked(
    head: CannedHead, arguments: list[str], message: str
) -> None:
    """Exit code 2, and what to write instead."""
    ran = run_command(*arguments, head=head.path)

    assert ran.status == 2
    assert message in ran.stderr
    assert head.asked == []


def test_a_dead_head_is_exit_69_with_its_address(tmp_path: Path) -> None:
    """And what to try."""
    ran = run_command("gdel", "17", head=tmp_path / "none.sock")

    assert ran.status == 69
    assert str(tmp_path / "none.sock") in ran.stderr
    assert "gsched doctor" in ran.stderr


def many(count: int) -> tuple[ActionResult, ...]:
    """Return as many successes."""
    return tuple(ActionResult(id=str(number), text="ended") for number in range(count))


@pytest.mark.parametrize(("typed", "deleted"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_gdel_asks_a_person_before_ending_many_jobs(
    head: CannedHead, *, typed: str, deleted: bool
) -> None:
    """More than ten, counted by the head itself; the default answer is no."""
    answer(head, *many(11))
    ran = run_at_terminal("gdel", "all", typed=typed, head=head.path)

    asked = head.bodies(a.JOB_ACTION)
    assert "cancel 11 jobs?" in ran.stdout
    assert asked[0].dry_run
    assert [request.dry_run for request in asked[1:]] == ([False] if deleted else [])
    assert ran.status == (0 if deleted else 1)


@pytest.mark.parametrize(
    ("arguments", "count"), [(["all"], 10), (["-y", "all"], 11), (["1", "2"], 2)]
)
def test_gdel_does_not_ask_about_few_or_after_y(
    head: CannedHead, arguments: list[str], count: int
) -> None:
    """Ten jobs are not many."""
    answer(head, *many(count))
    ran = run_at_terminal("gdel", *arguments, typed="", head=head.path)

    assert "?" not in ran.stdout
    assert ran.status == 0
    assert not head.bodies(a.JOB_ACTION)[-1].dry_run


def test_gdel_never_asks_in_a_pipe(head: CannedHead) -> None:
    """A workflow tool has nobody to answer."""
    answer(head, *many(500))
    ran = run_command("gdel", "all", head=head.path)

    assert ran.status == 0
    assert [request.dry_run for request in head.bodies(a.JOB_ACTION)] == [False]


def test_what_another_user_wrote_cannot_move_the_cursor(head: CannedHead) -> None:
    """Names and messages of others are printed with control characters made visible."""
    answer(head, ActionResult(id="1", text="job \x1b[2Jevil would end"))
    ran = run_command("gdel", "--dry-run", "1", head=head.path)

    assert "\x1b" not in ran.stdout
    assert "evil" in ran.stdout


def test_gdel_deletes_all_jobs_of_users(tmp_path: Path) -> None:
    fake = FakeApi(tmp_path)
    fake.add(make_row(1))
    fake.add(make_row(2, user="bob"))
    with serve(fake.application(), tmp_path / "s"):
        for arguments in (["-u", "bob"], ["-u", "nobody-here"], ["--me", "4"]):
            assert run_command("gdel", *arguments, head=tmp_path / "s").status in {0, 153}
        refused = run_command("gdel", head=tmp_path / "s")

    assert fake.acted == [a.DeleteJob(ids=("2",)), a.DeleteJob(ids=("4",))]
    assert (refused.status, "missing argument 'JOB...'" in refused.stderr) == (2, True)
