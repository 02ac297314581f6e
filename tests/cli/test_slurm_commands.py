"""The commands of Slurm: what programs read of them, against the fake head."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gsched.model.ids import element_number
from gsched.protocol import actions as a
from gsched.protocol import api
from gsched.protocol.uses import LiveRow
from tests.support.commands import Ran
from tests.support.fake_api import NOW_S, FakeApi
from tests.support.slurm_commands import BAD, OK, row, slurm, slurm_head


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """Return a head with a job in each state; commands find it by the environment."""
    monkeypatch.setenv("GSCHED_HEAD", str(tmp_path / "s"))
    monkeypatch.chdir(tmp_path)
    with slurm_head(tmp_path) as fake:
        yield fake


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["-h", "-o", "%i %t"], ["1 PD", "6 PD", "2 R"]),
        (
            ["--noheader", "--format=%i %T %R", "-j", "2,6"],
            ["6 PENDING (Dependency)", "2 RUNNING n1"],
        ),
        (["-hu", "bob", "-o", "%.5i|%5t|%j"], ["    2|R    |run"]),
        (["-h", "-t", "PENDING", "-o", "%i %r"], ["1 Resources", "6 Dependency"]),
        (["-h", "-n", "run", "-o", "%M %l %C %D %P"], ["1:01:01 1-01:00:00 4 1 batch"]),
        (["-h", "-j", "3", "-o", "%i"], []),  # it has ended
        (["-o", "%i %u", "-j", "1"], ["JOBID USER", "1 alice"]),
        (["-h", "-S", "-t,-i", "-o", "%i"], ["2", "6", "1"]),
        (["-h", "--sort=u,i", "-o", "%u%i"], ["alice1", "alice6", "bob2"]),
        (["-h", "--start", "-o", "%i %S %Y"], ["1 N/A (null)", "6 N/A (null)"]),
    ],
)
def test_squeue_prints_what_its_format_says(
    fake: FakeApi, arguments: list[str], lines: list[str]
) -> None:
    ran = slurm("squeue", *arguments)

    assert ran.stdout.splitlines() == lines
    assert (ran.status, ran.stderr) == (0, "")


def test_control_characters_of_others_do_not_reach_the_terminal(fake: FakeApi) -> None:
    fake.add(row(14, user="ann", account="a\x1b[31mb", submitted_s=NOW_S))
    ran = slurm("squeue", "-h", "-j", "14", "-o", "%i %a")
    assert ran.stdout == "14 a\\x1b[31mb\n"


def test_sacct_lists_the_jobs_of_a_window(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default those of today; NOW_S is 2026-09-21T14:13:20 in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    day_s = 86400.0
    for number, outcome, age_s in ((11, BAD, 1.5 * day_s), (12, OK, 3 * day_s), (13, OK, 60.0)):
        begin_s = NOW_S - age_s - 100
        fake.add(row(number, user="ann", outcome=outcome, submitted_s=begin_s,
            started_s=begin_s + 10, ended_s=NOW_S - age_s))  # fmt: skip

    def listed(*arguments: str) -> list[str]:
        return slurm("sacct", "-u", "ann", "-XnP", "-o", "JobID", *arguments).stdout.split()

    assert listed() == ["13"]
    assert listed("-S", "now-2days") == ["11", "13"]
    assert listed("-S", "09/01", "-E", "2026-09-20T12:00") == ["11", "12"]
    assert listed("-S", "09/19", "-E", "now", "-s", "F") == ["11"]
    assert listed("-s", "F") == []
    assert listed("--starttime=midnight", "--endtime=now") == ["13"]
    ran = slurm("sacct", "-S", "yesterday")
    assert (ran.status, ran.stderr) == (1, "Invalid time specification (pos=0): yesterday\n")
    ran = slurm("sacct", "-E", "now-1day")
    assert ran.status == 1
    assert ran.stderr == (
        "sacct: error: Start time (2026-09-21T00:00:00) requested is after end time "
        "(2026-09-20T14:13:20).\n"
    )


def test_squeue_refuses_what_is_no_field_to_sort_by(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = slurm("squeue", "-S", "P,X")
    assert (ran.status, ran.stderr) == (1, "squeue: error: Invalid sort specification: X\n")
    monkeypatch.setenv("SQUEUE_SORT", "-i")
    assert slurm("squeue", "-ho", "%i").stdout.split() == ["6", "2", "1"]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["-o", "JobID,State,NodeList", "--parsable2", "-j", "2", "-j", "3"],
            ["JobID|State|NodeList", "3|COMPLETED|n1"],  # the last -j counts
        ),
        (
            ["-X", "-n", "-P", "-j", "3,4,5", "--format=JobIDRaw,State,ExitCode"],
            ["3|COMPLETED|0:0", "4|FAILED|3:0", "5|TIMEOUT|0:15"],
        ),
        (
            ["-n", "-j", "2.0,2.batch", "-o", "jobid,state%20"],
            [f"{'2':<12} {'RUNNING':>20} "],
        ),
        (["-nP", "-a", "--name", "run", "-o", "User,Elapsed"], ["bob|01:01:01"]),
        (["-np", "-j", "99", "-o", "State"], []),
    ],
)
def test_sacct_prints_the_fields_of_jobs(
    fake: FakeApi, arguments: list[str], lines: list[str]
) -> None:
    assert slurm("sacct", *arguments).stdout.splitlines() == lines


@pytest.mark.parametrize(
    "words",
    [
        ["sacct", "-o", "jobid%99999999999"],
        ["sstat", "-o", "JobID%" + "9" * 5000, "2"],
        ["squeue", "-o", "%.99999999999i"],
        ["squeue", "-O", "JobID:99999999999"],
        ["sinfo", "-o", "%10001P"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_width_beyond_all_lines_is_refused(fake: FakeApi, words: list[str]) -> None:
    """It would take that much memory, or more digits than Python reads."""
    ran = slurm(*words)
    assert ran.status != 0
    assert "the limit is 10000" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_sinfo_lists_partitions_by_the_states_of_nodes(fake: FakeApi) -> None:
    assert slurm("sinfo", "-h", "-o", "%P %a %l %D %t %N").stdout.splitlines() == [
        "batch* up infinite 1 mix n1",
        "batch* up infinite 1 idle n2",
        "batch* up infinite 1 down n3",
    ]


def test_sinfo_has_the_fields_of_single_nodes_too(fake: FakeApi) -> None:
    ran = slurm("sinfo", "-n", "n1,n3", "-o", "%6n|%.8t|%T|%R|%F|%G")
    assert ran.stdout.splitlines() == [
        "HOSTNA|   STATE|STATE|PARTITION|NODES(A/I/O/T)|GRES",
        "n1    |     mix|mixed|batch|1/0/0/1|(null)",
        "n3    |    down|down|batch|0/0/1/1|(null)",
    ]
    assert "Invalid node format specification: Z" in slurm("sinfo", "-o", "%Z").stderr


def test_squeue_knows_long_names_and_json(fake: FakeApi) -> None:
    ran = slurm("squeue", "-h", "-j", "2", "-O", "JobID:5,State:9,TimeLeft:.10")
    assert ran.stdout == "2    RUNNING    23:58:59\n"

    document = json.loads(slurm("squeue", "--json", "-j", "2").stdout)
    (job,) = document["jobs"]
    assert (job["job_id"], job["user_name"], job["job_state"]) == (2, "bob", ["RUNNING"])
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 1500}
    assert document["errors"] == []


def test_the_number_of_an_element_is_an_id_for_every_command(fake: FakeApi) -> None:
    """That is SLURM_JOB_ID in its environment; users see ``7_3``."""
    number = element_number(7, 3)
    fake.add(row(number, state="running", letter="R", nodes=("n1",), reason=""))

    assert slurm("squeue", "-h", "-j", str(number), "-o", "%i %A %F %K").stdout.split() == [
        *("7_3", str(number), "7", "3")
    ]
    assert slurm("sacct", "-nPX", "-j", str(number), "-o", "JobID,JobIDRaw").stdout == (
        f"7_3|{number}\n"
    )
    shown = slurm("scontrol", "show", "job", "7_3").stdout
    assert shown.startswith(f"JobId={number} ArrayJobId=7 ArrayTaskId=3 JobName=")
    slurm("scancel", str(number), "7_[4-5]")
    assert fake.acted == [a.DeleteJob(ids=("7[3]", "7[4-5]"))]


def test_scontrol_shows_nodes_and_partitions(fake: FakeApi) -> None:
    shown = slurm("scontrol", "show", "node", "n1").stdout
    assert shown.startswith("NodeName=n1 ")
    assert "State=MIX" in shown
    assert slurm("scontrol", "-a", "show", "-o", "nodes").stdout.count("NodeName=") == 3
    for arguments in (["partition"], ["partition", "batch"], ["part"]):
        shown = slurm("scontrol", "show", *arguments).stdout
        assert shown.startswith("PartitionName=batch\n   AllowGroups=ALL")
        assert "Default=YES" in shown
        assert "Nodes=n[1-3]\n" in shown


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["scancel", "1", "2_3"], a.DeleteJob(ids=("1", "2[3]"))),
        (["scancel", "1,2"], a.DeleteJob(ids=("1", "2"))),
        (["scancel", "--signal", "USR2", "2"], a.SignalJob(ids=("2",), signal=12)),
        (["scancel", "-s", "USR1", "2"], a.SignalJob(ids=("2",), signal=10)),
        (["scancel", "-u", "bob"], a.DeleteJob(ids=("2",))),
        (["scancel", "--name=train"], a.DeleteJob(ids=("1", "6"))),
        (["scontrol", "requeue", "2"], a.RerunJob(ids=("2",))),
        (["scontrol", "hold", "1"], a.HoldJob(ids=("1",))),
        (["scontrol", "release", "1"], a.ReleaseJob(ids=("1",))),
    ],
)
def test_actions_on_jobs(fake: FakeApi, arguments: list[str], asked: a.AnyJobAction) -> None:
    ran = slurm(*arguments)

    assert fake.acted == [asked]
    assert (ran.status, ran.stdout) == (0, "")


def test_scontrol_shows_lists_of_nodes_as_slurm(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("n1\nn2,n5\n\n n9\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[2,1]")

    def told(*words: str) -> str:
        return slurm("scontrol", "show", *words).stdout

    assert told("hostnames") == "n2\nn1\n"
    assert told("hostlist", "n3,n1,n2,a") == "n[3,1-2],a\n"
    assert told("hostlistsorted", "n3,n1,n2,a") == "a,n[1-3]\n"
    assert told("hostlist", str(tmp_path / "hosts")) == "n[1-2,5,9]\n"
    for words, message in (
        (["hostnames", "n[3-1]"], "Invalid hostlist: n[3-1]\n"),
        (["hostlist", "/no/file"], "Can not open /no/file\n"),
        (["hostlist"], "invalid encode argument\n"),
        (["hostnames", "n1", "n2"], "too many arguments for keyword:show\n"),
    ):
        ran = slurm("scontrol", "show", *words)
        assert (ran.status, ran.stderr) == (1, message)
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    ran = slurm("scontrol", "show", "hostnames")
    assert (ran.status, ran.stderr) == (0, "scontrol: error: host list is empty\n")


def test_scontrol_shows_hostnames_and_a_job(fake: FakeApi) -> None:
    assert slurm("scontrol", "show", "hostnames", "n[01-03],x").stdout.split() == [
        "n01", "n02", "n03", "x",
    ]  # fmt: skip
    shown = slurm("scontrol", "show", "job", "2").stdout
    assert shown.startswith("JobId=2 JobName=run\n")
    assert "JobState=RUNNING" in shown
    assert "NodeList=n1" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["squeue", "-o", "%s"], "squeue: error: Invalid job format specification: s"),
        (["squeue", "-j", "99"], "slurm_load_jobs error: Invalid job id specified\n"),
        (["squeue", "--frob"], "squeue: unrecognized option '--frob'\nTry \"squeue --help\" for"),
        (["squeue", "-j"], "squeue: option requires an argument -- 'j'\n"),
        (["sacct", "-o", "Odd"], 'sacct: error: Invalid field requested: "Odd"\n'),
        (["scancel"], "scancel: error: No job identification provided"),
        (["scancel", "abc"], "scancel: error: Invalid job id abc\n"),
        (["scancel", "-s", "FOO", "2"], "Unknown job signal: FOO\n"),
        (["squeue", "-j", "abc"], "squeue: error: Invalid job id: abc\n"),
        (["squeue", "-t", "FOO"], "squeue: error: Invalid job state specified: FOO\n"),
        (["sacct", "-s", "FOO"], "sacct: fatal: unrecognized job state value 'FOO'\n"),
        (["sacct", "--frob"], "sacct: unrecognized option '--frob'\n"),
        (["sinfo", "-t", "FOO"], 'sinfo: error: Bad state string: "FOO"\n'),
        (["scontrol", "reboot"], "invalid keyword: reboot\n"),
        (["scontrol", "show", "foo"], "invalid entity:foo for keyword:show \n"),
        (["scontrol", "show", "job", "99"], "slurm_load_jobs error: Invalid job id specified\n"),
        (["scontrol", "show", "job", "abc"], "scontrol_print_job error: Invalid job id"),
        (["scontrol", "show", "node", "n9"], "Node n9 not found\n"),
        (["scontrol", "show", "partition", "x"], "Partition x not found\n"),
        (["sbatch", "none.sh"], "sbatch: error: Unable to open file none.sh\n"),
        (["srun", "true"], "srun: error: srun runs inside a job only"),
    ],
)
def test_what_is_refused(
    fake: FakeApi, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    ran = slurm(*arguments)

    assert (ran.status, ran.stdout) == (1, "")
    assert message in ran.stderr


def test_sbatch_submits_as_slurm_does(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole environment, output in slurm-JOB.out, the command line before the script."""
    monkeypatch.setenv("COLOUR", "red")
    script = "#!/bin/sh\n#SBATCH -N 2 --time=60\n#SBATCH --job-name=one\ndate\n"
    Path("job.sh").write_text(script, encoding="utf-8")

    ran = slurm("sbatch", "-J", "two", "--ntasks-per-node=3", "-t", "5", "job.sh", "arg", "-x")
    short = slurm("sbatch", "--parsable", "--wrap=hostname", "-o", "w.out", "-c2")

    assert (ran.stdout, short.stdout) == ("Submitted batch job 1\n", "2\n")
    job, wrapped = fake.submitted
    assert (job.name, job.arguments) == ("two", ("arg", "-x"))
    assert set(job.resources) == {"walltime=0:05:00", "nodes=2:ppn=3"}
    assert job.environment["COLOUR"] == "red"
    assert job.environment["SLURM_NTASKS_PER_NODE"] == "3"
    assert job.environment["SLURM_SUBMIT_DIR"] == os.getcwd()
    assert job.stdout_path == f"{os.getcwd()}/slurm-$GSCHED_JOB_NUMBER.out"
    assert (job.join, job.workdir) == ("oe", os.getcwd())
    assert (wrapped.name, wrapped.script) == ("wrap", "#!/bin/sh\nhostname\n")
    assert (wrapped.resources, wrapped.join) == (("nodes=1:ppn=2",), "oe")
    assert wrapped.environment["SLURM_CPUS_PER_TASK"] == "2"


def test_sbatch_prints_the_number_of_an_array_too(fake: FakeApi) -> None:
    assert slurm("sbatch", "--array=1-3", "--wrap=true").stdout == "Submitted batch job 1\n"
    assert fake.submitted[0].stdout_path.endswith(
        "/slurm-${GSCHED_ARRAY_NUMBER}_${GSCHED_ARRAY_INDEX}.out"
    )


def test_an_option_of_sbatch_without_its_value_says_nothing(fake: FakeApi) -> None:
    """As ``--partition=`` of tools that have no partition to name."""
    assert slurm("sbatch", "--partition=", "--wrap=:").status == 0
    assert fake.submitted[0].queue == ""


def test_accounts_are_not_kept(fake: FakeApi) -> None:
    """Tools that look whether an account exists take an empty list as unknown."""
    listed = slurm("sacctmgr", "-n", "-s", "list", "user", "bob", "format=account%256")
    changed = slurm("sacctmgr", "add", "account", "lab")

    assert (listed.status, listed.stdout) == (0, "")
    assert (changed.status, "cannot add" in changed.stderr) == (1, True)


def test_squeue_shows_jobs_that_have_just_ended_when_asked_for_all_states(fake: FakeApi) -> None:
    """Slurm keeps them for five minutes; PSI/J reads how they ended there."""
    every = slurm("squeue", "-h", "-t", "all", "-O", "JobID,StateCompact,Reason")
    listed = [line.split() for line in every.stdout.splitlines()]

    assert ["3", "CD", "None"] in listed
    assert ["2", "R", "None"] in listed
    assert ["3", "CD", "None"] not in [
        line.split()
        for line in slurm("squeue", "-h", "-O", "JobID,StateCompact,Reason").stdout.splitlines()
    ]
    assert slurm("squeue", "-h", "-j", "2", "-o", "%B").stdout == "n1\n"


def test_sacct_names_its_fields(fake: FakeApi) -> None:
    names = slurm("sacct", "--helpformat").stdout.split()

    assert {"JobID", "State", "Reason"} <= set(names)
    assert slurm("sacct", "-nP", "-j", "4,5", "-o", "Reason").stdout.split() == [
        "NonZeroExitCode",
        "TimeLimit",
    ]


def test_scontrol_shows_a_job_in_one_line(fake: FakeApi) -> None:
    before, behind = (
        slurm("scontrol", "-o", "show", "job", "2"),
        slurm("scontrol", "show", "job", "2", "-o"),
    )

    assert before.stdout == behind.stdout
    (line,) = before.stdout.splitlines()
    fields = dict(word.split("=", 1) for word in line.split())
    assert (fields["JobId"], fields["JobState"], fields["Reason"]) == ("2", "RUNNING", "None")
    assert (fields["RunTime"], fields["TimeLimit"]) == ("01:01:01", "1-01:00:00")
    assert "MinJobAge               = 300 sec" in slurm("scontrol", "show", "config").stdout


def test_variables_stand_for_options_of_sbatch(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They override the script, and the command line overrides them."""
    monkeypatch.setenv("SBATCH_TIMELIMIT", "10")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH -t 5 -A mine\ndate\n", encoding="utf-8")

    ran = [slurm("sbatch", "job.sh"), slurm("sbatch", "--account=other", "job.sh")]

    assert [each.status for each in ran] == [0, 0]
    assert [job.account for job in fake.submitted] == ["lab", "other"]
    assert fake.submitted[0].resources == ("walltime=0:10:00",)


def test_sbatch_refuses_an_array_in_the_words_of_slurm(fake: FakeApi) -> None:
    ran = slurm("sbatch", "--array=x", "--wrap=true")

    first, *_, last = ran.stderr.splitlines()
    assert first == "sbatch: error: array 'x': invalid range of indices 'x'"
    assert last == "sbatch: error: Batch job submission failed: Invalid job array specification"
    assert (ran.status, fake.submitted) == (1, [])


def test_each_variable_of_sbatch_stands_for_its_option(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a flag, whatever its value is."""
    monkeypatch.setenv("SBATCH_ARRAY_INX", "1-3")
    monkeypatch.setenv("SBATCH_NO_REQUEUE", "1")
    monkeypatch.setenv("SBATCH_EXCLUSIVE", "user")
    monkeypatch.setenv("SBATCH_OPEN_MODE", "append")

    ran = slurm("sbatch", "--wrap", "date")

    assert (ran.status, ran.stderr) == (0, "")
    (job,) = fake.submitted
    assert (job.array, job.rerunnable, job.exclusive, job.append) == ("1-3", False, True, True)


def test_what_sbatch_ignores_is_named(fake: FakeApi) -> None:
    ran = slurm(
        "sbatch", "-x", "n2", "--hint=nomultithread", "--kill-on-invalid-dep=yes", "--wrap=:"
    )

    assert ran.stderr == (
        "sbatch: --exclude=n2 is ignored; nodes cannot be excluded: an operator can drain them\n"
    )
    assert (ran.status, len(fake.submitted)) == (0, 1)


def test_srun_starts_the_tasks_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rank each, output files by pattern, and the largest exit code; in a process."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    words = ["sh", "-c", "echo $SLURM_PROCID/$SLURM_NTASKS; exit $SLURM_PROCID"]
    program = "from gsched.cli.slurm.commands import main; main('srun')"
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "--unbuffered",
            "--output",
            f"{tmp_path}/%j_%t.log",
            *words,
        ],
        check=False,
    )
    alone = subprocess.run(
        [sys.executable, "-c", program, "-n1", *words], check=False, capture_output=True, text=True
    )

    assert ran.returncode == 2
    assert [(tmp_path / f"12_{task}.log").read_text() for task in range(3)] == [
        "0/3\n", "1/3\n", "2/3\n",
    ]  # fmt: skip
    assert (alone.returncode, alone.stdout) == (0, "0/1\n")
    assert "--nodes=2: the step can have 1 nodes" in slurm("srun", "-N2", "true").stderr


@pytest.mark.parametrize(
    ("state", "short_reason", "word"),
    [
        ("queued", "limit 2 at once", "JobArrayTaskLimit"),
        ("queued", "behind job 3", "Priority"),
        ("queued", "queue stopped", "PartitionDown"),
        ("queued", "2 CPUs short", "Resources"),
        ("held", "held by user", "JobHeldUser"),
        ("held", "held by user and operator", "JobHeldAdmin"),
        ("held", "held after 5 failed starts", "JobHoldMaxRequeue"),
    ],
)
def test_squeue_shows_the_reason_of_a_job_that_waits_in_the_word_of_slurm(
    fake: FakeApi, state: str, short_reason: str, word: str
) -> None:
    fake.add(row(17, state=state, letter=state[0].upper(), short_reason=short_reason))

    assert slurm("squeue", "-h", "-j", "17", "-o", "%r").stdout == f"{word}\n"


@pytest.mark.parametrize(
    "words", [("squeue",), ("sacct", "-S", "2020-01-01"), ("scontrol", "show", "job")]
)
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(
    fake: FakeApi, words: Sequence[str]
) -> None:
    """As in ``squeue | head -1``: a command ends as if SIGPIPE had ended it."""
    del fake
    program = f"from gsched.cli.slurm.commands import main; main({words[0]!r})"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        ran = subprocess.run(
            [sys.executable, "-c", program, *words[1:]],
            check=False,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )

    assert (ran.returncode, ran.stderr) == (141, b"")


def test_a_job_that_has_ended_is_no_error_for_scancel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.canned_head import canned_head

    with canned_head(tmp_path / "c") as canned:
        monkeypatch.setenv("GSCHED_HEAD", str(tmp_path / "c"))
        ended = api.ErrorBody(code="bad_state", message="job 1.head has already finished")
        running = api.ErrorBody(code="bad_state", message="job 2.head is being cancelled")
        first = api.ActionReply(results=(api.ActionResult(id="1", error=ended),))
        canned.answers["POST /v1/jobs/actions"] = first
        assert slurm("scancel", "1") == Ran(status=0, stdout="", stderr="")
        other = api.ActionReply(results=(api.ActionResult(id="2", error=running),))
        canned.answers["POST /v1/jobs/actions"] = other
        assert slurm("scancel", "2").status == 1


def test_sstat_tells_what_running_jobs_use(fake: FakeApi) -> None:
    live = LiveRow(
        at_s=NOW_S, cpu_cores=3.5, memory_bytes=3 << 20, gpus=1.5, gpus_held=2,
        gpu_memory_bytes=1 << 20,
    )  # fmt: skip
    fake.add(row(7, state="running", letter="R", nodes=("n1", "n2"), started_s=NOW_S - 60,
                 cpu_s=200.0, live=live, memory_peak_bytes=5 << 20))  # fmt: skip
    ran = slurm("sstat", "-P", "-j", "7.batch", "-o", "JobID,NTasks,AveCPU,AveRSS,MaxRSS")
    assert ran.stdout.splitlines() == [
        "JobID|NTasks|AveCPU|AveRSS|MaxRSS",
        "7.batch|2|00:01:40|1536K|5120K",
    ]
    ran = slurm("sstat", "-n", "-P", "-j", "7", "-o", "TRESUsageInTot")
    assert ran.stdout == "cpu=00:03:20,mem=3072K,gres/gpumem=1024K,gres/gpuutil=150\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "sstat: error: You didn't give me any jobs to stat."),
        (["-j", "3"], "sstat: error: No steps running for job 3"),
        (["-j", "2", "-o", "Rss"], 'sstat: error: Invalid field requested: "Rss"'),
    ],
)
def test_sstat_says_what_is_wrong(fake: FakeApi, arguments: list[str], message: str) -> None:
    del fake
    ran = slurm("sstat", *arguments)
    assert ran.status == 1
    assert message.removeprefix("sstat: ") in ran.stderr


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("squeue -h -o %i --federation --local -a --hide -v --noconvert -M all", ["1", "6", "2"]),
        ("squeue -h -o %i --user=bob --stat R -q normal", ["2"]),
        ("squeue -h -o %i -q other", []),
        ("squeue -h -o %i -R resv", []),
        ("sacct -nP -a -S 2020-01-01 -E now -r batch -q normal -o jobid -N n1", ["2", "3"]),
        ("sacct -nP -a -r nowhere -o jobid", []),
        ("sacct -nP --delimiter=; -j 3 -o jobid,state", ["3;COMPLETED"]),
        ("sinfo -h -O partition:8,nodes:3,StateLong", ["batch*  1  mixed               "]),
        ("sinfo -T", ["No reservations in the system"]),
    ],
)
def test_options_of_slurm_that_ask_for_what_is_so_here_are_taken(
    fake: FakeApi, command: str, lines: list[str]
) -> None:
    """And filters by what no job has leave none."""
    name, *arguments = command.split()
    ran = slurm(name, *arguments)

    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[: max(1, len(lines))] == lines


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("squeue --yaml", "squeue: error: --yaml is not supported by gsched\n"),
        ("sacct -T", "sacct: error: --truncate is not supported by gsched\n"),
        ("scancel --sibling=c 1", "scancel: error: --sibling is not supported by gsched\n"),
        ("squeue --stats", "squeue: unrecognized option '--stats'"),
        ("sacct --job-name x", "sacct: unrecognized option '--job-name'"),
        ("sinfo -Z", "sinfo: invalid option -- 'Z'"),
        ("squeue -i x", "Error: invalid entry for --iterate=x\n"),
        ("sinfo -O odd", "sinfo: error: Invalid node format specification: odd\n"),
    ],
)
def test_options_that_gsched_or_slurm_does_not_have_are_told_apart(
    fake: FakeApi, command: str, message: str
) -> None:
    name, *arguments = command.split()
    ran = slurm(name, *arguments)

    assert ran.status != 0
    assert ran.stderr.startswith(message)
