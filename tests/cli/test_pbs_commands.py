"""The commands of PBS but qstat: options, texts and exit codes of both personalities."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.protocol import actions as a
from gsched.protocol import api, job_rows
from tests.support.canned_head import node
from tests.support.fake_api import NOW_S, FakeApi, make_row, serve
from tests.support.in_process import run_here

GROUPS = "jobs run with the group of the submitting process; submit with newgrp or sg"
LONG = a.Alteration(queue="long")
BUSY = job_rows.PartRow(node="n1", state="running", cpus=3)


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    """Return a head with three jobs and three nodes."""
    fake = FakeApi(tmp_path)
    fake.queues["long"] = api.QueueRow(name="long", max_walltime_s=3600.0)
    fake.add(make_row(1, priority=10, account="lab"), holds=("user",), rerunnable=False)
    fake.add(
        make_row(
            2, name="run", user="bob", queue="long", state="running", letter="R", cpus=3,
            memory_bytes=2**32, walltime_s=7200.0, started_s=NOW_S - 5,
        ),
        attempts=(
            job_rows.AttemptRow(attempt=1, state="running", assigned_s=NOW_S, parts=(BUSY,)),
        ),
        start_after_s=NOW_S - 50,
    )  # fmt: skip
    fake.add(make_row(3, name="old", state="done", letter="C"))
    fake.nodes = [
        node("n1", jobs=(2,), cpus_free=1, gpus=2, gpu_types=("a100",), features=("big",)),
        node("n2", drained=True, reason="new driver"),
        node("n3", state="unreachable"),
    ]
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[Path]:
    """Return the socket of that head."""
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ([], ["1.fake", "2.fake"]),
        (["-x"], ["1.fake", "2.fake", "3.fake"]),
        (["-H"], ["3.fake"]),
        (["-s", "R"], ["2.fake"]),
        (["-s", "QC"], ["1.fake", "3.fake"]),
        (["-s", "S"], []),
        (["-u", "bob@x,carol"], ["2.fake"]),
        (["-N", "run"], ["2.fake"]),
        (["-A", "lab"], ["1.fake"]),
        (["-p", ".ge.10"], ["1.fake"]),
        (["-p", "10"], ["1.fake"]),
        (["-p", ".lt.10"], ["2.fake"]),
        (["-p", ".ne.10"], ["2.fake"]),
        (["-q", "long@fake"], ["2.fake"]),
        (["-q", "@fake"], ["1.fake", "2.fake"]),
        (["-h", "u"], ["1.fake"]),
        (["-h", "n"], ["2.fake"]),
        (["-r", "n"], ["1.fake"]),
        (["-r", "y"], ["2.fake"]),
        (["-l", "mem.ge.4gb"], ["2.fake"]),
        (["-l", "mem.gt.4gb"], []),
        (["-l", "ncpus=3,walltime.le.2:00:00"], ["2.fake"]),
        (["-l", "walltime.lt.1:00:00"], []),
        (["-a", ".gt.200001010000"], ["2.fake"]),
        (["-c", "u"], ["1.fake", "2.fake"]),
        (["-c", ".ne.n"], ["1.fake", "2.fake"]),
        (["-c", "c=5"], []),
        (["-e", "-s", "QR"], ["1.fake", "2.fake"]),
    ],
)  # fmt: skip
def test_qselect_prints_the_jobs_that_meet_all_criteria(
    head: Path, arguments: list[str], ids: list[str]
) -> None:
    ran = run_here("qselect", *arguments, head=head)

    assert ran.stdout.split() == ids
    assert (ran.status, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", ".xx.5"], "unknown operator"),
        (["-p", "many"], "invalid number"),
        (["-s", "Y"], "invalid state 'Y'"),
        (["-h", "z"], "invalid hold list"),
        (["-r", "maybe"], "invalid value 'maybe'"),
        (["-c", "often"], "invalid value 'often'"),
        (["-l", "mem"], "invalid term 'mem'"),
        (["-l", "mem.gt.much"], "invalid value mem=much"),
        (["-l", "disk.gt.4gb"], "unknown resource 'disk'"),
        (["-a", "someday"], "invalid date"),
        (["-q", "batch@other"], "cannot connect to server other"),
    ],
)
def test_what_qselect_refuses(head: Path, arguments: list[str], words: str) -> None:
    ran = run_here("qselect", *arguments, head=head)

    assert (ran.status, ran.stdout) == (2, "")
    assert ran.stderr.startswith("qselect: ")
    assert words in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["qmove", "long", "1", "2"], a.AlterJob(ids=("1", "2"), alteration=LONG)),
        (["qmove", "long@fake", "1"], a.AlterJob(ids=("1",), alteration=LONG)),
        (["qmove", "@FAKE", "1"], a.AlterJob(ids=("1",), alteration=a.Alteration(queue="batch"))),
        (["qdel", "-p", "1"], a.DeleteJob(ids=("1",), grace_s=0.0)),
        (["qdel", "-W", "force", "1"], a.DeleteJob(ids=("1",), grace_s=0.0)),
        (["qdel", "-W", "suppress_email=5", "1"], a.DeleteJob(ids=("1",))),
        (["qdel", "1", "-x", "-a", "-b", "9", "-c"], a.DeleteJob(ids=("1",))),
        (["qdel", "-m", "why", "1", "-W", "9"], a.DeleteJob(ids=("1",), message="why", grace_s=9)),
        (["qhold", "-h", "uos", "1"], a.HoldJob(ids=("1",), holds=("user", "operator", "system"))),
        (["qrls", "1", "-h", "o"], a.ReleaseJob(ids=("1",), holds=("operator",))),
        (["qrerun", "-f", "1"], a.RerunJob(ids=("1",), force=True)),
        (["qsig", "-s", "SIGUSR1", "1"], a.SignalJob(ids=("1",), signal=10)),
        (["qalter", "-p", "-7", "1"], a.AlterJob(ids=("1",), alteration=a.Alteration(priority=-7))),
    ],
)  # fmt: skip
def test_a_q_command_asks_for_what_its_g_command_does(
    head: Path, fake: FakeApi, arguments: list[str], request_: a.AnyJobAction
) -> None:
    ran = run_here(arguments[0], *arguments[1:], head=head)

    assert fake.acted == [request_]
    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("personality", "code", "message", "status", "stderr"),
    [
        ("torque", "unknown_job", "Unknown Job Id 7.fake", 153, "Unknown Job Id Error 7"),
        ("openpbs", "unknown_job", "Unknown Job Id 7.fake", 153, "Unknown Job Id 7.fake"),
        ("torque", "bad_state", "it runs", 170, "Request invalid for state of job MSG=it runs 7"),
        ("openpbs", "bad_state", "it runs", 168, "Request invalid for state of job MSG=it runs 7"),
        (
            "openpbs",
            "bad_state",
            "job 7.fake has already finished",
            35,
            "Job has finished 7.fake",
        ),
        ("torque", "unknown_job", "Unknown Job Id x", 1, "illegally formed job identifier: 7"),
        ("torque", "not_permitted", "not yours", 159, "Unauthorized Request MSG=not yours 7"),
        ("torque", "unknown_queue", "none", 172, "Unknown queue MSG=none 7"),
        ("openpbs", "unknown_queue", "none", 170, "Unknown queue MSG=none 7"),
        ("torque", "invalid_request", "no", 156, "Invalid request MSG=no 7"),
    ],
)
def test_errors_have_the_text_and_the_code_of_pbs(
    tmp_path: Path, personality: str, code: str, message: str, status: int, stderr: str
) -> None:
    from tests.support.canned_head import canned_head

    with canned_head(tmp_path / "c") as canned:
        error = api.ErrorBody(code=code, message=message, hint="a hint")
        results = (api.ActionResult(id="7", error=error), api.ActionResult(id="8"))
        canned.answers["POST /v1/jobs/actions"] = api.ActionReply(results=results)

        ran = run_here("qhold", "7", "8", head=tmp_path / "c", personality=personality)

    assert (ran.status, ran.stderr) == (status, f"qhold: {stderr}\n")


def test_pbsnodes_lists_attributes_as_torque_does(head: Path) -> None:
    first, second, third = run_here("pbsnodes", "-a", head=head).stdout.rstrip("\n").split("\n\n")

    assert first.splitlines()[:7] == [
        "n1",
        "     state = free",
        "     power_state = Running",
        "     np = 4",
        "     properties = big",
        "     ntype = cluster",
        "     jobs = 0-2/2.fake",
    ]
    assert "     gpus = 2" in first
    assert "     state = offline\n" in second
    assert "     note = new driver" in second
    assert "     state = down\n" in third


@pytest.mark.parametrize(
    ("arguments", "stdout"),
    [
        (["-l"], "n2                   offline\nn3                   down\n"),
        (["-l", "offline"], "n2                   offline\n"),
        (["-l", "up"], "n1                   free\n"),
        (["-l", "all", "n1"], "n1                   free\n"),
        (["-ln", "offline"], "n2                   offline                    new driver\n"),
    ],
)
def test_pbsnodes_lists_states(head: Path, arguments: list[str], stdout: str) -> None:
    assert run_here("pbsnodes", *arguments, head=head).stdout == stdout


VNODE = """\
n1
     Mom = n1
     ntype = PBS
     state = free
     pcpus = 4
     jobs = 2.fake/0, 2.fake/1, 2.fake/2
     resources_available.arch = linux
"""
SUMMARY = (
    "vnode           state           OS       hardware host            queue        mem     "
    "ncpus   nmics   ngpus  comment\n"
    "--------------- --------------- -------- -------- --------------- ---------- -------- "
    "------- ------- ------- ---------\n"
    "n2              offline         --       --       n2              --"
)
JOBS = """\
                                                        mem       ncpus   nmics   ngpus
vnode           state           njobs   run   susp      f/t        f/t     f/t     f/t   jobs
--------------- --------------- ------ ----- ------ ------------ ------- ------- ------- -------
n1              free                 1     1      0 """


def test_pbsnodes_prints_what_openpbs_prints(head: Path) -> None:
    def printed(*words: str, personality: str = "openpbs") -> str:
        ran = run_here("pbsnodes", *words, head=head, personality=personality)
        assert (ran.status, ran.stderr) == (0, "")
        return ran.stdout

    assert printed("-a").startswith(VNODE)
    assert printed("-v", personality="torque").startswith(VNODE)
    assert "\n     resources_available.ngpus = 2\n" in printed("-H", "n1")
    assert printed("-aS", "n2").startswith(SUMMARY)
    assert printed("-aSj", "n1").startswith(JOBS)
    assert printed("-j", "n1").endswith(" 2.fake\n")
    assert printed("-F", "dsv", "-D", ";", "n1").startswith("Name=n1;Mom=n1;ntype=PBS;state=free;")
    document = json.loads(printed("-aF", "json"))
    assert document["pbs_server"] == "fake"
    assert list(document["nodes"]) == ["n1", "n2", "n3"]
    assert document["nodes"]["n1"]["resources_available"]["ncpus"] == 4
    assert document["nodes"]["n1"]["jobs"] == ["2.fake/0", "2.fake/1", "2.fake/2"]
    assert document["nodes"]["n3"]["state"] == "down"
    assert "np = 4" in printed("-a", personality="torque")


def test_pbsnodes_prints_xml(head: Path) -> None:
    document = ET.fromstring(run_here("pbsnodes", "-x", head=head).stdout)

    assert [each.findtext("name") for each in document] == ["n1", "n2", "n3"]
    assert document[1].findtext("state") == "offline"


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["-o", "-N", "fan", "n1"], a.DrainNode(nodes=("n1",), reason="fan")),
        (["-o", "n1"], a.DrainNode(nodes=("n1",), reason="pbsnodes -o")),
        (["-c", "n2"], a.ResumeNode(nodes=("n2",))),
        (["-r", "n2"], a.ResumeNode(nodes=("n2",))),
    ],
)
def test_pbsnodes_takes_nodes_offline_and_back(
    head: Path, fake: FakeApi, arguments: list[str], request_: a.AnyNodeAction
) -> None:
    assert run_here("pbsnodes", *arguments, head=head).status == 0
    assert fake.acted == [request_]


@pytest.mark.parametrize(
    ("arguments", "status", "stderr"),
    [
        (["nope"], 1, "pbsnodes: Unknown node  MSG=cannot locate specified node nope\n"),
        (["-q", "nope"], 1, ""),
        (["-n"], 2, "pbsnodes: -n requires -l\n"),
        (["-s", "other"], 2, "pbsnodes: cannot connect to server other\n"),
    ],
)
def test_what_pbsnodes_refuses(head: Path, arguments: list[str], status: int, stderr: str) -> None:
    ran = run_here("pbsnodes", *arguments, head=head)

    assert (ran.status, ran.stderr, ran.stdout) == (status, stderr, "")


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("list queue long", ["Queue long", "\tqueue_type = Execution"]),
        ("l n n1", ["Node n1", "\tstate = free"]),
        ("list server", ["Server fake", "\tserver_state = Active"]),
        ("print queue long", ["create queue long", "set queue long queue_type = Execution"]),
        ("p s; # nothing", ["create queue batch", "set queue batch queue_type = Execution"]),
        ("print node n1", ["create node n1", "set node n1 np = 4"]),
        ("active server", []),
    ],
)
def test_qmgr_lists_and_prints(head: Path, command: str, lines: list[str]) -> None:
    ran = run_here("qmgr", "-c", command, head=head)

    assert ran.stdout.splitlines()[:2] == lines
    assert (ran.status, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "request_"),
    [
        ("set node n1 state = offline", a.DrainNode(nodes=("n1",), reason="qmgr: state = offline")),
        ("s n n1 state+=offline", a.DrainNode(nodes=("n1",), reason="qmgr: state = offline")),
        ("set node n1,n2 state -= offline", a.ResumeNode(nodes=("n1", "n2"))),
        ("set node n2 state = free", a.ResumeNode(nodes=("n2",))),
    ],
)
def test_qmgr_sets_nodes_offline_and_free(
    head: Path, fake: FakeApi, command: str, request_: a.AnyNodeAction
) -> None:
    assert run_here("qmgr", "-c", command, head=head).status == 0
    assert fake.acted == [request_]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-c", "set queue long max_running = 4"], 156, "gsched has no limit of the running jobs"),
        (["-c", "set queue long enabled = maybe"], 2, "write true or false"),
        (["-c", "set queue long resources_max.walltime = soon"], 2, "invalid time 'soon'"),
        (["-c", "set queue none enabled = True"], 172, "Unknown queue"),
        (["-c", "set server managers += root@head"], 2, "syntax error"),
        (["-c", "set server query_other_jobs = True"], 156, "a running head cannot change it"),
        (["-c", "set node n1 comment = x"], 156, "a note is kept only with a drain"),
        (["-c", "set node n1 np = 9"], 156, "nodes register themselves"),
        (["-c", "delete node n1"], 156, "nodes register themselves"),
        (["-c", "destroy queue x"], 2, "illegal directive: destroy"),
        (["-c", "list thing"], 2, "illegal object type: thing"),
        (["-c", "list queue x"], 172, "Unknown queue"),
        (["-c", "list node x"], 68, "unknown node 'x'"),
        (["-c", "list"], 2, "no object named"),
        (["other", "-c", "list server"], 2, "cannot connect to server other"),
    ],
)
def test_what_qmgr_refuses(head: Path, arguments: list[str], status: int, words: str) -> None:
    ran = run_here("qmgr", *arguments, head=head)

    assert ran.status == status
    assert words in ran.stderr
    assert run_here("qmgr", "-z", *arguments, head=head).stderr in {"", ran.stderr}


def test_qmgr_goes_on_after_an_error_unless_told_to_end(head: Path) -> None:
    both = "list queue x; list queue long"

    assert "Queue long" in run_here("qmgr", "-c", both, head=head).stdout
    assert run_here("qmgr", "-a", "-c", both, head=head).stdout == ""
    assert run_here("qmgr", "-n", "-c", both, head=head).status == 0, "the syntax is right"
    assert "list queue long\n" in run_here("qmgr", "-e", "-c", both, head=head).stdout


def test_tracejob_prints_events_as_log_lines(head: Path) -> None:
    ran = run_here("tracejob", "-n", "3", "1", "99", head=head)

    head_line, blank, event = ran.stdout.splitlines()[1:4]
    assert (head_line, blank) == ("Job: 1.fake", "")
    assert event.endswith("  S    queued")
    assert (ran.status, ran.stderr) == (153, "tracejob: Unknown Job Id Error 99\n")


def test_a_qsub_starts_at_home_and_leaves_its_output_here(
    head: Path, fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("job.sh").write_text("#PBS -m ae -M me -W group_list=g,odd=1\ndate\n", encoding="utf-8")

    qsub = run_here("qsub", "job.sh", head=head)
    gsub = run_here("gsub", "-W", "group_list=g", "--", "date", head=head)

    job, other = fake.submitted
    assert (job.workdir, job.stdout_path) == (str(tmp_path), f"{tmp_path}/here/")
    assert (job.submit_dir, other.workdir) == (f"{tmp_path}/here", f"{tmp_path}/here")
    assert len(qsub.stdout.split()) == 1, "the id and nothing else"
    assert qsub.stderr.splitlines() == [
        f"qsub: warning: -W group_list has no effect: {GROUPS}",
        "qsub: warning: -W odd is unknown and ignored",
    ]
    assert gsub.status == 0, gsub.stderr


def test_qsub_leaves_odd_recipients_to_the_head_and_gsub_refuses_them(
    head: Path, fake: FakeApi
) -> None:
    """Scripts for Torque hold such: there mail just never arrives."""
    qsub = run_here("qsub", "-m", "abe", "-M", "$USER@site", "--", "date", head=head)
    gsub = run_here("gsub", "-m", "abe", "-M", "$USER@site", "--", "date", head=head)

    assert (qsub.status, gsub.status, len(fake.submitted)) == (0, 2, 1)
    assert (fake.submitted[0].mail_to, fake.submitted[0].warn_unknown) == ("$USER@site", True)
    assert "-M: invalid recipient '$USER@site'" in gsub.stderr


@pytest.mark.parametrize(
    ("personality", "status", "stderr"),
    [
        ("torque", 172, "qsub: submit error (Unknown queue MSG=unknown queue 'x')\n"),
        ("openpbs", 170, "qsub: Unknown queue MSG=unknown queue 'x'\n"),
    ],
)
def test_a_refused_submission_has_the_text_of_pbs(
    head: Path, fake: FakeApi, personality: str, status: int, stderr: str
) -> None:
    fake.refuse = api.ErrorBody(code="unknown_queue", message="unknown queue 'x'")

    ran = run_here("qsub", "-q", "x", "--", "date", head=head, personality=personality)

    assert (ran.status, ran.stderr, ran.stdout) == (status, stderr, "")


@pytest.mark.parametrize(
    ("options", "streams"),
    [([], "stderr"), (["-E"], "stderr"), (["-O"], "stdout"), (["-EO"], "stderr stdout")],
)
def test_qmsg_writes_into_the_files_of_a_running_job(
    head: Path, fake: FakeApi, options: list[str], streams: str
) -> None:
    ran = run_here("qmsg", *options, "second phase", "2", head=head)

    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")
    (message,) = fake.messages
    said = {name for name in ("stderr", "stdout") if getattr(message, name)} or {"stderr"}
    assert (message.text, said) == ("second phase", set(streams.split()))


def test_qmsg_goes_on_after_a_job_that_it_cannot_write_to(head: Path, fake: FakeApi) -> None:
    ran = run_here("qmsg", "text", "1", "99", "2", head=head)

    first, second = ran.stderr.splitlines()
    assert first.startswith("qmsg: Request invalid for state of job MSG=job 1 is queued")
    assert second == "qmsg: Unknown Job Id Error 99"
    assert ran.status in {153, 170}
    assert len(fake.messages) == 1
    assert run_here("gmsg", " ", "2", head=head).status == 2


def test_pbsdsh_runs_a_program_on_the_slots_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn1\n", encoding="utf-8")
    monkeypatch.setenv("PBS_JOBID", "7.fake")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    words = ["sh", "-c", "echo slot $PBS_VNODENUM; exit $PBS_VNODENUM"]

    def shown(*options: str) -> tuple[int, list[str]]:
        status = run_here("pbsdsh", *options, *words, head="").status
        return status, sorted(capfd.readouterr().out.split("\n"))[1:]

    assert shown() == (2, ["slot 0", "slot 1", "slot 2"])
    assert shown("-u") == (0, ["slot 0"])
    assert shown("-n", "1") == (1, ["slot 1"])
    assert shown("-s", "-c", "2", "-h", "n1") == (1, ["slot 0", "slot 1"])
    for options, message in (
        (["-n", "3"], "the job has 3 slots"),
        (["-h", "n2"], "n2 is no node of this job"),
    ):
        assert message in run_here("pbsdsh", *options, "true", head="").stderr
    (tmp_path / "nodes").write_text("n1\nn2\n", encoding="utf-8")
    assert "the gnode of this node is too old" in run_here("pbsdsh", "true", head="").stderr
    monkeypatch.delenv("PBS_JOBID")
    assert "inside a job only" in run_here("pbsdsh", "true", head="").stderr
