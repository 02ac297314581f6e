"""What Slurm 22.05.8 prints for the same requests: recorded there, byte for byte.

Where a line holds what differs between two clusters, its beginning is compared.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.cli.slurm.words import slurm_time
from gsched.model.ids import element_number
from gsched.protocol import actions as a
from gsched.protocol import api
from gsched.protocol.job_rows import ArrayRow
from tests.support.canned_head import node
from tests.support.fake_api import NOW_S, FakeApi
from tests.support.slurm_commands import BAD, OK, row, slurm, slurm_head

SCRIPT = "#!/bin/sh\n"
NO_INTERPRETER = """\
sbatch: error: This does not look like a batch script.  The first
sbatch: error: line must start with #! followed by the path to an interpreter.
sbatch: error: For instance: #!/bin/sh
"""
DOS = """\
sbatch: error: Batch script contains DOS line breaks (\\r\\n)
sbatch: error: instead of expected UNIX line breaks (\\n).
"""
NO_PARTITION = """\
sbatch: error: invalid partition specified: nopart
sbatch: error: Batch job submission failed: Invalid partition name specified
"""
NO_ENTITY = """\
No valid entity in update command
Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"
"""
UNRECOGNIZED = "sbatch: unrecognized option '--gers=gpu:1'\n"
LINE = "error: s1: line 3: #SBATCH LINE"
TRY = 'Try "sbatch --help" for more information\n'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """Return a head with a job in each state; commands find it by the environment."""
    monkeypatch.setenv("GSCHED_HEAD", str(tmp_path / "s"))
    monkeypatch.chdir(tmp_path)
    with slurm_head(tmp_path) as fake:
        yield fake


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("echo hi\n", 1, NO_INTERPRETER),
        ("#!/bin/sh\r\necho\r\n", 1, DOS),
        ("#!/bin/sh\necho\r\n", 1, DOS),
        ("", 1, "sbatch: error: Batch script is empty!\n"),
    ],
)
def test_a_script_is_refused_in_the_words_of_sbatch(
    fake: FakeApi,
    script: str,
    status: int,
    message: str,
) -> None:
    Path("s1").write_bytes(script.encode())

    ran = slurm("sbatch", "s1")

    assert (ran.status, ran.stderr) == (status, message)
    assert fake.submitted == []


@pytest.mark.parametrize(
    ("line", "status", "lines"),
    [
        ("--gers=gpu:1", 255, ["unrecognized option '--gers=gpu:1'", LINE, TRY]),
        ("-Y 3", 255, ["invalid option -- 'Y'", LINE, TRY]),
        ("-n", 255, ["option requires an argument -- 'n'", LINE, TRY]),
        ("--hold=1", 255, ["option '--hold' doesn't allow an argument", LINE, TRY]),
        (
            "--tim=1",
            255,
            ["option '--tim=1' is ambiguous; possibilities: '--time' '--time-min'", LINE, TRY],
        ),
        ("-n foo", 1, ['error: Invalid numeric value "foo" for --ntasks.', LINE]),
        ("-t foo", 255, ["error: Invalid --time specification", LINE]),
        ("foo", 255, ["error: Invalid directive found in batch script: foo", LINE]),
        ("-n 1 -- x", 255, ["error: Invalid directive found in batch script: x", LINE]),
        ("-J a b", 255, ["error: Invalid directive found in batch script: b", LINE]),
        ("foo --gers", 255, ["error: Invalid directive found in batch script: foo", LINE]),
        (": -n1", 1, ["fatal: s1: line 3: Unexpected `:` in [: -n1]"]),
        ('-n "1', 1, ['fatal: s1: line 3: Unmatched `"` in [ "1]']),
    ],
)
def test_a_line_of_a_script_is_refused_in_the_words_of_sbatch_and_named(
    fake: FakeApi, line: str, status: int, lines: list[str]
) -> None:
    """Slurm names the line only where it ends with ``fatal``."""
    Path("s1").write_text(f"{SCRIPT}\n#SBATCH {line}\necho\n")

    ran = slurm("sbatch", "s1")

    expected = "".join(
        each if each == TRY else f"sbatch: {each.replace('LINE', line)}\n" for each in lines
    )
    assert (ran.status, ran.stderr) == (status, expected)
    assert fake.submitted == []


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT + "echo\n#SBATCH --gers\n",
        SCRIPT + "# x\n #SBATCH --gers\n##SBATCH --gers\n#sbatch --gers\necho\n",
        SCRIPT + "#SBATCH\n#SBATCH # --gers\n#SBATCH -n1 #--gers\necho\n",
    ],
    ids=["behind the first command", "not at the beginning", "comments"],
)
def test_other_lines_of_a_script_are_none_of_sbatch(fake: FakeApi, text: str) -> None:
    Path("s1").write_text(text)

    ran = slurm("sbatch", "s1")

    assert (ran.status, ran.stderr) == (0, "")


def test_sbatch_tells_of_a_script_for_pbs(fake: FakeApi) -> None:
    """Its lines would be lost without a word; in a script for both, they are meant to be."""
    Path("s1").write_text(SCRIPT + "#PBS -l nodes=2\necho\n")
    Path("s2").write_text(SCRIPT + "#PBS -l nodes=2\n#SBATCH -N2\necho\n")

    warning = "sbatch: s1: #PBS lines are ignored; submit it with qsub or gsub\n"
    assert slurm("sbatch", "s1").stderr == warning
    assert slurm("sbatch", "s2").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--gers=gpu:1"], 255, UNRECOGNIZED + TRY),
        (["-t", "foo"], 255, "sbatch: error: Invalid --time specification\n"),
        (["--mem", "1.5G"], 255, "sbatch: error: Invalid --mem specification\n"),
        (["-c", "foo"], 1, 'sbatch: error: Invalid numeric value "foo" for --cpus-per-task.\n'),
        (["-N", "foo"], 255, 'sbatch: error: "foo" is not a valid node count\n'),
        (["--mail-type=FOO"], 255, "sbatch: error: Invalid --mail-type specification\n"),
        (["--signal=FOO"], 255, "sbatch: error: Invalid --signal specification\n"),
        (
            ["--gres=foo:1"],
            1,
            "sbatch: error: Invalid generic resource (gres) specification\n",
        ),
        (
            ["-p", "nopart,batch"],
            1,
            NO_PARTITION,
        ),
        (["x"], 1, "sbatch: error: Script arguments not permitted with --wrap option\n"),
        (["--time"], 255, f"sbatch: option '--time' requires an argument\n{TRY}"),
    ],
)
def test_an_option_is_refused_in_the_words_of_sbatch(
    fake: FakeApi,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    ran = slurm("sbatch", "--wrap", "true", *arguments)

    assert (ran.status, ran.stderr) == (status, message)
    assert fake.submitted == []


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_srun_and_salloc_end_with_255_at_an_unknown_option(
    fake: FakeApi,
    command: str,
) -> None:
    ran = slurm(command, "--foo")
    assert (ran.status, ran.stderr) == (
        255,
        f"{command}: unrecognized option '--foo'\nTry \"{command} --help\" for more information\n",
    )


def test_a_refusal_of_the_head_ends_with_the_words_of_the_controller(
    fake: FakeApi,
) -> None:
    fake.refuse = api.ErrorBody(code="unknown_queue", message="unknown queue 'nopart'")
    assert slurm("sbatch", "-p", "nopart", "--wrap", "true").stderr == (
        "sbatch: error: invalid partition specified: nopart\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    fake.refuse = api.ErrorBody(code="bad_resource", message="needs 9 GPUs", hint="there are 2")
    ran = slurm("sbatch", "-G9", "--wrap", "true")
    assert ran.stderr == (
        "sbatch: error: needs 9 GPUs\nsbatch: error: there are 2\n"
        "sbatch: error: Batch job submission failed: "
        "Requested node configuration is not available\n"
    )
    assert ran.status == 1


def test_of_several_partitions_the_first_in_which_the_job_fits_is_taken(
    fake: FakeApi,
) -> None:
    fake.queues["gpu"] = api.QueueRow(name="gpu")

    assert slurm("sbatch", "-p", "gpu,batch", "--wrap", "true").status == 0
    assert fake.submitted[-1].queue == "gpu"


def test_sbatch_tells_when_a_job_would_start(fake: FakeApi) -> None:
    ran = slurm("sbatch", "--test-only", "-n2", "--wrap", "true")

    assert (ran.status, ran.stdout) == (0, "")
    assert ran.stderr.startswith("sbatch: Job to start at 20")
    assert ran.stderr.endswith(" using 2 processors in partition batch\n")
    assert slurm("sbatch", "-Q", "--wrap", "true").stdout == ""


def test_what_is_two_jobs_or_element_after_element_is_refused(fake: FakeApi) -> None:
    Path("het").write_text(SCRIPT + "#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\n:\n")
    for arguments, words in (
        (["het"], "hetjob: heterogeneous jobs are not supported"),
        (["-n1", ":", "-n2", "--wrap", "true"], ":: heterogeneous jobs are not supported"),
        (["-d", "aftercorr:1", "--wrap", "true"], "aftercorr is not supported"),
    ):
        ran = slurm("sbatch", *arguments)
        assert ran.status == 1
        assert words in ran.stderr
    assert fake.submitted == []


def test_a_name_may_have_slashes(fake: FakeApi) -> None:
    assert slurm("sbatch", "-J", "a/b/c", "--wrap", "true").status == 0
    assert fake.submitted[0].name == "a/b/c"


# --- scancel, scontrol ---


def test_a_job_that_is_gone_is_no_error_of_scancel(fake: FakeApi) -> None:
    assert slurm("scancel", "987654") == slurm("scancel", "987653")
    assert (slurm("scancel", "987654").status, slurm("scancel", "987654").stderr) == (0, "")
    ran = slurm("scancel", "-v", "987654")
    assert ran.stderr == (
        "scancel: Terminating job 987654\n"
        "scancel: error: Kill job error on job id 987654: Invalid job id specified\n"
    )
    assert slurm("scancel", "-s", "USR1", "987654").status == 1


def test_scontrol_says_of_each_job_why_not(fake: FakeApi) -> None:
    ran = slurm("scontrol", "hold", "987654")
    assert (ran.status, ran.stderr) == (
        1,
        "Invalid job id specified for job 987654\nslurm_suspend error: Invalid job id specified\n",
    )
    ran = slurm("scontrol", "requeue", "987654")
    assert (ran.status, ran.stderr) == (1, "Invalid job id specified for job 987654\n")


def test_scontrol_update_changes_a_job(fake: FakeApi) -> None:
    slurm("scontrol", "update", "jobid=1", "timelimit=30")
    slurm("scontrol", "update", "job", "2", "TimeLimit=+1:00:00")
    slurm("scontrol", "update", "JobId=1", "Partition=long", "JobName=b", "nice=5")

    assert fake.acted == [
        a.AlterJob(ids=("1",), alteration=a.Alteration(resources=("walltime=0:30:00",))),
        a.AlterJob(ids=("2",), alteration=a.Alteration(resources=("walltime=93600",))),
        a.AlterJob(ids=("1",), alteration=a.Alteration(queue="long", name="b", priority=-5)),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["jobid=2", "timelimit=foo"], "scontrol: error: Invalid TimeLimit value\n"),
        (
            ["jobid=2", "foo=bar"],
            "Update of this parameter is not supported: foo=bar\nRequest aborted\n",
        ),
        (["jobid=987654", "timelimit=3"], "Invalid job id specified for job 987654\n"),
        (
            ["nodename=n1", "state=drain"],
            "You must specify a reason when DOWNING or DRAINING a node. Request denied\n",
        ),
        (
            ["foo=bar"],
            NO_ENTITY,
        ),
        ([], "too few arguments for update keyword\n"),
    ],
)
def test_scontrol_update_is_refused_in_slurms_words(
    fake: FakeApi,
    words: list[str],
    message: str,
) -> None:
    ran = slurm("scontrol", "update", *words)
    assert (ran.status, ran.stdout, ran.stderr) == (1, "", message)


def test_scontrol_update_drains_and_resumes_nodes(fake: FakeApi) -> None:
    assert slurm("scontrol", "update", "nodename=n[1-2]", "state=drain", "reason=a b").status == 0
    assert slurm("scontrol", "update", "nodename=n1", "state=resume").status == 0
    assert fake.acted == [
        a.DrainNode(nodes=("n1", "n2"), reason="a b"),
        a.ResumeNode(nodes=("n1",)),
    ]


def test_scontrol_shows_the_gpus_and_the_end_of_a_job(fake: FakeApi) -> None:
    fake.add(
        row(8, name="g", state="running", letter="R", nodes=("n1", "n2"), started_s=NOW_S,
            walltime_s=600.0, cpus=4, gpus=2, places=2, memory_bytes=8000 << 20, reason="")
    )  # fmt: skip
    shown = slurm("scontrol", "show", "jobid", "-dd", "8").stdout
    lines = [line.strip() for line in shown.splitlines()]
    assert lines[0] == "JobId=8 JobName=g"
    assert "TRES=cpu=4,mem=8000M,node=2,billing=4,gres/gpu=2" in lines
    assert "TresPerNode=gres:gpu:1" in lines
    assert "NodeList=n[1-2]" in lines
    assert "BatchHost=n1" in lines
    assert "EndTime=Unknown" not in shown
    assert "GroupId=" in shown
    assert "Command=" in shown


def test_scontrol_ping_version_and_config(fake: FakeApi) -> None:
    assert slurm("scontrol", "ping").stdout.startswith("Slurmctld(primary) at ")
    assert slurm("scontrol", "ping").stdout.endswith(" is UP\n")
    assert slurm("scontrol", "version").stdout == slurm("sbatch", "--version").stdout
    config = slurm("scontrol", "show", "config").stdout.splitlines()
    assert config[0].startswith("Configuration data as of 20")
    assert "ClusterName             = fake" in config


# --- sinfo, squeue, sacct ---


def test_sinfo_has_slurms_columns(fake: FakeApi) -> None:
    fake.nodes = [node("n1"), node("n2"), node("n3", jobs=(2,))]
    fake.queues["gpu"] = api.QueueRow(name="gpu", max_walltime_s=86400.0)
    assert slurm("sinfo").stdout == (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "batch*       up   infinite      1    mix n3\n"
        "batch*       up   infinite      2   idle n[1-2]\n"
        "gpu          up 1-00:00:00      1    mix n3\n"
        "gpu          up 1-00:00:00      2   idle n[1-2]\n"
    )
    assert slurm("sinfo", "-s").stdout == (
        "PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T) NODELIST\n"
        "batch*       up   infinite          1/2/0/3 n[1-3]\n"
        "gpu          up 1-00:00:00          1/2/0/3 n[1-3]\n"
    )
    assert slurm("sinfo", "-N", "-n", "n1").stdout == (
        "NODELIST   NODES PARTITION STATE \n"
        "n1             1    batch* idle  \n"
        "n1             1       gpu idle  \n"
    )
    dated, titles, line = slurm("sinfo", "-N", "-l", "-p", "gpu", "-n", "n1").stdout.splitlines()
    assert dated[:3] in {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}
    assert titles == (
        "NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE "
        "REASON              "
    )
    assert line.startswith("n1             1       gpu        idle 4       1:4:1 ")
    assert slurm("sinfo", "-p", "nope").stdout == (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
    )


def test_sinfo_shows_since_when_a_node_is_drained_and_by_whom(fake: FakeApi) -> None:
    fake.nodes = [
        node("n1", drained=True, reason="a fan", reason_s=NOW_S - 60, reason_by="alice"),
        node("n2", state="unreachable", reason="not connected", reason_s=NOW_S - 30),
    ]
    since = [slurm_time(NOW_S - ago_s) for ago_s in (60, 30)]

    assert slurm("sinfo", "-h", "-R").stdout.splitlines() == [
        f"a fan                alice     {since[0]} n1",
        f"not connected        root      {since[1]} n2",
    ]
    shown = slurm("scontrol", "show", "node", "n1").stdout
    assert f"Reason=a fan [alice@{since[0]}]" in shown


def test_squeue_has_slurms_long_columns(fake: FakeApi) -> None:
    _, titles, line = slurm("squeue", "-l", "-j", "1").stdout.splitlines()
    assert titles == (
        "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES "
        "NODELIST(REASON)"
    )
    assert line.startswith("                 1     batch    train    alice  PENDING       0:00 ")


def test_sacct_has_slurms_columns_and_cuts_words_with_a_plus(fake: FakeApi) -> None:
    memory = {"kind": "oom", "exit_status": 137, "shell_status": 137, "exit_code": 137}
    fake.add(row(9, name="train_resnet_long", account="lab", outcome=memory, nodes=("n1",)))
    assert slurm("sacct", "-j", "9").stdout == (
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
        "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
        "9            train_res+      batch        lab          1 OUT_OF_ME+    0:125 \n"
    )


def test_sacct_knows_every_field_of_slurm(fake: FakeApi) -> None:
    fake.add(row(9, outcome=OK, nodes=("n1", "n2"), gpus=2, cpus=4, places=2, memory_bytes=1 << 30))
    names = [name for line in slurm("sacct", "-e").stdout.splitlines() for name in line.split()]
    assert {"AllocTRES", "ReqTRES", "NTasks", "Priority", "WorkDir", "QOS"} <= set(names)
    ran = slurm("sacct", "-nPj9", "-o", ",".join(names))
    assert ran.status == 0
    values = dict(zip(names, ran.stdout.rstrip("\n").split("|"), strict=True))
    assert values["AllocTRES"] == "billing=4,cpu=4,gres/gpu=2,mem=1G,node=2"
    assert (values["QOS"], values["NodeList"]) == ("normal", "n[1-2]")
    assert values["WorkDir"].startswith("/")


def test_squeue_has_a_line_for_the_elements_that_wait(fake: FakeApi) -> None:
    """Those that are jobs by now, those that are none yet, and held ones; none is left out."""
    waits = ArrayRow(indices="0-9", elements=10, left="0-9", waiting=10)
    fake.add(row(7, array=waits))
    runs = ArrayRow(indices="0-9", elements=10, left="5-7", held="9", waiting=7, running=1)
    fake.add(row(8, state="running", letter="R", array=runs, started_s=NOW_S - 9))
    for index, state in ((0, "running"), (3, "queued"), (4, "queued")):
        started = {"started_s": NOW_S - 9, "nodes": ("n1",)} if state == "running" else {}
        fake.add(row(element_number(8, index), state=state, **started))
    over = ArrayRow(indices="0-1", elements=2, running=1, succeeded=1)
    fake.add(row(9, state="running", letter="R", array=over))

    ran = slurm("squeue", "-h", "-j", "7,8,9", "-o", "%i %t %M %K")

    assert ran.stdout.splitlines() == [
        "7_[0-9] PD 0:00 0-9",
        "8_[3-7,9] PD 0:00 3-7,9",
        "8_0 R 0:09 0",
    ]


def test_sacct_lists_each_element_once_in_the_order_of_submission(
    fake: FakeApi,
) -> None:
    fake.stories.clear()
    counts = ArrayRow(indices="0-2", elements=3, left="2", waiting=1, succeeded=1, failed=1)
    fake.add(row(7, state="running", letter="R", array=counts, user="alice"))
    fake.add(row(9, outcome=OK, user="alice"))
    from gsched.model.ids import element_number

    for index, outcome in ((0, OK), (1, BAD)):
        fake.add(row(element_number(7, index), outcome=outcome, user="alice"))

    ran = slurm("sacct", "-anP", "-o", "JobID,State")

    assert ran.stdout.split() == ["7_0|COMPLETED", "7_1|FAILED", "7_[2]|PENDING", "9|COMPLETED"]


@pytest.mark.parametrize("kind", ["pmi2", "pmix", "pmix_v4"])
def test_srun_without_pmi_refuses_to_start_programs_of_one_rank(
    fake: FakeApi,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "2")
    ran = slurm("srun", "-n2", f"--mpi={kind}", "true")
    assert ran.status == 1
    assert f"srun: error: --mpi={kind}: steps have no PMI" in ran.stderr
    assert "start it with mpirun or mpiexec" in ran.stderr
    assert slurm("srun", "--mpi=list").stdout == "MPI plugin types are...\n\tnone\n"
